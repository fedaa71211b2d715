//! One rank: loads its shard and computes the steps that rank 0 plans.

use std::ops::Range;
use std::time::Instant;

use fabric::{Fabric, FabricError, Team};
use model::{Blueprint, Exchange, Gguf, LOGIT_ROWS, ModelError, Placement, Shard, ShardOptions, Stretch};

use crate::memory::peak_resident_bytes;
use crate::ranks::plan::{self, Plan, Signal, StepPlan, Wanted};
use crate::ranks::protocol::Job;
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
    /// The ranks of this stage.
    stage: Team,
    /// Each last-stage rank's slice of the vocabulary, by place in the stage.
    vocabulary: Vec<Range<usize>>,
    vocabulary_size: usize,
    /// On rank 0 the logits of [`LOGIT_ROWS`] tokens; on other ranks of the last stage their slice of them.
    logits: Vec<f32>,
    /// How many tokens' logits were received last.
    received: usize,
    message: Vec<u8>,
    tokens: Vec<u32>,
    began: Instant,
}

impl Member {
    /// Loads this rank's shard of the model in `file`.
    pub(crate) fn load(mut fabric: Fabric, file: &Gguf, job: Job) -> Result<Self, RankError> {
        let blueprint = Blueprint::from_gguf(file)?;
        let (rank, layout) = (fabric.rank(), &job.layout);
        if fabric.size() != layout.ranks() || layout.shares.len() != layout.tensor {
            let size = fabric.size();
            return Err(RankError::Protocol(format!("the layout {layout} does not fit a group of {size} ranks")));
        }
        if job.crowded {
            fabric.set_crowded(true);
        }
        let placement = Placement::of_rank(rank, blueprint.layers.len(), layout.pipeline, &layout.shares);
        let options = ShardOptions {
            threads: job.threads,
            slots: 1,
            context: job.context,
            step_tokens: job.step_tokens,
            kv_type: job.kv_type,
        };
        let shard = Shard::load(file, &blueprint, &placement, options)?;
        let vocabulary = placement.vocabulary(&blueprint);
        let own = vocabulary[placement.index].len();
        let logits = match rank {
            0 => LOGIT_ROWS * blueprint.vocabulary,
            _ if placement.last => LOGIT_ROWS * own,
            _ => 0,
        };
        let mut member = Self {
            everyone: Team::of_range(0..layout.ranks(), rank)?,
            stage: Team::of_range(layout.stage(layout.stage_of(rank)), rank)?,
            fabric,
            shard,
            vocabulary,
            vocabulary_size: blueprint.vocabulary,
            logits: vec![0.0; logits],
            received: 0,
            message: Vec::new(),
            tokens: Vec::with_capacity(job.step_tokens),
            began: Instant::now(),
            job,
        };
        member.touch();
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

    /// Follows rank 0's plans until it says to stop.
    pub(crate) fn follow(&mut self) -> Result<(), RankError> {
        loop {
            let mut message = std::mem::take(&mut self.message);
            self.fabric.broadcast(&self.everyone, 0, &mut message)?;
            let plan = plan::decode(&message, self.job.context, self.job.step_tokens);
            match plan.ok_or_else(|| RankError::Protocol("rank 0 sent a plan that makes no sense".to_owned()))? {
                Plan::Signal(Signal::Idle) => {}
                Plan::Signal(Signal::Begin) => self.begin(),
                Plan::Signal(Signal::Report) => self.report_to_leader()?,
                Plan::Signal(Signal::Stop) => return Ok(()),
                Plan::Step(StepPlan { first_position, tokens, logits }) => {
                    tokens.copy_to(&mut self.tokens);
                    self.run_stage(first_position)?;
                    self.send_logits(logits.rows(self.tokens.len()))?;
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

    /// On rank 0: starts a step on all ranks and computes this rank's part. The logits, if any are wanted, follow
    /// through [`Member::receive_logits`].
    pub(crate) fn lead_step(&mut self, first_position: usize, tokens: &[u32], logits: Wanted) -> Result<(), RankError> {
        plan::encode_step(&mut self.message, first_position, tokens, logits);
        self.fabric.broadcast(&self.everyone, 0, &mut self.message)?;
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        self.run_stage(first_position)
    }

    /// On rank 0: the logits [rows, vocabulary] of the tokens `rows` of the last step, at most [`LOGIT_ROWS`] at a
    /// time, in order and covering exactly the rows that the step's plan named.
    pub(crate) fn receive_logits(&mut self, rows: Range<usize>) -> Result<&[f32], RankError> {
        let size = self.vocabulary_size;
        let last_stage = self.job.layout.last_stage();
        let count = rows.len();
        for (place, slice) in self.vocabulary.iter().enumerate() {
            if last_stage.start + place == self.fabric.rank() {
                let rows: Vec<usize> = rows.clone().collect();
                self.shard.logits(&rows, &mut self.logits[slice.start..], size);
            }
        }
        for (place, slice) in self.vocabulary.iter().enumerate() {
            let sender = last_stage.start + place;
            if sender == self.fabric.rank() {
                continue;
            }
            for row in 0..count {
                let own = &mut self.logits[row * size + slice.start..row * size + slice.end];
                self.fabric.recv(sender, bytemuck::cast_slice_mut(own))?;
            }
        }
        self.received = count;
        Ok(&self.logits[..count * size])
    }

    /// On rank 0: the last of the logits received last. May be changed.
    pub(crate) fn last_logits(&mut self) -> &mut [f32] {
        let size = self.vocabulary_size;
        &mut self.logits[self.received.saturating_sub(1) * size..][..size]
    }

    /// On rank 0: how every rank spent the time since the generation began.
    pub(crate) fn collect_reports(&mut self) -> Result<Vec<RankStatistics>, RankError> {
        self.signal(Signal::Report)?;
        let mut reports = vec![self.report()];
        for rank in 1..self.fabric.size() {
            let mut bytes = [0; 24];
            self.fabric.recv(rank, &mut bytes)?;
            let [compute, wait, memory] = bytemuck::cast(bytes);
            let (compute_ms, wait_ms) = (f64::from_bits(compute), f64::from_bits(wait));
            reports.push(RankStatistics { compute_ms, wait_ms, peak_rss_bytes: memory });
        }
        Ok(reports)
    }

    /// Runs this stage's layers over `self.tokens`, between the stage before and the one after.
    fn run_stage(&mut self, first_position: usize) -> Result<(), RankError> {
        let (rank, layout) = (self.fabric.rank(), &self.job.layout);
        let (stage, tokens) = (layout.stage_of(rank), self.tokens.len());
        if stage == 0 {
            self.shard.embed(&self.tokens);
        } else {
            let hidden = self.shard.hidden_mut(tokens);
            self.fabric.recv(rank - layout.tensor, bytemuck::cast_slice_mut(hidden))?;
        }
        let mut exchange = StageExchange { fabric: &mut self.fabric, stage: &self.stage };
        self.shard.run_layers(&[Stretch { slot: 0, first_position, tokens }], &mut exchange)?;
        if stage + 1 < layout.pipeline {
            let hidden = self.shard.hidden(tokens);
            self.fabric.send(rank + layout.tensor, bytemuck::cast_slice(hidden))?;
        }
        Ok(())
    }

    /// On ranks of the last stage other than rank 0: sends rank 0 this rank's slice of the logits of the tokens `rows`.
    fn send_logits(&mut self, rows: Range<usize>) -> Result<(), RankError> {
        if !self.job.layout.last_stage().contains(&self.fabric.rank()) {
            return Ok(());
        }
        let width = self.vocabulary[self.stage.index()].len();
        for start in rows.clone().step_by(LOGIT_ROWS) {
            let block = start..(start + LOGIT_ROWS).min(rows.end);
            let rows: Vec<usize> = block.clone().collect();
            self.shard.logits(&rows, &mut self.logits, width);
            for row in 0..block.len() {
                let slice = &self.logits[row * width..(row + 1) * width];
                self.fabric.send(0, bytemuck::cast_slice(slice))?;
            }
        }
        Ok(())
    }

    fn begin(&mut self) {
        self.fabric.take_waited();
        self.began = Instant::now();
    }

    fn report(&mut self) -> RankStatistics {
        let wait_ms = self.fabric.take_waited().as_secs_f64() * 1000.0;
        let total_ms = self.began.elapsed().as_secs_f64() * 1000.0;
        let compute_ms = (total_ms - wait_ms).max(0.0);
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
        let width = self.vocabulary[self.stage.index()].len();
        if !self.logits.is_empty() {
            self.shard.logits(&[0], &mut self.logits, width);
        }
    }
}

/// The exchange of slices within a stage, over the fabric.
struct StageExchange<'a> {
    fabric: &'a mut Fabric,
    stage: &'a Team,
}

impl Exchange for StageExchange<'_> {
    fn all_gather(
        &mut self,
        rows: usize,
        width: usize,
        parts: &[Range<usize>],
        buffer: &mut [f32],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.fabric.all_gather(self.stage, rows, width, parts, buffer)?)
    }
}
