//! What a link between two ranks does, whatever it is made of.

mod ahead;
pub(crate) mod rdma;
mod shared_memory;
#[cfg(test)]
mod suite;
mod tcp;
#[cfg(target_os = "linux")]
mod tcp_statistics;
mod watched;

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use self::ahead::ReadAhead;
pub(crate) use self::shared_memory::{SharedFile, SharedMemoryLink, ring_bytes};
pub(crate) use self::tcp::TcpLink;
pub use self::watched::Watched;
use crate::error::Cause;

/// What links are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Transport {
    /// Shared memory between ranks on one host; otherwise RDMA where both have a device, else TCP.
    #[default]
    Auto,
    /// Shared memory, or an error.
    SharedMemory,
    /// TCP, also within a host.
    Tcp,
    /// RDMA, also within a host, or an error.
    Rdma,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "any transport",
            Self::SharedMemory => "shared memory",
            Self::Tcp => "TCP",
            Self::Rdma => "RDMA",
        })
    }
}

/// What a rank waits for on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interest {
    /// There is something to receive.
    pub receive: bool,
    /// There is room to send.
    pub send: bool,
}

/// What a link has got over by itself. Kinds of links that cannot tell leave the zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LinkCounters {
    /// Messages, frames or segments that had to be sent again.
    pub retries: u64,
    /// Errors of other kinds that were got over.
    pub errors: u64,
}

/// One cable, or whatever else joins two addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cable {
    /// This rank's address.
    pub local: IpAddr,
    /// The other rank's address.
    pub remote: IpAddr,
}

/// Two ordered streams of bytes between two ranks, one in each direction, with bounded room on the way.
///
/// The calls never block, except [`Link::rest`]. A collective works on all its links in turn, so that no two ranks wait
/// for each other to make room.
pub trait Link: Send {
    /// Takes as much of `parts`, in order, as there is room for, and returns the number of bytes taken.
    ///
    /// # Errors
    /// When the other side is gone. The link is of no use after that.
    fn try_send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize, Cause>;

    /// Fills `parts`, in order, with what has come, and returns the number of bytes. What came before the other side
    /// went is received before its loss is an error.
    ///
    /// # Errors
    /// As for [`Link::try_send`].
    fn try_recv(&mut self, parts: &mut [IoSliceMut<'_>]) -> Result<usize, Cause>;

    /// Whether [`Link::try_recv`] would return something.
    ///
    /// # Errors
    /// As for [`Link::try_recv`].
    fn is_readable(&mut self) -> Result<bool, Cause>;

    /// Sleeps until there may be something to do, at most for `at_most`. May wake up for no reason; false then.
    ///
    /// # Errors
    /// When the system does not let it sleep.
    fn rest(&mut self, interest: Interest, at_most: Duration) -> Result<bool, Cause>;

    /// Adds what to poll in order to be woken up when there may be something to do. A link without sockets adds nothing:
    /// who sleeps on several links has to look at it every now and then.
    fn watch<'a>(&'a self, interest: Interest, sockets: &mut Watched<'a>);

    /// Whether [`Link::read_ahead`] may take something in, which only links that were made for it do.
    fn can_read_ahead(&self) -> bool {
        false
    }

    /// Takes in what has come and nobody receives yet, so that the other side can go on. True when there was something.
    fn read_ahead(&mut self) -> bool {
        false
    }

    /// Whether the other side was last seen on the core that this side runs on, so that it gets nothing done while this
    /// side polls. Links to other machines, and those that cannot tell, say no.
    fn shares_core(&self) -> bool {
        false
    }

    /// What the link is made of.
    fn transport(&self) -> Transport;

    /// The cables that the link runs over, as far as they have addresses; the first one of a link through other ranks.
    fn cables(&self) -> Vec<Cable> {
        Vec::new()
    }

    /// Whether nobody on the way can read or change what passes.
    fn is_encrypted(&self) -> bool {
        false
    }

    /// What went wrong on the way without harm, since the link was made.
    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}
