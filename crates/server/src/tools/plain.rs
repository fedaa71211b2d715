//! Tools for templates that know none: told in a paragraph, called and answered in plain text.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Tool, parser};

/// What a model is told that was never taught to call tools in a known form.
pub(super) fn paragraph(tools: &[Tool]) -> String {
    let mut text =
        "# Tools\n\nYou can call functions. Each line between <tools> and </tools> describes one:\n<tools>\n"
            .to_owned();
    for tool in tools {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", tool.described);
    }
    let (begin, end) = (parser::BEGIN, parser::END);
    let _ = write!(
        text,
        "</tools>\n\nTo call one, answer with its name and its arguments, an object of JSON, in this form:\n{begin}\n\
         {{\"name\": \"the function's name\", \"arguments\": {{}}}}\n{end}\nThe result will follow between <tool_response> and \
         </tool_response>."
    );
    text
}

/// Puts `paragraph` at the end of the system prompt.
pub(super) fn instruct(messages: &mut Vec<Value>, paragraph: &str) {
    match messages.first_mut() {
        Some(first) if first["role"] == "system" => {
            let said = first["content"].as_str().unwrap_or_default();
            first["content"] = if said.is_empty() { paragraph.into() } else { format!("{said}\n\n{paragraph}").into() };
        }
        _ => messages.insert(0, json!({"role": "system", "content": paragraph})),
    }
}

/// Writes earlier calls and their results as text. What the user says after results is in the same turn.
pub(super) fn flatten(messages: &mut Vec<Value>) {
    let mut flat: Vec<Value> = Vec::with_capacity(messages.len());
    let mut after_result = false;
    for mut message in messages.drain(..) {
        let said = message["content"].as_str().unwrap_or_default();
        if let Some(calls) = message["tool_calls"].as_array() {
            let calls = calls.iter().map(call);
            let lines: Vec<String> =
                Some(said.to_owned()).filter(|text| !text.is_empty()).into_iter().chain(calls).collect();
            message = json!({"role": message["role"], "content": lines.join("\n")});
            after_result = false;
        } else if message["role"] == "tool" {
            let result = format!("<tool_response>\n{said}\n</tool_response>");
            if after_result && append(&mut flat, &result) {
                continue;
            }
            message = json!({"role": "user", "content": result});
            after_result = true;
        } else {
            let continues = after_result && message["role"] == "user";
            after_result = false;
            if continues && append(&mut flat, said) {
                continue;
            }
        }
        flat.push(message);
    }
    *messages = flat;
}

/// Adds a paragraph to the last message.
fn append(messages: &mut [Value], text: &str) -> bool {
    let Some(last) = messages.last_mut() else { return false };
    let before = last["content"].as_str().unwrap_or_default();
    last["content"] = format!("{before}\n{text}").into();
    true
}

fn call(call: &Value) -> String {
    // Some clients leave the outer object out.
    let function = call.get("function").unwrap_or(call);
    let (name, arguments) = (&function["name"], &function["arguments"]);
    let arguments = arguments.as_str().map_or_else(|| arguments.to_string(), str::to_owned);
    format!("{}\n{{\"name\": {name}, \"arguments\": {arguments}}}\n{}", parser::BEGIN, parser::END)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_results_become_text() {
        let calls = json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]);
        let mut messages = vec![
            json!({"role": "user", "content": "Call"}),
            json!({"role": "assistant", "content": null, "tool_calls": calls}),
            json!({"role": "tool", "tool_call_id": "1", "content": "one"}),
            json!({"role": "tool", "tool_call_id": "2", "content": "two"}),
            json!({"role": "user", "content": "Well?"}),
            json!({"role": "assistant", "content": "Well."}),
            json!({"role": "user", "content": "Good."}),
        ];
        flatten(&mut messages);
        instruct(&mut messages, "Tools!");
        let called = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\":1}}\n</tool_call>";
        let results = "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>\nWell?";
        let expected = vec![
            json!({"role": "system", "content": "Tools!"}),
            json!({"role": "user", "content": "Call"}),
            json!({"role": "assistant", "content": called}),
            json!({"role": "user", "content": results}),
            json!({"role": "assistant", "content": "Well."}),
            json!({"role": "user", "content": "Good."}),
        ];
        assert_eq!(messages, expected);
        let mut messages = vec![json!({"role": "system", "content": "Be terse."})];
        instruct(&mut messages, "Tools!");
        assert_eq!(messages, [json!({"role": "system", "content": "Be terse.\n\nTools!"})]);
    }
}
