//! What can go wrong between ranks, as values that name the rank and say what to do.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::element::{ElementType, Operator, Wire};
use crate::message::Kind;

/// A failure of the fabric or of the rendezvous. Cloneable, because a broken fabric answers every later call with the
/// error that broke it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// A rank of the group is gone. The group has to be formed anew without it.
    #[error("lost rank {rank}: {cause}; look at that rank's log, then start the group again")]
    PeerLost {
        /// The rank that was lost.
        rank: usize,
        /// How the loss was noticed.
        cause: Cause,
    },
    /// The other ranks take this one for lost, and go on without it.
    #[error("the other ranks have given up rank {rank}, which is this one: {cause}; it can only join another group")]
    Excluded {
        /// This rank.
        rank: usize,
        /// What the others have noticed.
        cause: Cause,
    },
    /// The command that started the ranks is gone, as seen by a rank.
    #[error("lost the coordinator: {cause}; this rank has no one to work for and should end")]
    CoordinatorLost {
        /// How the loss was noticed.
        cause: Cause,
    },
    /// Two ranks disagree about the operation that they are in.
    #[error(
        "rank {rank} is in another operation than rank {seen_by}: there {theirs}, here {ours}; the ranks must call the \
         same operations in the same order with the same sizes"
    )]
    Mismatch {
        /// The rank that disagrees.
        rank: usize,
        /// The rank that noticed.
        seen_by: usize,
        /// The message that it expected.
        ours: View,
        /// The message that came.
        theirs: View,
    },
    /// Not enough ranks are left to form a group anew.
    #[error("only {left} ranks are left, and a group of fewer than {least} is not wanted; start the group again")]
    TooFew {
        /// The ranks that are there, this one included.
        left: usize,
        /// The fewest that were asked for.
        least: usize,
    },
    /// Something did not happen in time, and no single rank is to blame.
    #[error("{what} did not happen within {after:?}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
    },
    /// The other side of a connection turned this one away.
    #[error("{whom} refused the connection: {why}")]
    Refused {
        /// The address that refused.
        whom: String,
        /// Its reason.
        why: String,
    },
    /// The other side of a connection did not speak the protocol, or ended within it.
    #[error("handshake with {whom} failed: {cause}; check that the address belongs to ropewalk of the same version")]
    Handshake {
        /// The address at the other side.
        whom: String,
        /// What went wrong.
        cause: Cause,
    },
    /// A rank could not set up its links.
    #[error("rank {rank} could not join the group: {why}")]
    JoinFailed {
        /// The rank that failed.
        rank: usize,
        /// Its own account.
        why: String,
    },
    /// The caller asked for something that cannot be done.
    #[error("invalid request to the fabric: {0}")]
    Invalid(String),
    /// The rendezvous was given up by its owner.
    #[error("the rendezvous was cancelled")]
    Cancelled,
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted.
        what: String,
        /// The system's answer.
        #[source]
        source: Arc<io::Error>,
    },
}

impl FabricError {
    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { what: what.into(), source: Arc::new(source.into()) }
    }
}

/// How a connection was found to be of no more use.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Cause {
    /// The other side closed the connection, as it does when its process ends.
    Closed,
    /// Nothing was heard for this long.
    Silent(Duration),
    /// It lives, but what others wait for did not come for this long.
    Stalled(Duration),
    /// It said goodbye while others still had need of it.
    Left,
    /// The other side sent something that makes no sense.
    Corrupt(String),
    /// Something that it sent was lost or changed on the way, over a connection that does not see to that itself.
    Damaged(String),
    /// RDMA failed; this is what happened, why it probably did, and what to do.
    Rdma(String),
    /// The operating system reported an error, such as a reset.
    Io(Arc<io::Error>),
}

impl Cause {
    /// The same as the system's own kind of error.
    pub(crate) fn into_io(self) -> io::Error {
        match self {
            Self::Io(error) => io::Error::new(error.kind(), error.to_string()),
            other => io::Error::other(other.to_string()),
        }
    }

    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt(what.into())
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("it closed the connection"),
            Self::Silent(after) => write!(f, "nothing was heard for {after:?}"),
            Self::Stalled(after) => write!(f, "it lives, but nothing that others wait for has come for {after:?}"),
            Self::Left => f.write_str("it left the group while others still needed it"),
            Self::Corrupt(what) => write!(f, "it broke the protocol ({what})"),
            Self::Damaged(what) => write!(f, "data was lost or damaged on the way ({what}); look at the cable"),
            Self::Rdma(error) => f.write_str(error),
            Self::Io(error) => write!(f, "{error}"),
        }
    }
}

impl From<verbs::Error> for Cause {
    fn from(error: verbs::Error) -> Self {
        Self::Rdma(error.to_string())
    }
}

impl From<io::Error> for Cause {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Io(Arc::new(error)),
        }
    }
}

impl From<rustix::io::Errno> for Cause {
    fn from(error: rustix::io::Errno) -> Self {
        io::Error::from(error).into()
    }
}

/// One side's view of a message: what a header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// The generation of the group.
    pub generation: u32,
    /// The number of the message on its link and direction, from 0.
    pub operation: u64,
    /// The collective that the message belongs to; `None` for a number that no collective has.
    pub kind: Option<Kind>,
    /// The type of its elements; `None` for a number that no type has.
    pub element: Option<ElementType>,
    /// How elements are reduced; `None` where they are not.
    pub operator: Option<Operator>,
    /// How they travel; `None` for a number that means nothing.
    pub wire: Option<Wire>,
    /// Bytes after the header; `None` where any length will do.
    pub length: Option<u64>,
    /// Bytes of the whole collective; `None` where any length will do.
    pub total: Option<u64>,
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Some(kind) => write!(f, "{kind}")?,
            None => f.write_str("an unknown operation")?,
        }
        if let Some(operator) = self.operator {
            write!(f, " ({operator})")?;
        }
        match self.total {
            Some(total) => write!(f, " of {total} bytes")?,
            None => f.write_str(" of any length")?,
        }
        match self.element {
            Some(ElementType::Bytes) => {}
            Some(element) => write!(f, " of {element}")?,
            None => f.write_str(" of an unknown type")?,
        }
        match self.wire {
            Some(Wire::Exact) => {}
            Some(wire) => write!(f, ", {wire}")?,
            None => f.write_str(", unknown on the wire")?,
        }
        write!(f, " (message {}", self.operation)?;
        if let Some(length) = self.length.filter(|_| self.length != self.total) {
            write!(f, " of {length} bytes")?;
        }
        write!(f, ", generation {})", self.generation)
    }
}
