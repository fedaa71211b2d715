//! Queue pairs: one side of a connection between two ports.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::completion::{Completion, CompletionQueue, Direction, RECEIVE, Status};
use crate::device::{Mtu, PORT};
use crate::domain::ProtectionDomain;
use crate::error::{Call, Error};
use crate::ffi::{self, mask};
use crate::gid::Gid;
use crate::limits::{Limit, Profile, frames_of};
use crate::region::Slot;

/// Bits of a request's number that count the requests of one queue pair; those above tell queue pairs apart.
const COUNT_BITS: u32 = 40;
/// Packet and queue pair numbers have 24 bits.
pub const NUMBER_MAX: u32 = (1 << 24) - 1;
/// Time until a reliable connection sends again: 4.096 us times 2 to this power, about 0.27 s.
const TIMEOUT: u8 = 16;
/// How often it does so before it gives up. The highest number, 7, is taken for "without end" by soft-RoCE.
const RETRIES: u8 = 6;
/// Tries at a receiver that is not ready; this number means without end. With credits it is always ready.
const NOT_READY_RETRIES: u8 = 7;
/// The code for 0.64 ms between them.
const NOT_READY_TIMER: u8 = 12;

/// What a connection promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reliability {
    /// All messages arrive, in order, or the connection fails.
    Reliable,
    /// Messages arrive in order or not at all.
    Unreliable,
}

/// What a queue pair holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePairOptions {
    /// What the connection promises.
    pub reliability: Reliability,
    /// Sends that can be posted.
    pub sends: usize,
    /// Receives that can be posted.
    pub receives: usize,
    /// Bytes of the longest message.
    pub message_bytes: usize,
    /// Messages up to this length are to travel inside their requests, if the device can do so.
    pub inline_bytes: usize,
}

/// The other side of a connection, and how to reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Its port's address.
    pub gid: Gid,
    /// Its port's local identifier, which only InfiniBand uses.
    pub lid: u16,
    /// Its queue pair's number.
    pub number: u32,
    /// The number of the first packet that it sends.
    pub first_packet: u32,
    /// Packets on the way.
    pub mtu: Mtu,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Initialized,
    /// Since when, on the clock of [`crate::limits::Usage`].
    Connected(u64),
    Started(u64),
}

/// What a completed request gives back.
#[derive(Debug)]
pub enum Retired {
    /// The message was sent. Over an unreliable connection that says nothing about its receipt.
    Sent(Slot),
    /// A message came.
    Received(Slot, usize),
}

/// One side of a connection, with the memory that is posted to it.
///
/// Dropping it takes it away from the device first, and only then gives the memory back.
pub struct QueuePair {
    raw: NonNull<ffi::QueuePair>,
    domain: ProtectionDomain,
    queue: CompletionQueue,
    options: QueuePairOptions,
    state: State,
    /// Bytes that the device really takes inside requests.
    inline_bytes: usize,
    sends: Posted,
    receives: Posted,
    /// Memory of requests that failed, which the device may still hold.
    parked: Vec<Slot>,
}

/// Requests of one direction, which end in the order in which they were posted.
struct Posted {
    slots: VecDeque<(Slot, usize)>,
    /// The number of the next request to post, and of the next to end.
    next: u64,
    oldest: u64,
}

impl Posted {
    fn new(first: u64, depth: usize) -> Self {
        Self { slots: VecDeque::with_capacity(depth), next: first, oldest: first }
    }

    fn push(&mut self, slot: Slot, frames: usize) {
        self.slots.push_back((slot, frames));
        self.next += 1;
    }
}

// SAFETY: the library allows calls on a queue pair from any thread.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Makes a queue pair on the domain's device, in the state INIT.
    ///
    /// # Errors
    /// When the device or the profile allows none, or none of this kind.
    pub fn new(domain: &ProtectionDomain, queue: &CompletionQueue, options: QueuePairOptions) -> Result<Self, Error> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let profile = domain.profile();
        check_options(profile, &options)?;
        let usage = domain.context().usage();
        usage.take_queue_pair(profile)?;
        let created = create(domain, queue, &options).inspect_err(|_| usage.return_queue_pair());
        let (raw, inline_bytes) = created?;
        // Numbers of requests never repeat within a process, so that a completion meant for another, earlier queue pair
        // can never be taken for one of this.
        let first = (SERIAL.fetch_add(1, Ordering::Relaxed) << COUNT_BITS) & !RECEIVE;
        let pair = Self {
            raw,
            domain: domain.clone(),
            queue: queue.clone(),
            options,
            state: State::Initialized,
            inline_bytes,
            sends: Posted::new(first, options.sends),
            receives: Posted::new(first | RECEIVE, options.receives),
            parked: Vec::new(),
        };
        let mut attributes = ffi::QueuePairAttributes { state: ffi::STATE_INIT, port: PORT, ..Default::default() };
        pair.modify(Call::Initialize, &mut attributes, mask::STATE | mask::KEY_INDEX | mask::PORT | mask::ACCESS)?;
        Ok(pair)
    }

    /// The number by which the other side and completions name it.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair lives; its number never changes.
        unsafe { self.raw.as_ref() }.number
    }

    /// Connects it with the other side's (RTR). `gid_index` is the place of this side's address in its port's table.
    ///
    /// # Errors
    /// When the device refuses, as it does when the address has gone, for instance.
    pub fn connect(&mut self, remote: &Remote, gid_index: u8) -> Result<(), Error> {
        if self.state != State::Initialized {
            return Err(Error::Misuse("a queue pair is connected once"));
        }
        if remote.number > NUMBER_MAX || remote.first_packet > NUMBER_MAX {
            return Err(Error::Misuse("numbers of queue pairs and packets have 24 bits"));
        }
        let mut attributes = ffi::QueuePairAttributes {
            state: ffi::STATE_READY_TO_RECEIVE,
            path_mtu: remote.mtu as u32,
            remote_queue_pair: remote.number,
            receive_number: remote.first_packet,
            route: ffi::Route {
                gid: ffi::RawGid(remote.gid.to_bytes()),
                gid_index,
                hop_limit: if self.domain.profile() == Profile::Apple { 1 } else { 64 },
                lid: remote.lid,
                is_global: 1,
                port: PORT,
                ..Default::default()
            },
            ..Default::default()
        };
        let mut fields = mask::STATE | mask::ROUTE | mask::PATH_MTU | mask::REMOTE_QUEUE_PAIR | mask::RECEIVE_NUMBER;
        if self.options.reliability == Reliability::Reliable {
            attributes.max_remote_reads = 1;
            attributes.not_ready_timer = NOT_READY_TIMER;
            fields |= mask::MAX_REMOTE_READS | mask::NOT_READY_TIMER;
        }
        self.modify(Call::Connect, &mut attributes, fields)?;
        self.state = State::Connected(self.domain.context().usage().tick());
        Ok(())
    }

    /// Makes it ready to send (RTS); its first packet has the number `first_packet`.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn start(&mut self, first_packet: u32) -> Result<(), Error> {
        let State::Connected(since) = self.state else {
            return Err(Error::Misuse("a queue pair is started once, when it is connected"));
        };
        let mut attributes = ffi::QueuePairAttributes {
            state: ffi::STATE_READY_TO_SEND,
            send_number: first_packet & NUMBER_MAX,
            ..Default::default()
        };
        let mut fields = mask::STATE | mask::SEND_NUMBER;
        if self.options.reliability == Reliability::Reliable {
            attributes.timeout = TIMEOUT;
            attributes.retries = RETRIES;
            attributes.not_ready_retries = NOT_READY_RETRIES;
            attributes.max_reads = 1;
            fields |= mask::TIMEOUT | mask::RETRIES | mask::NOT_READY_RETRIES | mask::MAX_READS;
        }
        self.modify(Call::Start, &mut attributes, fields)?;
        self.state = State::Started(since);
        Ok(())
    }

    fn modify(&self, call: Call, attributes: &mut ffi::QueuePairAttributes, fields: i32) -> Result<(), Error> {
        let context = self.domain.context();
        // SAFETY: the queue pair lives, and the attributes that `fields` names are set.
        let code = unsafe { (context.library().modify_qp)(self.raw.as_ptr(), attributes, fields) };
        if code == 0 { Ok(()) } else { Err(Error::call(call, context.name(), code)) }
    }

    /// Posts the first `length` bytes of a slot to be sent. The slot comes back when they have been.
    ///
    /// # Errors
    /// When the queue is full, the device has failed, or the profile does not allow it. The slot is lost then, as is the
    /// connection.
    pub fn post_send(&mut self, slot: Slot, length: usize) -> Result<(), Error> {
        let State::Started(_) = self.state else {
            return Err(Error::Misuse("a send before the queue pair is ready to send"));
        };
        if length > slot.len() || length == 0 {
            return Err(Error::Misuse("a message without bytes, or longer than its slot"));
        }
        let frames = self.admit(&slot, length, self.sends.slots.len() < self.options.sends)?;
        let inline = if length <= self.inline_bytes { ffi::SEND_INLINE } else { 0 };
        let mut entry = slot.entry(length);
        let mut request = ffi::SendRequest {
            id: self.sends.next,
            next: std::ptr::null_mut(),
            entries: &mut entry,
            entry_count: 1,
            opcode: ffi::OPCODE_SEND,
            flags: ffi::SEND_SIGNALED | inline,
            immediate: 0,
            other_opcodes: [0; 11],
        };
        let mut refused = std::ptr::null_mut();
        // SAFETY: the queue pair lives, and so does its context, whose operations nobody changes.
        let post = unsafe { (*self.raw.as_ref().context).ops.post_send };
        let Some(post) = post else { return Err(self.provider("it has no post_send")) };
        // SAFETY: the request is complete. The memory it names is registered, and is held by `sends` until the device is
        // done with it; the library reads request and entry only during the call.
        let code = unsafe { post(self.raw.as_ptr(), &mut request, &mut refused) };
        self.finish_post(Call::PostSend, code, slot, frames)
    }

    /// Posts a slot to be filled with one message.
    ///
    /// # Errors
    /// As for [`QueuePair::post_send`].
    pub fn post_receive(&mut self, slot: Slot) -> Result<(), Error> {
        if self.domain.profile() == Profile::Apple && !matches!(self.state, State::Started(_)) {
            return Err(Limit::EarlyReceive.into());
        }
        let frames = self.admit(&slot, slot.len(), self.receives.slots.len() < self.options.receives)?;
        let mut entry = slot.entry(slot.len());
        let mut request = ffi::ReceiveRequest {
            id: self.receives.next,
            next: std::ptr::null_mut(),
            entries: &mut entry,
            entry_count: 1,
        };
        let mut refused = std::ptr::null_mut();
        // SAFETY: as for sends.
        let post = unsafe { (*self.raw.as_ref().context).ops.post_recv };
        let Some(post) = post else { return Err(self.provider("it has no post_recv")) };
        // SAFETY: as for sends; no reference to the slot's bytes exists until the device has given it back.
        let code = unsafe { post(self.raw.as_ptr(), &mut request, &mut refused) };
        self.finish_post(Call::PostReceive, code, slot, frames)
    }

    /// Checks a request against what the queue and the profile allow, and counts its frames.
    fn admit(&self, slot: &Slot, length: usize, has_room: bool) -> Result<usize, Error> {
        let profile = self.domain.profile();
        if slot.domain() != self.domain.raw() {
            return Err(Error::Misuse("memory of another device"));
        }
        if length > self.options.message_bytes {
            return Err(Error::Misuse("a message longer than the queue pair was made for"));
        }
        if !has_room {
            return Err(Error::Misuse("more requests than the queue pair was made for"));
        }
        let connected = match self.state {
            State::Initialized => u64::MAX,
            State::Connected(since) | State::Started(since) => since,
        };
        if profile == Profile::Apple && slot.registered() > connected {
            return Err(Limit::LateRegion.into());
        }
        let frames = frames_of(length);
        self.domain.context().usage().take_frames(profile, frames as u32)?;
        Ok(frames)
    }

    fn finish_post(&mut self, call: Call, code: i32, slot: Slot, frames: usize) -> Result<(), Error> {
        if code == 0 {
            let posted = if call == Call::PostSend { &mut self.sends } else { &mut self.receives };
            posted.push(slot, frames);
            return Ok(());
        }
        let context = self.domain.context();
        context.usage().return_frames(frames as u32);
        self.parked.push(slot);
        Err(Error::call(call, context.name(), code))
    }

    /// Ends the request that a completion is about.
    ///
    /// # Errors
    /// When the request failed, as the connection then has, or the completion is not of this queue pair.
    pub fn retire(&mut self, completion: Completion) -> Result<Retired, Error> {
        if !completion.is_from(&self.queue) || completion.queue_pair() != self.number() {
            return Err(Error::Misuse("a completion of another queue pair"));
        }
        let direction = completion.direction();
        let posted = if direction == Direction::Send { &mut self.sends } else { &mut self.receives };
        if completion.id != posted.oldest {
            return Err(self.provider("it completed requests out of order"));
        }
        let Some((slot, frames)) = posted.slots.pop_front() else {
            return Err(self.provider("it completed what was never posted"));
        };
        posted.oldest += 1;
        let context = self.domain.context();
        context.usage().return_frames(frames as u32);
        if completion.status != Status::Success {
            self.parked.push(slot);
            return Err(Error::Completion {
                device: context.name().to_owned(),
                direction,
                status: completion.status,
                vendor_code: completion.vendor_code,
            });
        }
        if direction == Direction::Send {
            return Ok(Retired::Sent(slot));
        }
        if completion.bytes > slot.len() {
            self.parked.push(slot);
            return Err(self.provider("it received more than there was room for"));
        }
        let sent = frames_of(completion.bytes);
        if self.domain.profile() == Profile::Apple && sent != frames {
            return Err(Limit::FrameMismatch { sent, posted: frames }.into());
        }
        Ok(Retired::Received(slot, completion.bytes))
    }

    /// Sends that the device is not done with. They should be none when the queue pair is dropped.
    pub fn sends_posted(&self) -> usize {
        self.sends.slots.len()
    }

    /// Receives that the device has not filled.
    pub fn receives_posted(&self) -> usize {
        self.receives.slots.len()
    }

    fn provider(&self, what: &'static str) -> Error {
        Error::Provider { device: self.domain.context().name().to_owned(), what }
    }
}

fn check_options(profile: Profile, options: &QueuePairOptions) -> Result<(), Error> {
    if options.sends == 0
        || options.receives == 0
        || options.message_bytes == 0
        || u32::try_from(options.message_bytes).is_err()
    {
        return Err(Error::Misuse("a queue pair for no messages, or for ones beyond all bounds"));
    }
    if profile == Profile::Standard {
        return Ok(());
    }
    let frames = options.sends.max(options.receives).saturating_mul(frames_of(options.message_bytes));
    match options {
        QueuePairOptions { reliability: Reliability::Reliable, .. } => Err(Limit::Reliable.into()),
        QueuePairOptions { inline_bytes: 1.., .. } => Err(Limit::Inline.into()),
        &QueuePairOptions { message_bytes: bytes, .. } if bytes > Profile::MESSAGE_BYTES_MAX => {
            Err(Limit::Message { bytes }.into())
        }
        _ if frames > Profile::QUEUE_FRAMES_MAX => Err(Limit::QueueFrames { frames }.into()),
        _ => Ok(()),
    }
}

/// Makes a queue pair, if need be without room for data inside requests. Returns how much of that it has.
fn create(
    domain: &ProtectionDomain,
    queue: &CompletionQueue,
    options: &QueuePairOptions,
) -> Result<(NonNull<ffi::QueuePair>, usize), Error> {
    let context = domain.context();
    // Apple's driver counts the depth of queues in frames.
    let frames = match domain.profile() {
        Profile::Apple => frames_of(options.message_bytes),
        Profile::Standard => 1,
    };
    let mut failure = Error::Misuse("a queue pair beyond all bounds");
    let [sends, receives] = [options.sends, options.receives].map(|count| u32::try_from(count * frames));
    let (Ok(sends), Ok(receives)) = (sends, receives) else { return Err(failure) };
    for inline_bytes in [options.inline_bytes, 0] {
        let mut request = ffi::QueuePairRequest {
            user: std::ptr::null_mut(),
            send_queue: queue.raw(),
            receive_queue: queue.raw(),
            shared: std::ptr::null_mut(),
            capacity: ffi::Capacity {
                send_requests: sends,
                receive_requests: receives,
                send_entries: 1,
                receive_entries: 1,
                inline_bytes: inline_bytes as u32,
            },
            kind: match options.reliability {
                Reliability::Reliable => ffi::KIND_RELIABLE,
                Reliability::Unreliable => ffi::KIND_UNRELIABLE,
            },
            signal_all: 0,
        };
        // SAFETY: domain and completion queue live, and are held by the queue pair; the library writes back into the
        // request what it really gives.
        let raw = unsafe { (context.library().create_qp)(domain.raw(), &mut request) };
        match NonNull::new(raw) {
            // What was not asked for is not used, even where the device offers it.
            Some(raw) => return Ok((raw, inline_bytes.min(request.capacity.inline_bytes as usize))),
            None => failure = Error::last(Call::CreateQueuePair, context.name()),
        }
        if inline_bytes == 0 {
            break;
        }
    }
    Err(failure)
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let context = self.domain.context();
        if !self.sends.slots.is_empty() {
            tracing::debug!("a queue pair of {} ends with {} sends on the way", context.name(), self.sends.slots.len());
            if self.domain.profile() == Profile::Apple {
                context.usage().note_undrained();
            }
        }
        // SAFETY: this is the queue pair that the library made, destroyed once. Its memory is given back only after.
        let code = unsafe { (context.library().destroy_qp)(self.raw.as_ptr()) };
        context.usage().return_queue_pair();
        let slots = self.sends.slots.iter().chain(&self.receives.slots);
        let frames: usize = slots.map(|(_, frames)| frames).sum();
        context.usage().return_frames(frames as u32);
        if code != 0 {
            tracing::warn!("cannot destroy a queue pair of {}: error {code}; its memory stays", context.name());
            // The device may still write there.
            std::mem::forget(std::mem::take(&mut self.sends.slots));
            std::mem::forget(std::mem::take(&mut self.receives.slots));
            std::mem::forget(std::mem::take(&mut self.parked));
        }
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("device", &self.domain.context().name())
            .field("number", &self.number())
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}
