//! What scripts rely on: the commands' JSON, and that every layout gives the same text.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{json, run, tiny};
use serde_json::Value;

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("no number {key} in {value}"))
}

#[test]
fn run_prints_what_the_contract_names() {
    let model = tiny("tiny-qwen3");
    let arguments = ["run", &model, "-p", "Strands of hemp", "-n", "12", "--temp", "0", "--ignore-eos", "--json"];
    let single = json(&arguments);
    assert_eq!(single["tokens"].as_array().unwrap().len(), 12);
    assert!(single["text"].is_string());
    for key in ["prompt_tokens", "prefill_tok_s", "decode_tok_s", "ttft_ms", "load_ms"] {
        assert!(number(&single, key) > 0.0, "{key} of {single}");
    }
    for layout in [
        &["--ranks", "2"][..],
        &["--ranks", "2", "--transport", "tcp", "--threads", "1"],
        &["--pp", "2", "--transport", "shm"],
        &["--ranks", "4", "--tp", "2", "--pp", "2"],
        &["--ranks", "2", "--tensor-split", "3,1"],
    ] {
        let several = json(&[&arguments[..], layout].concat());
        assert_eq!(several["tokens"], single["tokens"], "{layout:?}");
        let ranks = several["ranks"].as_array().unwrap();
        assert!(ranks.len() >= 2);
        for rank in ranks {
            assert!(number(rank, "compute_ms") > 0.0 && number(rank, "wait_ms") >= 0.0, "{rank}");
            assert!(number(rank, "peak_rss_bytes") > 1e6 || cfg!(not(target_os = "linux")), "{rank}");
        }
    }
}

#[test]
fn a_folder_gives_the_text_of_the_gguf_file() {
    for name in ["tiny-llama3", "tiny-gemma3"] {
        let arguments = |model: &str| {
            json(&[
                "run",
                model,
                "-p",
                "Strands of hemp",
                "-n",
                "12",
                "--temp",
                "0",
                "--ignore-eos",
                "--ranks",
                "2",
                "--json",
            ])
        };
        let file = tiny(name);
        let folder = file.replace(".gguf", "-folder");
        assert_eq!(arguments(&folder)["tokens"], arguments(&file)["tokens"], "{name}");
        let shown = json(&["inspect", &folder, "--json"]);
        assert_eq!(shown["architecture"], json(&["inspect", &file, "--json"])["architecture"]);
    }
}

#[test]
fn text_streams_and_chat_templates_apply() {
    let model = tiny("tiny-llama");
    let plain = run(&["run", &model, "-p", "Hello", "-n", "4", "--temp", "0"]);
    assert!(plain.status.success() && plain.stdout.ends_with(b"\n"));
    let chat = json(&["run", &model, "--chat", "--system", "Be brief", "-p", "Hello", "-n", "1", "--json"]);
    let raw = json(&["run", &model, "-p", "Hello", "-n", "1", "--json"]);
    assert!(number(&chat, "prompt_tokens") > number(&raw, "prompt_tokens") + 4.0);
}

#[test]
fn a_conversation_goes_on_until_the_input_ends() {
    use std::io::Write;
    let mut chat = common::command(&["chat", &tiny("tiny-llama"), "-n", "3", "--temp", "0"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    chat.stdin.take().unwrap().write_all(b"Hello\n\n/clear\nHello\n").unwrap();
    let output = chat.wait_with_output().unwrap();
    assert!(output.status.success());
    // The second conversation is the first one again.
    let text = String::from_utf8_lossy(&output.stdout);
    let half = text.len() / 2;
    assert!(half > 0 && text.is_char_boundary(half) && text[..half] == text[half..], "{text:?}");
}

#[test]
fn bench_gives_a_row_for_each_combination_of_lengths() {
    let model = tiny("tiny-llama-q4_1");
    let rows = json(&["bench", &model, "-p", "16,40", "-n", "8", "-d", "0,32", "-t", "1", "-r", "3", "--json"]);
    let rows = rows.as_array().unwrap();
    let lengths: Vec<_> = rows.iter().map(|row| (number(row, "prompt"), number(row, "depth"))).collect();
    assert_eq!(lengths, [(16.0, 0.0), (16.0, 32.0), (40.0, 0.0), (40.0, 32.0)]);
    for row in rows {
        for figure in ["prefill_tok_s", "ttft_ms", "decode_tok_s"] {
            let [median, min, max] = ["median", "min", "max"].map(|key| number(&row[figure], key));
            assert!(0.0 < min && min <= median && median <= max, "{row}");
        }
        assert_eq!((row["layout"].as_str(), row["threads"].as_u64()), (Some("tp1 x pp1"), Some(1)));
        assert!(number(row, "load_ms") > 0.0 && number(row, "weight_bytes_per_token") > 1e4, "{row}");
        let memory = &row["memory"];
        let sum = number(memory, "front_bytes") + memory["rank_bytes"][0].as_f64().unwrap();
        assert_eq!(number(memory, "sum_bytes"), sum);
    }
}

#[test]
fn bench_measures_what_it_is_asked_for_against_the_limits() {
    let model = tiny("tiny-llama-q4_1");
    let long_names = ["--n-prompt", "16", "--n-gen", "0", "--n-depth", "0", "--repetitions", "1", "--ranks", "2"];
    let rows = json(&[&["bench", &model, "--roofline", "--json"][..], &long_names].concat());
    assert!(number(&rows[0], "prefill_share") > 0.0, "{rows}");
    assert!(rows[0]["decode_tok_s"].is_null() && rows[0]["decode_share"].is_null(), "{rows}");
    assert_eq!(rows[0]["memory"]["rank_bytes"].as_array().unwrap().len(), 2);
    let together = json(&["bench", &model, "-p", "16", "-n", "32", "-d", "16", "-r", "1", "--parallel", "3", "--json"]);
    assert_eq!(together[0]["parallel"], 3);
    assert!(number(&together[0]["prefill_tok_s"], "min") > 0.0, "{together}");
    // So small a model may have answered one before the next has come, so that there is no time in which all generate.
    assert!(number(&together[0]["decode_tok_s"], "min") >= 0.0, "{together}");
}

#[test]
fn kernels_are_measured_against_the_machine() {
    let few = ["--formats", "Q4_1,F16", "--sizes", "64x256", "--tokens", "1,8", "--threads", "1,2", "--seconds", "0"];
    let report = json(&[&["bench", "kernels", "--only", "multiply,norm,job", "--json"][..], &few].concat());
    for limits in report["limits"].as_array().unwrap() {
        for limit in ["memory_gb_s", "cache_gb_s", "integer_gop_s", "float_gop_s"] {
            assert!(number(limits, limit) > 0.0, "{limits}");
        }
    }
    // For one thread and for two: two formats and a norm with one token and with eight, and an empty job.
    let kernels = report["kernels"].as_array().unwrap();
    assert_eq!(kernels.len(), 2 * (2 * 2 + 2 + 1));
    for kernel in kernels {
        assert!(
            number(kernel, "best_us") > 0.0 && kernel["best_us"].as_f64() <= kernel["median_us"].as_f64(),
            "{kernel}"
        );
        assert!(kernel["kernel"] == "empty job" || number(kernel, "share") > 0.0, "{kernel}");
    }
}

#[test]
fn perplexity_is_the_same_on_any_layout() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.txt");
    std::fs::write(&text, "Strands are laid into ropes, and ropes into cables. ".repeat(30)).unwrap();
    let model = tiny("tiny-gemma3");
    let arguments = ["perplexity", &model, text.to_str().unwrap(), "--ctx-size", "128", "--json"];
    let single = json(&arguments);
    assert!(number(&single, "perplexity") > 1.0 && number(&single, "tokens") > 63.0);
    assert_eq!(json(&[&arguments[..], &["--ranks", "3"]].concat())["perplexity"], single["perplexity"]);
}

#[test]
fn tokens_and_models_can_be_looked_at() {
    let model = tiny("tiny-gemma3");
    let tokens = json(&["tokenize", &model, "-p", "Hi ☃", "--json"]);
    assert_eq!(tokens["tokens"].as_array().unwrap().len(), tokens["pieces"].as_array().unwrap().len());
    let inspected = json(&["inspect", &model, "--json"]);
    assert_eq!(inspected["path"], model);
    assert_eq!(inspected["architecture"], "gemma3");
    assert_eq!(inspected["metadata"]["gemma3.block_count"], 7);
    assert!(number(&inspected["memory"], "kv_bytes_per_token") > 0.0);
    let shown = String::from_utf8(run(&["inspect", &model, "--tensors"]).stdout).unwrap();
    assert!(shown.contains("blk.6.ffn_down.weight") && shown.contains("gemma3.block_count = 7"));
}

#[test]
fn a_split_model_is_one_model() {
    let whole = json(&["run", &tiny("tiny-llama-q4_0"), "-p", "Hi", "-n", "8", "--temp", "0", "--json"]);
    for part in ["tiny-llama-split-00001-of-00003", "tiny-llama-split-00003-of-00003"] {
        let split = json(&["run", &tiny(part), "-p", "Hi", "-n", "8", "--temp", "0", "--json", "--ranks", "2"]);
        assert_eq!(split["tokens"], whole["tokens"]);
    }
}

#[test]
fn a_draft_model_changes_nothing_but_the_time() {
    let answer = |options: &[&str]| {
        let model = tiny("tiny-llama-q4_1");
        let arguments = ["run", &model, "-p", "Hi", "-n", "40", "--temp", "0", "--json"];
        json(&[&arguments[..], options].concat())["text"].clone()
    };
    let draft_model = tiny("tiny-llama-q4_0");
    assert_eq!(answer(&["--draft-model", &draft_model]), answer(&["--draft-max", "0"]));
    let failed = |draft_model: &str, options: &[&str]| {
        let (model, draft_model) = (tiny("tiny-llama"), tiny(draft_model));
        common::failure(&[&["run", &model, "-p", "Hi", "--draft-model", &draft_model], options].concat())
    };
    let error = failed("tokenizer-gpt-2", &[]);
    assert!(error.contains("has another vocabulary"), "{error}");
    let error = failed("tiny-llama", &["--draft-max", "0"]);
    assert!(error.contains("--draft-model is of no use"), "{error}");
}

#[test]
fn every_command_shows_an_example() {
    let commands =
        ["demo", "run", "chat", "serve", "bench", "perplexity", "tokenize", "inspect", "pull", "list", "rm", "rank"];
    for command in commands {
        let help = String::from_utf8(run(&[command, "--help"]).stdout).unwrap();
        assert!(help.contains("Example") && help.contains(&format!("ropewalk {command}")), "{command}: {help}");
    }
}

#[test]
fn an_empty_store_lists_nothing_and_the_catalogue_something() {
    let folder = tempfile::tempdir().unwrap();
    let list = |arguments: &[&str]| -> Value {
        let output = common::command(arguments).env("ROPEWALK_HOME", folder.path()).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    assert_eq!(list(&["list", "--json"]), Value::Array(Vec::new()));
    assert!(
        list(&["list", "--catalogue", "--json"]).as_array().unwrap().iter().any(|known| known["name"] == "smollm2")
    );
}

#[test]
fn a_prompt_that_was_evaluated_before_is_there_again() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("kept").display().to_string();
    let model = tiny("tiny-qwen3");
    let prompt = "Strands of hemp are twisted into yarns, and yarns into rope. ".repeat(4);
    let run = |arguments: &[&str]| {
        let all = [
            "run",
            &model,
            "-p",
            &prompt,
            "-n",
            "5",
            "--temp",
            "0",
            "--ranks",
            "2",
            "--prompt-cache",
            &cache,
            "--json",
        ];
        json(&[&all[..], arguments].concat())
    };
    let first = run(&[]);
    assert_eq!(number(&first, "cached_tokens"), 0.0, "{first}");
    let second = run(&[]);
    assert_eq!(second["tokens"], first["tokens"]);
    assert_eq!(number(&second, "cached_tokens"), number(&first, "prompt_tokens") - 1.0);
    // Another type of cache is another cache.
    assert_eq!(number(&run(&["--cache-type", "q8_0"]), "cached_tokens"), 0.0);
}
