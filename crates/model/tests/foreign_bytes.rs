//! Whatever the bytes, nothing panics.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::path::Path;
use std::sync::LazyLock;

use common::gguf::{Writer, read};
use model::{Blueprint, ChatTemplate, EncodeOptions, Gguf, Tokenizer, Utf8Stream};
use proptest::prelude::*;

/// Does with a file what a program does with it.
fn use_all_of(gguf: &Gguf) {
    for tensor in gguf.tensors() {
        assert_eq!(gguf.tensor(&tensor.name).unwrap().data.len(), tensor.byte_len);
    }
    for (_, value) in gguf.metadata().iter() {
        assert!(!value.type_name().is_empty());
        let _ = value.to_string();
    }
    let Ok(tokenizer) = Tokenizer::from_gguf(gguf) else { return };
    for text in ["", "Hello, wörld!\n  <s></s><|im_end|>\t你好 e\u{301} \u{1f600}"] {
        for (add_special, parse_special) in [(false, false), (true, true)] {
            if let Ok(tokens) = tokenizer.encode(text, EncodeOptions { add_special, parse_special }) {
                let _ = tokenizer.decode(&tokens);
            }
        }
    }
    let _ = ChatTemplate::from_gguf(gguf, &tokenizer);
}

/// The files of a folder that is read.
const FOLDER: [&str; 5] =
    ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];

/// One well-formed file of every kind.
static SEEDS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let names = ["tokenizer-gpt-2", "tokenizer-llama-spm", "tokenizer-t5", "tokenizer-deepseek-llm", "tiny-llama-q4_0"];
    let mut seeds: Vec<_> =
        names.iter().map(|name| std::fs::read(folder.join(name).with_extension("gguf")).unwrap()).collect();
    let tiny = Writer::default()
        .string("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &["<unk>", "<s>", "</s>", "a", "b", "ab", "▁", "<0x0A>"])
        .f32s("tokenizer.ggml.scores", &[0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, 0.0])
        .i32s("tokenizer.ggml.token_type", &[2, 3, 3, 1, 1, 4, 1, 6])
        .u32("tokenizer.ggml.unknown_token_id", 0)
        .string("tokenizer.chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}")
        .tensor("t", 0, &[4, 2], vec![0; 32])
        .tensor("u", 8, &[32, 2], vec![0; 68]);
    seeds.push(tiny.bytes());
    seeds
});

/// A change to a file: cut it, or write over some of it.
#[derive(Debug, Clone)]
enum Damage {
    Cut(prop::sample::Index),
    Write(prop::sample::Index, Vec<u8>),
    Insert(prop::sample::Index, Vec<u8>),
}

fn damage() -> impl Strategy<Value = Damage> {
    let bytes = prop_oneof![
        prop::collection::vec(any::<u8>(), 1..9),
        prop::sample::select(vec![u64::MAX, 0, 1, 1 << 31, 1 << 32, 1 << 63])
            .prop_map(|number| number.to_le_bytes().to_vec()),
    ];
    let place = any::<prop::sample::Index>;
    prop_oneof![
        1 => place().prop_map(Damage::Cut),
        8 => (place(), bytes.clone()).prop_map(|(place, bytes)| Damage::Write(place, bytes)),
        2 => (place(), bytes).prop_map(|(place, bytes)| Damage::Insert(place, bytes)),
    ]
}

fn apply(damage: &Damage, file: &mut Vec<u8>) {
    match damage {
        Damage::Cut(place) => file.truncate(place.index(file.len() + 1)),
        Damage::Write(place, bytes) => {
            let start = place.index(file.len() + 1);
            for (old, new) in file[start..].iter_mut().zip(bytes) {
                *old = *new;
            }
        }
        Damage::Insert(place, bytes) => {
            let start = place.index(file.len() + 1);
            file.splice(start..start, bytes.iter().copied());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(gguf) = read(bytes) {
            use_all_of(&gguf);
        }
    }

    #[test]
    fn any_bytes_after_a_header(version in 2u32..4, counts in any::<[u8; 2]>(), rest in prop::collection::vec(any::<u8>(), 0..300)) {
        let header = [&b"GGUF"[..], &version.to_le_bytes()].concat();
        let counts = counts.map(|count| u64::from(count % 8).to_le_bytes()).concat();
        if let Ok(gguf) = read([header, counts, rest].concat()) {
            use_all_of(&gguf);
        }
    }

    #[test]
    fn damaged_files(seed in any::<prop::sample::Index>(), damages in prop::collection::vec(damage(), 1..4)) {
        let mut file = seed.get(&SEEDS).clone();
        damages.iter().for_each(|damage| apply(damage, &mut file));
        if let Ok(gguf) = read(file) {
            use_all_of(&gguf);
        }
    }

    #[test]
    fn damaged_folders(
        file in prop::sample::select(FOLDER.to_vec()),
        damages in prop::collection::vec(damage(), 1..4),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tiny-qwen2-folder");
        for name in FOLDER {
            let mut bytes = std::fs::read(golden.join(name)).unwrap();
            if name == file {
                damages.iter().for_each(|damage| apply(damage, &mut bytes));
            }
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        if let Ok(gguf) = Gguf::open(folder.path()) {
            use_all_of(&gguf);
            let _ = Blueprint::from_gguf(&gguf);
        }
    }

    #[test]
    fn pieces_of_text_add_up(bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0xe2), Just(0x82), Just(0xf0), Just(0x9f)], 0..40), size in 1usize..6) {
        let mut stream = Utf8Stream::default();
        let mut text: String = bytes.chunks(size).map(|chunk| stream.push(chunk)).collect();
        text += &stream.finish();
        prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn the_seeds_are_well_formed() {
    for seed in SEEDS.iter() {
        let gguf = read(seed.clone()).unwrap();
        Tokenizer::from_gguf(&gguf).unwrap();
        use_all_of(&gguf);
    }
}
