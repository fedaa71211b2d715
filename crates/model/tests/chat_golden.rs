//! Chat templates against what `transformers` renders, recorded in `golden/`.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::Path;

use model::chat::SpecialTexts;
use model::{ChatInput, ChatTemplate, ModelError};
use serde_json::Value;

#[test]
fn templates_render_as_transformers_renders_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let cases = std::fs::read_to_string(folder.join("chat-templates.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&cases).unwrap();
    let mut failures = Vec::new();
    for case in &cases {
        let file = folder.join(case["template"].as_str().unwrap());
        let source = std::fs::read_to_string(file).unwrap();
        let text = |key: &str| case[key].as_str().map(str::to_owned);
        let tokens = SpecialTexts { bos: text("bos_token"), eos: text("eos_token"), ..SpecialTexts::default() };
        let template = ChatTemplate::new(&source, None, tokens).unwrap();
        let input = ChatInput {
            messages: case["messages"].clone(),
            tools: case.get("tools").filter(|tools| !tools.is_null()).cloned(),
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            extra: case["extra"].as_object().unwrap().clone(),
        };
        let rendered = template.render(&input);
        let is_right = match (&rendered, case["expected"].as_str(), case["error"].as_str()) {
            (Ok(found), Some(expected), _) => found == expected,
            (Err(ModelError::TemplateRefused { message }), _, Some(expected)) => message == expected,
            _ => false,
        };
        if !is_right {
            let expected = case.get("expected").unwrap_or(&case["error"]);
            failures.push(format!("{}\n found    {rendered:?}\n expected {expected}", case["name"]));
        }
    }
    assert!(failures.is_empty(), "{} of {} cases differ:\n{}", failures.len(), cases.len(), failures.join("\n"));
}
