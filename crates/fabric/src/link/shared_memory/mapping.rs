//! The memory that two processes share: a page of positions and bells, and two rings.

// This is the one file of the crate that maps and touches shared memory.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::ring::{Board, FLAG_BYTES, LINE_BYTES, SEGMENT_BYTES, Sleeper, Word};
use crate::error::Cause;

/// The rings start behind a page of positions and bells.
const CONTROL_BYTES: usize = 4096;
/// Bytes of the token in the control page.
pub(super) const TOKEN_BYTES: usize = 16;
/// What a ring may have.
const RING_BYTES_MIN: usize = 4 * SEGMENT_BYTES;
const RING_BYTES_MAX: usize = 16 << 20;

/// Keeps what different sides write off each other's cache lines.
#[repr(C, align(128))]
struct Apart<T>(T);

/// How one side sleeps.
#[repr(C)]
pub(super) struct Bed {
    waiting: AtomicU32,
    bell: AtomicU32,
    /// The core that it was on when it last looked, counted from 1; 0 when that is not known.
    core: AtomicU32,
}

impl Bed {
    /// Whether both sides were last seen on the same core.
    pub(super) fn is_on_core_of(&self, other: &Self) -> bool {
        let core = self.core.load(Ordering::Relaxed);
        core != 0 && core == other.core.load(Ordering::Relaxed)
    }
}

/// The first page. Zeros are its valid first state.
#[repr(C)]
struct ControlPage {
    tails: [Apart<AtomicU32>; 2],
    beds: [Apart<Bed>; 2],
    token: [AtomicU64; TOKEN_BYTES / 8],
}

const _: () = assert!(size_of::<ControlPage>() <= CONTROL_BYTES && size_of::<Apart<Bed>>() == LINE_BYTES);

/// The mapped memory of a pair.
pub(super) struct Mapping {
    base: NonNull<u8>,
    ring_bytes: usize,
}

// SAFETY: the mapping is memory like any other; nothing about it belongs to the thread that made it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Bytes of the file for rings of `ring_bytes` bytes each.
    pub(super) fn file_bytes(ring_bytes: usize) -> usize {
        CONTROL_BYTES + 2 * ring_bytes
    }

    /// Maps a whole file, whose length tells the size of the rings.
    pub(super) fn new(file: &File) -> io::Result<Self> {
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        let ring_bytes = length.saturating_sub(CONTROL_BYTES) / 2;
        let is_possible = ring_bytes.is_power_of_two()
            && (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes)
            && Self::file_bytes(ring_bytes) == length;
        if !is_possible {
            return Err(io::Error::other(format!("a file of shared memory cannot have {length} bytes")));
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // The first message should not have to wait for page faults.
        #[cfg(target_os = "linux")]
        let flags = flags | MapFlags::POPULATE;
        // SAFETY: the system chooses an address where nothing else is, and the file is as long as the map. Where the
        // system can seal files, the file keeps its length; elsewhere that is up to the two processes, which have the
        // same owner and have authenticated each other, and its name is gone once both have mapped it.
        let base = unsafe { mmap(std::ptr::null_mut(), length, protection, flags, file, 0)? };
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(Self { base, ring_bytes })
    }

    fn control(&self) -> &ControlPage {
        // SAFETY: the map is page-aligned, longer than the control page, and lives as long as `self`. The control page is
        // made of atomics only, which any process may change at any time and for which any bits are valid.
        unsafe { self.base.cast::<ControlPage>().as_ref() }
    }

    /// One of the two directions.
    pub(super) fn direction(&self, ring: usize) -> Direction<'_> {
        assert!(ring < 2);
        Direction { mapping: self, ring, tail: &self.control().tails[ring].0 }
    }

    /// How one of the two sides sleeps.
    pub(super) fn bed(&self, side: usize) -> &Bed {
        &self.control().beds[side].0
    }

    /// By what the two processes know that they have mapped the same file.
    pub(super) fn token(&self) -> [u64; TOKEN_BYTES / 8] {
        self.control().token.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    pub(super) fn set_token(&self, token: [u64; TOKEN_BYTES / 8]) {
        for (word, value) in self.control().token.iter().zip(token) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the map made in `new`, and nothing that borrows from it outlives `self`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), Self::file_bytes(self.ring_bytes)) };
        debug_assert!(unmapped.is_ok(), "the system refuses to unmap what it has mapped");
    }
}

/// One ring of a mapping.
pub(super) struct Direction<'a> {
    mapping: &'a Mapping,
    ring: usize,
    tail: &'a AtomicU32,
}

impl Direction<'_> {
    /// The start of the ring's bytes.
    fn base(&self) -> *mut u8 {
        // SAFETY: both rings lie within the map, which is as long as the control page and two rings.
        unsafe { self.mapping.base.as_ptr().add(CONTROL_BYTES + self.ring * self.mapping.ring_bytes) }
    }

    /// Where in the ring a segment's byte lies, and how many of `length` bytes fit before the ring's end.
    fn split(&self, position: u32, offset: usize, length: usize) -> (usize, usize) {
        let ring_bytes = self.mapping.ring_bytes;
        assert!(length <= ring_bytes);
        let start = (position as usize * LINE_BYTES + FLAG_BYTES + offset) % ring_bytes;
        (start, length.min(ring_bytes - start))
    }
}

impl Board for Direction<'_> {
    type Flag = AtomicU64;
    type Position = AtomicU32;

    fn lines(&self) -> u32 {
        // At most `RING_BYTES_MAX`.
        (self.mapping.ring_bytes / LINE_BYTES) as u32
    }

    fn flag(&self, position: u32) -> &AtomicU64 {
        let line = (position & (self.lines() - 1)) as usize;
        // SAFETY: the line lies within the ring and is aligned to more than eight bytes. Any process may change it at any
        // time; this one writes to it otherwise than by this atomic only in `copy_in`, while no such reference is used.
        unsafe { AtomicU64::from_ptr(self.base().add(line * LINE_BYTES).cast()) }
    }

    fn tail(&self) -> &AtomicU32 {
        self.tail
    }

    fn copy_in(&self, position: u32, offset: usize, bytes: &[u8]) {
        let (start, first) = self.split(position, offset, bytes.len());
        let base = self.base();
        // SAFETY: `split` gives `start + first <= ring_bytes` and `bytes.len() <= ring_bytes`, so that both copies stay
        // within the ring and within `bytes`, which cannot overlap the map as no slice of the rings ever exists. The
        // reader does not read these bytes before it sees the flag; should it do so against the protocol, it gets wrong
        // bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), base.add(start), first);
            if first < bytes.len() {
                std::ptr::copy_nonoverlapping(bytes.as_ptr().add(first), base, bytes.len() - first);
            }
        }
    }

    fn copy_out(&self, position: u32, offset: usize, bytes: &mut [u8]) {
        let (start, first) = self.split(position, offset, bytes.len());
        let base = self.base();
        // SAFETY: as in `copy_in`, with source and target exchanged. A writer that writes here against the protocol
        // makes the bytes wrong, and any bytes are valid.
        unsafe {
            std::ptr::copy_nonoverlapping(base.add(start), bytes.as_mut_ptr(), first);
            if first < bytes.len() {
                std::ptr::copy_nonoverlapping(base, bytes.as_mut_ptr().add(first), bytes.len() - first);
            }
        }
    }
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

impl Sleeper for Bed {
    type Word = AtomicU32;

    fn waiting(&self) -> &AtomicU32 {
        &self.waiting
    }

    fn bell(&self) -> &AtomicU32 {
        &self.bell
    }

    #[cfg(target_os = "linux")]
    fn sleep(&self, seen: u32, at_most: Duration) -> Result<(), Cause> {
        use rustix::io::Errno;
        use rustix::thread::futex;
        match futex::wait(&self.bell, futex::Flags::empty(), seen, Some(&crate::timed::timespec(at_most))) {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Without a futex between processes, to sleep means to look again a little later.
    #[cfg(not(target_os = "linux"))]
    fn sleep(&self, _seen: u32, at_most: Duration) -> Result<(), Cause> {
        std::thread::sleep(at_most.min(Duration::from_micros(100)));
        Ok(())
    }

    #[cfg(target_os = "linux")]
    fn wake(&self) {
        use rustix::thread::futex;
        // The bell is there, which is all that this could fail for.
        let _ = futex::wake(&self.bell, futex::Flags::empty(), 1);
    }

    #[cfg(not(target_os = "linux"))]
    fn wake(&self) {}

    #[cfg(target_os = "linux")]
    fn note_core(&self) {
        let core = u32::try_from(rustix::thread::sched_getcpu() + 1).unwrap_or(0);
        // The other side reads this line after each move, and should not have to fetch it anew for nothing.
        if self.core.load(Ordering::Relaxed) != core {
            self.core.store(core, Ordering::Relaxed);
        }
    }

    /// Without a word from the system, no core is ever known to be shared.
    #[cfg(not(target_os = "linux"))]
    fn note_core(&self) {}

    fn barrier() {
        fence(Ordering::SeqCst);
    }
}
