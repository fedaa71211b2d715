//! Tokenizers of every kind against the ids that Hugging Face's `tokenizers` gives, recorded in `golden/`.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::{Path, PathBuf};

use model::{EncodeOptions, Gguf, Tokenizer};
use serde_json::Value;

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
const PARSED: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };
const FRAMED: EncodeOptions = EncodeOptions { add_special: true, parse_special: true };

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn read_json(name: &str) -> Vec<Value> {
    serde_json::from_str(&std::fs::read_to_string(golden(name)).unwrap()).unwrap()
}

fn open(name: &str) -> Tokenizer {
    Tokenizer::from_gguf(&Gguf::open(&golden(&format!("tokenizer-{name}.gguf"))).unwrap()).unwrap()
}

fn ids(entry: &Value) -> Option<Vec<u32>> {
    Some(entry.as_array()?.iter().map(|id| id.as_u64().unwrap() as u32).collect())
}

/// The same as a folder in Hugging Face's form has it, with tensors of some model.
fn open_folder(name: &str) -> Tokenizer {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(golden("tiny-qwen2-folder").join(file), folder.path().join(file)).unwrap();
    }
    std::fs::copy(golden(&format!("tokenizer-{name}.hf.json")), folder.path().join("tokenizer.json")).unwrap();
    Tokenizer::from_gguf(&Gguf::open(folder.path()).unwrap()).unwrap()
}

fn check(name: &str) {
    check_encodings(name, &open(name));
    // Unigram tokenizers are read from GGUF files only.
    if name != "t5" {
        check_encodings(name, &open_folder(name));
    }
}

/// Compares every awkward string and says which differ.
fn check_encodings(name: &str, tokenizer: &Tokenizer) {
    let texts = read_json("awkward-strings.json");
    let entries = read_json(&format!("tokenizer-{name}.json"));
    assert_eq!(texts.len(), entries.len());
    let mut failures = Vec::new();
    // There is no entry where Hugging Face's tokenizer and SentencePiece disagree.
    for (text, entry) in texts.iter().zip(&entries).filter(|(_, entry)| !entry.is_null()) {
        let text = text.as_str().unwrap();
        let parsed = ids(&entry["ids"]).unwrap();
        let cases = [
            ("parsed", PARSED, parsed.clone()),
            ("framed", FRAMED, ids(&entry["ids_special"]).unwrap()),
            ("plain", PLAIN, ids(&entry["ids_plain"]).unwrap_or(parsed)),
        ];
        for (way, options, expected) in cases {
            let found = tokenizer.encode(text, options).unwrap();
            if way == "plain" && expected.iter().any(|&id| tokenizer.is_control(id)) {
                // Hugging Face's unigram model finds control tokens even in text that should have none.
                assert!(!found.iter().any(|&id| tokenizer.is_control(id)), "{text:?}");
                continue;
            }
            if found != expected {
                failures.push(format!("{way} {text:?}\n  found    {found:?}\n  expected {expected:?}"));
            }
        }
    }
    assert!(failures.is_empty(), "{} of {name}'s encodings differ:\n{}", failures.len(), failures.join("\n"));
}

/// What tokens add to the text, put together, is the text, but for what the tokenizer itself normalizes.
#[test]
fn bytes_of_tokens_are_the_text() {
    for name in ["gpt-2", "smollm", "llama-bpe", "deepseek-llm", "deepseek-v3", "gpt-4o", "tekken", "llama-spm"] {
        let tokenizer = open(name);
        for text in read_json("awkward-strings.json") {
            let text = text.as_str().unwrap();
            let tokens = tokenizer.encode(text, PLAIN).unwrap();
            assert_eq!(tokenizer.decode(&tokens), text.replace('▁', if name == "llama-spm" { " " } else { "▁" }));
            let mut stream = model::Utf8Stream::default();
            let pieces: String = tokens.iter().map(|&id| stream.push(tokenizer.token_bytes(id))).collect();
            let spaced = pieces + &stream.finish();
            assert_eq!(
                spaced.strip_prefix(' ').filter(|_| name == "llama-spm").unwrap_or(&spaced),
                tokenizer.decode(&tokens)
            );
        }
    }
}

macro_rules! check_all {
    ($($test:ident: $name:literal,)*) => {$(
        #[test]
        fn $test() {
            check($name);
        }
    )*};
}

check_all! {
    gpt_2: "gpt-2",
    smollm: "smollm",
    llama_bpe: "llama-bpe",
    qwen2: "qwen2",
    deepseek_llm: "deepseek-llm",
    deepseek_v3: "deepseek-v3",
    gpt_4o: "gpt-4o",
    tekken: "tekken",
    llama_spm: "llama-spm",
    gemma_spm: "gemma-spm",
    t5: "t5",
}
