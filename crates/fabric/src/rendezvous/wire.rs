//! What ranks and coordinator say to each other while a group forms. Each message is one frame of JSON; opaque bytes
//! of the callers follow in frames of their own.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::link::Transport;

/// Rank to coordinator, first. The caller's hello follows.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Introduction {
    /// The rank number it wants, if it matters.
    pub(crate) rank: Option<usize>,
    /// Identifies the running system that the rank is on.
    pub(crate) host: String,
    /// Where the other ranks may reach it, best first.
    pub(crate) listeners: Vec<SocketAddr>,
    /// Where it is found when the group has to form anew.
    pub(crate) doors: Vec<SocketAddr>,
}

/// A rank to the one that gathers a new group of those that are left.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Survivor {
    /// Its number in the old group.
    pub(crate) rank: usize,
}

/// Coordinator to rank, when all have come. After a welcome the job follows.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Welcome(Welcome),
    Refused { why: String },
}

/// A rank's place in the group.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Welcome {
    pub(crate) rank: usize,
    pub(crate) generation: u32,
    /// Distinguishes this forming of the group from all others.
    pub(crate) session: String,
    /// By rank.
    pub(crate) ranks: Vec<RankAddress>,
}

/// Where a rank is found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RankAddress {
    pub(crate) host: String,
    pub(crate) listeners: Vec<SocketAddr>,
    /// Where it is found when the group has to form anew.
    pub(crate) doors: Vec<SocketAddr>,
}

/// Coordinator to rank, when it knows who reaches whom.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Shape {
    /// Pairs of ranks with the number of cables between them.
    Known { edges: Vec<(usize, usize, u32)> },
    /// Some ranks cannot be reached by others at all.
    Impossible { why: String },
}

/// Coordinator to rank, last: all ranks have all their links.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Go;

/// Rank to coordinator, when it knows whom it reaches, when it has its links, or when it cannot get them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// For each lower rank the number of cables to it, 0 if it cannot be reached directly, with the reasons.
    Reached {
        cables: Vec<u32>,
        unreached: Vec<String>,
    },
    Up,
    Failed {
        why: String,
        /// Whether the failure looks like another rank's end, which is then the one to report.
        follows: bool,
    },
}

/// The rank that dials to the rank that accepts, first.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    /// Wants a link.
    Bond {
        rank: usize,
        to: usize,
        generation: u32,
        transport: Transport,
        /// The cables over which it could connect.
        cables: usize,
        /// The connections that it would like to have over each.
        connections: usize,
        /// Whether nobody passes bytes on between the two.
        direct: bool,
    },
    /// Brings a connection that the accepting rank has asked for.
    Stripe { ticket: String, index: usize },
    /// Wants to be connected with a rank that it does not reach.
    Passage { from: usize, to: usize, generation: u32 },
}

/// The answer to a call for a passage. After `Open` the bytes are those of the rank that was asked for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Passage {
    Open,
    Refused { why: String },
}

/// The accepting rank's decision.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Offer {
    /// Open this many more connections, and bring the ticket along with each.
    Tcp {
        ticket: String,
        connections: usize,
    },
    /// Map this file.
    SharedMemory {
        file: String,
    },
    /// Connect ports for RDMA. Another offer follows if that does not work out.
    Rdma,
    Refused {
        why: String,
    },
}

/// The dialing rank's answer to a file that it was offered.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Mapping {
    Mapped,
    Failed { why: String },
}
