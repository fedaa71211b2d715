//! Draws the next token from the logits.

use std::cmp::Ordering;
use std::hash::{BuildHasher, Hasher, RandomState};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use crate::request::{Sampling, TopToken};

/// The state of one request's sampling: its random numbers and the tokens it has seen.
///
/// Nothing is allocated per token: all buffers have the size of the vocabulary from the start.
pub(crate) struct Sampler {
    sampling: Sampling,
    random: Pcg64Mcg,
    /// Prompt and answer, for the repetition penalty's window.
    history: Vec<u32>,
    /// How often each token stands within the repetition penalty's window.
    in_window: Vec<u32>,
    /// How often each token was generated.
    generated: Vec<u32>,
    candidates: Vec<Candidate>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Candidate {
    id: u32,
    logit: f32,
    probability: f32,
}

impl Sampler {
    /// A sampler for a request with this prompt, which may generate up to `answer` tokens.
    pub(crate) fn new(sampling: &Sampling, vocabulary: usize, prompt: &[u32], answer: usize) -> Self {
        let seed = sampling.seed.unwrap_or_else(random_seed);
        let mut sampler = Self {
            sampling: sampling.clone(),
            random: Pcg64Mcg::seed_from_u64(seed),
            history: Vec::with_capacity(prompt.len() + answer),
            in_window: vec![0; vocabulary],
            generated: vec![0; vocabulary],
            candidates: Vec::with_capacity(vocabulary),
        };
        for &id in prompt {
            sampler.remember(id);
        }
        sampler
    }

    /// Draws a token. `logits` (one per token of the vocabulary) are changed in place.
    pub(crate) fn sample(&mut self, logits: &mut [f32]) -> u32 {
        self.adjust(logits);
        let id = if self.sampling.temperature <= 0.0 || self.sampling.top_k == 1 {
            most_likely(logits)
        } else {
            self.draw(logits)
        };
        self.remember(id);
        self.generated[id as usize] += 1;
        id
    }

    /// Applies the logit bias and the three penalties.
    fn adjust(&mut self, logits: &mut [f32]) {
        for &(id, bias) in &self.sampling.logit_bias {
            logits[id as usize] += bias;
        }
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } = self.sampling;
        if repetition_penalty != 1.0 {
            for (logit, _) in logits.iter_mut().zip(&self.in_window).filter(|(_, count)| **count > 0) {
                *logit = if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
            }
        }
        if presence_penalty != 0.0 || frequency_penalty != 0.0 {
            for (logit, &count) in logits.iter_mut().zip(&self.generated).filter(|(_, count)| **count > 0) {
                *logit -= presence_penalty + frequency_penalty * count as f32;
            }
        }
    }

    fn draw(&mut self, logits: &[f32]) -> u32 {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        self.candidates.clear();
        let all = logits.iter().zip(0_u32..);
        self.candidates.extend(all.map(|(&logit, id)| Candidate { id, logit, probability: 0.0 }));
        if (1..self.candidates.len()).contains(&top_k) {
            self.candidates.select_nth_unstable_by(top_k - 1, likelier);
            self.candidates.truncate(top_k);
        }
        let mut mass = soften(&mut self.candidates, temperature);
        if top_p < 1.0 {
            mass = keep_nucleus(&mut self.candidates, top_p * mass);
        }
        if min_p > 0.0 {
            // Probabilities are relative to the likeliest, which has 1.
            self.candidates.retain(|candidate| candidate.probability >= min_p);
            mass = self.candidates.iter().map(|candidate| candidate.probability).sum();
        }
        // The order decides which token a random number falls on, so it must not depend on how the filters left it.
        self.candidates.sort_unstable_by_key(|candidate| candidate.id);
        let mut target = unit(&mut self.random) * mass;
        for candidate in &self.candidates {
            target -= candidate.probability;
            if target < 0.0 {
                return candidate.id;
            }
        }
        // Rounding can leave a crumb of the target after the last candidate.
        self.candidates.iter().max_by(|a, b| likelier(b, a)).map_or(0, |candidate| candidate.id)
    }

    fn remember(&mut self, id: u32) {
        self.history.push(id);
        self.in_window[id as usize] += 1;
        let window = self.sampling.repetition_window;
        if window > 0 && self.history.len() > window {
            let left = self.history[self.history.len() - window - 1];
            self.in_window[left as usize] -= 1;
        }
    }
}

/// Log-probabilities of the raw logits, computed only where a request asks for them.
pub(crate) struct LogProbabilities<'a> {
    logits: &'a [f32],
    /// Logarithm of the sum of the exponentials.
    normalizer: f32,
}

impl<'a> LogProbabilities<'a> {
    pub(crate) fn new(logits: &'a [f32]) -> Self {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
        Self { logits, normalizer: largest + sum.ln() as f32 }
    }

    pub(crate) fn of(&self, id: u32) -> f32 {
        self.logits[id as usize] - self.normalizer
    }

    /// What a logit loses to become a log-probability.
    pub(crate) fn normalizer(&self) -> f32 {
        self.normalizer
    }

    /// The `count` likeliest tokens, likeliest first.
    pub(crate) fn top(&self, count: usize) -> Vec<TopToken> {
        let count = count.min(self.logits.len());
        let mut ids: Vec<u32> = (0..self.logits.len() as u32).collect();
        let order = |a: &u32, b: &u32| {
            let (a_logit, b_logit) = (self.logits[*a as usize], self.logits[*b as usize]);
            b_logit.total_cmp(&a_logit).then(a.cmp(b))
        };
        if count == 0 {
            return Vec::new();
        }
        if count < ids.len() {
            ids.select_nth_unstable_by(count - 1, order);
            ids.truncate(count);
        }
        ids.sort_unstable_by(order);
        ids.into_iter().map(|id| TopToken { id, logprob: self.of(id) }).collect()
    }
}

/// Likeliest first; equal logits in order of their ids, so that ties never depend on the algorithm.
fn likelier(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// The token with the largest logit; of equals the one with the smallest id.
fn most_likely(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (index, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = index;
        }
    }
    best as u32
}

/// Sets each probability relative to the likeliest candidate's, and returns their sum.
fn soften(candidates: &mut [Candidate], temperature: f32) -> f32 {
    let largest = candidates.iter().map(|candidate| candidate.logit).fold(f32::NEG_INFINITY, f32::max);
    let mut mass = 0.0;
    for candidate in candidates {
        candidate.probability = ((candidate.logit - largest) / temperature).exp();
        mass += candidate.probability;
    }
    mass
}

/// Keeps the likeliest candidates whose probabilities together reach `target`, and returns their sum.
///
/// Usually a few dozen of them suffice, so the list is sorted from the top in growing pieces.
fn keep_nucleus(candidates: &mut Vec<Candidate>, target: f32) -> f32 {
    let mut sorted = 64;
    loop {
        sorted = sorted.min(candidates.len());
        if sorted < candidates.len() {
            candidates.select_nth_unstable_by(sorted - 1, likelier);
        }
        candidates[..sorted].sort_unstable_by(likelier);
        let mut mass = 0.0;
        for index in 0..sorted {
            mass += candidates[index].probability;
            if mass >= target {
                candidates.truncate(index + 1);
                return mass;
            }
        }
        if sorted == candidates.len() {
            return mass;
        }
        sorted *= 4;
    }
}

/// A number in [0, 1), with the 24 bits that a float holds.
fn unit(random: &mut Pcg64Mcg) -> f32 {
    (random.next_u64() >> 40) as f32 / (1_u64 << 24) as f32
}

/// A seed nobody chose: the standard library's hasher keys come from the operating system.
fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [1.0, 3.0, 2.0, -1.0, 3.0];

    fn draws(sampling: Sampling, count: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(&sampling, LOGITS.len(), &[], count);
        (0..count).map(|_| sampler.sample(&mut LOGITS.clone())).collect()
    }

    fn share(draws: &[u32], id: u32) -> f64 {
        draws.iter().filter(|&&draw| draw == id).count() as f64 / draws.len() as f64
    }

    #[test]
    fn greedy_takes_the_largest_and_of_equals_the_first() {
        assert_eq!(draws(Sampling::default(), 2), [1, 1]);
        assert_eq!(draws(Sampling { temperature: 1.0, top_k: 1, ..Sampling::default() }, 1), [1]);
    }

    #[test]
    fn the_same_seed_draws_the_same_tokens_and_another_does_not() {
        let seeded = |seed| draws(Sampling { temperature: 1.0, seed: Some(seed), ..Sampling::default() }, 64);
        assert_eq!(seeded(7), seeded(7));
        assert_ne!(seeded(7), seeded(8));
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let drawn = draws(Sampling { temperature: 1.0, seed: Some(1), ..Sampling::default() }, 20_000);
        let exponentials = LOGITS.map(|logit| f64::from(logit).exp());
        let sum: f64 = exponentials.iter().sum();
        for (id, exponential) in (0..).zip(exponentials) {
            let expected = exponential / sum;
            assert!((share(&drawn, id) - expected).abs() < 0.015, "token {id}");
        }
    }

    #[test]
    fn filters_remove_the_unlikely() {
        let only = |sampling: Sampling| {
            let sampling = Sampling { temperature: 1.0, seed: Some(3), ..sampling };
            let mut seen = draws(sampling, 2_000);
            seen.sort_unstable();
            seen.dedup();
            seen
        };
        assert_eq!(only(Sampling { top_k: 2, ..Sampling::default() }), [1, 4]);
        assert_eq!(only(Sampling { top_p: 0.5, ..Sampling::default() }), [1, 4]);
        assert_eq!(only(Sampling { top_p: 0.0, ..Sampling::default() }), [1]);
        assert_eq!(only(Sampling { min_p: 0.3, ..Sampling::default() }), [1, 2, 4]);
        assert_eq!(only(Sampling { min_p: 1.0, ..Sampling::default() }), [1, 4]);
    }

    #[test]
    fn penalties_and_bias_change_the_choice() {
        let frequency = Sampling { frequency_penalty: 0.6, ..Sampling::default() };
        assert_eq!(draws(frequency, 4), [1, 4, 1, 4]);
        let presence = Sampling { presence_penalty: 1.5, ..Sampling::default() };
        assert_eq!(draws(presence, 4), [1, 4, 2, 1]);
        let bias = Sampling { logit_bias: vec![(3, 100.0)], ..Sampling::default() };
        assert_eq!(draws(bias, 1), [3]);
    }

    #[test]
    fn repetition_counts_the_prompt_and_forgets_beyond_its_window() {
        let sampling = Sampling { repetition_penalty: 4.0, repetition_window: 1, ..Sampling::default() };
        let mut sampler = Sampler::new(&sampling, LOGITS.len(), &[1], 3);
        let drawn: Vec<u32> = (0..3).map(|_| sampler.sample(&mut LOGITS.clone())).collect();
        assert_eq!(drawn, [4, 1, 4]);
    }

    #[test]
    fn log_probabilities_sum_to_one_and_rank_the_likeliest() {
        let logprobs = LogProbabilities::new(&LOGITS);
        let sum: f32 = (0..5).map(|id| logprobs.of(id).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-5);
        let top: Vec<u32> = logprobs.top(3).into_iter().map(|top| top.id).collect();
        assert_eq!(top, [1, 4, 2]);
        assert_eq!(logprobs.top(99).len(), 5);
        assert!(logprobs.top(0).is_empty());
    }
}
