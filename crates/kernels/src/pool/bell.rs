//! Waiting for a change that usually comes within microseconds.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where threads wait for a condition: they spin for a while, then sleep until the bell rings.
///
/// Ringing costs one atomic operation when nobody sleeps, and one system call for all who do. A sleeper that was rung for
/// does not count any more, so that ringing again before it gets a core costs nothing either.
pub(super) struct Bell {
    /// How long to spin.
    spin: Duration,
    /// Threads that went to sleep, or are about to, since the bell rang last.
    sleepers: AtomicUsize,
    /// Guards nothing but the step from deciding to sleep to sleeping.
    door: Mutex<()>,
    wake: Condvar,
}

impl Bell {
    pub(super) fn new(spin: Duration) -> Bell {
        Bell { spin, sleepers: AtomicUsize::new(0), door: Mutex::new(()), wake: Condvar::new() }
    }

    /// Returns once `ready` holds. `ready` must look at memory with sequentially consistent loads.
    pub(super) fn wait_until(&self, ready: impl Fn() -> bool) {
        let mut since = None;
        loop {
            for _ in 0..32 {
                if ready() {
                    return;
                }
                std::hint::spin_loop();
            }
            if since.get_or_insert_with(Instant::now).elapsed() >= self.spin {
                break;
            }
        }
        let mut guard = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            // Either `ring` sees this count, or `ready` sees the change that came before `ring`.
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            if ready() {
                return;
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes all who sleep, so that they look again. Call it after the change that they wait for, which must be made with a
    /// sequentially consistent store.
    pub(super) fn ring(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 && self.sleepers.swap(0, Ordering::SeqCst) > 0 {
            // A thread that counted itself but does not sleep yet holds the door.
            drop(self.door.lock().unwrap_or_else(PoisonError::into_inner));
            self.wake.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_oversleeps() {
        for spin in [Duration::ZERO, Duration::from_micros(20)] {
            let (there, back) = (Bell::new(spin), Bell::new(spin));
            let turn = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for i in 0..2000 {
                        there.wait_until(|| turn.load(Ordering::SeqCst) == 2 * i + 1);
                        turn.store(2 * i + 2, Ordering::SeqCst);
                        back.ring();
                    }
                });
                for i in 0..2000 {
                    turn.store(2 * i + 1, Ordering::SeqCst);
                    there.ring();
                    back.wait_until(|| turn.load(Ordering::SeqCst) == 2 * i + 2);
                }
            });
            assert_eq!(turn.into_inner(), 4000);
        }
    }
}
