//! Links between ranks, groups, and collectives.
//!
//! A command that starts ranks listens at a [`Rendezvous`]; each rank [`join`]s it and gets its number, its job, a
//! [`Control`] channel back to the command, and a [`Fabric`]: links to all other ranks, by shared memory within a host
//! and by TCP between hosts. All collectives are methods of the fabric.
//!
//! Collectives work over any connected [`Topology`], on all ranks or on a [`Team`] of them. A reduction gives each element
//! the bits that a single process would compute that takes the ranks' elements in the team's order, whatever the links,
//! the sizes, and the way that is the fastest there ([`Tuning`]). Each collective also has a form that only begins it:
//! the [`Operation`] it returns is moved on by polling, while the rank does something else.
//!
//! Every wait has a deadline. A rank whose process ends is noticed by all ranks that wait for it, as
//! [`FabricError::PeerLost`]. Messages say which operation they belong to, so that ranks which do not agree on what they
//! are doing get [`FabricError::Mismatch`] instead of each other's data.
//!
//! ```
//! # fn main() -> Result<(), fabric::FabricError> {
//! use fabric::{JoinOptions, Rendezvous, RendezvousOptions, Secret, Team, join};
//!
//! let secret = Secret::random()?;
//! let mut meeting = Rendezvous::listen("127.0.0.1:0", &secret, 2, RendezvousOptions::default())?;
//! let address = meeting.address();
//! std::thread::scope(|scope| {
//!     for _ in 0..2 {
//!         scope.spawn(|| {
//!             let mut joined = join(address, &secret, &JoinOptions::default())?;
//!             let team = Team::of_range(0..joined.size, joined.rank)?;
//!             let mut numbers = [1.0, joined.rank as f32];
//!             joined.fabric.all_reduce_sum(&team, &mut numbers)?;
//!             assert_eq!(numbers, [2.0, 1.0]);
//!             joined.control.send(b"done")
//!         });
//!     }
//!     for mut control in meeting.gather(|_rank, _hello| b"add numbers".to_vec())? {
//!         assert_eq!(control.recv(std::time::Duration::from_secs(10))?, Some(b"done".to_vec()));
//!     }
//!     Ok(())
//! })
//! # }
//! ```

#[cfg(not(unix))]
compile_error!("the fabric needs a Unix system");
#[cfg(target_endian = "big")]
compile_error!("ranks exchange numbers as they lie in memory, little-endian");

mod arithmetic;
mod channel;
mod collectives;
mod element;
mod encryption;
mod error;
mod executor;
mod fabric;
#[doc(hidden)]
pub mod fuzzing;
pub mod launch;
mod layout;
mod link;
mod liveness;
mod local;
mod memory;
mod message;
mod peer;
mod plan;
mod plans;
mod probe;
mod relay;
mod rendezvous;
mod secret;
#[cfg(test)]
mod sim;
mod sleep;
mod team;
mod timed;
mod topology;
mod wait;

pub use collectives::Operation;
pub use element::{Element, ElementType, Number, Operator, Wire};
pub use error::{Cause, FabricError, View};
pub use fabric::Fabric;
pub use link::{Cable, Interest, Link, LinkCounters, Transport, Watched};
pub use local::{local_group, local_group_on};
pub use message::{HEADER_BYTES, Kind, MAX_MESSAGE, decode_header};
pub use plan::Tuning;
pub use probe::{LinkMeasurement, ProbeOptions, Warning, WarningKind, diagnose};
pub use rendezvous::{
    Control, ControlReceiver, ControlSender, Hello, JoinOptions, Joined, MAX_FRAME, MAX_RANKS, Network, Observer,
    ReformOptions, Rendezvous, RendezvousEvent, RendezvousOptions, Stopper, join,
};
pub use secret::Secret;
pub use team::Team;
pub use topology::{Edge, Topology};
