//! A link over RDMA: reliable connections where there are some, else unreliable ones under Apple's limits.
//!
//! `frame` is what travels, `wire` what is asked of a connection, `rail` one connection with credits for its two lanes,
//! `link` the two streams over all rails. `port` is a connection of real ports, `cards` says which ports of two machines
//! belong together, `bring_up` connects them.

mod bring_up;
mod cards;
pub(crate) mod frame;
mod hostile;
mod link;
mod local;
mod port;
mod rail;
#[cfg(test)]
mod real;
#[cfg(test)]
pub(crate) mod simulated;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use self::bring_up::{Place, RdmaOptions, Role, bring_up, understand};
pub(crate) use self::cards::is_here;
pub(crate) use self::hostile::receive_anything;
pub(crate) use self::local::local_rdma_pair;
#[cfg(test)]
pub(crate) use self::wire::RailShape;

/// Whether tests are to use this machine's ports.
#[cfg(test)]
pub(crate) fn real_ports() -> bool {
    std::env::var_os("FABRIC_TEST_RDMA").is_some()
}
