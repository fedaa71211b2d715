//! RDMA verbs of Linux (libibverbs) and macOS (librdma), opened at run time, behind safe types.
//!
//! A [`Device`] of this machine gets one [`ProtectionDomain`] per process, in which [`MemoryRegion`]s are registered and
//! [`QueuePair`]s made, whose ends show on a [`CompletionQueue`]. What belongs together holds together: a queue pair
//! goes before the memory posted to it, that before its domain, that before its device, whatever the order of drops.
//!
//! Only sends and receives are offered. They are all that Apple's devices can do, and as good as writes with immediate
//! data where receives are posted in advance: either takes one request and one completion on each side, and a message
//! lands where the receiver wants it. Nobody gets a key to write to another's memory.
//!
//! On a machine without RDMA, [`Device::all`] says so: [`Error::is_absence`]. This crate knows nothing of ranks.

#[cfg(not(unix))]
compile_error!("RDMA needs a Unix system");

mod completion;
mod device;
mod domain;
mod error;
mod ffi;
mod gid;
mod library;
mod limits;
mod queue_pair;
mod region;

pub use completion::{Completion, CompletionQueue, Direction, Status};
pub use device::{Context, Device, Mtu, PORT, Port, PortState};
pub use domain::ProtectionDomain;
pub use error::{Call, Diagnosis, Error};
pub use gid::Gid;
pub use library::Library;
pub use limits::{FRAME_BYTES, Limit, Profile, frames_of};
pub use queue_pair::{NUMBER_MAX, QueuePair, QueuePairOptions, Reliability, Remote, Retired};
pub use region::{MemoryRegion, PAGE_BYTES, Slot};
