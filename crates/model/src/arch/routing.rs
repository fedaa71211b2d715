//! Which experts a token goes through, and with which weights.

/// How the router's results, one for each expert, become weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    /// What makes scores of them.
    pub scoring: Scoring,
    /// Whether the weights of those that are used add up to one.
    pub normalized: bool,
    /// A factor on all weights.
    pub scale: f32,
}

/// What makes scores of a router's results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scoring {
    /// Probabilities over all experts.
    Softmax,
    /// Each by itself.
    Sigmoid,
}

impl Routing {
    /// As most mixtures have it: probabilities of those that are used, among themselves.
    pub fn softmax() -> Self {
        Self { scoring: Scoring::Softmax, normalized: true, scale: 1.0 }
    }
}

/// The experts of some tokens, expert by expert: an *assignment* is a token and one of its experts. All ranks work out the same.
#[derive(Debug, Default)]
pub struct Routes {
    /// By expert, and those of one by token.
    assignments: Vec<Assignment>,
    /// Where each expert's begin, and at last where they end.
    starts: Vec<usize>,
    /// Of each token, in the order of experts, which of the assignments are its own.
    of_tokens: Vec<usize>,
    used: usize,
    /// Scores of one token, with their experts.
    scored: Vec<(f32, usize)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Assignment {
    expert: usize,
    token: usize,
    weight: f32,
}

impl Routes {
    /// Room for so many tokens of a model with so many experts, so that nothing is allocated later.
    pub fn with_capacity(tokens: usize, experts: usize, used: usize) -> Self {
        Self {
            assignments: Vec::with_capacity(tokens * used),
            starts: Vec::with_capacity(experts + 1),
            of_tokens: Vec::with_capacity(tokens * used),
            used: 0,
            scored: Vec::with_capacity(experts),
        }
    }

    /// Chooses the `used` best experts of each token by the router's results, `[tokens, experts]`. Of equals the first is better.
    pub fn choose(&mut self, routing: &Routing, results: &[f32], experts: usize, used: usize) {
        self.assignments.clear();
        self.used = used;
        for (token, results) in results.chunks_exact(experts).enumerate() {
            self.choose_for(routing, token, results);
        }
        // Neither sort allocates.
        self.assignments.sort_unstable_by_key(|assignment| (assignment.expert, assignment.token));
        self.starts.clear();
        self.starts.resize(experts + 1, self.assignments.len());
        self.of_tokens.clear();
        self.of_tokens.extend(0..self.assignments.len());
        let assignments = &self.assignments;
        self.of_tokens.sort_unstable_by_key(|&index| (assignments[index].token, index));
        for (index, assignment) in self.assignments.iter().enumerate().rev() {
            self.starts[assignment.expert] = index;
        }
        // Experts without tokens begin where the next one does.
        for expert in (0..experts).rev() {
            self.starts[expert] = self.starts[expert].min(self.starts[expert + 1]);
        }
    }

    fn choose_for(&mut self, routing: &Routing, token: usize, results: &[f32]) {
        let largest = results.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let score = |result: f32| match routing.scoring {
            Scoring::Softmax => (result - largest).exp(),
            Scoring::Sigmoid => 1.0 / (1.0 + (-result).exp()),
        };
        self.scored.clear();
        self.scored.extend(results.iter().enumerate().map(|(expert, &result)| (score(result), expert)));
        let all: f32 = self.scored.iter().map(|(score, _)| score).sum();
        let best = |one: &(f32, usize), other: &(f32, usize)| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1));
        let used = self.used.min(self.scored.len());
        if used < self.scored.len() {
            self.scored.select_nth_unstable_by(used, best);
        }
        let chosen = &mut self.scored[..used];
        // In the order of experts, so that sums do not depend on how they were found.
        chosen.sort_unstable_by_key(|&(_, expert)| expert);
        let divisor = match (routing.normalized, routing.scoring) {
            (true, _) => chosen.iter().map(|(score, _)| score).sum(),
            (false, Scoring::Softmax) => all,
            (false, Scoring::Sigmoid) => 1.0,
        };
        let assignment =
            |&(score, expert): &(f32, usize)| Assignment { expert, token, weight: score / divisor * routing.scale };
        self.assignments.extend(chosen.iter().map(assignment));
    }

    /// How many assignments there are.
    pub fn len(&self) -> usize {
        self.assignments.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.assignments.is_empty()
    }

    /// The token of each assignment, in order.
    pub fn tokens(&self) -> impl ExactSizeIterator<Item = usize> {
        self.assignments.iter().map(|assignment| assignment.token)
    }

    /// The experts that have tokens, and which assignments are theirs.
    pub fn experts(&self) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
        let ranges = self.starts.windows(2).map(|ends| ends[0]..ends[1]).enumerate();
        ranges.filter(|(_, range)| !range.is_empty())
    }

    /// The assignments of a token, in the order of its experts, and their weights.
    pub fn of_token(&self, token: usize) -> impl Iterator<Item = (usize, f32)> {
        let own = &self.of_tokens[token * self.used..(token + 1) * self.used];
        own.iter().map(|&index| (index, self.assignments[index].weight))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chosen(routes: &Routes, token: usize) -> Vec<(usize, f32)> {
        let expert = |index: usize| routes.experts().find(|(_, range)| range.contains(&index)).unwrap().0;
        routes.of_token(token).map(|(index, weight)| (expert(index), weight)).collect()
    }

    #[test]
    fn the_best_experts_share_the_token() {
        let results = [0.0, 2.0, 1.0, 2.0, 3.0, -1.0, 0.0, 1.0];
        let mut routes = Routes::default();
        routes.choose(&Routing::softmax(), &results, 4, 2);
        assert_eq!(chosen(&routes, 0), [(1, 0.5), (3, 0.5)]);
        let weight = 1.0 / (1.0 + (-2.0_f32).exp());
        assert_eq!(chosen(&routes, 1)[0], (0, weight));
        assert_eq!(routes.experts().collect::<Vec<_>>(), [(0, 0..1), (1, 1..2), (3, 2..4)]);
        assert_eq!(routes.tokens().collect::<Vec<_>>(), [1, 0, 0, 1]);
        let sigmoid = Routing { scoring: Scoring::Sigmoid, normalized: false, scale: 2.0 };
        routes.choose(&sigmoid, &results[..4], 4, 1);
        assert_eq!(chosen(&routes, 0), [(1, 2.0 / (1.0 + (-2.0_f32).exp()))]);
        let whole = Routing { normalized: false, ..Routing::softmax() };
        routes.choose(&whole, &[0.0; 4], 4, 2);
        assert_eq!(chosen(&routes, 0), [(0, 0.25), (1, 0.25)]);
    }

    proptest! {
        #[test]
        fn every_token_has_its_experts_whatever_the_results(
            results in prop::collection::vec(prop_oneof![-9.0_f32..9.0, Just(f32::NAN), Just(f32::INFINITY), Just(f32::NEG_INFINITY)], 24),
            used in 1usize..6,
        ) {
            let mut routes = Routes::with_capacity(4, 6, used);
            routes.choose(&Routing::softmax(), &results, 6, used);
            prop_assert_eq!(routes.len(), 4 * used);
            for token in 0..4 {
                let experts: Vec<_> = chosen(&routes, token).into_iter().map(|(expert, _)| expert).collect();
                prop_assert!(experts.windows(2).all(|pair| pair[0] < pair[1]) && experts.len() == used);
                // One token at a time, the choice is the same.
                let mut alone = Routes::default();
                alone.choose(&Routing::softmax(), &results[token * 6..(token + 1) * 6], 6, used);
                prop_assert_eq!(format!("{:?}", chosen(&alone, 0)), format!("{:?}", chosen(&routes, token)));
            }
        }
    }
}
