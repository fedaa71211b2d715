//! Checkpoints in Hugging Face's form: the same models as in GGUF files, and what is wrong with folders that cannot be used.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::{Path, PathBuf};

use model::{Blueprint, ChatInput, ChatTemplate, EncodeOptions, Gguf, Tokenizer};
use serde_json::{Value, json};
use tempfile::TempDir;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// A copy of a folder that may be changed.
fn copy(name: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(golden(name)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    folder
}

fn change(folder: &Path, file: &str, change: impl FnOnce(&mut Value)) {
    let path = folder.join(file);
    let mut value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

fn refusal(folder: &Path) -> String {
    Gguf::open(folder).map(|file| file.tensors().len()).unwrap_err().to_string()
}

const NAMES: [&str; 7] =
    ["tiny-llama3", "tiny-mistral", "tiny-qwen2", "tiny-qwen3", "tiny-gemma3", "tiny-qwen3moe", "tiny-mixtral"];

#[test]
fn a_folder_holds_what_the_gguf_file_holds() {
    let strings: Vec<String> = serde_json::from_slice(&fs::read(golden("awkward-strings.json")).unwrap()).unwrap();
    for name in NAMES {
        let folder = Gguf::open(&golden(&format!("{name}-folder"))).unwrap();
        let file = Gguf::open(&golden(&format!("{name}.gguf"))).unwrap();
        let names = |gguf: &Gguf| {
            // GGUF has the matrices of all experts in one tensor.
            let one_by_one = |name: &str, shape: &[usize]| match shape {
                [columns, rows, count] => (0..*count)
                    .map(|index| (name.replace(".weight", &format!(".{index}.weight")), vec![*columns, *rows]))
                    .collect(),
                shape => vec![(name.to_owned(), shape.to_vec())],
            };
            let mut tensors: Vec<_> =
                gguf.tensors().flat_map(|tensor| one_by_one(&tensor.name, &tensor.shape)).collect();
            tensors.sort();
            tensors
        };
        assert_eq!(names(&folder), names(&file), "{name}");
        let (one, other) = (Blueprint::from_gguf(&folder).unwrap(), Blueprint::from_gguf(&file).unwrap());
        assert_eq!(
            (one.layers, one.hidden, one.context, one.epsilon),
            (other.layers, other.hidden, other.context, other.epsilon)
        );
        let [one, other] = [&folder, &file].map(|gguf| Tokenizer::from_gguf(gguf).unwrap());
        for text in &strings {
            for (add_special, parse_special) in [(false, false), (true, true)] {
                let options = EncodeOptions { add_special, parse_special };
                assert_eq!(
                    one.encode(text, options).unwrap(),
                    other.encode(text, options).unwrap(),
                    "{name}: {text:?}"
                );
            }
        }
        assert_eq!((one.bos(), one.eos(), one.unknown()), (other.bos(), other.eos(), other.unknown()));
        assert!(one.is_end_of_generation(2) && one.is_end_of_generation(0) && !one.is_end_of_generation(1));
        let messages = json!([{"role": "user", "content": "Hi"}]);
        let input = ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() };
        let [one, other] = [(&folder, &one), (&file, &other)].map(|(gguf, tokenizer)| {
            ChatTemplate::from_gguf(gguf, tokenizer).unwrap().unwrap().render(&input).unwrap()
        });
        assert_eq!(one, other);
    }
}

#[test]
fn what_is_missing_is_named() {
    let folder = copy("tiny-llama3-folder");
    let path = folder.path();
    let expect = |expected: &[&str]| {
        let error = refusal(path);
        assert!(expected.iter().all(|part| error.contains(part)), "{error}");
    };
    let part = path.join("model-00002-of-00003.safetensors");
    let bytes = fs::read(&part).unwrap();
    fs::remove_file(&part).unwrap();
    expect(&["model-00002-of-00003.safetensors", "is missing", "model.layers."]);
    // As it is when a download broke off.
    fs::write(&part, &bytes[..bytes.len() - 5]).unwrap();
    expect(&["model-00002-of-00003.safetensors", "download it again"]);
    fs::write(&part, [&bytes[..], b"more"].concat()).unwrap();
    expect(&["model-00002-of-00003.safetensors", "download it again"]);
    fs::write(&part, &bytes).unwrap();
    change(path, "model.safetensors.index.json", |index| {
        index["weight_map"]["model.layers.7.mlp.up_proj.weight"] = "model-00001-of-00003.safetensors".into();
    });
    expect(&["model-00001-of-00003.safetensors", "lacks tensor `model.layers.7.mlp.up_proj.weight`"]);
    for file in ["../model-00001-of-00003.safetensors", "/etc/passwd", "a/b", ".."] {
        change(path, "model.safetensors.index.json", |index| index["weight_map"]["lm_head.weight"] = file.into());
        expect(&["model.safetensors.index.json", "weight_map", "not in the folder"]);
    }
    fs::remove_file(path.join("model.safetensors.index.json")).unwrap();
    expect(&["neither model.safetensors nor model.safetensors.index.json"]);
    fs::remove_file(path.join("config.json")).unwrap();
    expect(&["config.json", "is missing"]);
}

#[test]
fn headers_are_not_trusted() {
    let folder = copy("tiny-qwen2-folder");
    let path = folder.path().join("model.safetensors");
    let header = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &[0; 64]].concat();
    for bytes in [
        Vec::new(),
        vec![1, 2, 3],
        u64::MAX.to_le_bytes().to_vec(),
        (1_u64 << 40).to_le_bytes().to_vec(),
        header("{"),
        header("[]"),
        header(r#"{"a":{"dtype":"F32","shape":[4611686018427387904,4611686018427387904],"data_offsets":[0,64]}}"#),
        header(r#"{"a":{"dtype":"F32","shape":[16],"data_offsets":[0,99999]}}"#),
        header(r#"{"a":{"dtype":"F32","shape":[16],"data_offsets":[64,0]}}"#),
        header(r#"{"a":{"dtype":"F32","shape":[8],"data_offsets":[0,64]}}"#),
        header(r#"{"a":{"dtype":"F99","shape":[16],"data_offsets":[0,64]}}"#),
    ] {
        fs::write(&path, &bytes).unwrap();
        let error = refusal(folder.path());
        assert!(error.contains("model.safetensors") && error.contains("download it again"), "{error}");
    }
    fs::write(&path, header(r#"{"model.norm.weight":{"dtype":"I64","shape":[8],"data_offsets":[0,64]}}"#)).unwrap();
    let error = refusal(folder.path());
    assert!(error.contains("the type I64 of tensor `model.norm.weight`"), "{error}");
}

#[test]
fn what_is_not_supported_says_so() {
    let folder = copy("tiny-qwen3-folder");
    let path = folder.path();
    let config = fs::read(path.join("config.json")).unwrap();
    for (key, value, expected) in [
        ("model_type", json!("mamba"), "model type `mamba`"),
        ("model_type", Value::Null, "`model_type` is missing"),
        ("model_type", json!(3), "`model_type` is 3; it must be a string"),
        ("num_hidden_layers", json!(-1), "`num_hidden_layers` is -1"),
        ("hidden_size", Value::Null, "`hidden_size` is missing"),
        ("quantization_config", json!({"quant_method": "bitsandbytes"}), "the quantization bitsandbytes"),
        ("rope_parameters", json!({"rope_type": "longrope", "rope_theta": 1e6}), "the position encoding `longrope`"),
        (
            "rope_parameters",
            json!({"rope_type": "yarn", "factor": 0}),
            "`factor` is missing; it must be a positive number",
        ),
    ] {
        fs::write(path.join("config.json"), &config).unwrap();
        change(path, "config.json", |config| config[key] = value.clone());
        let error = refusal(path);
        assert!(error.contains(expected), "{error}");
    }
    fs::write(path.join("config.json"), &config).unwrap();
    let tokenizer = fs::read(path.join("tokenizer.json")).unwrap();
    for (pointer, value, expected) in [
        ("/model/type", json!("WordPiece"), "a tokenizer of the type WordPiece"),
        ("/model/vocab", json!([1]), "`vocab` must give each token a number"),
        ("/model/merges", json!(["a", 5]), "`merges` must be a list of pairs"),
        (
            "/pre_tokenizer",
            json!({"type": "Sequence", "pretokenizers": [{"type": "Bert"}, {"type": "ByteLevel"}]}),
            "pre-tokenizer Bert",
        ),
        ("/normalizer", json!({"type": "Lowercase"}), "the normalizer Lowercase"),
        ("/added_tokens", json!([{"content": "a"}]), "`added_tokens` must have a number"),
        ("/added_tokens", json!([{"content": "a", "id": 1_u64 << 60}]), "no vocabulary is that large"),
    ] {
        fs::write(path.join("tokenizer.json"), &tokenizer).unwrap();
        change(path, "tokenizer.json", |tokenizer| *tokenizer.pointer_mut(pointer).unwrap() = value.clone());
        let error = refusal(path);
        assert!(error.contains(expected), "{error}");
    }
}
