//! Completion queues: where devices tell what they have done.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::device::Context;
use crate::domain::ProtectionDomain;
use crate::error::{Call, Diagnosis, Error};
use crate::ffi;

/// Completions that one look takes at most.
const BATCH: usize = 16;
/// The bit of a request's number that tells receives from sends.
pub(crate) const RECEIVE: u64 = 1 << 63;

/// A completion queue. Clones are the same one.
#[derive(Clone)]
pub struct CompletionQueue {
    inner: Arc<Queue>,
}

struct Queue {
    raw: NonNull<ffi::CompletionQueue>,
    context: Context,
    poll: unsafe extern "C" fn(*mut ffi::CompletionQueue, c_int, *mut ffi::WorkCompletion) -> c_int,
}

// SAFETY: the library allows calls on a completion queue from any thread, and synchronizes what they share.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl CompletionQueue {
    /// Makes a queue that holds `entries`.
    ///
    /// # Errors
    /// When the device has no such queue left.
    pub fn new(domain: &ProtectionDomain, entries: usize) -> Result<Self, Error> {
        let context = domain.context().clone();
        let entries = c_int::try_from(entries).map_err(|_| Error::Misuse("a completion queue beyond all bounds"))?;
        let none = std::ptr::null_mut;
        // SAFETY: the context is open, and is held by the queue; no channel for events is wanted.
        let raw = unsafe { (context.library().create_cq)(context.raw(), entries, none(), none(), 0) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::CreateCompletionQueue, context.name()))?;
        // SAFETY: the queue is valid, its context is filled in, and nobody changes a context's operations.
        let poll = unsafe { (*raw.as_ref().context).ops.poll_cq };
        let poll =
            poll.ok_or_else(|| Error::Provider { device: context.name().to_owned(), what: "it has no poll_cq" })?;
        Ok(Self { inner: Arc::new(Queue { raw, context, poll }) })
    }

    /// Takes some of what has been completed, and appends it. Returns how many.
    ///
    /// # Errors
    /// When the device has failed.
    pub fn poll(&self, completions: &mut Vec<Completion>) -> Result<usize, Error> {
        let mut batch = [ffi::WorkCompletion::default(); BATCH];
        let queue = &self.inner;
        // SAFETY: the queue is valid, and the library writes at most so many completions.
        let count = unsafe { (queue.poll)(queue.raw.as_ptr(), BATCH as c_int, batch.as_mut_ptr()) };
        if count < 0 {
            return Err(Error::last(Call::Poll, queue.context.name()));
        }
        let batch = batch.get(..count as usize).ok_or_else(|| Error::Provider {
            device: queue.context.name().to_owned(),
            what: "it completed more than it was asked for",
        })?;
        completions.extend(batch.iter().map(|it| Completion {
            queue: queue.raw,
            id: it.id,
            status: Status::from_number(it.status),
            bytes: it.bytes as usize,
            queue_pair: it.queue_pair,
            vendor_code: it.vendor_error,
        }));
        Ok(batch.len())
    }

    pub(crate) fn raw(&self) -> *mut ffi::CompletionQueue {
        self.inner.raw.as_ptr()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: this is the queue that the library made; queue pairs that used it held it alive, and are gone.
        let code = unsafe { (self.context.library().destroy_cq)(self.raw.as_ptr()) };
        if code != 0 {
            tracing::warn!("cannot destroy a completion queue of {}: error {code}", self.context.name());
        }
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").field("device", &self.inner.context.name()).finish_non_exhaustive()
    }
}

/// A device's word that it is done with one request. To be handed to the queue pair whose request it was; it cannot be
/// made up or used twice, as it gives the request's memory back.
#[derive(Debug)]
pub struct Completion {
    queue: NonNull<ffi::CompletionQueue>,
    pub(crate) id: u64,
    pub(crate) status: Status,
    pub(crate) bytes: usize,
    queue_pair: u32,
    pub(crate) vendor_code: u32,
}

// SAFETY: the queue's address only serves for comparison.
unsafe impl Send for Completion {}

impl Completion {
    /// The number of the queue pair that the request was posted to.
    pub fn queue_pair(&self) -> u32 {
        self.queue_pair
    }

    /// Whether the request was done.
    pub fn status(&self) -> Status {
        self.status
    }

    pub(crate) fn is_from(&self, queue: &CompletionQueue) -> bool {
        self.queue == queue.inner.raw
    }

    pub(crate) fn direction(&self) -> Direction {
        if self.id & RECEIVE == 0 { Direction::Send } else { Direction::Receive }
    }
}

/// Which way a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Away from here.
    Send,
    /// To here.
    Receive,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "send",
            Self::Receive => "receive",
        })
    }
}

/// How a request ended: `enum ibv_wc_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// It was done.
    Success,
    /// The message is longer than the receive that was posted for it, or than the device can send.
    LocalLength,
    /// The queue pair is in the wrong state or was asked for what it cannot do.
    LocalOperation,
    /// The memory is not registered for this.
    LocalProtection,
    /// The queue pair had failed before this request's turn.
    Flushed,
    /// The other side answered out of order.
    BadResponse,
    /// The memory may not be written.
    LocalAccess,
    /// The other side could not do what it was asked, for its receive was too short, for instance.
    RemoteInvalid,
    /// The other side does not allow the access.
    RemoteAccess,
    /// The other side failed.
    RemoteOperation,
    /// The other side did not answer, however often it was tried.
    RetriesExceeded,
    /// The other side never had a receive ready.
    ReceiverNotReady,
    /// The other side gave up.
    RemoteAborted,
    /// The device failed.
    Fatal,
    /// The other side took too long.
    ResponseTimeout,
    /// Some other failure.
    General,
    /// A number without a use here.
    Other(u32),
}

impl Status {
    pub(crate) fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Success,
            1 => Self::LocalLength,
            2 => Self::LocalOperation,
            4 => Self::LocalProtection,
            5 => Self::Flushed,
            7 => Self::BadResponse,
            8 => Self::LocalAccess,
            9 => Self::RemoteInvalid,
            10 => Self::RemoteAccess,
            11 => Self::RemoteOperation,
            12 => Self::RetriesExceeded,
            13 => Self::ReceiverNotReady,
            16 => Self::RemoteAborted,
            19 => Self::Fatal,
            20 => Self::ResponseTimeout,
            21 => Self::General,
            other => Self::Other(other),
        }
    }

    /// The likely reason.
    pub fn diagnosis(self) -> Diagnosis {
        match self {
            Self::RetriesExceeded | Self::ResponseTimeout => Diagnosis::PeerSilent,
            Self::RemoteAborted | Self::RemoteOperation => Diagnosis::PeerSilent,
            Self::ReceiverNotReady => Diagnosis::PeerNotReady,
            Self::Flushed => Diagnosis::EarlierFailure,
            Self::Fatal => Diagnosis::DeviceGone,
            Self::LocalLength | Self::RemoteInvalid | Self::RemoteAccess | Self::BadResponse => Diagnosis::Disagreement,
            Self::LocalProtection | Self::LocalAccess => Diagnosis::Disagreement,
            Self::Success | Self::LocalOperation | Self::General | Self::Other(_) => Diagnosis::Unknown,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "it was done",
            Self::LocalLength => "the message did not fit",
            Self::LocalOperation => "the queue pair could not do it",
            Self::LocalProtection => "the memory is not registered for it",
            Self::Flushed => "it was cancelled",
            Self::BadResponse => "the other side answered out of order",
            Self::LocalAccess => "the memory may not be written",
            Self::RemoteInvalid => "the other side could not take it",
            Self::RemoteAccess => "the other side does not allow it",
            Self::RemoteOperation => "the other side failed",
            Self::RetriesExceeded => "the other side did not answer",
            Self::ReceiverNotReady => "the other side was not ready to receive",
            Self::RemoteAborted => "the other side gave up",
            Self::Fatal => "the device failed",
            Self::ResponseTimeout => "the other side took too long",
            Self::General => "the device reports a failure",
            Self::Other(number) => return write!(f, "status {number}"),
        })
    }
}
