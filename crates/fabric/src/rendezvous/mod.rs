//! How ranks find each other: at an address that the command which starts them listens on.

mod addresses;
mod authentication;
mod conduct;
mod conductor;
mod control;
mod coordinator;
mod formation;
mod frame;
mod host;
mod join;
mod muster;
mod pairing;
mod party;
mod passage;
mod reaching;
mod reception;
mod reform;
mod stripes;
pub(crate) mod wire;

pub use addresses::Network;
pub(crate) use authentication::address_of;
pub use authentication::fuzz as fuzz_authentication;
#[cfg(test)]
pub(crate) use authentication::tests::encrypt as encrypt_for_tests;
#[cfg(test)]
pub(crate) use conductor::{Conductor, Word, admit, numbers};
pub use control::{Control, ControlReceiver, ControlSender};
pub use coordinator::{Hello, MAX_RANKS, Observer, Rendezvous, RendezvousEvent, RendezvousOptions, Stopper};
#[cfg(test)]
pub(crate) use formation::topology_of;
pub(crate) use frame::FrameReader;
pub use frame::MAX_FRAME;
pub(crate) use frame::{read_json, write_json};
pub use join::{JoinOptions, Joined, join};
#[cfg(test)]
pub(crate) use muster::{Aim, Muster};
pub(crate) use reception::prepare;
pub(crate) use reform::Kept;
pub use reform::ReformOptions;
#[cfg(test)]
pub(crate) use wire::{Report, Shape};
