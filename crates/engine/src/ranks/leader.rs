//! Rank 0: runs requests over the group, many at a time, step by step.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use fabric::ControlSender;
use model::LOGIT_ROWS;

use crate::backend::CacheUse;
use crate::guide::Guides;
use crate::ranks::blocks::{BLOCK, Blocks};
use crate::ranks::member::{Member, RankError};
use crate::ranks::pace::Pace;
use crate::ranks::plan::{Asked, Signal, Step, Wanted};
use crate::ranks::protocol::{FromRank, ToRank};
use crate::ranks::schedule::{Schedule, Share};
use crate::ranks::sequence::Sequence;
use crate::ranks::speculation::{DRAFTS_MAX, StepCost};
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
    cost: StepCost,
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
            cost: StepCost::default(),
            ended: VecDeque::new(),
            flights: VecDeque::new(),
            shares: Vec::new(),
            step: Step::default(),
            member,
        }
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
                ToRank::Start => {}
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

    /// Makes room for `tokens` more tokens of the sequence in `slot`. Those have to make way that are least urgent, of equals
    /// the youngest; if that is the one that asks, it does itself. `busy` have tokens in steps under way and stay. False if
    /// there is no room now.
    fn make_room(&mut self, slot: usize, tokens: usize, busy: &[u64]) -> bool {
        while !self.blocks.reserve(slot, tokens) {
            let movable = self.sequences.iter().enumerate().filter(|(_, sequence)| !busy.contains(&sequence.id));
            // Sequences are in the order in which they got their slots.
            let victim = movable.max_by_key(|(index, sequence)| (sequence.priority(), *index)).map(|(index, _)| index);
            let Some(victim) = victim else { return false };
            let displaced = self.sequences.remove(victim);
            let itself = displaced.slot == slot;
            self.schedule.remove(displaced.slot);
            self.blocks.release(displaced.slot);
            self.preemptions += 1;
            let place = self.displaced.partition_point(|other| other.id < displaced.id);
            self.displaced.insert(place, displaced);
            if itself {
                return false;
            }
        }
        true
    }

    /// Sequences of which answers are under way.
    fn awaited(&self) -> Vec<u64> {
        let mut awaited = Vec::new();
        for flight in &self.flights {
            if let Flight::Step { owners, hidden, .. } = flight {
                awaited.extend(owners);
                awaited.extend(hidden.iter().map(|hidden| hidden.owner));
            }
        }
        awaited
    }

    /// How many more steps can be under way now.
    fn free_stages(&self) -> usize {
        let (mut steps, mut answers) = (0, 0);
        for flight in &self.flights {
            if let Flight::Step { bytes, .. } = flight {
                steps += 1;
                answers += bytes;
            }
        }
        if answers > ANSWERS_AHEAD_MAX { 0 } else { self.member.job().layout.pipeline.saturating_sub(steps) }
    }

    /// Whether a step should take whoever can go on: when all logits are wanted, and the answers to one token of each
    /// sequence are so long that it will be the only one under way, or stages have no cores of their own. There, to share
    /// a pass over the weights is worth more than to keep all stages busy.
    fn shares_step(&self) -> bool {
        let all = self.sequences.iter().filter(|sequence| sequence.wants_all_logits()).count();
        let crowded = self.member.job().crowded;
        all > 0 && (crowded || all * self.member.answer_bytes(&[Asked { row: 0, best: None }]) > ANSWERS_AHEAD_MAX)
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

    /// Begins the next step, if there is one and a stage to begin it. Returns whether it did.
    fn launch(&mut self) -> Result<bool, RankError> {
        let free = self.free_stages();
        if free == 0 {
            return Ok(false);
        }
        let room = self.pace.room(self.member.job().step_tokens);
        self.schedule.next(if self.shares_step() { 1 } else { free }, room, &mut self.shares);
        if self.shares.is_empty() {
            return Ok(false);
        }
        let alone = !self.flights.iter().any(|flight| matches!(flight, Flight::Step { .. }));
        let mut begun = Begun { at: Instant::now(), first_stage: Duration::ZERO, alone, prompt_tokens: 0, tokens: 0 };
        self.step.clear();
        let (mut asked, mut owners, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
        let mut drafts = DRAFTS_MAX;
        let mut busy = self.awaited();
        let shares = std::mem::take(&mut self.shares);
        for share in &shares {
            let at = |sequence: &Sequence| sequence.slot == share.slot;
            let Some(prompt) = self.sequences.iter().find(|it| at(it)).map(|it| it.prompt_left() > 0) else { continue };
            if !self.make_room(share.slot, share.tokens, &busy) {
                self.schedule.postpone(*share, prompt);
                continue;
            }
            let Some(sequence) = self.sequences.iter_mut().find(|it| at(it)) else { continue };
            busy.push(sequence.id);
            if prompt {
                begun.prompt_tokens += share.tokens;
            } else {
                match sequence.draft(drafts) {
                    drafted if self.blocks.reserve(share.slot, 1 + drafted) => drafts -= drafted,
                    _ => sequence.retract(),
                }
            }
            let (tokens, wanted) = sequence.take(share.tokens);
            self.step.push(share.slot, self.blocks.len(share.slot), tokens, wanted);
            self.blocks.tell(share.slot, &mut self.step);
            // What was drafted is there when it turns out to be right.
            self.blocks.extend(share.slot, &tokens[..share.tokens]);
            asked.clear();
            asked.extend(self.step.asked());
            owners.resize(asked.len(), sequence.id);
            let end = self.step.tokens.len();
            match wanted {
                Wanted::Hidden => hidden.push(Hidden { owner: sequence.id, rows: end - share.tokens..end }),
                Wanted::LastHidden => hidden.push(Hidden { owner: sequence.id, rows: end - 1..end }),
                _ => {}
            }
        }
        self.shares = shares;
        begun.tokens = self.step.tokens.len();
        if begun.tokens == 0 {
            return Ok(false);
        }
        let rows = hidden.iter().map(|hidden| hidden.rows.len()).sum();
        let bytes = self.member.answer_bytes(&asked) + self.member.hidden_bytes(rows);
        self.member.lead_step(&self.step)?;
        begun.first_stage = begun.at.elapsed();
        self.flights.push_back(Flight::Step { asked, owners, hidden, bytes, begun });
        if begun.prompt_tokens > 0 {
            self.cache_changed = true;
            self.tell_cache()?;
            self.tell(&FromRank::Progress {})?;
        }
        Ok(true)
    }

    /// Waits for what has been under way for longest, and goes on with it. False if nothing is.
    fn settle(&mut self) -> Result<bool, RankError> {
        match self.flights.pop_front() {
            None => return Ok(false),
            Some(Flight::Step { asked, owners, hidden, begun, .. }) => {
                self.hear_answers(&asked, &owners)?;
                self.hear_hidden(&hidden)?;
                self.learn_pace(&begun, !asked.is_empty() || !hidden.is_empty());
            }
            Some(Flight::Report { ended, mut ranks }) => {
                self.member.finish_reports(&mut ranks)?;
                let Ended { id, finish, prefill_ms, decode_ms, drafts } = ended;
                self.tell_cache()?;
                self.tell(&FromRank::Done { id, finish, prefill_ms, decode_ms, drafts, ranks })?;
            }
        }
        Ok(true)
    }

    /// Notes how long a step took. Of one that is not waited for, or that others were in the way of, all that is known is how
    /// long its first stage took, and the others take about as long.
    fn learn_pace(&mut self, begun: &Begun, answered: bool) {
        let stages = self.member.job().layout.pipeline as u32;
        let took = if answered && begun.alone { begun.at.elapsed() } else { begun.first_stage * stages };
        self.pace.learn(begun.prompt_tokens, took);
        if begun.prompt_tokens == 0 {
            self.cost.learn(begun.tokens, took.as_secs_f64());
        }
    }

    /// Receives the answers to a step and tells the front what they have led to.
    fn hear_answers(&mut self, asked: &[Asked], owners: &[u64]) -> Result<(), RankError> {
        let mut tokens = Vec::new();
        let mut ended = Vec::new();
        let price = self.cost.price(self.sequences.iter().filter(|sequence| sequence.prompt_left() == 0).count());
        for (asked, owners) in asked.chunks(LOGIT_ROWS).zip(owners.chunks(LOGIT_ROWS)) {
            let (answers, end_tokens) = self.member.receive_answers(asked)?;
            for (index, (&asked, &id)) in asked.iter().zip(owners).enumerate() {
                // One that is gone was cancelled in the meantime.
                let Some(sequence) = self.sequences.iter_mut().find(|sequence| sequence.id == id) else { continue };
                let outgoing = sequence.hear(answers.get(index, asked), end_tokens);
                if let Some((tokens, cached)) = outgoing.prompt {
                    send(self.control, &FromRank::Prompt { id, tokens, cached })?;
                }
                if let Some(finish) = outgoing.finish {
                    ended.push((id, finish));
                } else if outgoing.ready {
                    self.blocks.extend(sequence.slot, sequence.settle(price));
                    self.schedule.wake(sequence.slot);
                }
                tokens.extend(outgoing.token.map(|token| (id, token)));
            }
        }
        if !tokens.is_empty() {
            self.tell(&FromRank::Tokens { tokens })?;
        }
        for (id, finish) in ended {
            if let Some(index) = self.sequences.iter().position(|sequence| sequence.id == id) {
                self.end(index, finish);
            }
        }
        Ok(())
    }

    /// Receives hidden states and tells the front of embeddings that they complete.
    fn hear_hidden(&mut self, hidden: &[Hidden]) -> Result<(), RankError> {
        if hidden.is_empty() {
            return Ok(());
        }
        let rows: Vec<usize> = hidden.iter().flat_map(|hidden| hidden.rows.clone()).collect();
        let values = self.member.receive_hidden(&rows)?;
        let width = values.len() / rows.len();
        let (mut rest, mut complete) = (values, Vec::new());
        for Hidden { owner, rows } in hidden {
            let (own, others) = rest.split_at(rows.len() * width);
            rest = others;
            // One that is gone was cancelled in the meantime.
            let sequence = self.sequences.iter_mut().find(|sequence| sequence.id == *owner);
            complete.extend(sequence.and_then(|sequence| sequence.hear_hidden(own, width)).map(|it| (*owner, it)));
        }
        for (id, (values, cached)) in complete {
            self.tell(&FromRank::Prompt { id, tokens: Vec::new(), cached })?;
            self.tell(&FromRank::Embedding { id, values })?;
            if let Some(index) = self.sequences.iter().position(|sequence| sequence.id == id) {
                self.end(index, FinishReason::Stop);
            }
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
