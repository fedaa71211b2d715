//! Refuses requests that cannot run, before anything is computed.

use crate::handle::ModelInfo;
use crate::request::{Request, Sampling, SubmitError};

/// Checks everything that can be known without running the model.
pub(crate) fn check(request: &Request, model: &ModelInfo) -> Result<(), SubmitError> {
    let vocabulary = model.tokenizer.vocabulary();
    check_prompt(&request.prompt, vocabulary, model.context)?;
    check_sampling(&request.sampling)?;
    for &(id, _) in &request.sampling.logit_bias {
        in_vocabulary(id, vocabulary)?;
    }
    Ok(())
}

fn check_prompt(prompt: &[u32], vocabulary: usize, context: usize) -> Result<(), SubmitError> {
    if prompt.is_empty() {
        return Err(SubmitError::EmptyPrompt);
    }
    // One place is kept for the first generated token.
    if prompt.len() >= context {
        return Err(SubmitError::PromptTooLong { prompt: prompt.len(), context });
    }
    prompt.iter().try_for_each(|&id| in_vocabulary(id, vocabulary))
}

fn in_vocabulary(id: u32, vocabulary: usize) -> Result<(), SubmitError> {
    if (id as usize) < vocabulary { Ok(()) } else { Err(SubmitError::TokenOutOfRange { id, vocabulary }) }
}

fn check_sampling(sampling: &Sampling) -> Result<(), SubmitError> {
    let within = |name, value: f32, low: f32, high: f32, expected| {
        if (low..=high).contains(&value) {
            Ok(())
        } else {
            Err(SubmitError::BadSampling { name, value: value.to_string(), expected })
        }
    };
    within("temperature", sampling.temperature, 0.0, 100.0, "between 0 and 100")?;
    within("top_p", sampling.top_p, 0.0, 1.0, "between 0 and 1")?;
    within("min_p", sampling.min_p, 0.0, 1.0, "between 0 and 1")?;
    within("repetition_penalty", sampling.repetition_penalty, f32::MIN_POSITIVE, 100.0, "above 0 and at most 100")?;
    within("presence_penalty", sampling.presence_penalty, -100.0, 100.0, "between -100 and 100")?;
    within("frequency_penalty", sampling.frequency_penalty, -100.0, 100.0, "between -100 and 100")?;
    let finite = |&(_, bias): &(u32, f32)| within("logit_bias", bias, -1e6, 1e6, "between -1000000 and 1000000");
    sampling.logit_bias.iter().try_for_each(finite)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_must_fit_and_stay_in_the_vocabulary() {
        assert_eq!(check_prompt(&[], 10, 4), Err(SubmitError::EmptyPrompt));
        assert_eq!(check_prompt(&[1, 2, 3], 10, 4), Ok(()));
        assert_eq!(check_prompt(&[1, 2, 3, 4], 10, 4), Err(SubmitError::PromptTooLong { prompt: 4, context: 4 }));
        assert_eq!(check_prompt(&[10], 10, 4), Err(SubmitError::TokenOutOfRange { id: 10, vocabulary: 10 }));
    }

    #[test]
    fn sampling_values_that_mean_nothing_are_named() {
        let bad = [
            Sampling { temperature: f32::NAN, ..Sampling::default() },
            Sampling { temperature: -1.0, ..Sampling::default() },
            Sampling { top_p: 1.5, ..Sampling::default() },
            Sampling { repetition_penalty: 0.0, ..Sampling::default() },
            Sampling { logit_bias: vec![(0, f32::INFINITY)], ..Sampling::default() },
        ];
        for sampling in bad {
            assert!(matches!(check_sampling(&sampling), Err(SubmitError::BadSampling { .. })), "{sampling:?}");
        }
        assert_eq!(check_sampling(&Sampling::default()), Ok(()));
    }
}
