//! Rules about the source itself.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::{Path, PathBuf};

/// Where `unsafe` may stand; see ARCHITECTURE.md.
const UNSAFE_ALLOWED: &[&str] = &[
    "crates/mapped/src/lib.rs",
    "crates/verbs/src/",
    "crates/fabric/src/link/shared_memory",
    "crates/kernels/src/simd/",
    "crates/kernels/src/pool/",
];

/// Files longer than this are two files.
const LINES_MAX: usize = 600;
const COLUMNS_MAX: usize = 200;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All Rust sources of the workspace, by path from its root.
fn sources() -> Vec<(String, String)> {
    let mut folders = vec![root().join("crates")];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root()).unwrap().display().to_string();
                sources.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(sources.len() > 50, "the sources are not where they were");
    sources
}

fn is_code(line: &str) -> bool {
    !line.trim_start().starts_with("//")
}

#[test]
fn unsafe_stands_only_where_the_architecture_allows_it() {
    // Put together so that this file does not find itself.
    let words = [concat!("unsafe", " {"), concat!("unsafe", " fn"), concat!("unsafe", " impl"), "allow(unsafe_code"];
    for (name, text) in sources() {
        let allowed = UNSAFE_ALLOWED.iter().any(|place| name.starts_with(place));
        let uses = text.lines().filter(|line| is_code(line)).any(|line| words.iter().any(|word| line.contains(word)));
        assert!(allowed || !uses || name.ends_with("tests/tidy.rs"), "{name} uses unsafe code");
    }
}

#[test]
fn crates_without_a_reason_forbid_unsafe_code() {
    for name in ["engine", "model", "store", "server"] {
        let text = std::fs::read_to_string(root().join(format!("crates/{name}/src/lib.rs"))).unwrap();
        assert!(text.contains("#![forbid(unsafe_code)]"), "{name}");
    }
}

#[test]
fn files_are_short_and_end_in_a_line_break() {
    for (name, text) in sources() {
        assert!(text.lines().count() <= LINES_MAX, "{name} has {} lines", text.lines().count());
        assert!(text.ends_with('\n'), "{name}");
        for (number, line) in text.lines().enumerate() {
            assert!(line.chars().count() <= COLUMNS_MAX, "{name}:{} is too long", number + 1);
            assert!(!line.ends_with(' ') && !line.contains('\t'), "{name}:{} has stray white space", number + 1);
        }
    }
}

#[test]
fn nothing_is_left_for_later() {
    let words = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("todo", "!("), concat!("unimplemented", "!(")];
    for (name, text) in sources() {
        for word in words {
            assert!(!text.contains(word), "{name} contains {word}");
        }
    }
}

#[test]
fn crates_depend_only_downwards() {
    let rooms: &[(&str, &[&str])] = &[
        ("mapped", &[]),
        ("kernels", &["mapped"]),
        ("verbs", &[]),
        ("fabric", &["verbs"]),
        ("store", &[]),
        ("model", &["kernels", "mapped"]),
        ("engine", &["fabric", "kernels", "model"]),
        ("server", &["engine", "model"]),
    ];
    for (name, allowed) in rooms {
        let manifest = std::fs::read_to_string(root().join(format!("crates/{name}/Cargo.toml"))).unwrap();
        let dependencies = manifest.split("[dev-dependencies]").next().unwrap();
        for (other, _) in rooms {
            let depends = dependencies
                .lines()
                .any(|line| line.starts_with(&format!("{other}.workspace")) || line.starts_with(&format!("{other} =")));
            assert!(!depends || allowed.contains(other), "{name} must not depend on {other}");
        }
    }
}
