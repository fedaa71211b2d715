//! Any text, through one tokenizer of every kind.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use model::{EncodeOptions, Gguf, Tokenizer, Utf8Stream};

/// Tokenizers, and whether they keep every text as it is. The others change spaces or compose characters.
const NAMES: &[(&str, bool)] = &[
    ("gpt-2", true),
    ("smollm", true),
    ("llama-bpe", true),
    ("deepseek-llm", true),
    ("deepseek-v3", true),
    ("gpt-4o", true),
    ("tekken", true),
    ("qwen2", false),
    ("llama-spm", false),
    ("gemma-spm", false),
    ("t5", false),
];

static TOKENIZERS: LazyLock<Vec<(Tokenizer, bool)>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/model/tests/golden");
    let open = |&(name, keeps): &(&str, bool)| {
        let gguf = Gguf::open(&folder.join(format!("tokenizer-{name}.gguf"))).expect("a golden file opens");
        (Tokenizer::from_gguf(&gguf).expect("a golden file has a tokenizer"), keeps)
    };
    NAMES.iter().map(open).collect()
});

fuzz_target!(|text: &str| {
    for (tokenizer, keeps) in TOKENIZERS.iter() {
        let plain = tokenizer.encode(text, EncodeOptions::default()).expect("any text can be encoded");
        assert!(!plain.iter().any(|&token| tokenizer.is_control(token)), "control tokens in text");
        let _ = tokenizer.encode(text, EncodeOptions { add_special: true, parse_special: true });
        if *keeps {
            assert_eq!(tokenizer.decode(&plain), text);
            let mut stream = Utf8Stream::default();
            let pieces: String = plain.iter().map(|&token| stream.push(tokenizer.token_bytes(token))).collect();
            assert_eq!(pieces + &stream.finish(), text);
        }
    }
});
