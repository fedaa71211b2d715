//! A link through memory that two processes of one host share: one ring of bytes in each direction.
//!
//! Each ring has one writer, which alone moves its head, and one reader, which alone moves its tail; both only grow, and
//! wrap around after 2^32. Head and tail lie on cache lines of their own. Each side keeps its own copy of what it
//! moves, and believes of what the other side moves only what can be: anything else is an error, so that a broken or
//! hostile neighbour can make this side fail but never touch memory outside the ring.
//!
//! A side that sleeps says in `waiting` what for, looks once more, and then sleeps on its `bell`. The other side looks
//! at `waiting` after each move, and rings. Barriers on both sides make sure that at least one of them sees the other.
//!
//! Rings do not tell whether the other side is alive: that is what the pair's lifeline is for.

// This is the one file of the crate that maps and touches shared memory.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::shared_file::SharedFile;
use super::{Interest, Link, Transport, Watched};
use crate::error::Cause;

/// Bytes of one ring, a power of two.
const RING_BYTES: u32 = 1 << 20;
/// The rings start behind a page of heads, tails and bells.
const CONTROL_BYTES: usize = 4096;
/// A long message is moved in portions of this many bytes, so that the other side can start with the first of them.
const PORTION_BYTES: usize = 64 << 10;
/// A writer that sleeps for lack of room sleeps until this much of the ring is free.
const ROOM_BYTES: u32 = RING_BYTES / 2;

/// Bits of `waiting`.
const FOR_DATA: u32 = 1;
const FOR_ROOM: u32 = 2;

/// Keeps what different sides write off each other's cache lines; two lines, as processors fetch them in pairs.
#[repr(C, align(128))]
struct Line<T>(T);

/// The state of one ring.
#[repr(C)]
struct Ring {
    /// Bytes ever written; moved by the writer.
    head: Line<AtomicU32>,
    /// Bytes ever read; moved by the reader.
    tail: Line<AtomicU32>,
}

/// How one side sleeps.
#[repr(C)]
struct Sleeper {
    /// What it waits for, or 0 when it is awake.
    waiting: AtomicU32,
    /// Counts the times that the other side has rung.
    bell: AtomicU32,
}

/// The first page. Zeros are its valid first state.
#[repr(C)]
struct ControlPage {
    rings: [Ring; 2],
    sleepers: [Line<Sleeper>; 2],
}

const _: () = assert!(size_of::<ControlPage>() <= CONTROL_BYTES && RING_BYTES.is_power_of_two());

/// The mapped memory of a pair.
pub(super) struct Mapping {
    base: NonNull<u8>,
}

// SAFETY: the mapping is memory like any other; nothing about it belongs to the thread that made it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Bytes of the file: the control page and two rings.
    pub(super) const BYTES: usize = CONTROL_BYTES + 2 * RING_BYTES as usize;

    /// Maps a file of [`Mapping::BYTES`] bytes.
    pub(super) fn new(file: &File) -> io::Result<Self> {
        if file.metadata()?.len() != Self::BYTES as u64 {
            return Err(io::Error::other("the file of shared memory has the wrong size"));
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // The first message should not have to wait for page faults.
        #[cfg(target_os = "linux")]
        let flags = flags | MapFlags::POPULATE;
        // SAFETY: the system chooses an address where nothing else is, and the file is as long as the map. That it stays
        // so long is up to the two processes, which have the same owner and have authenticated each other; its name
        // is gone once both have mapped it.
        let base = unsafe { mmap(std::ptr::null_mut(), Self::BYTES, protection, flags, file, 0)? };
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(Self { base })
    }

    fn control(&self) -> &ControlPage {
        // SAFETY: the map is page-aligned, longer than the control page, and lives as long as `self`. The control page is
        // made of atomics only, which any process may change at any time and for which any bits are valid.
        unsafe { self.base.cast::<ControlPage>().as_ref() }
    }

    /// The start of a ring's bytes.
    fn ring_base(&self, ring: usize) -> *mut u8 {
        assert!(ring < 2);
        // SAFETY: both rings lie within the map, as `BYTES` is the control page and two rings.
        unsafe { self.base.as_ptr().add(CONTROL_BYTES + ring * RING_BYTES as usize) }
    }

    /// Copies `bytes` into a ring from `position` on, around its end if need be.
    fn copy_in(&self, ring: usize, position: u32, bytes: &[u8]) {
        let (start, first) = split(position, bytes.len());
        let base = self.ring_base(ring);
        // SAFETY: `split` gives `start + first <= RING_BYTES` and `bytes.len() <= RING_BYTES`, so that both copies stay
        // within the ring and within `bytes`, which cannot overlap the map as no reference into the rings ever exists.
        // The reader does not read these bytes before it sees the head move; should it do so against the protocol, it
        // gets wrong bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), base.add(start), first);
            std::ptr::copy_nonoverlapping(bytes.as_ptr().add(first), base, bytes.len() - first);
        }
    }

    /// Copies bytes out of a ring from `position` on.
    fn copy_out(&self, ring: usize, position: u32, bytes: &mut [u8]) {
        let (start, first) = split(position, bytes.len());
        let base = self.ring_base(ring);
        // SAFETY: as in `copy_in`, with source and target exchanged. A writer that writes here against the protocol
        // makes the bytes wrong, and any bytes are valid.
        unsafe {
            std::ptr::copy_nonoverlapping(base.add(start), bytes.as_mut_ptr(), first);
            std::ptr::copy_nonoverlapping(base, bytes.as_mut_ptr().add(first), bytes.len() - first);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the map made in `new`, and nothing that borrows from it outlives `self`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), Self::BYTES) };
        debug_assert!(unmapped.is_ok(), "the system refuses to unmap what it has mapped");
    }
}

/// Where in a ring a position lies, and how many of `length` bytes fit before the ring's end.
fn split(position: u32, length: usize) -> (usize, usize) {
    assert!(length <= RING_BYTES as usize);
    let start = (position % RING_BYTES) as usize;
    (start, length.min(RING_BYTES as usize - start))
}

/// One side of a pair.
pub(crate) struct SharedMemoryLink {
    mapping: Mapping,
    /// The ring that this side writes, and its place among the sleepers. The other side has the other.
    side: usize,
    /// This side's own position in the ring it writes.
    head: u32,
    /// The other side's position in that ring, when last looked.
    tail_seen: u32,
    /// This side's own position in the ring it reads.
    tail: u32,
}

impl SharedMemoryLink {
    /// The side that created the memory.
    pub(crate) fn acceptor(memory: SharedFile) -> Self {
        Self::new(memory, 0)
    }

    /// The side that opened it.
    pub(crate) fn dialer(memory: SharedFile) -> Self {
        Self::new(memory, 1)
    }

    fn new(memory: SharedFile, side: usize) -> Self {
        Self { mapping: memory.into_mapping(), side, head: 0, tail_seen: 0, tail: 0 }
    }

    fn other(&self) -> usize {
        1 - self.side
    }

    fn sleeper(&self) -> &Sleeper {
        &self.mapping.control().sleepers[self.side].0
    }

    /// Bytes that can be read.
    fn available(&self) -> Result<u32, Cause> {
        let head = self.mapping.control().rings[self.other()].head.0.load(Ordering::Acquire);
        let available = head.wrapping_sub(self.tail);
        if available > RING_BYTES {
            return Err(Cause::corrupt(format!("{available} bytes in a ring of {RING_BYTES}")));
        }
        Ok(available)
    }

    /// Bytes that can be written, by what is known of the other side's position.
    fn room_known(&self) -> u32 {
        RING_BYTES - self.head.wrapping_sub(self.tail_seen)
    }

    /// Looks at the other side's position.
    fn look_for_room(&mut self) -> Result<u32, Cause> {
        let tail = self.mapping.control().rings[self.side].tail.0.load(Ordering::Acquire);
        let used = self.head.wrapping_sub(tail);
        if used > RING_BYTES {
            return Err(Cause::corrupt(format!("{used} bytes left unread of a ring of {RING_BYTES}")));
        }
        self.tail_seen = tail;
        Ok(RING_BYTES - used)
    }

    /// Wakes the other side up if it waits for what has just been done.
    fn ring(&self, what: u32) {
        // The move must be visible before the look at `waiting`: see `rest`.
        fence(Ordering::SeqCst);
        let sleeper = &self.mapping.control().sleepers[self.other()].0;
        if sleeper.waiting.load(Ordering::Relaxed) & what != 0 {
            sleeper.waiting.store(0, Ordering::Relaxed);
            sleeper.bell.fetch_add(1, Ordering::Release);
            wake(&sleeper.bell);
        }
    }

    /// Whether there is something to do.
    fn is_ready(&mut self, interest: Interest) -> Result<bool, Cause> {
        Ok(interest.receive && self.available()? > 0 || interest.send && self.look_for_room()? >= ROOM_BYTES)
    }
}

impl Link for SharedMemoryLink {
    fn try_send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize, Cause> {
        let wanted = parts.iter().map(|part| part.len()).sum::<usize>().min(PORTION_BYTES);
        let mut room = self.room_known() as usize;
        if room < wanted {
            room = self.look_for_room()? as usize;
        }
        let mut left = wanted.min(room);
        let start = self.head;
        for part in parts {
            let count = part.len().min(left);
            self.mapping.copy_in(self.side, self.head, &part[..count]);
            // At most a portion, which fits.
            self.head = self.head.wrapping_add(count as u32);
            left -= count;
        }
        if self.head != start {
            self.mapping.control().rings[self.side].head.0.store(self.head, Ordering::Release);
            self.ring(FOR_DATA);
        }
        Ok(self.head.wrapping_sub(start) as usize)
    }

    fn try_recv(&mut self, parts: &mut [IoSliceMut<'_>]) -> Result<usize, Cause> {
        let available = self.available()? as usize;
        if available == 0 {
            return Ok(0);
        }
        let mut left = available.min(PORTION_BYTES);
        let start = self.tail;
        for part in parts {
            let count = part.len().min(left);
            self.mapping.copy_out(self.other(), self.tail, &mut part[..count]);
            self.tail = self.tail.wrapping_add(count as u32);
            left -= count;
        }
        let count = self.tail.wrapping_sub(start);
        if count > 0 {
            self.mapping.control().rings[self.other()].tail.0.store(self.tail, Ordering::Release);
            // A writer without room sleeps until it is worth while to wake up.
            if available as u32 - count <= RING_BYTES - ROOM_BYTES {
                self.ring(FOR_ROOM);
            }
        }
        Ok(count as usize)
    }

    fn is_readable(&mut self) -> Result<bool, Cause> {
        Ok(self.available()? > 0)
    }

    fn rest(&mut self, interest: Interest, at_most: Duration) -> Result<bool, Cause> {
        let what = if interest.receive { FOR_DATA } else { 0 } | if interest.send { FOR_ROOM } else { 0 };
        let bell = self.sleeper().bell.load(Ordering::Acquire);
        self.sleeper().waiting.store(what, Ordering::Relaxed);
        // Either the other side sees `waiting` after its move, or this side sees the move after having set it.
        fence(Ordering::SeqCst);
        if !self.is_ready(interest)? {
            wait(&self.sleeper().bell, bell, at_most)?;
        }
        self.sleeper().waiting.store(0, Ordering::Relaxed);
        self.is_ready(interest)
    }

    fn watch<'a>(&'a self, _interest: Interest, _sockets: &mut Watched<'a>) {}

    fn transport(&self) -> Transport {
        Transport::SharedMemory
    }
}

/// Sleeps while the bell has been rung `seen` times, at most for `at_most`.
#[cfg(target_os = "linux")]
fn wait(bell: &AtomicU32, seen: u32, at_most: Duration) -> Result<(), Cause> {
    use rustix::io::Errno;
    use rustix::thread::futex;
    match futex::wait(bell, futex::Flags::empty(), seen, Some(&crate::timed::timespec(at_most))) {
        Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(target_os = "linux")]
fn wake(bell: &AtomicU32) {
    use rustix::thread::futex;
    // The bell is there, which is all that this could fail for.
    let _ = futex::wake(bell, futex::Flags::empty(), 1);
}

/// Without a futex between processes, sleep means to look again a little later.
#[cfg(not(target_os = "linux"))]
fn wait(_bell: &AtomicU32, _seen: u32, at_most: Duration) -> Result<(), Cause> {
    std::thread::sleep(at_most.min(Duration::from_micros(100)));
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn wake(_bell: &AtomicU32) {}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (SharedMemoryLink, SharedMemoryLink) {
        let memory = SharedFile::create().unwrap();
        let same = SharedFile::open(memory.name());
        memory.unlink();
        (SharedMemoryLink::acceptor(memory), SharedMemoryLink::dialer(same.unwrap()))
    }

    #[test]
    fn positions_wrap_around() {
        let (mut a, mut b) = pair();
        // As after nearly 4 GiB of traffic.
        let position = u32::MAX - 1000;
        for ring in &a.mapping.control().rings {
            ring.head.0.store(position, Ordering::Relaxed);
            ring.tail.0.store(position, Ordering::Relaxed);
        }
        for link in [&mut a, &mut b] {
            (link.head, link.tail_seen, link.tail) = (position, position, position);
        }
        for round in 0..100u8 {
            assert_eq!(a.try_send(&[IoSlice::new(&[round; 777])]).unwrap(), 777);
            let mut received = [0; 800];
            assert_eq!(b.try_recv(&mut [IoSliceMut::new(&mut received)]).unwrap(), 777);
            assert!(received[..777].iter().all(|&byte| byte == round));
        }
    }

    #[test]
    fn a_full_ring_takes_no_more() {
        let (mut a, mut b) = pair();
        let bytes = vec![1; RING_BYTES as usize];
        let mut taken = 0;
        loop {
            match a.try_send(&[IoSlice::new(&bytes)]).unwrap() {
                0 => break,
                count => taken += count,
            }
        }
        assert_eq!(taken, RING_BYTES as usize);
        assert!(!a.rest(Interest { receive: true, send: true }, Duration::from_millis(1)).unwrap());
        let mut target = vec![0; 10];
        assert_eq!(b.try_recv(&mut [IoSliceMut::new(&mut target)]).unwrap(), 10);
        assert_eq!(a.try_send(&[IoSlice::new(&bytes)]).unwrap(), 10);
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config::with_cases(64))]
        /// Whatever a neighbour writes into the control page, calls end with bytes or an error.
        #[test]
        fn a_hostile_neighbour_does_no_harm(words in proptest::collection::vec(proptest::num::u32::ANY, 6 * 8)) {
            let (mut a, b) = pair();
            let mut target = vec![0; 100_000];
            for words in words.chunks_exact(6) {
                let control = b.mapping.control();
                control.rings[0].head.0.store(words[0], Ordering::Relaxed);
                control.rings[0].tail.0.store(words[1], Ordering::Relaxed);
                control.rings[1].head.0.store(words[2], Ordering::Relaxed);
                control.rings[1].tail.0.store(words[3], Ordering::Relaxed);
                control.sleepers[0].0.waiting.store(words[4], Ordering::Relaxed);
                control.sleepers[1].0.bell.store(words[5], Ordering::Relaxed);
                let _ = a.try_recv(&mut [IoSliceMut::new(&mut target)]);
                let _ = a.try_send(&[IoSlice::new(&target)]);
                let _ = a.rest(Interest { receive: true, send: true }, Duration::from_micros(10));
            }
            b.mapping.control().rings[1].head.0.store(a.tail.wrapping_sub(1), Ordering::Relaxed);
            let error = a.try_recv(&mut [IoSliceMut::new(&mut target)]).unwrap_err();
            proptest::prop_assert!(matches!(error, Cause::Corrupt(_)));
            b.mapping.control().rings[0].tail.0.store(a.head.wrapping_add(1), Ordering::Relaxed);
            let error = a.is_ready(Interest { receive: false, send: true }).unwrap_err();
            proptest::prop_assert!(matches!(error, Cause::Corrupt(_)));
        }
    }
}
