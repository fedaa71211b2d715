//! Tokenizers made by hand: roles of tokens, defaults, and what is wrong with a vocabulary.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::gguf::Writer;
use model::{EncodeOptions, Tokenizer};

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
const PARSED: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };
const FRAMED: EncodeOptions = EncodeOptions { add_special: true, parse_special: false };

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// A vocabulary of tokens with their kinds and scores.
fn vocabulary(model: &str, tokens: &[(&str, i32, f32)]) -> Writer {
    let texts: Vec<_> = tokens.iter().map(|token| token.0).collect();
    let kinds: Vec<_> = tokens.iter().map(|token| token.1).collect();
    let scores: Vec<_> = tokens.iter().map(|token| token.2).collect();
    Writer::default()
        .string("tokenizer.ggml.model", model)
        .strings("tokenizer.ggml.tokens", &texts)
        .i32s("tokenizer.ggml.token_type", &kinds)
        .f32s("tokenizer.ggml.scores", &scores)
}

fn sentencepiece() -> Writer {
    let tokens = [
        ("<unk>", UNKNOWN, 0.0),
        ("<s>", CONTROL, 0.0),
        ("</s>", CONTROL, 0.0),
        ("▁", NORMAL, -1.0),
        ("a", NORMAL, -2.0),
        ("b", NORMAL, -3.0),
        ("ab", NORMAL, -9.0),
        ("▁a", NORMAL, -8.0),
        ("<b>", USER_DEFINED, 0.0),
        ("[PAD]", UNUSED, 0.0),
        ("<0x0A>", BYTE, 0.0),
    ];
    vocabulary("llama", &tokens)
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .u32("tokenizer.ggml.unknown_token_id", 0)
}

fn byte_level(special: &[(&str, i32)]) -> Writer {
    let mut tokens: Vec<_> = ["a", "b", "Ġ", "ab", "Ġab"].iter().map(|&token| (token, NORMAL, 0.0)).collect();
    tokens.extend(special.iter().map(|&(token, kind)| (token, kind, 0.0)));
    vocabulary("gpt2", &tokens).string("tokenizer.ggml.pre", "gpt-2").strings("tokenizer.ggml.merges", &["a b", "Ġ ab"])
}

fn open(writer: Writer) -> Tokenizer {
    Tokenizer::from_gguf(&writer.read().unwrap()).unwrap()
}

#[track_caller]
fn check_refused(writer: Writer, parts: &[&str]) {
    let message = Tokenizer::from_gguf(&writer.read().unwrap()).unwrap_err().to_string();
    for part in parts {
        assert!(message.contains(part), "{part:?} is missing from: {message}");
    }
}

#[test]
fn better_scores_are_joined_first() {
    let tokenizer = open(sentencepiece());
    // The space that is put first goes with the first `a`.
    assert_eq!(tokenizer.encode("ab", PLAIN).unwrap(), [7, 5]);
    assert_eq!(tokenizer.encode("bab", PLAIN).unwrap(), [3, 5, 6]);
    assert_eq!(tokenizer.encode("a b", PLAIN).unwrap(), [7, 3, 5]);
}

#[test]
fn unknown_text_falls_back_to_bytes_and_then_to_one_token() {
    let tokenizer = open(sentencepiece());
    assert_eq!(tokenizer.encode("a\n", PLAIN).unwrap(), [7, 10]);
    assert_eq!(tokenizer.encode("axyza", PLAIN).unwrap(), [7, 0, 4]);
    let without = vocabulary("llama", &[("a", NORMAL, 0.0)]).bool("tokenizer.ggml.add_space_prefix", false);
    let message = open(without).encode("ax", PLAIN).unwrap_err().to_string();
    assert!(message.contains("'x'"), "{message}");
}

#[test]
fn bytes_that_a_byte_level_vocabulary_lacks_are_left_out() {
    let lacking = |kind| {
        let writer = byte_level(&[("<unk>", kind)]).u32("tokenizer.ggml.unknown_token_id", 5);
        open(writer).encode("axb", PLAIN).unwrap()
    };
    assert_eq!(lacking(UNKNOWN), [0, 5, 1]);
    assert_eq!(lacking(CONTROL), [3]);
}

#[test]
fn control_tokens_are_found_only_on_request() {
    let tokenizer = open(sentencepiece());
    let parsed = tokenizer.encode("a</s>", PARSED).unwrap();
    assert_eq!(parsed, [7, 2]);
    let plain = tokenizer.encode("a</s>", PLAIN).unwrap();
    assert!(!plain.contains(&2), "{plain:?}");
    // User-defined tokens are text, so they are always found; a space comes before the text that follows.
    assert_eq!(tokenizer.encode("<b>a", PLAIN).unwrap(), [8, 7]);
}

#[test]
fn a_text_is_framed_as_the_model_expects() {
    assert_eq!(open(sentencepiece()).encode("a", FRAMED).unwrap(), [1, 7]);
    let writer = sentencepiece().bool("tokenizer.ggml.add_bos_token", false).bool("tokenizer.ggml.add_eos_token", true);
    assert_eq!(open(writer).encode("a", FRAMED).unwrap(), [7, 2]);
    assert_eq!(open(sentencepiece()).encode("", FRAMED).unwrap(), [1]);
    assert_eq!(open(byte_level(&[])).encode("ab", FRAMED).unwrap(), [3]);
}

#[test]
fn tokens_give_their_bytes_back() {
    let tokenizer = open(sentencepiece());
    assert_eq!(tokenizer.token_bytes(7), b" a");
    assert_eq!(tokenizer.token_bytes(10), b"\n");
    assert_eq!(tokenizer.token_bytes(8), b"<b>");
    assert_eq!(tokenizer.token_text(7), "▁a");
    for hidden in [0, 1, 2, 9, 11, u32::MAX] {
        assert_eq!(tokenizer.token_bytes(hidden), b"");
    }
    assert_eq!(tokenizer.token_text(u32::MAX), "");
    assert_eq!(tokenizer.decode(&[1, 7, 7, 2]), "a a");
    assert_eq!(tokenizer.decode(&[5, 7]), "b a");
    assert_eq!(tokenizer.vocabulary(), 11);
    assert!(tokenizer.is_control(1) && !tokenizer.is_control(0) && !tokenizer.is_control(8));
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.unknown()), (Some(1), Some(2), Some(0)));

    let tokenizer = open(byte_level(&[("<think>", USER_DEFINED), ("é", NORMAL)]));
    assert_eq!(tokenizer.token_bytes(4), b" ab");
    assert_eq!(tokenizer.token_bytes(5), b"<think>");
    assert_eq!(tokenizer.token_bytes(6), [0xe9]);
    assert_eq!(tokenizer.decode(&tokenizer.encode("ab ab<think>", PLAIN).unwrap()), "ab ab<think>");
}

#[test]
fn ends_of_generation_are_found_by_role_and_by_text() {
    let special = [
        ("<|im_end|>", CONTROL),
        ("<|eot_id|>", USER_DEFINED),
        ("</s>", USER_DEFINED),
        ("<end_of_turn>", NORMAL),
        ("<stop>", CONTROL),
        ("<other>", CONTROL),
    ];
    let writer = byte_level(&special).u32("tokenizer.ggml.eos_token_id", 0).u32("tokenizer.ggml.eot_token_id", 9);
    let tokenizer = open(writer);
    let ends: Vec<u32> = (0..12).filter(|&id| tokenizer.is_end_of_generation(id)).collect();
    assert_eq!(ends, [0, 5, 6, 9]);

    let harmony = [("<|return|>", CONTROL), ("<|call|>", CONTROL), ("<|end|>", CONTROL)];
    let tokenizer = open(byte_level(&harmony));
    assert!(tokenizer.is_end_of_generation(5) && tokenizer.is_end_of_generation(6));
    assert!(!tokenizer.is_end_of_generation(7));
}

#[test]
fn merges_never_make_control_tokens() {
    let writer = vocabulary("gpt2", &[("a", NORMAL, 0.0), ("b", NORMAL, 0.0), ("ab", CONTROL, 0.0)]);
    let writer = writer.string("tokenizer.ggml.pre", "gpt-2").strings("tokenizer.ggml.merges", &["a b"]);
    assert_eq!(open(writer).encode("ab", PLAIN).unwrap(), [0, 1]);
}

#[test]
fn wrong_vocabularies_are_refused() {
    check_refused(Writer::default(), &["tokenizer.ggml.model"]);
    check_refused(Writer::default().string("tokenizer.ggml.model", "rwkv"), &["`rwkv`", "gpt2"]);
    check_refused(vocabulary("llama", &[]), &["tokenizer.ggml.tokens", "0 tokens"]);
    check_refused(sentencepiece().u32("tokenizer.ggml.eot_token_id", 99), &["eot_token_id", "99", "11 tokens"]);
    let tokens =
        |model| Writer::default().string("tokenizer.ggml.model", model).strings("tokenizer.ggml.tokens", &["a"]);
    check_refused(tokens("llama"), &["tokenizer.ggml.scores"]);
    check_refused(tokens("llama").f32s("tokenizer.ggml.scores", &[]), &["tokenizer.ggml.scores", "0 elements for 1"]);
    check_refused(tokens("gpt2").string("tokenizer.ggml.pre", "gpt-2"), &["tokenizer.ggml.merges"]);
    let named = |pre| tokens("gpt2").string("tokenizer.ggml.pre", pre).strings::<&str>("tokenizer.ggml.merges", &[]);
    check_refused(named("brand-new"), &["`brand-new`", "llama-bpe"]);
    let merged =
        |merge| tokens("gpt2").string("tokenizer.ggml.pre", "gpt-2").strings("tokenizer.ggml.merges", &[merge]);
    check_refused(merged("ab"), &["tokenizer.ggml.merges", "\"ab\"", "position 0"]);
    check_refused(merged("a a"), &["tokenizer.ggml.merges", "lacks"]);
    check_refused(merged("a ☃"), &["tokenizer.ggml.merges", "lacks"]);
    let map = |bytes: &[u8]| {
        let value = common::gguf::array(common::gguf::U8, bytes.len(), bytes);
        vocabulary("t5", &[("a", NORMAL, 0.0)]).raw("tokenizer.ggml.precompiled_charsmap", common::gguf::ARRAY, &value)
    };
    check_refused(map(&[1, 2]), &["precompiled_charsmap", "too short"]);
    check_refused(map(&[255, 255, 255, 255, 0]), &["precompiled_charsmap", "longer"]);
}

#[test]
fn long_texts_of_one_kind_take_no_longer_than_others() {
    let tokenizer = open(sentencepiece());
    for unit in ["a", " ", "ab", "b a", "x", "\n"] {
        let text = unit.repeat(200_000 / unit.len());
        assert!(!tokenizer.encode(&text, PLAIN).unwrap().is_empty());
    }
}
