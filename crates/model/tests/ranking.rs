//! What makes a file a reranker, and how it is asked.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::gguf::Writer;
use model::{Gguf, Ranking, Tokenizer};

const TOKENS: [&str; 8] = ["e", "n", "o", "s", "y", "es", "no", "yes"];
const MERGES: [&str; 3] = ["e s", "n o", "y es"];
const TEMPLATE: &str = "<|im_start|>{document}\nto {query}?";

/// A file with a vocabulary, in which each token's row of the output matrix is its number, and no layers.
fn file(tokens: &[&str], merges: &[&str]) -> Writer {
    let rows = (0..tokens.len()).flat_map(|token| [token as f32, 1.0]);
    Writer::default()
        .string("general.architecture", "qwen3")
        .u32("qwen3.embedding_length", 2)
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.tokens", tokens)
        .strings("tokenizer.ggml.merges", merges)
        .tensor("output.weight", 0, &[2, tokens.len() as u64], rows.flat_map(f32::to_le_bytes).collect())
}

fn reranker() -> Writer {
    file(&TOKENS, &MERGES).string("tokenizer.chat_template.rerank", TEMPLATE)
}

fn head(builder: Writer) -> Writer {
    builder.tensor("cls.output.weight", 0, &[2, 2], [5.0_f32, 6.0, 2.0, 4.0].map(f32::to_le_bytes).concat())
}

fn ranking(builder: &Writer) -> Result<Option<Ranking>, String> {
    let gguf: Gguf = builder.read().unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    Ranking::from_gguf(&gguf, &tokenizer).map_err(|error| error.to_string())
}

#[test]
fn the_head_is_in_the_file_or_in_the_output_matrix() {
    assert_eq!(ranking(&file(&TOKENS, &MERGES)), Ok(None));
    assert_eq!(ranking(&head(reranker())), Ok(Some(Ranking::new(TEMPLATE, &[5.0, 6.0], &[2.0, 4.0]))));
    let other_order = head(reranker()).strings("qwen3.classifier.output_labels", &["no", "yes"]);
    assert_eq!(ranking(&other_order), Ok(Some(Ranking::new(TEMPLATE, &[2.0, 4.0], &[5.0, 6.0]))));
    assert_eq!(ranking(&reranker()), Ok(Some(Ranking::new(TEMPLATE, &[7.0, 1.0], &[6.0, 1.0]))));
}

#[test]
fn what_cannot_be_used_is_named() {
    let without_yes = file(&TOKENS[..7], &MERGES[..2]).string("tokenizer.chat_template.rerank", TEMPLATE);
    let other_labels = head(reranker()).strings("qwen3.classifier.output_labels", &["good", "bad"]);
    let shape = reranker().tensor("cls.output.weight", 0, &[2, 1], vec![0; 8]);
    let template = file(&["a"], &[]).string("tokenizer.chat_template.rerank", "{query}");
    for (builder, expected) in [
        (without_yes, "\"yes\""),
        (other_labels, "qwen3.classifier.output_labels` does not name"),
        (shape, "cls.output.weight"),
        (template, "has no {document}"),
    ] {
        let error = ranking(&builder).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn prompts_hold_query_and_document_as_they_are() {
    let ranking = Ranking::new(TEMPLATE, &[1.0, 1.0], &[0.0, 3.0]);
    assert_eq!(ranking.prompt("a {document}", "{query} {"), "<|im_start|>{query} {\nto a {document}?");
    assert_eq!(ranking.score(&[0.0, 0.0]), 0.5);
    assert!((ranking.score(&[3.0, 1.0]) - 1.0 / (1.0 + (-1.0_f32).exp())).abs() < 1e-6);
    assert_eq!((ranking.score(&[1e9, 0.0]), ranking.score(&[-1e9, 0.0])), (1.0, 0.0));
}
