//! What a provider allows.
//!
//! Apple's driver allows far less than others, and punishes what goes beyond in ways that are hard to find: a lost
//! direction, pages that stay wired, a panic of the system. Under [`Profile::Apple`] this crate itself checks every
//! limit, on any system, so that code which passes its tests on Linux stays within them.
//!
//! Source: Apple's technote TN3205, and what users of that driver have found.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The unit in which Apple's driver counts the length of messages, in bytes.
pub const FRAME_BYTES: usize = 4096;

/// Which provider's limits hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Profile {
    /// What the device itself says.
    Standard,
    /// Those of RDMA over Thunderbolt on macOS: unreliable connections, sends and receives only.
    Apple,
}

/// A limit of [`Profile::Apple`] that was about to be exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Limit {
    /// Only unreliable connections exist.
    #[error("reliable connections do not exist there")]
    Reliable,
    /// Queue pairs of one device.
    #[error("a device has at most {} queue pairs", Profile::QUEUE_PAIRS_MAX)]
    QueuePairs,
    /// Registered regions of one device.
    #[error("a device has at most {} memory regions", Profile::REGIONS_MAX)]
    Regions,
    /// Frames that are posted and not completed, of all queue pairs of one port.
    #[error("a port has at most {} frames of 4 KiB outstanding", Profile::PORT_FRAMES_MAX)]
    PortFrames,
    /// Frames of one queue.
    #[error("{frames} frames in a queue, of which there can be {}", Profile::QUEUE_FRAMES_MAX)]
    QueueFrames {
        /// Frames asked for.
        frames: usize,
    },
    /// Bytes of one message.
    #[error("a message of {bytes} bytes; at most {} are possible", Profile::MESSAGE_BYTES_MAX)]
    Message {
        /// Bytes asked for.
        bytes: usize,
    },
    /// Sender and receiver posted different numbers of frames.
    #[error("a message of {sent} frames of 4 KiB met a receive of {posted}; both sides must post the same number")]
    FrameMismatch {
        /// Frames that came.
        sent: usize,
        /// Frames that were posted for them.
        posted: usize,
    },
    /// Memory that does not lie on pages of its own.
    #[error("memory at {address:#x} with {bytes} bytes does not consist of whole pages")]
    Alignment {
        /// Where it begins.
        address: usize,
        /// How long it is.
        bytes: usize,
    },
    /// Memory is mapped for a queue pair once, when it is connected.
    #[error("the memory was registered after the queue pair had been connected")]
    LateRegion,
    /// Data inside the request.
    #[error("data inside a request (inline) does not exist there")]
    Inline,
    /// Receives before the queue pair can send.
    #[error("a receive was posted before the queue pair was ready to send")]
    EarlyReceive,
}

impl Profile {
    /// Queue pairs of one device under [`Profile::Apple`].
    pub const QUEUE_PAIRS_MAX: u32 = 10;
    /// Registered regions of one device under [`Profile::Apple`].
    pub const REGIONS_MAX: u32 = 100;
    /// Outstanding frames of one port under [`Profile::Apple`].
    pub const PORT_FRAMES_MAX: u32 = 1000;
    /// Frames in one queue under [`Profile::Apple`].
    pub const QUEUE_FRAMES_MAX: usize = 4095;
    /// Bytes of one message under [`Profile::Apple`].
    pub const MESSAGE_BYTES_MAX: usize = 16_773_120;

    /// The profile of this system's own provider.
    pub const fn native() -> Self {
        if cfg!(target_os = "macos") { Self::Apple } else { Self::Standard }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Standard => "standard",
            Self::Apple => "Apple",
        })
    }
}

/// The number of frames that a message takes.
pub const fn frames_of(bytes: usize) -> usize {
    if bytes == 0 { 1 } else { bytes.div_ceil(FRAME_BYTES) }
}

/// What this process uses of one device.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    queue_pairs: AtomicU32,
    regions: AtomicU32,
    frames: AtomicU32,
    /// Queue pairs under [`Profile::Apple`] that ended with sends on the way.
    undrained: AtomicU32,
    /// Counts registrations and connections, to tell which came first.
    clock: AtomicU64,
}

impl Usage {
    pub(crate) fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn take_queue_pair(&self, profile: Profile) -> Result<(), Limit> {
        take(&self.queue_pairs, 1, Profile::QUEUE_PAIRS_MAX, profile, Limit::QueuePairs)
    }

    pub(crate) fn note_undrained(&self) {
        self.undrained.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn undrained(&self) -> u32 {
        self.undrained.load(Ordering::Relaxed)
    }

    pub(crate) fn return_queue_pair(&self) {
        self.queue_pairs.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn take_region(&self, profile: Profile) -> Result<(), Limit> {
        take(&self.regions, 1, Profile::REGIONS_MAX, profile, Limit::Regions)
    }

    pub(crate) fn return_region(&self) {
        self.regions.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn take_frames(&self, profile: Profile, frames: u32) -> Result<(), Limit> {
        take(&self.frames, frames, Profile::PORT_FRAMES_MAX, profile, Limit::PortFrames)
    }

    pub(crate) fn return_frames(&self, frames: u32) {
        self.frames.fetch_sub(frames, Ordering::Relaxed);
    }
}

fn take(counter: &AtomicU32, count: u32, most: u32, profile: Profile, limit: Limit) -> Result<(), Limit> {
    let before = counter.fetch_add(count, Ordering::Relaxed);
    if profile == Profile::Apple && before.saturating_add(count) > most {
        counter.fetch_sub(count, Ordering::Relaxed);
        return Err(limit);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_eleventh_queue_pair_is_one_too_many() {
        let usage = Usage::default();
        for _ in 0..10 {
            usage.take_queue_pair(Profile::Apple).unwrap();
        }
        assert_eq!(usage.take_queue_pair(Profile::Apple), Err(Limit::QueuePairs));
        usage.return_queue_pair();
        usage.take_queue_pair(Profile::Apple).unwrap();
        usage.take_queue_pair(Profile::Standard).unwrap();
    }

    #[test]
    fn frames_of_a_port_are_counted_together() {
        let usage = Usage::default();
        usage.take_frames(Profile::Apple, 999).unwrap();
        assert_eq!(usage.take_frames(Profile::Apple, 2), Err(Limit::PortFrames));
        usage.take_frames(Profile::Apple, 1).unwrap();
        usage.return_frames(1000);
        usage.take_frames(Profile::Apple, 1000).unwrap();
    }

    #[test]
    fn frames_are_counted_up() {
        assert_eq!([0, 1, 4096, 4097, 65_536].map(frames_of), [1, 1, 1, 2, 16]);
        assert_eq!(frames_of(Profile::MESSAGE_BYTES_MAX), Profile::QUEUE_FRAMES_MAX);
    }
}
