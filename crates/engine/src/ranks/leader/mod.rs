//! Rank 0: runs requests over the group, many at a time, step by step.

mod launch;
mod settle;

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use fabric::ControlSender;

use crate::backend::CacheUse;
use crate::guide::Guides;
use crate::ranks::blocks::{BLOCK, Blocks, Text};
use crate::ranks::drafting::Drafting;
use crate::ranks::member::{Member, RankError};
use crate::ranks::pace::Pace;
use crate::ranks::plan::{Asked, Signal, Step};
use crate::ranks::protocol::{FromRank, ToRank};
use crate::ranks::schedule::{Schedule, Share};
use crate::ranks::sequence::Sequence;
use crate::ranks::speculation::DraftModel;
use crate::request::{Drafts, FinishReason, RankStatistics, Request};

/// How often an idle leader lets the other ranks know that it lives. Far below the fabric's deadline.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Answers of a rank that rank 0 takes in while it waits for something else, in bytes. As long as more are on their way, no
/// further step is begun: its ranks could wait for room for their hidden states, each for the next, and the last one for
/// rank 0, which would be the first to wait.
pub(crate) const ANSWERS_AHEAD_MAX: usize = 8 << 20;

/// Rank 0 with its way to the front.
pub(crate) struct Leader<'a> {
    member: Member,
    control: &'a mut ControlSender,
    /// Messages from the front; closed when the front is gone.
    orders: &'a Receiver<ToRank>,
    /// Requests for which there is no slot yet.
    waiting: VecDeque<(u64, Request)>,
    sequences: Vec<Sequence>,
    blocks: Blocks,
    /// Those that had to make room for others, the oldest first.
    displaced: VecDeque<Sequence>,
    /// How often that happened.
    preemptions: u64,
    /// Whether the front does not know yet how much of the KV cache is in use.
    cache_changed: bool,
    guides: Guides,
    schedule: Schedule,
    pace: Pace,
    drafting: Drafting,
    /// Generations that have ended but for the ranks' reports.
    ended: VecDeque<Ended>,
    /// What is under way, in order.
    flights: VecDeque<Flight>,
    /// Buffers that are used again.
    shares: Vec<Share>,
    step: Step,
}

/// Something that was sent down the stages and comes back in its time.
enum Flight {
    /// A step, and whom the answers concern.
    Step { asked: Vec<Asked>, owners: Vec<u64>, hidden: Vec<Hidden>, bytes: usize, begun: Begun },
    /// The end of a generation, for which all ranks count up their times. Those of the first stage have done so.
    Report { ended: Ended, ranks: Vec<RankStatistics> },
}

/// When a step was begun, and what of it was prompts.
#[derive(Clone, Copy)]
struct Begun {
    at: Instant,
    /// How long its drafts took before that.
    drafting: Duration,
    /// How long the first stage took.
    first_stage: Duration,
    /// Whether no other step was under way.
    alone: bool,
    prompt_tokens: usize,
    tokens: usize,
}

/// Tokens of a sequence of which the hidden state is wanted.
struct Hidden {
    owner: u64,
    rows: Range<usize>,
}

/// A generation that has come to its end.
struct Ended {
    id: u64,
    finish: FinishReason,
    prefill_ms: f64,
    decode_ms: f64,
    drafts: Drafts,
}

impl Ended {
    fn of(sequence: &Sequence, finish: FinishReason) -> Self {
        let (prefill_ms, decode_ms) = sequence.times();
        Self { id: sequence.id, finish, prefill_ms, decode_ms, drafts: sequence.drafts() }
    }
}

impl<'a> Leader<'a> {
    /// `model` is the file that the rank has loaded.
    pub(crate) fn new(
        member: Member,
        draft_model: Option<DraftModel>,
        model: &Path,
        control: &'a mut ControlSender,
        orders: &'a Receiver<ToRank>,
    ) -> Self {
        let job = member.job();
        Self {
            control,
            orders,
            waiting: VecDeque::new(),
            sequences: Vec::new(),
            blocks: Blocks::new(job.slots, job.kv_blocks),
            displaced: VecDeque::new(),
            preemptions: 0,
            cache_changed: true,
            guides: Guides::new(model, &job.end_tokens),
            schedule: Schedule::default(),
            pace: Pace::new(job.token_latency_ms.map(|latency| Duration::from_millis(latency.into()))),
            drafting: Drafting::new(draft_model, job.draft_price),
            ended: VecDeque::new(),
            flights: VecDeque::new(),
            shares: Vec::new(),
            step: Step::default(),
            member,
        }
    }

    /// Begins with what the KV cache of all ranks held before a restart.
    pub(crate) fn with_texts(mut self, texts: Vec<Text>) -> Self {
        let job = self.member.job();
        self.blocks = Blocks::new(job.slots, job.kv_blocks).with_texts(texts, self.member.vocabulary_size());
        self
    }

    /// The rank, once it has ended, and what its KV cache holds.
    pub(crate) fn into_parts(self) -> (Member, Vec<Text>) {
        (self.member, self.blocks.texts())
    }

    /// Serves the front until it says to stop or goes away.
    pub(crate) fn lead(&mut self) -> Result<(), RankError> {
        while self.hear_orders()? {
            self.admit()?;
            self.ask_for_reports()?;
            if !self.launch()? {
                self.settle()?;
            }
        }
        // Nobody waits for what is under way any more, but the ranks wait to be rid of it.
        self.sequences.clear();
        while self.settle()? {}
        self.member.signal(Signal::Stop)
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.displaced.is_empty()
            && self.sequences.is_empty()
            && self.ended.is_empty()
            && self.flights.is_empty()
    }

    /// Takes what the front has said; with nothing else to do, waits for it. False when the group is to end.
    fn hear_orders(&mut self) -> Result<bool, RankError> {
        loop {
            let order = if self.is_idle() {
                match self.orders.recv_timeout(HEARTBEAT) {
                    Ok(order) => order,
                    Err(RecvTimeoutError::Disconnected) => return Ok(false),
                    Err(RecvTimeoutError::Timeout) => {
                        self.member.signal(Signal::Idle)?;
                        continue;
                    }
                }
            } else {
                match self.orders.try_recv() {
                    Ok(order) => order,
                    Err(TryRecvError::Disconnected) => return Ok(false),
                    Err(TryRecvError::Empty) => return Ok(true),
                }
            };
            match order {
                ToRank::Generate { id, request } => {
                    if self.is_idle() {
                        self.member.signal(Signal::Begin)?;
                    }
                    self.waiting.push_back((id, *request));
                }
                ToRank::Cancel { id } => self.cancel(id)?,
                ToRank::Start { .. } => {}
                ToRank::Stop => return Ok(false),
            }
        }
    }

    fn cancel(&mut self, id: u64) -> Result<(), RankError> {
        if let Some(index) = self.sequences.iter().position(|sequence| sequence.id == id) {
            self.end(index, FinishReason::Cancelled);
            return Ok(());
        }
        if let Some(index) = self.displaced.iter().position(|sequence| sequence.id == id) {
            self.ended
                .extend(self.displaced.remove(index).map(|sequence| Ended::of(&sequence, FinishReason::Cancelled)));
            return Ok(());
        }
        let before = self.waiting.len();
        self.waiting.retain(|(waiting, _)| *waiting != id);
        if self.waiting.len() < before {
            let (finish, drafts) = (FinishReason::Cancelled, Drafts::default());
            self.tell(&FromRank::Done { id, finish, prefill_ms: 0.0, decode_ms: 0.0, drafts, ranks: Vec::new() })?;
        }
        Ok(())
    }

    /// Gives requests that wait the slots that are free.
    fn admit(&mut self) -> Result<(), RankError> {
        while let Some(sequence) = self.displaced.front() {
            let (text, reusable) = sequence.to_resume();
            let Some(place) = self.blocks.take(text, reusable) else { return Ok(()) };
            let Some(mut sequence) = self.displaced.pop_front() else { break };
            sequence.resume(place);
            self.schedule.add(sequence.slot, sequence.prompt_left());
            self.sequences.push(sequence);
        }
        let mut next = 0;
        while let Some((_, request)) = self.waiting.get(next) {
            if request.prompt.is_empty() {
                return Err(RankError::Protocol("the front sent a request without a prompt".to_owned()));
            }
            if self.begins_like_another(request) {
                next += 1;
                continue;
            }
            let Some(place) = self.blocks.take(&request.prompt, Sequence::reusable(request)) else { break };
            let Some((id, request)) = self.waiting.remove(next) else { break };
            let (vocabulary, context) = (self.member.vocabulary_size(), self.member.job().context);
            let guide = request.constraint.as_ref().map(|constraint| self.guides.guide(constraint));
            let draft_max = self.member.job().draft_max;
            let mut sequence = Sequence::new(id, request, place, (vocabulary, context, draft_max));
            guide.into_iter().for_each(|guide| sequence.follow(guide));
            self.schedule.add(sequence.slot, sequence.prompt_left());
            self.sequences.push(sequence);
        }
        Ok(())
    }

    /// Whether the beginning of a prompt is being evaluated for another sequence right now, so that it is worth waiting for.
    fn begins_like_another(&self, request: &Request) -> bool {
        let reusable = Sequence::reusable(request);
        let longest = self.sequences.iter().filter(|sequence| sequence.prompt_left() > 0);
        let longest = longest.map(|sequence| sequence.common_beginning(&request.prompt[..reusable])).max().unwrap_or(0);
        longest >= BLOCK && longest >= self.blocks.reusable(&request.prompt[..reusable]) + BLOCK
    }

    /// Asks all ranks for their times for each generation that has ended.
    fn ask_for_reports(&mut self) -> Result<(), RankError> {
        while self.free_stages() > 0
            && let Some(ended) = self.ended.pop_front()
        {
            let ranks = self.member.begin_reports()?;
            self.flights.push_back(Flight::Report { ended, ranks });
        }
        Ok(())
    }

    /// Ends a sequence. The front hears of it once all ranks have counted up their times.
    fn end(&mut self, index: usize, finish: FinishReason) {
        let sequence = self.sequences.remove(index);
        self.schedule.remove(sequence.slot);
        self.blocks.release(sequence.slot);
        self.ended.push_back(Ended::of(&sequence, finish));
        self.cache_changed = true;
    }

    /// Tells the front how much of the KV cache is in use, if sequences have come or gone.
    fn tell_cache(&mut self) -> Result<(), RankError> {
        if !std::mem::take(&mut self.cache_changed) {
            return Ok(());
        }
        let (used, blocks) = self.blocks.usage();
        self.tell(&FromRank::Cache { cache: CacheUse { used, blocks, preemptions: self.preemptions } })
    }

    fn tell(&mut self, message: &FromRank) -> Result<(), RankError> {
        send(self.control, message)
    }
}

/// Sends a message to the front.
pub(crate) fn send(control: &mut ControlSender, message: &FromRank) -> Result<(), RankError> {
    let bytes = serde_json::to_vec(message).map_err(|error| RankError::Protocol(error.to_string()))?;
    Ok(control.send(&bytes)?)
}
