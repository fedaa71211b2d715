//! Options from a file and the environment.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Output;

use common::{command, failure, json, tiny};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A folder with a configuration file.
fn configured(text: &str) -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    std::fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    (folder, path)
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_command_runs_as_it_is_configured() {
    let model = tiny("tiny-llama");
    let (_folder, path) = configured(&format!(
        "[run]\nmodel = '{model}'\nprompt = 'Hello'\nn-predict = 4\nranks = 1\ntemp = 0\njson = true\n"
    ));
    let answer = json(&["run", "--config", &path]);
    assert_eq!(answer["tokens"].as_array().map(Vec::len), Some(4), "{answer}");
    // The environment wins over the file, and the prompt of the file gives way to the flag that excludes it.
    let (_other, prompt) = configured("Once upon a time");
    let mut command = command(&["run", "--config", &path, "--file", &prompt]);
    let (output, _) = said(&command.env("ROPEWALK_RUN_N_PREDICT", "2").output().unwrap());
    let other: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(other["tokens"].as_array().map(Vec::len), Some(2), "{other}");
    assert_ne!(other["text"], answer["text"]);
}

#[test]
fn what_is_configured_is_shown_with_its_place() {
    let (_folder, path) = configured("[serve]\nmodels = ['a', 'b']\napi-key = 'sk-hidden'\nmmap = true\n");
    let mut arguments = command(&["config", "--json", "--config", &path, "serve", "--parallel", "9"]);
    let (output, _) = said(&arguments.env("ROPEWALK_SERVE_LISTEN", "127.0.0.1:1").output().unwrap());
    let shown: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(shown["file"], json!(path));
    let of = |option: &str| {
        let find = |entry: &&Value| entry["option"] == option;
        let entry = shown["options"].as_array().unwrap().iter().find(find).unwrap();
        (entry["value"].clone(), entry["from"].clone(), entry["place"].clone())
    };
    assert_eq!(of("models"), (json!(["a", "b"]), json!("file"), json!(format!("{path}:2"))));
    assert_eq!(of("mmap"), (json!(true), json!("file"), json!(format!("{path}:4"))));
    assert_eq!(of("listen"), (json!("127.0.0.1:1"), json!("variable"), json!("ROPEWALK_SERVE_LISTEN")));
    assert_eq!(of("parallel"), (json!("9"), json!("flag"), Value::Null));
    assert_eq!(of("offline"), (json!(false), json!("default"), Value::Null));
    assert_eq!(of("api-key").0, Value::Null);
    let (table, _) = said(&command(&["config", "--config", &path]).output().unwrap());
    assert!(table.contains(&format!("{path} is read")) && table.contains("serve.mmap"), "{table}");
    assert!(!table.contains("sk-hidden") && !output.contains("sk-hidden"), "{table}");
    assert!(!table.contains("serve.offline"), "{table}");
}

#[test]
fn a_secret_of_the_environment_is_not_shown() {
    let (output, _) = said(&command(&["config", "serve"]).env("ROPEWALK_API_KEY", "sk-hidden").output().unwrap());
    let line = output.lines().find(|line| line.starts_with("serve.api-key ")).unwrap();
    assert!(line.contains("ROPEWALK_API_KEY") && !output.contains("sk-hidden"), "{output}");
}

#[test]
fn the_file_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ropewalk").join("config.toml");
    let ask = |arguments: &[&str]| said(&command(arguments).env("XDG_CONFIG_HOME", folder.path()).output().unwrap()).0;
    assert_eq!(ask(&["config", "--path"]).trim_end(), path.display().to_string());
    assert!(ask(&["config"]).starts_with("no configuration file"));
    std::fs::create_dir(folder.path().join("ropewalk")).unwrap();
    std::fs::write(&path, "[link]\nranks = 3").unwrap();
    assert!(ask(&["config"]).contains("link.ranks"));
    assert!(!ask(&["config", "--no-config"]).contains("link.ranks"));
    let (_other, other) = configured("[link]\nbudget = 7");
    let mut named = command(&["config"]);
    named.env("XDG_CONFIG_HOME", folder.path()).env("ROPEWALK_CONFIG", &other);
    let (output, _) = said(&named.output().unwrap());
    assert!(output.contains("link.budget") && !output.contains("link.ranks"), "{output}");
}

#[test]
fn mistakes_are_named() {
    let (_folder, path) = configured("[serve]\nparalel = 8\nparallel = 0\n");
    let message = failure(&["list", "--config", &path]);
    for part in [&format!("{path}:2: "), "`parallel`", &format!("{path}:3: "), "1..=256"] {
        assert!(message.contains(part), "{message}");
    }
    assert!(failure(&["list", "--config", "/no/such/file"]).contains("/no/such/file"));
    assert!(failure(&["config", "nonsense"]).contains("nonsense"));
    let (_, warning) = said(&command(&["list"]).env("ROPEWALK_LIST_JSN", "1").output().unwrap());
    assert!(warning.contains("ROPEWALK_LIST_JSN") && warning.contains("ROPEWALK_LIST_JSON"), "{warning}");
    let output = command(&["list"]).env("ROPEWALK_LIST_JSON", "maybe").output().unwrap();
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("ROPEWALK_LIST_JSON"));
}

#[test]
fn the_packaged_file_can_be_used() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/config.toml");
    let path: PathBuf = path.canonicalize().unwrap();
    let shown = json(&["config", "--json", "--config", path.to_str().unwrap()]);
    let find = |entry: &Value| entry["command"] == "serve" && entry["option"] == "models";
    assert!(shown["options"].as_array().unwrap().iter().any(find), "{shown}");
}
