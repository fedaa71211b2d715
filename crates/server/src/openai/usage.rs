//! Token counts.

use engine::Completion;
use serde::Serialize;

/// Tokens used by one HTTP request, all its generations together.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
    completion_tokens_details: CompletionTokensDetails,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct PromptTokensDetails {
    cached_tokens: usize,
}

/// What came of drafts, under OpenAI's names for predicted outputs.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct CompletionTokensDetails {
    accepted_prediction_tokens: usize,
    rejected_prediction_tokens: usize,
}

impl Usage {
    /// Adds a generation. A prompt with several answers counts once.
    pub(super) fn add(&mut self, completion: &Completion, counts_prompt: bool) {
        if counts_prompt {
            self.prompt_tokens += completion.prompt_tokens;
            self.prompt_tokens_details.cached_tokens += completion.cached_tokens;
        }
        self.completion_tokens += completion.completion_tokens;
        let details = &mut self.completion_tokens_details;
        details.accepted_prediction_tokens += completion.drafts.accepted;
        details.rejected_prediction_tokens += completion.drafts.drafted.saturating_sub(completion.drafts.accepted);
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
    }
}
