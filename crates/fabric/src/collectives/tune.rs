//! Finds out from which sizes on which way of reducing is the fastest one on the links that there are.
//!
//! All ranks do the same trials; rank 0 looks at its clock, decides, and tells the others.

use std::time::{Duration, Instant};

use crate::element::Operator;
use crate::error::{Cause, FabricError};
use crate::fabric::Fabric;
use crate::plan::Tuning;
use crate::team::Team;

/// Bytes of the buffers that are tried, each four times the one before.
const BYTES_MIN: usize = 4 << 10;
const BYTES_MAX: usize = 1 << 20;
/// How often each way is tried, while there is time. The best one counts, as nothing makes a reduction faster than it is.
const TRIALS: usize = 4;
/// Sizes of the messages of a chain that are tried, the likely one first.
const CHUNKS: [usize; 3] = [64 << 10, 16 << 10, 256 << 10];
/// Nobody sends everyone the whole when a rank then receives more than this.
const ONE_SHOT_BYTES_MAX: usize = 8 << 20;

impl Fabric {
    /// Tries the ways of reducing on the links of this group, and from now on uses the fastest for each size. All ranks
    /// call it. It takes about `budget`, or less where everything is clear earlier; few milliseconds are enough for
    /// ranks of one host. Returns what was found, which is the same on all ranks.
    ///
    /// # Errors
    /// As for any operation: [`FabricError::PeerLost`] or [`FabricError::Mismatch`].
    pub fn tune(&mut self, budget: Duration) -> Result<Tuning, FabricError> {
        let team = Team::of_range(0..self.size(), self.rank())?;
        let mut trial = Trial { team, by: Instant::now() + budget, buffer: vec![0.0; BYTES_MAX / size_of::<f32>()] };
        let before = self.tuning();
        let tuned = match self.size() {
            1 => Ok(before),
            _ => self.find_thresholds(&mut trial, before),
        };
        // A failed trial leaves nothing behind but a broken fabric.
        self.set_tuning(*tuned.as_ref().unwrap_or(&before));
        tuned
    }

    fn find_thresholds(&mut self, trial: &mut Trial, before: Tuning) -> Result<Tuning, FabricError> {
        let [whole, parts, chain] = ways(before);
        let mut found = before;
        let others = self.size() - 1;
        let whole_up_to = |bytes: usize| bytes.saturating_mul(others) <= ONE_SHOT_BYTES_MAX;
        if let Some(bytes) = self.find_threshold(trial, whole, parts, whole_up_to)? {
            match others {
                1 => found.pair_bytes_max = bytes,
                _ => found.one_shot_bytes_max = bytes.saturating_mul(others).min(ONE_SHOT_BYTES_MAX),
            }
        }
        // What rank 0 has found is what all compare a chain with.
        let mut found = self.tell(&trial.team, found)?;
        if self.seen(&trial.team).suits_chain() {
            found.chunk_bytes = self.find_chunk(trial, chain)?;
            let chain = Tuning { chunk_bytes: found.chunk_bytes, ..chain };
            let otherwise = Tuning { chain_bytes_min: usize::MAX, ..found };
            if let Some(bytes) = self.find_threshold(trial, otherwise, chain, |_| true)? {
                found.chain_bytes_min = bytes;
            }
        }
        self.tell(&trial.team, found)
    }

    /// The size up to which the first way is faster than the second; as large as can be when it is for all sizes that
    /// were tried. `None` when there was no time to find out. Only rank 0's answer counts.
    fn find_threshold(
        &mut self,
        trial: &mut Trial,
        first: Tuning,
        second: Tuning,
        first_is_possible: impl Fn(usize) -> bool,
    ) -> Result<Option<usize>, FabricError> {
        // Where the second way is faster at two sizes in a row, it was no accident.
        let mut faster: Option<usize> = None;
        let mut bytes = BYTES_MIN;
        while bytes <= BYTES_MAX && first_is_possible(bytes) {
            let one = self.time(trial, first, bytes)?;
            let other = self.time(trial, second, bytes)?;
            let again = faster.is_some();
            // What is not clearly faster does not count: trials are short, and others use the machine as well.
            if other * 10 >= one * 9 {
                faster = None;
            } else if !again {
                // Somewhere between this size and the one before.
                faster = Some(bytes / 2);
            }
            let clear = faster.is_some() && again;
            if !self.agree(trial, !clear && Instant::now() < trial.by)? {
                return Ok(faster);
            }
            bytes *= 4;
        }
        // Where the first way ends because it would need too much, the second one takes over.
        let last = if first_is_possible(bytes) { usize::MAX } else { bytes / 4 };
        Ok(faster.or(Some(last)))
    }

    fn find_chunk(&mut self, trial: &mut Trial, chain: Tuning) -> Result<usize, FabricError> {
        let mut best = (Duration::MAX, chain.chunk_bytes);
        for chunk_bytes in CHUNKS {
            let time = self.time(trial, Tuning { chunk_bytes, ..chain }, BYTES_MAX)?;
            best = best.min((time, chunk_bytes));
            if !self.agree(trial, Instant::now() < trial.by)? {
                break;
            }
        }
        // All try the chain with the same chunks after this.
        Ok(self.tell(&trial.team, Tuning { chunk_bytes: best.1, ..chain })?.chunk_bytes)
    }

    /// The best time of one way at one size.
    fn time(&mut self, trial: &mut Trial, tuning: Tuning, bytes: usize) -> Result<Duration, FabricError> {
        self.set_tuning(tuning);
        let mut best = Duration::MAX;
        // The first one makes the plan and warms caches up.
        for attempt in 0..=TRIALS {
            let buffer = &mut trial.buffer[..bytes / size_of::<f32>()];
            let started = Instant::now();
            self.all_reduce(&trial.team, Operator::Max, buffer)?;
            if attempt > 0 {
                best = started.elapsed().min(best);
                if !self.agree(trial, Instant::now() < trial.by)? {
                    break;
                }
            }
        }
        Ok(best)
    }

    /// Rank 0's answer to a question, for all.
    fn agree(&mut self, trial: &Trial, answer: bool) -> Result<bool, FabricError> {
        let mut answer = [u8::from(answer)];
        self.broadcast_into(&trial.team, 0, &mut answer)?;
        Ok(answer == [1])
    }

    /// Rank 0's tuning, for all.
    fn tell(&mut self, team: &Team, tuning: Tuning) -> Result<Tuning, FabricError> {
        let mut bytes = tuning.encode();
        self.broadcast_into(team, 0, &mut bytes)?;
        Tuning::decode(&bytes).ok_or_else(|| {
            let cause = Cause::corrupt("it chose thresholds that do not fit this machine");
            let error = self.health.explain(FabricError::PeerLost { rank: 0, cause });
            self.broken = Some(error.clone());
            error
        })
    }
}

/// What trials need.
struct Trial {
    team: Team,
    by: Instant,
    buffer: Vec<f32>,
}

/// What makes all reductions go one of three ways: the whole to everyone, by parts, along a chain.
fn ways(before: Tuning) -> [Tuning; 3] {
    let never = usize::MAX;
    let parts = Tuning { pair_bytes_max: 0, one_shot_bytes_max: 0, chain_bytes_min: never, ..before };
    let whole = Tuning { pair_bytes_max: never, one_shot_bytes_max: never, ..parts };
    [whole, parts, Tuning { chain_bytes_min: 0, ..parts }]
}
