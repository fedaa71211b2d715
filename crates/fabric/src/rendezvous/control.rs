//! The channel between the coordinator and a rank.

use std::sync::Arc;
use std::time::Duration;

use super::frame::{FrameReader, check_length, write_frame};
use crate::channel::Channel;
use crate::error::{Cause, FabricError};
use crate::timed::end_of;

/// How long the other side may take to make room for a frame.
const SEND_PATIENCE: Duration = Duration::from_secs(30);

/// The end of a control channel: whole messages in both directions, each up to [`MAX_FRAME`](super::MAX_FRAME) bytes.
/// The other side's death shows as [`FabricError::PeerLost`] at the coordinator, as
/// [`FabricError::CoordinatorLost`] at a rank.
#[derive(Debug)]
pub struct Control {
    sender: ControlSender,
    receiver: ControlReceiver,
}

impl Control {
    pub(crate) fn new(stream: Channel, whom: Counterpart) -> Self {
        let stream = Arc::new(stream);
        Self {
            sender: ControlSender { stream: Arc::clone(&stream), whom },
            receiver: ControlReceiver { stream, whom, frames: FrameReader::default() },
        }
    }

    /// As [`ControlSender::send`].
    ///
    /// # Errors
    /// As there.
    pub fn send(&mut self, message: &[u8]) -> Result<(), FabricError> {
        self.sender.send(message)
    }

    /// As [`ControlReceiver::recv`].
    ///
    /// # Errors
    /// As there.
    pub fn recv(&mut self, timeout: Duration) -> Result<Option<Vec<u8>>, FabricError> {
        self.receiver.recv(timeout)
    }

    /// The two directions, for two threads. The connection ends when both are dropped.
    pub fn split(self) -> (ControlSender, ControlReceiver) {
        (self.sender, self.receiver)
    }
}

/// The sending half of a [`Control`].
#[derive(Debug)]
pub struct ControlSender {
    stream: Arc<Channel>,
    whom: Counterpart,
}

impl ControlSender {
    /// Sends one message. It may still be on its way when this returns.
    ///
    /// # Errors
    /// When the other side is gone or takes nothing for 30 seconds; the channel is of no use after that. Or when the
    /// message is too long, which does no harm.
    pub fn send(&mut self, message: &[u8]) -> Result<(), FabricError> {
        check_length("a message", message.len())?;
        let sent = write_frame(&*self.stream, message, end_of(SEND_PATIENCE));
        sent.map_err(|cause| {
            // A frame that was cut off would make the next one unreadable.
            self.close();
            self.whom.lost(cause)
        })
    }

    /// Ends the connection at once, both directions. The receiving halves at both sides wake up with an error.
    pub fn close(&self) {
        self.stream.shut();
    }
}

/// The receiving half of a [`Control`].
#[derive(Debug)]
pub struct ControlReceiver {
    stream: Arc<Channel>,
    whom: Counterpart,
    frames: FrameReader,
}

impl ControlReceiver {
    /// The next message, or `None` when none is complete within `timeout`; what has come of it is kept for the next
    /// call.
    ///
    /// # Errors
    /// When the other side is gone, or sends what is not a message.
    pub fn recv(&mut self, timeout: Duration) -> Result<Option<Vec<u8>>, FabricError> {
        self.frames.read(&*self.stream, end_of(timeout)).map_err(|cause| self.whom.lost(cause))
    }
}

/// Who is at the other end.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Counterpart {
    Coordinator,
    Rank(usize),
}

impl Counterpart {
    pub(crate) fn lost(self, cause: Cause) -> FabricError {
        match self {
            Self::Coordinator => FabricError::CoordinatorLost { cause },
            Self::Rank(rank) => FabricError::PeerLost { rank, cause },
        }
    }
}
