//! The protocol of `ring` under the model checker loom, which tries the orders in which two threads can see each other's
//! accesses to memory. Lines are cells that may not be read and written at the same time; a lost wake-up is a deadlock,
//! which loom finds.

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};

use super::ring::{Board, Boards, FLAG_BYTES, LINE_BYTES, Reader, Side, Sleeper, Word, Writer};
use crate::error::Cause;
use crate::link::Interest;

const LINES: u32 = 4;
const RECEIVE: Interest = Interest { receive: true, send: false };
const SEND: Interest = Interest { receive: false, send: true };

/// One direction. What a byte is does not matter to the protocol, so that a line's bytes are one cell that holds the first.
struct Model {
    flags: [AtomicU64; LINES as usize],
    lines: [UnsafeCell<u8>; LINES as usize],
    tail: AtomicU32,
}

impl Model {
    fn new(position: u32) -> Self {
        Self {
            flags: std::array::from_fn(|_| AtomicU64::new(0)),
            lines: std::array::from_fn(|_| UnsafeCell::new(0)),
            tail: AtomicU32::new(position),
        }
    }

    /// The position of each line that bytes of a segment lie on, with the first of these bytes.
    fn touched(position: u32, offset: usize, length: usize) -> impl Iterator<Item = (u32, usize)> {
        let (start, end) = (FLAG_BYTES + offset, FLAG_BYTES + offset + length);
        (start / LINE_BYTES..=(end - 1) / LINE_BYTES)
            .map(move |line| (position.wrapping_add(line as u32), (line * LINE_BYTES).max(start) - start))
    }

    fn cell(&self, position: u32) -> &UnsafeCell<u8> {
        &self.lines[(position % LINES) as usize]
    }
}

impl Board for Model {
    type Flag = AtomicU64;
    type Position = AtomicU32;

    fn lines(&self) -> u32 {
        LINES
    }

    fn flag(&self, position: u32) -> &AtomicU64 {
        &self.flags[(position % LINES) as usize]
    }

    fn tail(&self) -> &AtomicU32 {
        &self.tail
    }

    fn copy_in(&self, position: u32, offset: usize, bytes: &[u8]) {
        for (line, first) in Self::touched(position, offset, bytes.len()) {
            self.cell(line).with_mut(|cell| assign(cell, bytes[first]));
            if line != position {
                // Bytes that look like the flag of a segment on that line, which is the worst that they can look like.
                self.flag(line).store(u64::from(line) << 32 | 1, Ordering::Relaxed);
            }
        }
    }

    fn copy_out(&self, position: u32, offset: usize, bytes: &mut [u8]) {
        for (line, first) in Self::touched(position, offset, bytes.len()) {
            bytes[first] = self.cell(line).with(fetch);
        }
    }
}

#[allow(unsafe_code)]
fn assign(cell: *mut u8, value: u8) {
    // SAFETY: loom hands out the pointer to its own cell, and has checked that nobody else uses it.
    unsafe { *cell = value };
}

#[allow(unsafe_code)]
fn fetch(cell: *const u8) -> u8 {
    // SAFETY: as in `assign`.
    unsafe { *cell }
}

impl Word<u64> for AtomicU64 {
    fn load(&self, ordering: Ordering) -> u64 {
        self.load(ordering)
    }

    fn store(&self, value: u64, ordering: Ordering) {
        self.store(value, ordering);
    }
}

impl Word<u32> for AtomicU32 {
    fn load(&self, ordering: Ordering) -> u32 {
        self.load(ordering)
    }

    fn store(&self, value: u32, ordering: Ordering) {
        self.store(value, ordering);
    }
}

/// A futex as the system makes it: it compares and goes to sleep in one step, as seen by who wakes.
struct Futex {
    waiting: AtomicU32,
    bell: AtomicU32,
    queue: Mutex<()>,
    woken: Condvar,
}

impl Futex {
    fn new() -> Self {
        let (waiting, bell) = (AtomicU32::new(0), AtomicU32::new(0));
        Self { waiting, bell, queue: Mutex::new(()), woken: Condvar::new() }
    }
}

impl Sleeper for Futex {
    type Word = AtomicU32;

    fn waiting(&self) -> &AtomicU32 {
        &self.waiting
    }

    fn bell(&self) -> &AtomicU32 {
        &self.bell
    }

    /// Sleeps without an end, so that a lost wake-up shows.
    fn sleep(&self, seen: u32, _at_most: Duration) -> Result<(), Cause> {
        let queue = self.queue.lock().unwrap();
        if self.bell.load(Ordering::Relaxed) == seen {
            drop(self.woken.wait(queue).unwrap());
        }
        Ok(())
    }

    fn wake(&self) {
        let _queue = self.queue.lock().unwrap();
        self.woken.notify_one();
    }

    /// All threads of a model run at once.
    fn note_core(&self) {}

    fn barrier() {
        fence(Ordering::SeqCst);
    }
}

/// What both sides share.
struct Pair {
    rings: [Model; 2],
    sleepers: [Futex; 2],
}

impl Pair {
    fn new(position: u32) -> Self {
        Self { rings: [Model::new(position), Model::new(position)], sleepers: [Futex::new(), Futex::new()] }
    }

    fn boards(&self, side: usize) -> Boards<'_, Model, Futex> {
        Boards {
            out: &self.rings[side],
            into: &self.rings[1 - side],
            own: &self.sleepers[side],
            other: &self.sleepers[1 - side],
        }
    }
}

/// Checks all orders with up to so many moments at which a thread has to give way.
fn check(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

/// Starts near the end of all positions, so that they wrap around.
const POSITION: u32 = u32::MAX - 1;

/// Sends segments of these sizes and receives them on another thread; both sleep whenever they can do nothing.
fn transfer(sizes: &'static [usize]) {
    let pair = Arc::new(Pair::new(POSITION));
    let other = pair.clone();
    let sender = loom::thread::spawn(move || {
        let boards = other.boards(0);
        let mut side = Side { writer: Writer::at(POSITION), reader: Reader::at(POSITION) };
        for (index, &size) in sizes.iter().enumerate() {
            let bytes = vec![index as u8 + 1; size];
            let mut sent = 0;
            while sent < size {
                let count = side.send(&boards, &[IoSlice::new(&bytes[sent..])]).unwrap();
                if count == 0 {
                    side.rest(&boards, SEND, Duration::MAX).unwrap();
                }
                sent += count;
            }
        }
    });
    let boards = pair.boards(1);
    let mut side = Side { writer: Writer::at(POSITION), reader: Reader::at(POSITION) };
    for (index, &size) in sizes.iter().enumerate() {
        let mut received = 0;
        while received < size {
            let mut bytes = vec![0; size - received];
            let count = side.receive(&boards, &mut [IoSliceMut::new(&mut bytes)]).unwrap();
            if count == 0 {
                side.rest(&boards, RECEIVE, Duration::MAX).unwrap();
            } else {
                assert_eq!(bytes[0], index as u8 + 1);
            }
            received += count;
        }
    }
    sender.join().unwrap();
}

#[test]
fn a_reader_that_sleeps_is_woken_up() {
    check(4, || transfer(&[1]));
}

#[test]
fn segments_arrive_in_order_and_never_pass_for_flags() {
    check(3, || transfer(&[130, 1]));
}

#[test]
fn a_writer_without_room_is_woken_up() {
    check(2, || transfer(&[300, 300, 1]));
}

#[test]
fn both_sides_at_once() {
    check(2, || {
        let pair = Arc::new(Pair::new(0));
        let exchange = |pair: &Pair, number: usize| {
            let boards = pair.boards(number);
            let mut side = Side::default();
            assert_eq!(side.send(&boards, &[IoSlice::new(&[number as u8 + 1])]).unwrap(), 1);
            let mut byte = [0];
            while side.receive(&boards, &mut [IoSliceMut::new(&mut byte)]).unwrap() == 0 {
                side.rest(&boards, RECEIVE, Duration::MAX).unwrap();
            }
            assert_eq!(byte, [2 - number as u8]);
        };
        let other = pair.clone();
        let thread = loom::thread::spawn(move || exchange(&other, 0));
        exchange(&pair, 1);
        thread.join().unwrap();
    });
}
