//! Links between ranks, groups, and collectives.
//!
//! A command that starts ranks listens at a [`Rendezvous`]; each rank [`join`]s it and gets its number, its job, a
//! [`Control`] channel back to the command, and a [`Fabric`]: links to all other ranks, by shared memory within a host
//! and by TCP between hosts. All collectives are methods of the fabric.
//!
//! Every wait has a deadline. A rank whose process ends is noticed by all ranks that wait for it, as
//! [`FabricError::PeerLost`]. Messages say which operation they belong to, so that ranks which do not agree on what they
//! are doing get [`FabricError::Mismatch`] instead of each other's data.

#[cfg(not(unix))]
compile_error!("the fabric needs a Unix system");
#[cfg(target_endian = "big")]
compile_error!("ranks exchange numbers as they lie in memory, little-endian");

mod collectives;
mod error;
mod exchange;
mod fabric;
mod layout;
mod link;
mod local;
mod message;
mod rendezvous;
mod secret;
mod team;
mod timed;
mod wait;

pub use error::{Cause, FabricError, View};
pub use fabric::Fabric;
pub use link::{Interest, Link, Transport};
pub use local::local_group;
pub use message::{Kind, MAX_MESSAGE};
pub use rendezvous::{
    Control, ControlReceiver, ControlSender, Hello, JoinOptions, Joined, MAX_FRAME, MAX_RANKS, Observer, Rendezvous,
    RendezvousEvent, RendezvousOptions, Stopper, join,
};
pub use secret::Secret;
pub use team::Team;
