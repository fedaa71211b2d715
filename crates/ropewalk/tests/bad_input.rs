//! Bad input gets an error that names the thing, and an exit code that is not zero.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::path::Path;

use common::{failure, tiny};

/// Checks that each command fails and says each of the words.
fn check(cases: &[(&[&str], &[&str])]) {
    for (arguments, words) in cases {
        let message = failure(arguments);
        for word in *words {
            assert!(message.contains(word), "{arguments:?} does not say {word:?}: {message}");
        }
    }
}

#[test]
fn layouts_that_cannot_be() {
    let model = tiny("tiny-llama");
    let run = |extra: &[&'static str]| -> Vec<String> {
        ["run", &model, "-p", "x", "-n", "1"].iter().chain(extra).map(|&word| word.to_owned()).collect()
    };
    for (extra, word) in [
        (&["--ranks", "0"][..], "between 1 and"),
        (&["--ranks", "4", "--tp", "3"], "cannot be laid out"),
        (&["--pp", "4"], "4 stages cannot share 3 layers"),
        (&["--ranks", "1000"], "between 1 and"),
        (&["--ranks", "2", "--tensor-split", "1,2,3"], "do not fit 2 ranks"),
        (&["--ranks", "2", "--tensor-split", "1,-1"], "do not fit"),
        (&["--threads", "0"], "1..=1024"),
        (&["--transport", "pigeon"], "pigeon"),
        (&["--ctx-size", "1"], "at least 2"),
        (&["--ctx-size", "1000000"], "was trained for"),
        (&["--ubatch-size", "0"], "between 1 and 4096"),
        (&["--remote-ranks", "1"], "--secret-file"),
        (&["--temp", "-1"], "temperature"),
        (&["--top-p", "7"], "top_p"),
        (&["--logit-bias", "nonsense"], "not a token id"),
        (&["--logit-bias", "999999+1"], "outside the vocabulary"),
    ] {
        let arguments = run(extra);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        check(&[(&arguments, &[word])]);
    }
}

#[test]
fn prompts_that_do_not_fit() {
    let model = tiny("tiny-llama");
    let long = "x ".repeat(200);
    check(&[
        (&["run", &model, "-p", &long, "--ctx-size", "64"], &["context holds 64"]),
        (&["run", &model, "-p", ""], &["prompt is empty"]),
        (&["run", &model], &["-p TEXT"]),
        (&["run", &model, "-f", "/no/such/file"], &["/no/such/file"]),
        (&["perplexity", &model, "/no/such/file"], &["/no/such/file"]),
        (&["tokenize", &model], &["-p TEXT"]),
        (&["perplexity", &model, &model, "--ctx-size", "2"], &["at least 4"]),
        (&["bench", &model, "-p", "4090", "-n", "100"], &["context holds 4096"]),
        (&["bench", &model, "-p", "99999999999999"], &["context holds 4096"]),
    ]);
}

#[test]
fn models_that_cannot_be_found() {
    check(&[
        (&["run", "smolm2", "-p", "x"], &["smolm2", "smollm2"]),
        (&["run", "./missing.gguf", "-p", "x"], &["missing.gguf"]),
        (&["inspect", "hf:nonsense"], &["hf:OWNER/NAME"]),
        (&["run", "smollm2", "-p", "x", "--offline"], &["smollm2"]),
        (&["rm", "smollm2"], &["smollm2"]),
        (&["run", "/", "-p", "x"], &["/"]),
    ]);
}

#[test]
fn files_that_are_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let good = std::fs::read(tiny("tiny-llama")).unwrap();
    let write = |name: &str, bytes: &[u8]| -> String {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    let mut magic = good.clone();
    magic[0] = b'X';
    let mut version = good.clone();
    version[4] = 99;
    let mut counts = good.clone();
    counts[8..16].fill(0xff);
    let mut layers = good.clone();
    let key = b"llama.block_count";
    let value = layers.windows(key.len()).position(|window| window == key).unwrap() + key.len() + 4;
    layers[value..value + 4].copy_from_slice(&(1_u32 << 24).to_le_bytes());
    let cases = [
        (write("layers.gguf", &layers), "only"),
        (write("empty.gguf", b""), "empty.gguf"),
        (write("magic.gguf", &magic), "magic"),
        (write("version.gguf", &version), "99"),
        (write("counts.gguf", &counts), "counts.gguf"),
        (write("header.gguf", &good[..1000]), "truncated"),
        (write("data.gguf", &good[..good.len() - 1000]), "truncated"),
        (write("architecture.gguf", &replace(&good, b"llama", b"lamma")), "architecture"),
        (write("tensor.gguf", &replace(&good, b"blk.1.attn_q.weight", b"blk.1.attn_x.weight")), "blk.1.attn_q.weight"),
    ];
    for (path, word) in &cases {
        for command in [&["run", path, "-p", "x", "-n", "1"][..], &["run", path, "-p", "x", "--ranks", "2"]] {
            check(&[(command, &[word])]);
        }
    }
}

fn replace(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = bytes.to_vec();
    let places: Vec<usize> = (0..bytes.len() - from.len()).filter(|&at| &bytes[at..at + from.len()] == from).collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at..at + to.len()].copy_from_slice(to);
    }
    bytes
}

#[test]
fn a_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    check(&[
        (&["serve", &tiny("tiny-llama"), "--listen", &address], &[&address, "in use"]),
        (&["serve", &tiny("tiny-llama"), "--listen", "nonsense"], &["nonsense"]),
        (&["run", &tiny("tiny-llama"), "-p", "x", "--rendezvous", &address], &[&address]),
    ]);
}

#[test]
fn a_rank_without_a_group_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "short").unwrap();
    let secret = secret.to_str().unwrap();
    check(&[
        (&["rank", "--rendezvous", "127.0.0.1:1", "--secret-file", secret], &["secret"]),
        (&["rank", "--rendezvous", "127.0.0.1:1"], &["--secret-file"]),
        (&["rank", "--rendezvous", "127.0.0.1:1", "--secret-file", "/no/such"], &["/no/such"]),
    ]);
    std::fs::write(Path::new(secret), "long enough to be a secret").unwrap();
    let alone = ["rank", "--rendezvous", "127.0.0.1:1", "--secret-file", secret, "--timeout", "1"];
    check(&[(&alone, &["127.0.0.1:1"])]);
}

#[test]
fn kernels_that_there_are_not() {
    let output = common::command(&["list"]).env("ROPEWALK_KERNELS", "fast").output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && message.contains("must be one of auto, portable"), "{message}");
}

#[test]
fn servers_that_cannot_be() {
    let model = tiny("tiny-llama");
    let empty = tempfile::tempdir().unwrap();
    let keys = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&keys, "# nobody\n\nalice sk-1 requests=5\n").unwrap();
    let (empty, keys) = (empty.path().to_str().unwrap(), keys.path().to_str().unwrap());
    check(&[
        (&["serve", &model, "--api-key-file", keys], &[keys, "line 3", "requests-per-minute"]),
        (&["serve", &model, "--api-key-file", "/dev/null"], &["no API key in /dev/null"]),
        (&["serve", &model, "--api-key", ""], &["not be empty"]),
        (
            &["serve", &model, "--ssl-certfile", "/dev/null", "--listen", "127.0.0.1:0"],
            &["no certificate in /dev/null"],
        ),
        (&["serve", &model, "--ssl-keyfile", "/dev/null", "--listen", "127.0.0.1:0"], &["/dev/null", "--ssl-certfile"]),
        (&["serve", &model, "--cors-origin", "chat.example"], &["must be * or a scheme"]),
        (&["serve", &model, "--log-level", "access=loud"], &["must be error, warn"]),
        (
            &["serve", &model, "--otlp-traces-endpoint", "localhost:4318", "--listen", "127.0.0.1:0"],
            &["not the URL of a collector"],
        ),
        (&["serve"], &["MODEL"]),
        (&["serve", "--models-dir", empty], &["no .gguf file", empty]),
        (&["serve", "--models-dir", "/nowhere/at/all"], &["/nowhere/at/all", "--models-dir"]),
        (&["serve", &model, &model, "--listen", "127.0.0.1:0"], &["two models are called", "tiny-llama"]),
        (&["serve", &model, "--keep-alive", "soon"], &["must be a duration"]),
        (&["serve", &model, "--models-max", "0"], &["1..=64"]),
        (&["serve", &model, "--models-memory", "0"], &["must be a positive number"]),
    ]);
}
