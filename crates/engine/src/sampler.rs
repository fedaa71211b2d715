//! Draws the next token from the logits.

use std::cmp::Ordering;
use std::hash::{BuildHasher, Hasher, RandomState};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use crate::candidates::{self, Scored};
use crate::guide::{Guide, Verdict};
use crate::ranks::{CANDIDATES_MAX, Wanted};
use crate::request::{Request, Sampling, TopToken};

/// The state of one request's sampling: its random numbers and the tokens it has seen.
///
/// Nothing is allocated per token: all buffers have the size of the vocabulary from the start.
pub(crate) struct Sampler {
    sampling: Sampling,
    /// What it must say, where that is constrained.
    guide: Option<Guide>,
    /// What it has to know to draw a token.
    wanted: Wanted,
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
    scored: Scored,
    probability: f32,
}

impl Sampler {
    /// A sampler for a request that may generate up to `answer` tokens.
    pub(crate) fn new(request: &Request, vocabulary: usize, answer: usize) -> Self {
        let Request { sampling, prompt, .. } = request;
        let seed = sampling.seed.unwrap_or_else(random_seed);
        let mut sampler = Self {
            sampling: sampling.clone(),
            guide: None,
            wanted: wanted(request, vocabulary),
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

    /// From now on only tokens are drawn that `guide` allows.
    pub(crate) fn follow(&mut self, guide: Guide) {
        self.guide = Some(guide);
    }

    /// How the sequence goes on after the token drawn last, as far as a constraint decides it.
    pub(crate) fn verdict(&self) -> Verdict {
        self.guide.as_ref().map_or(Verdict::GoesOn, Guide::verdict)
    }

    /// What it has to know of the model's opinion to draw a token.
    pub(crate) fn wanted(&self) -> Wanted {
        self.wanted
    }

    /// Draws a token from the likeliest ones, likeliest first, as many as [`Sampler::wanted`] says. It is the token that
    /// [`Sampler::sample`] would draw from all logits.
    pub(crate) fn sample_best(&mut self, best: &[Scored]) -> u32 {
        let id = if let [only] = best {
            only.id
        } else {
            self.candidates.clear();
            self.candidates.extend(best.iter().map(|&scored| Candidate { scored, probability: 0.0 }));
            self.draw()
        };
        self.count(id)
    }

    /// Draws a token. `logits` (one per token of the vocabulary) are changed in place.
    pub(crate) fn sample(&mut self, logits: &mut [f32]) -> u32 {
        if let Some(guide) = &mut self.guide {
            guide.mask(logits);
        }
        self.adjust(logits);
        if is_greedy(&self.sampling) {
            let best = candidates::most_likely(logits, 0);
            return self.count(best.map_or(0, |best| best.id));
        }
        let scored = logits.iter().zip(0..).map(|(&logit, id)| Scored { id, logit });
        self.candidates.clear();
        self.candidates.extend(scored.map(|scored| Candidate { scored, probability: 0.0 }));
        let top_k = self.sampling.top_k;
        if (1..self.candidates.len()).contains(&top_k) {
            self.candidates.select_nth_unstable_by(top_k - 1, likelier);
            self.candidates.truncate(top_k);
            // The order decides how the sum of their probabilities is rounded, so it must not be that of the algorithm.
            self.candidates.sort_unstable_by(likelier);
        }
        let id = self.draw();
        self.count(id)
    }

    fn count(&mut self, id: u32) -> u32 {
        if let Some(guide) = &mut self.guide {
            guide.commit(id);
        }
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

    /// Draws one of the candidates.
    fn draw(&mut self) -> u32 {
        let Sampling { temperature, top_p, min_p, .. } = self.sampling;
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
        self.candidates.sort_unstable_by_key(|candidate| candidate.scored.id);
        let mut target = unit(&mut self.random) * mass;
        for candidate in &self.candidates {
            target -= candidate.probability;
            if target < 0.0 {
                return candidate.scored.id;
            }
        }
        // Rounding can leave a crumb of the target after the last candidate.
        self.candidates.iter().max_by(|a, b| likelier(b, a)).map_or(0, |candidate| candidate.scored.id)
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

/// Likeliest first.
fn likelier(a: &Candidate, b: &Candidate) -> Ordering {
    candidates::likelier(&a.scored, &b.scored)
}

/// Whether the likeliest token is always the one drawn.
fn is_greedy(sampling: &Sampling) -> bool {
    sampling.temperature <= 0.0 || sampling.top_k == 1
}

/// What a request's sampler has to know: the likeliest tokens suffice where nothing depends on the others' logits and
/// nothing changes their order.
fn wanted(request: &Request, vocabulary: usize) -> Wanted {
    let sampling = &request.sampling;
    let off = Sampling::default();
    let as_they_are = sampling.logit_bias.is_empty()
        && sampling.repetition_penalty == off.repetition_penalty
        && sampling.presence_penalty == off.presence_penalty
        && sampling.frequency_penalty == off.frequency_penalty;
    let guided = request.constraint.is_some();
    if !as_they_are || guided || request.logprobs.is_some() || request.prompt_logprobs.is_some() {
        return Wanted::Last;
    }
    match sampling.top_k {
        _ if is_greedy(sampling) => Wanted::Best(1),
        top_k @ 1..=CANDIDATES_MAX if top_k < vocabulary => Wanted::Best(top_k),
        _ => Wanted::Last,
    }
}

/// Sets each probability relative to the likeliest candidate's, and returns their sum.
fn soften(candidates: &mut [Candidate], temperature: f32) -> f32 {
    let largest = candidates.iter().map(|candidate| candidate.scored.logit).fold(f32::NEG_INFINITY, f32::max);
    let mut mass = 0.0;
    for candidate in candidates {
        candidate.probability = ((candidate.scored.logit - largest) / temperature).exp();
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
    use proptest::prelude::*;

    use super::*;

    const LOGITS: [f32; 5] = [1.0, 3.0, 2.0, -1.0, 3.0];

    fn draws(sampling: Sampling, count: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(&Request { sampling, ..Request::default() }, LOGITS.len(), count);
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
        let request = Request { sampling, prompt: vec![1], ..Request::default() };
        let mut sampler = Sampler::new(&request, LOGITS.len(), 3);
        let drawn: Vec<u32> = (0..3).map(|_| sampler.sample(&mut LOGITS.clone())).collect();
        assert_eq!(drawn, [4, 1, 4]);
    }

    proptest! {
        /// The likeliest tokens of each slice of the vocabulary lead to the tokens that all logits lead to.
        #[test]
        fn the_likeliest_tokens_suffice(
            logits in prop::collection::vec(prop::collection::vec(-20_i8..20, 60), 1..8),
            cut in 0_usize..60,
            (temperature, top_k) in (0_u8..3, 1_usize..50),
            (top_p, min_p) in (prop_oneof![Just(1.0_f32), 0.1_f32..1.0], prop_oneof![Just(0.0_f32), 0.0_f32..0.5]),
            seed in any::<u64>(),
        ) {
            let temperature = f32::from(temperature);
            let sampling = Sampling { temperature, top_k, top_p, min_p, seed: Some(seed), ..Sampling::default() };
            let request = Request { sampling, ..Request::default() };
            let mut of_whole = Sampler::new(&request, 60, 8);
            let mut of_best = Sampler::new(&request, 60, 8);
            let Wanted::Best(count) = of_best.wanted() else { panic!("all logits are wanted") };
            for logits in logits {
                let mut logits: Vec<f32> = logits.into_iter().map(|logit| f32::from(logit) / 4.0).collect();
                let mut best = Vec::new();
                candidates::add_best(&logits[..cut], 0, count, &mut best);
                candidates::add_best(&logits[cut..], cut, count, &mut best);
                candidates::merge(&mut best, count);
                prop_assert_eq!(of_best.sample_best(&best), of_whole.sample(&mut logits));
            }
        }
    }

    #[test]
    fn all_logits_are_wanted_where_more_than_the_likeliest_count() {
        let wanted = |change: &dyn Fn(&mut Request)| {
            let sampling = Sampling { temperature: 1.0, top_k: 40, ..Sampling::default() };
            let mut request = Request { sampling, ..Request::default() };
            change(&mut request);
            super::wanted(&request, 1000)
        };
        assert_eq!(wanted(&|_| {}), Wanted::Best(40));
        assert_eq!(wanted(&|request| request.sampling.temperature = 0.0), Wanted::Best(1));
        assert_eq!(wanted(&|request| request.sampling.top_k = 0), Wanted::Last);
        assert_eq!(wanted(&|request| request.sampling.top_k = 999), Wanted::Last);
        assert_eq!(wanted(&|request| request.sampling.presence_penalty = 0.1), Wanted::Last);
        assert_eq!(wanted(&|request| request.sampling.frequency_penalty = 0.1), Wanted::Last);
        assert_eq!(wanted(&|request| request.sampling.repetition_penalty = 1.1), Wanted::Last);
        assert_eq!(wanted(&|request| request.sampling.logit_bias = vec![(1, 1.0)]), Wanted::Last);
        assert_eq!(wanted(&|request| request.logprobs = Some(0)), Wanted::Last);
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
