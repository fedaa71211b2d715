//! A model's tokens as a tree of bytes, over which constraints are followed.

use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};
use model::Tokenizer;

use super::compile;

/// Longest token in bytes that constrained answers use. Longer ones are runs of spaces; the tree bounds its depth.
const TOKEN_BYTES_MAX: usize = 512;
/// Most tokens that the tree has room for.
const TOKENS_MAX: usize = 1 << 21;

/// A factory of parsers over the tokens of `tokenizer`, of which `end_tokens` end an answer.
///
/// Control tokens are in no constrained answer: they stand for no text.
pub(super) fn factory(tokenizer: &Tokenizer, end_tokens: &[u32]) -> Result<ParserFactory, String> {
    let tokens = tokenizer.vocabulary();
    if tokens > TOKENS_MAX {
        return Err(format!("the vocabulary has {tokens} tokens, more than constraints can be followed over"));
    }
    let ends: Vec<u32> = end_tokens.iter().copied().filter(|&id| (id as usize) < tokens).collect();
    let spelled = |id: u32| {
        let bytes = tokenizer.token_bytes(id);
        // A byte of 255 marks special tokens in the tree, and is in no text.
        let usable = bytes.len() <= TOKEN_BYTES_MAX && bytes.first() != Some(&0xff);
        if usable && !ends.contains(&id) && !tokenizer.is_end_of_generation(id) { bytes.to_vec() } else { Vec::new() }
    };
    let words: Vec<Vec<u8>> = (0..tokens as u32).map(spelled).collect();
    let info = TokRxInfo::new(tokens as u32, ends.first().copied().unwrap_or(INVALID_TOKEN));
    let tree = TokTrie::from(&info, &words);
    let tree = if ends.is_empty() { tree } else { tree.with_eos_tokens(&ends) };
    let environment: TokEnv = Arc::new(ApproximateTokEnv::new(tree));
    compile::factory(&environment, &SlicedBiasComputer::general_slices())
}
