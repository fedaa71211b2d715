//! What one HTTP request asks of the engine: one or several generations.

use engine::Request;

use crate::tools::CallForm;

/// The generations behind one HTTP request: `choices` for each prompt, prompt by prompt.
#[derive(Debug, PartialEq)]
pub(crate) struct Plan {
    /// Token ids of each prompt.
    pub(crate) prompts: Vec<Vec<u32>>,
    /// Name of the request's field that the prompts came from, for errors.
    pub(crate) prompt_field: &'static str,
    /// Answers wanted for each prompt.
    pub(crate) choices: usize,
    /// What all generations have in common; its prompt is empty.
    pub(crate) request: Request,
    /// How calls of tools are written, where the model may call any.
    pub(crate) calls: Option<CallForm>,
}

impl Plan {
    /// How many generations there are.
    pub(crate) fn len(&self) -> usize {
        self.prompts.len() * self.choices
    }

    /// The prompt of generation `index`.
    pub(crate) fn prompt(&self, index: usize) -> &[u32] {
        &self.prompts[index / self.choices]
    }

    /// The request of generation `index`. Several answers to one prompt have seeds of their own, else they were equal.
    pub(crate) fn request(&self, index: usize) -> Request {
        let mut request = self.request.clone();
        request.prompt = self.prompt(index).to_vec();
        let answer = (index % self.choices) as u64;
        request.sampling.seed = request.sampling.seed.map(|seed| seed.wrapping_add(answer));
        request
    }

    /// Whether generation `index` is the first for its prompt, so that the prompt's tokens count with it.
    pub(crate) fn counts_prompt(&self, index: usize) -> bool {
        index.is_multiple_of(self.choices)
    }
}

#[cfg(test)]
mod tests {
    use engine::Sampling;

    use super::*;

    #[test]
    fn prompts_and_seeds_follow_the_index() {
        let sampling = Sampling { seed: Some(u64::MAX), ..Sampling::default() };
        let plan = Plan {
            prompts: vec![vec![1], vec![2]],
            prompt_field: "prompt",
            choices: 2,
            request: Request { sampling, ..Request::default() },
            calls: None,
        };
        let asked: Vec<_> = (0..plan.len()).map(|index| plan.request(index)).collect();
        let asked: Vec<_> = asked.iter().map(|request| (request.prompt[0], request.sampling.seed)).collect();
        assert_eq!(asked, [(1, Some(u64::MAX)), (1, Some(0)), (2, Some(u64::MAX)), (2, Some(0))]);
        assert_eq!((0..4).map(|index| plan.counts_prompt(index)).collect::<Vec<_>>(), [true, false, true, false]);
    }
}
