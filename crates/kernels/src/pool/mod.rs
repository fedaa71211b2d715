//! Threads that wait for the next operation of a step, which usually comes within microseconds.
//!
//! The pool's whole state is one atomic word: the number of the current job and how many shares of it were handed out.
//! A worker takes a share by raising that count, so a share whose worker sleeps, or whose core is busy with another
//! process, is simply taken by whoever is free, in the end by the caller. Idle workers spin for some microseconds and
//! then sleep. Whoever is done with its own portions of a job helps the others with theirs (`portions.rs`).

mod bell;
mod portions;
mod shared;

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

pub(crate) use portions::Portions;
pub(crate) use shared::{Pieces, SharedValues};

use crate::KernelError;
use bell::Bell;
use portions::Taken;

/// How long an idle thread spins before it sleeps. Waking a sleeper costs some 10 µs, so spinning longer than a few
/// times that gains little, and takes the core from whoever else wants it.
const SPIN: Duration = Duration::from_micros(40);
/// An absurd number of threads is a mistake, not a wish.
const MAX_THREADS: usize = 1024;
/// The low bits of the state count the shares that were handed out; the rest is the job's number.
const SHARE_BITS: u32 = 16;
const SHARE_MASK: u64 = (1 << SHARE_BITS) - 1;

/// A fixed number of threads, the caller being one of them.
pub struct Pool {
    inner: Arc<Inner>,
    workers: Vec<JoinHandle<()>>,
    /// Held while a job runs: a pool runs one at a time.
    running: Mutex<()>,
}

/// What the caller and the workers share.
struct Inner {
    threads: usize,
    current: CacheLine<Current>,
    /// Shares of the current job that workers have ended.
    finished: CacheLine<AtomicUsize>,
    /// For each share the portions of it that are taken.
    taken: Vec<CacheLine<Taken>>,
    /// Rings when there is work, or none ever again.
    work: Bell,
    /// Rings when a job has ended.
    end: Bell,
    stop: AtomicBool,
    /// What the first share that panicked said.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// What a worker reads when it takes a share, in one cache line.
struct Current {
    /// Job number and count of shares handed out. A job with all shares handed out is no work for anyone.
    state: AtomicU64,
    job: JobSlot,
}

/// Keeps what one thread writes all the time off the memory that another one watches.
#[repr(align(128))]
struct CacheLine<T>(T);

type Job<'a> = &'a (dyn Fn(usize) + Sync);

/// The job that runs. Written by the caller before it publishes the job in `state`, read by threads that took a share.
struct JobSlot(UnsafeCell<Option<Job<'static>>>);

// SAFETY: the slot is written only by the holder of `Pool::running`, while no share of a job is handed out and not ended,
// and read only by threads that hold such a share. Taking a share synchronizes with the publication of its job.
#[allow(unsafe_code)]
unsafe impl Sync for JobSlot {}

impl Pool {
    /// A pool of `threads` threads, of which the caller is one: `Pool::new(1)` starts none.
    ///
    /// # Errors
    /// When `threads` is 0 or absurdly large, or the system refuses a thread.
    pub fn new(threads: usize) -> Result<Pool, KernelError> {
        if threads == 0 || threads > MAX_THREADS {
            return Err(KernelError::ThreadCount { threads, maximum: MAX_THREADS });
        }
        // With more threads than cores, a spinning thread only keeps a working one from its core.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = if threads > cores { Duration::ZERO } else { SPIN };
        let inner = Arc::new(Inner {
            threads,
            current: CacheLine(Current { state: AtomicU64::new(threads as u64), job: JobSlot(UnsafeCell::new(None)) }),
            finished: CacheLine(AtomicUsize::new(0)),
            taken: (0..threads).map(|_| CacheLine(Taken::default())).collect(),
            work: Bell::new(spin),
            end: Bell::new(spin),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut pool = Pool { inner, workers: Vec::with_capacity(threads - 1), running: Mutex::new(()) };
        for worker in 1..threads {
            let inner = Arc::clone(&pool.inner);
            let thread = std::thread::Builder::new().name(format!("kernels-{worker}"));
            match thread.spawn(move || inner.work()) {
                Ok(handle) => pool.workers.push(handle),
                Err(source) => return Err(KernelError::Spawn { worker, source }),
            }
        }
        Ok(pool)
    }

    /// The number of threads, the caller included.
    pub fn threads(&self) -> usize {
        self.inner.threads
    }

    /// Calls `f(0)` to `f(threads - 1)`, usually each on a thread of its own, and returns when all have returned. One
    /// thread may make several of the calls, one after the other, so they must not wait for each other.
    ///
    /// A call made while another one runs, also from within `f`, makes all its calls on the calling thread.
    ///
    /// # Panics
    /// When `f` panics; the panic of the first share that did is passed on, after all shares have ended.
    pub fn run(&self, f: &(dyn Fn(usize) + Sync)) {
        match self.enter() {
            Some(guard) => self.run_job(guard, f),
            None => (0..self.inner.threads).for_each(f),
        }
    }

    /// Shares out portions 0 to `count - 1`: each call of `f` is given some, one after the other, until all are taken. Each
    /// thread begins with a run of its own, so that it reads on where it stands, and then takes what others have not begun.
    ///
    /// # Panics
    /// As [`Pool::run`], or when there are more than 2^24 portions.
    pub(crate) fn share_out(&self, count: usize, f: &(dyn Fn(Portions<'_>) + Sync)) {
        match self.enter() {
            Some(guard) => {
                let job = self.inner.next_job();
                self.run_job(guard, &|share| f(Portions::of_share(&self.inner.taken, job, share, count)));
            }
            None => f(Portions::all(count)),
        }
    }

    /// The right to run a job on all threads, if there are several and none runs yet.
    fn enter(&self) -> Option<MutexGuard<'_, ()>> {
        if self.workers.is_empty() { None } else { self.running.try_lock().ok() }
    }

    fn run_job(&self, guard: MutexGuard<'_, ()>, f: Job<'_>) {
        let job = self.inner.publish(f);
        self.inner.run_share(0);
        let mut own = 1;
        while let Some(share) = self.inner.take_share(Some(job)) {
            self.inner.run_share(share);
            own += 1;
        }
        self.inner.end.wait_until(|| self.inner.finished.0.load(Ordering::SeqCst) + own == self.inner.threads);
        let panic = lock(&self.inner.panic).take();
        drop(guard);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Calls `f` with each piece of `piece_length` values of `data` (the last may be shorter) and its index, on all threads
    /// if there is more than one piece.
    pub fn for_each_piece<T: Send>(&self, data: &mut [T], piece_length: usize, f: impl Fn(usize, &mut [T]) + Sync) {
        if data.len() <= piece_length {
            return data.chunks_mut(piece_length).for_each(|piece| f(0, piece));
        }
        let pieces = Pieces::new(data, piece_length);
        self.run(&|_| {
            while let Some((index, piece)) = pieces.take() {
                f(index, piece);
            }
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.inner.stop.store(true, Ordering::SeqCst);
        self.inner.work.ring();
        for worker in self.workers.drain(..) {
            // A worker catches every panic of a job, so there is nothing to report here.
            let _ = worker.join();
        }
    }
}

impl Inner {
    /// A worker's life.
    fn work(&self) {
        let stopped = || self.stop.load(Ordering::SeqCst);
        while !stopped() {
            match self.take_share(None) {
                Some(share) => {
                    self.run_share(share);
                    self.finished.0.fetch_add(1, Ordering::SeqCst);
                    self.end.ring();
                }
                None => self.work.wait_until(|| self.has_work() || stopped()),
            }
        }
    }

    /// The number of the job that is published next.
    fn next_job(&self) -> u64 {
        self.current.0.state.load(Ordering::Relaxed).wrapping_add(1 << SHARE_BITS) >> SHARE_BITS
    }

    /// Makes `f` the current job, of which the caller has taken share 0, and wakes whoever sleeps. Returns its number.
    fn publish(&self, f: Job<'_>) -> u64 {
        // SAFETY: this only forgets the lifetime of `f`. `Pool::run` returns after all shares have ended, and nobody
        // touches the job after the end of the last share.
        #[allow(unsafe_code)]
        let f = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(f) };
        // SAFETY: the caller holds `Pool::running` and all shares of the previous job have ended, so nobody reads the slot.
        #[allow(unsafe_code)]
        unsafe {
            *self.current.0.job.0.get() = Some(f);
        }
        self.finished.0.store(0, Ordering::Relaxed);
        let job = self.next_job();
        self.current.0.state.store(job << SHARE_BITS | 1, Ordering::SeqCst);
        self.work.ring();
        job
    }

    fn has_work(&self) -> bool {
        self.current.0.state.load(Ordering::SeqCst) & SHARE_MASK < self.threads as u64
    }

    /// Takes the next share of the current job, if there is one left (and the job is number `job`, if given).
    fn take_share(&self, job: Option<u64>) -> Option<usize> {
        let mut state = self.current.0.state.load(Ordering::Acquire);
        loop {
            let share = state & SHARE_MASK;
            if share >= self.threads as u64 || job.is_some_and(|job| job != state >> SHARE_BITS) {
                return None;
            }
            match self.current.0.state.compare_exchange_weak(state, state + 1, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(share as usize),
                Err(current) => state = current,
            }
        }
    }

    /// Runs one share that this thread took, whose end it has to count.
    fn run_share(&self, share: usize) {
        // SAFETY: this thread holds a share of the job, so the job cannot end, nor the slot change, before it counts its end.
        #[allow(unsafe_code)]
        let job = unsafe { *self.current.0.job.0.get() };
        if let Some(job) = job
            && let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(share)))
        {
            lock(&self.panic).get_or_insert(panic);
        }
    }
}

/// Locks a mutex that guards data which no panic can leave half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_share_runs_once() {
        for threads in [1, 2, 3, 7] {
            let pool = Pool::new(threads).unwrap();
            for _ in 0..500 {
                let counts: Vec<_> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
                pool.run(&|worker| {
                    counts[worker].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn sleeping_workers_wake() {
        let pool = Pool::new(3).unwrap();
        for _ in 0..5 {
            // Long enough for all to sleep; the outcome does not depend on whether they do.
            std::thread::sleep(Duration::from_millis(2));
            let sum = AtomicUsize::new(0);
            pool.run(&|worker| {
                sum.fetch_add(worker + 1, Ordering::Relaxed);
            });
            assert_eq!(sum.load(Ordering::Relaxed), 6);
        }
    }

    #[test]
    fn panics_reach_the_caller_and_leave_the_pool_usable() {
        let pool = Pool::new(2).unwrap();
        for failing in 0..2 {
            let outcome =
                catch_unwind(AssertUnwindSafe(|| pool.run(&|worker| assert!(worker != failing, "share failed"))));
            assert!(outcome.is_err());
        }
        let sum = AtomicUsize::new(0);
        pool.run(&|_| {
            sum.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn nested_and_concurrent_runs_end() {
        let pool = Pool::new(2).unwrap();
        let sum = AtomicUsize::new(0);
        let nested = |_| {
            pool.run(&|_| {
                sum.fetch_add(1, Ordering::Relaxed);
            });
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..100).for_each(|_| pool.run(&nested)));
            }
        });
        assert_eq!(sum.load(Ordering::Relaxed), 2 * 100 * 2 * 2);
    }

    #[test]
    fn absurd_thread_counts_are_errors() {
        assert!(matches!(Pool::new(0), Err(KernelError::ThreadCount { .. })));
        assert!(matches!(Pool::new(1 << 20), Err(KernelError::ThreadCount { .. })));
    }
}
