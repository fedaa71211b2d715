//! One rank: loads its shard and computes the steps that rank 0 plans.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::time::Instant;

use fabric::{Fabric, FabricError, Operator, Team, Transport};
use model::{
    Blueprint, Exchange, ExchangeError, Gguf, LOGIT_ROWS, ModelError, Placement, Shard, ShardOptions, Slices, Stretch,
};

use crate::candidates::Scored;
use crate::memory::{available_bytes, peak_resident_bytes};
use crate::ranks::answers::{Answers, answer_length, pack};
use crate::ranks::blocks::BLOCK;
use crate::ranks::leader::ANSWERS_AHEAD_MAX;
use crate::ranks::plan::{self, Asked, Change, Plan, Room, Signal, Step};
use crate::ranks::protocol::{Job, Weights};
use crate::ranks::speculation::DRAFTS_MAX;
use crate::request::RankStatistics;

/// A rank that cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RankError {
    /// A link failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The model cannot be loaded or run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The front or another rank said something that makes no sense.
    #[error("{0}")]
    Protocol(String),
    /// This machine's copy of the model is another one.
    #[error(
        "the model at {path} has {found} bytes, but the group runs one of {expected} bytes: fetch the same model, or name it with --model"
    )]
    OtherModel {
        /// Where it was looked for.
        path: String,
        /// Bytes found there.
        found: u64,
        /// Bytes the group's model has.
        expected: u64,
    },
}

impl RankError {
    /// The rank that could not be reached, if that is what went wrong.
    pub(crate) fn lost_rank(&self) -> Option<usize> {
        match self {
            Self::Fabric(FabricError::PeerLost { rank, .. }) => Some(*rank),
            Self::Model(ModelError::Exchange(error)) => match error.downcast_ref::<FabricError>() {
                Some(FabricError::PeerLost { rank, .. }) => Some(*rank),
                _ => None,
            },
            _ => None,
        }
    }
}

/// A rank with its shard and its links.
pub(crate) struct Member {
    fabric: Fabric,
    job: Job,
    shard: Shard,
    /// All ranks, to hear rank 0's plans.
    everyone: Team,
    /// The ranks of this stage, and whether any two of them are linked by anything but shared memory.
    stage: Team,
    stage_has_cables: bool,
    /// Each last-stage rank's slice of the vocabulary, by place in the stage.
    vocabulary: Vec<Range<usize>>,
    vocabulary_size: usize,
    /// On rank 0 what all ranks of the last stage say of some tokens.
    answers: Answers,
    /// On other ranks of the last stage their slice of the logits of [`LOGIT_ROWS`] tokens, and the best of one.
    logits: Vec<f32>,
    best: Vec<Scored>,
    /// Hidden states on their way to rank 0.
    normed: Vec<f32>,
    answer: Vec<u32>,
    message: Vec<u8>,
    step: Step,
    /// Blocks of the KV cache up to the last one that was ever used.
    kv_blocks_used: usize,
    /// Since when times are counted.
    began: Instant,
}

impl Member {
    /// Loads this rank's shard of the model in `file`. `progress` hears how many bytes of weights are done, and of how many.
    pub(crate) fn load(
        mut fabric: Fabric,
        file: &Gguf,
        job: Job,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, RankError> {
        let available = available_bytes();
        let blueprint = Blueprint::from_gguf(file)?;
        let (rank, layout) = (fabric.rank(), &job.layout);
        if fabric.size() != layout.ranks() || layout.shares.len() != layout.tensor {
            let size = fabric.size();
            return Err(RankError::Protocol(format!("the layout {layout} does not fit a group of {size} ranks")));
        }
        if job.crowded {
            fabric.set_crowded(true);
        }
        if rank == 0 {
            // What answers rank 0 must not wait for it while it waits itself, for room for plans and hidden states.
            for other in layout.last_stage().filter(|&other| layout.pipeline > 1 && other != rank) {
                fabric.set_read_ahead(other, ANSWERS_AHEAD_MAX)?;
            }
        }
        let stage = Team::of_range(layout.stage(layout.stage_of(rank)), rank)?;
        let stage_has_cables = has_cables(&mut fabric, &stage)?;
        let placement = Placement::of_rank(rank, &blueprint.stages(layout.pipeline), &layout.shares);
        let options = ShardOptions {
            threads: job.threads,
            slots: job.slots,
            kv_blocks: job.kv_blocks,
            context: job.context,
            step_tokens: room(&job).step_tokens,
            kv_type: job.kv_type,
        };
        let mut shard = Shard::load(file, &blueprint, &placement, options)?;
        let in_memory = place_weights(&fabric, &mut shard, job.weights, available, progress)?;
        shard.check_kernels()?;
        let vocabulary = placement.vocabulary(&blueprint);
        let own = vocabulary[placement.index].len();
        let logits = if placement.last && rank > 0 { LOGIT_ROWS * own } else { 0 };
        let mut member = Self {
            everyone: Team::of_range(0..layout.ranks(), rank)?,
            stage,
            stage_has_cables,
            fabric,
            shard,
            vocabulary,
            vocabulary_size: blueprint.vocabulary,
            answers: Answers::new(if rank == 0 { blueprint.vocabulary } else { 0 }),
            logits: vec![0.0; logits],
            best: Vec::new(),
            normed: Vec::new(),
            answer: Vec::new(),
            message: Vec::new(),
            step: Step::default(),
            kv_blocks_used: 0,
            began: Instant::now(),
            job,
        };
        if !in_memory {
            member.touch();
        }
        Ok(member)
    }

    pub(crate) fn rank(&self) -> usize {
        self.fabric.rank()
    }

    pub(crate) fn job(&self) -> &Job {
        &self.job
    }

    pub(crate) fn vocabulary_size(&self) -> usize {
        self.vocabulary_size
    }

    pub(crate) fn weight_bytes(&self) -> u64 {
        self.shard.weight_bytes() as u64
    }

    /// Blocks of the KV cache that were ever used, but for some behind the last one.
    pub(crate) fn kv_blocks_used(&self) -> usize {
        self.kv_blocks_used
    }

    /// Writes what the first `blocks` blocks of this rank's KV cache hold.
    pub(crate) fn write_kv_blocks(&self, blocks: usize, out: &mut dyn Write) -> io::Result<()> {
        self.shard.write_kv_blocks(blocks, out)
    }

    /// Reads what [`Member::write_kv_blocks`] has written.
    pub(crate) fn read_kv_blocks(&mut self, blocks: usize, from: &mut dyn Read) -> io::Result<()> {
        self.kv_blocks_used = blocks;
        self.shard.read_kv_blocks(blocks, from)
    }

    /// Follows rank 0's plans until it says to stop.
    pub(crate) fn follow(&mut self) -> Result<(), RankError> {
        loop {
            let mut message = std::mem::take(&mut self.message);
            self.fabric.broadcast(&self.everyone, 0, &mut message)?;
            let plan = plan::decode(&message, room(&self.job));
            match plan.ok_or_else(|| RankError::Protocol("rank 0 sent a plan that makes no sense".to_owned()))? {
                Plan::Signal(Signal::Idle) => {}
                Plan::Signal(Signal::Begin) => self.begin(),
                Plan::Signal(Signal::Report) => self.report_to_leader()?,
                Plan::Signal(Signal::Stop) => return Ok(()),
                Plan::Step(plan) => {
                    let mut step = std::mem::take(&mut self.step);
                    plan.copy_to(&mut step);
                    self.run_stage(&step)?;
                    self.send_answers(&step)?;
                    self.step = step;
                }
            }
            self.message = message;
        }
    }

    /// On rank 0: sends a signal to all others.
    pub(crate) fn signal(&mut self, signal: Signal) -> Result<(), RankError> {
        plan::encode_signal(&mut self.message, signal);
        self.fabric.broadcast(&self.everyone, 0, &mut self.message)?;
        if signal == Signal::Begin {
            self.begin();
        }
        Ok(())
    }

    /// On rank 0: starts a step on all ranks and computes this rank's part. What is asked follows through
    /// [`Member::receive_answers`].
    pub(crate) fn lead_step(&mut self, step: &Step) -> Result<(), RankError> {
        plan::encode_step(&mut self.message, step);
        self.fabric.broadcast(&self.everyone, 0, &mut self.message)?;
        self.run_stage(step)
    }

    /// Most bytes that a rank of the last stage other than rank 0 answers.
    pub(crate) fn answer_bytes(&self, asked: &[Asked]) -> usize {
        let last_stage = self.job.layout.last_stage();
        let others = last_stage.zip(&self.vocabulary).filter(|(rank, _)| *rank != self.fabric.rank());
        others.map(|(_, ids)| 4 * answer_length(asked, ids.len())).max().unwrap_or(0)
    }

    /// On rank 0: the answers about the tokens `asked` of a step, at most [`LOGIT_ROWS`] at a time, in order and covering
    /// exactly those that the step asked about; and the tokens that end a generation. Steps are asked for in their order;
    /// with a single stage, each before the next begins.
    pub(crate) fn receive_answers(&mut self, asked: &[Asked]) -> Result<(&mut Answers, &[u32]), RankError> {
        self.answers.clear();
        let (this, ranks) = (self.fabric.rank(), self.job.layout.last_stage());
        if ranks.contains(&this) {
            let own = self.vocabulary[self.stage.index()].clone();
            let (logits, stride) = self.answers.own(own.start);
            let rows: Vec<usize> = asked.iter().map(|asked| asked.row).collect();
            self.shard.logits(&rows, logits, stride);
            self.answers.add_own(asked, own);
        }
        for (rank, ids) in ranks.zip(&self.vocabulary).filter(|(rank, _)| *rank != this) {
            let length = answer_length(asked, ids.len());
            self.answer.resize(length, 0);
            if length > 0 {
                self.fabric.recv(rank, bytemuck::cast_slice_mut(&mut self.answer))?;
            }
            self.answers.add(asked, ids.clone(), &self.answer);
        }
        self.answers.merge(asked);
        Ok((&mut self.answers, &self.job.end_tokens))
    }

    /// On rank 0: the hidden states of the tokens `rows` of a step, `[rows, width]`, once its other answers were received.
    pub(crate) fn receive_hidden(&mut self, rows: &[usize]) -> Result<&[f32], RankError> {
        self.normed.resize(rows.len() * self.shard.width(), 0.0);
        match self.job.layout.last_stage().start {
            0 => self.shard.normed(rows, &mut self.normed),
            first => self.fabric.recv(first, bytemuck::cast_slice_mut(&mut self.normed))?,
        }
        Ok(&self.normed)
    }

    /// Bytes of the hidden states of so many tokens.
    pub(crate) fn hidden_bytes(&self, rows: usize) -> usize {
        4 * rows * self.shard.width()
    }

    /// On rank 0: asks every rank how it has spent the time since it began to count, and hears those of its own stage,
    /// with which it has to go on at once. No answers of theirs may be under way.
    pub(crate) fn begin_reports(&mut self) -> Result<Vec<RankStatistics>, RankError> {
        self.signal(Signal::Report)?;
        let mut reports = vec![self.report()];
        for rank in 1..self.job.layout.tensor {
            reports.push(self.hear_report(rank)?);
        }
        Ok(reports)
    }

    /// On rank 0: hears the ranks of all other stages, once all that was asked of them before has been answered.
    pub(crate) fn finish_reports(&mut self, reports: &mut Vec<RankStatistics>) -> Result<(), RankError> {
        for rank in reports.len()..self.fabric.size() {
            reports.push(self.hear_report(rank)?);
        }
        Ok(())
    }

    fn hear_report(&mut self, rank: usize) -> Result<RankStatistics, RankError> {
        let mut bytes = [0; 24];
        self.fabric.recv(rank, &mut bytes)?;
        let [compute, wait, memory] = bytemuck::cast(bytes);
        let (compute_ms, wait_ms) = (f64::from_bits(compute), f64::from_bits(wait));
        Ok(RankStatistics { compute_ms, wait_ms, peak_rss_bytes: memory })
    }

    /// Runs this stage's layers over the tokens of a step, between the stage before and the one after.
    fn run_stage(&mut self, step: &Step) -> Result<(), RankError> {
        self.arrange_blocks(step)?;
        let (rank, layout) = (self.fabric.rank(), &self.job.layout);
        let (stage, tokens) = (layout.stage_of(rank), step.tokens.len());
        if stage == 0 {
            self.shard.embed(&step.tokens);
        } else {
            let hidden = self.shard.hidden_mut(tokens);
            self.fabric.recv(rank - layout.tensor, bytemuck::cast_slice_mut(hidden))?;
        }
        let has_cables = self.stage_has_cables;
        let mut exchange = StageExchange { fabric: &mut self.fabric, stage: &self.stage, has_cables };
        self.shard.run_layers(&step.stretches, &mut exchange)?;
        if stage + 1 < layout.pipeline {
            let hidden = self.shard.hidden(tokens);
            self.fabric.send(rank + layout.tensor, bytemuck::cast_slice(hidden))?;
        }
        Ok(())
    }

    /// Copies blocks of the KV cache and changes tables as a step says.
    fn arrange_blocks(&mut self, step: &Step) -> Result<(), RankError> {
        for &[from, to] in &step.copies {
            self.shard.copy_kv_block(from, to);
        }
        // What is copied to is in a table as well.
        let last = step.added.iter().max().map_or(0, |&block| block as usize + 1);
        self.kv_blocks_used = self.kv_blocks_used.max(last);
        let mut added = step.added.iter().copied();
        for &Change { slot, kept, added: count } in &step.changes {
            self.shard.change_table(slot, kept, added.by_ref().take(count));
        }
        let reaches =
            |stretch: &Stretch| stretch.first_position + stretch.tokens <= self.shard.table(stretch.slot).len() * BLOCK;
        if step.stretches.iter().all(reaches) {
            return Ok(());
        }
        Err(RankError::Protocol("rank 0 planned a step over positions that have no block".to_owned()))
    }

    /// On ranks of the last stage other than rank 0: tells rank 0 what it wants to know of a step.
    fn send_answers(&mut self, step: &Step) -> Result<(), RankError> {
        if !self.job.layout.last_stage().contains(&self.fabric.rank()) {
            return Ok(());
        }
        let ids = self.vocabulary[self.stage.index()].clone();
        let asked: Vec<Asked> = step.asked().collect();
        for asked in asked.chunks(LOGIT_ROWS) {
            let rows: Vec<usize> = asked.iter().map(|asked| asked.row).collect();
            self.shard.logits(&rows, &mut self.logits, ids.len());
            pack(asked, ids.clone(), &self.logits, &mut self.best, &mut self.answer);
            if !self.answer.is_empty() {
                self.fabric.send(0, bytemuck::cast_slice(&self.answer))?;
            }
        }
        self.send_hidden(step)
    }

    /// On the first rank of the last stage, unless that is rank 0: sends it the hidden states that it wants. All ranks of a
    /// stage have the same.
    fn send_hidden(&mut self, step: &Step) -> Result<(), RankError> {
        let rows: Vec<usize> = step.hidden().collect();
        if rows.is_empty() || self.job.layout.last_stage().start != self.fabric.rank() {
            return Ok(());
        }
        self.normed.resize(rows.len() * self.shard.width(), 0.0);
        self.shard.normed(&rows, &mut self.normed);
        Ok(self.fabric.send(0, bytemuck::cast_slice(&self.normed))?)
    }

    fn begin(&mut self) {
        self.fabric.take_waited();
        self.began = Instant::now();
    }

    fn report(&mut self) -> RankStatistics {
        let wait_ms = self.fabric.take_waited().as_secs_f64() * 1000.0;
        let total_ms = self.began.elapsed().as_secs_f64() * 1000.0;
        let compute_ms = (total_ms - wait_ms).max(0.0);
        self.began = Instant::now();
        RankStatistics { compute_ms, wait_ms, peak_rss_bytes: peak_resident_bytes() }
    }

    fn report_to_leader(&mut self) -> Result<(), RankError> {
        let RankStatistics { compute_ms, wait_ms, peak_rss_bytes } = self.report();
        let numbers = [compute_ms.to_bits(), wait_ms.to_bits(), peak_rss_bytes];
        Ok(self.fabric.send(0, bytemuck::bytes_of(&numbers))?)
    }

    /// Reads the shard's weights from disk by running it once over one token, without the other ranks.
    fn touch(&mut self) {
        self.shard.embed(&[0]);
        // Without an exchange the result is nonsense, but all weights were read, and the next step overwrites it.
        let _ = self.shard.run_layers(&[Stretch { slot: 0, first_position: 0, tokens: 1 }], &mut model::Alone);
        let own = self.vocabulary[self.stage.index()].clone();
        if self.fabric.rank() == 0 {
            let (logits, stride) = self.answers.own(own.start);
            self.shard.logits(&[0], logits, stride);
        } else if !self.logits.is_empty() {
            self.shard.logits(&[0], &mut self.logits, own.len());
        }
    }
}

/// Whether some ranks of a stage are linked by anything but shared memory. All of them come to the same answer.
fn has_cables(fabric: &mut Fabric, stage: &Team) -> Result<bool, RankError> {
    let cable = |&rank: &usize| fabric.transport(rank).is_some_and(|transport| transport != Transport::SharedMemory);
    let mut found = [f32::from(u8::from(stage.members().iter().any(cable)))];
    fabric.all_reduce(stage, Operator::Max, &mut found)?;
    Ok(found[0] > 0.0)
}

/// What a rank has room for.
fn room(job: &Job) -> Room {
    let drafts = if job.draft_max > 0 { DRAFTS_MAX } else { 0 };
    let step_tokens = job.step_tokens.saturating_add(job.slots).saturating_add(drafts);
    Room { slots: job.slots, context: job.context, step_tokens, kv_blocks: job.kv_blocks }
}

/// Moves the weights to memory of their own if that is wanted, where so many bytes were available when all began to load.
/// Returns whether they are there.
fn place_weights(
    fabric: &Fabric,
    shard: &mut Shard,
    weights: Weights,
    available: Option<u64>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<bool, RankError> {
    let (rank, topology) = (fabric.rank(), fabric.topology());
    let neighbours = (0..fabric.size()).filter(|&other| topology.host(other) == topology.host(rank)).count();
    let needed = (shard.packed_bytes() * neighbours) as u64;
    let fits = available.is_none_or(|available| needed <= available / 5 * 4);
    let in_memory = match weights {
        Weights::Auto => fits,
        Weights::Memory => true,
        Weights::File => false,
    };
    if in_memory {
        let total = shard.packed_bytes();
        shard.pack(&mut |done| progress(done, total))?;
    } else if weights == Weights::Auto {
        tracing::warn!(
            "the weights stay in the file, which is slow: {needed} bytes are more memory than this machine can spare"
        );
    }
    Ok(in_memory)
}

/// The exchange of slices within a stage, over the fabric.
struct StageExchange<'a> {
    fabric: &'a mut Fabric,
    stage: &'a Team,
    has_cables: bool,
}

impl Exchange for StageExchange<'_> {
    fn all_gather(&mut self, slices: Slices<'_>) -> Result<(), ExchangeError> {
        let Slices { rows, width, parts, buffer } = slices;
        Ok(self.fabric.all_gather(self.stage, rows, width, parts, buffer)?)
    }

    fn takes_its_time(&self) -> bool {
        self.has_cables
    }

    fn all_gather_while(&mut self, slices: Slices<'_>, compute: &mut dyn FnMut()) -> Result<(), ExchangeError> {
        let Slices { rows, width, parts, buffer } = slices;
        let operation = self.fabric.begin_all_gather(self.stage, rows, width, parts, buffer)?;
        compute();
        Ok(self.fabric.finish(operation)?)
    }
}
