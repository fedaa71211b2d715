//! Tools: told to the model, called by it, and streamed, through OpenAI's chat completions.

use serde_json::{Value, json};

use crate::harness::{Server, chat};
use crate::script::{MODEL, says};

const PATH: &str = "/v1/chat/completions";

pub(crate) fn schema() -> Value {
    json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": false})
}

fn tool(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "description": "Tells.", "parameters": schema()}})
}

/// What a model says that calls `name` with these arguments.
pub(crate) fn call(name: &str, arguments: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
}

#[tokio::test]
async fn calls_come_apart_from_the_text() {
    let answer =
        format!("One moment.\n{}\n{}", call("weather", "{\"city\": \"Bonn\"}"), call("time", "{\"city\": \"Köln\"}"));
    let server = Server::start(says(&answer)).await;
    let body = server.post(PATH, &chat(json!({"tools": [tool("weather"), tool("time")]}))).await.ok();
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "One moment.");
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    let functions: Vec<&Value> = calls.iter().map(|call| &call["function"]).collect();
    assert_eq!(*functions[0], json!({"name": "weather", "arguments": "{\"city\": \"Bonn\"}"}));
    assert_eq!(*functions[1], json!({"name": "time", "arguments": "{\"city\": \"Köln\"}"}));
    assert!(calls.iter().all(|call| call["type"] == "function" && call["id"].as_str().unwrap().starts_with("call")));
    assert_ne!(calls[0]["id"], calls[1]["id"]);
}

#[tokio::test]
async fn arguments_are_streamed_in_pieces() {
    let answer = format!("{}{}", call("weather", "{\"city\": \"Bonn\"}"), call("time", "{}"));
    let server = Server::start(says(&answer)).await;
    let asked = json!({"tools": [tool("weather"), tool("time")], "stream": true});
    let chunks = server.stream(PATH, &chat(asked)).await;
    let mut calls: Vec<(Value, String)> = Vec::new();
    let mut pieces = 0;
    for delta in chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]) {
        assert!(delta.get("content").is_none_or(|content| content == ""), "{delta}");
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            if call.get("id").is_some() {
                assert_eq!((index, call["function"]["arguments"].as_str()), (calls.len(), Some("")));
                assert_eq!(call["type"], "function");
                calls.push((call["function"]["name"].clone(), String::new()));
            } else {
                calls[index].1.push_str(call["function"]["arguments"].as_str().unwrap());
                pieces += 1;
            }
        }
    }
    let expected = [(json!("weather"), "{\"city\": \"Bonn\"}".to_owned()), (json!("time"), "{}".to_owned())];
    assert_eq!(calls, expected);
    assert!(pieces > 3, "{pieces}");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn a_call_that_is_cut_off_ends_by_length() {
    let server = Server::start(says(&call("weather", "{\"city\": \"Bonn\"}"))).await;
    let whole = MODEL.tokenizer.encode(&call("weather", "{\"city\""), model::EncodeOptions::default()).unwrap().len();
    let body = server.post(PATH, &chat(json!({"tools": [tool("weather")], "max_tokens": whole - 24}))).await.ok();
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    let asked = json!({"tools": [tool("weather")], "max_tokens": whole, "stream": true});
    let chunks = server.stream(PATH, &chat(asked)).await;
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
    let text: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "");
}

#[tokio::test]
async fn tools_are_told_in_the_prompt_and_hold_the_answer_to_their_form() {
    let server = Server::start(says("x")).await;
    let prompt = |index: usize| MODEL.tokenizer.decode(&server.requests()[index].prompt);
    let ask = |more: Value| {
        let mut body = json!({"tools": [tool("weather"), tool("time")]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        chat(body)
    };
    server.post(PATH, &ask(json!({}))).await.ok();
    assert!(prompt(0).contains("\"weather\"") && prompt(0).contains("<tool_call>"), "{}", prompt(0));
    server.post(PATH, &ask(json!({"tool_choice": "none"}))).await.ok();
    assert!(!prompt(1).contains("weather"), "{}", prompt(1));
    assert_eq!(server.requests()[1].constraint, None);
    let choices = [
        json!({"tool_choice": "required"}),
        json!({"tool_choice": {"type": "function", "function": {"name": "time"}}}),
        json!({"parallel_tool_calls": false}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema()}}}),
        json!({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [tool("time")]}}}),
    ];
    let mut constraints = vec![server.requests()[0].constraint.clone()];
    for choice in choices {
        server.post(PATH, &ask(choice)).await.ok();
        let constraint = server.requests().pop().unwrap().constraint;
        assert!(constraint.is_some() && !constraints.contains(&constraint), "{constraint:?}");
        constraints.push(constraint);
    }
    assert!(!prompt(6).contains("weather") && prompt(6).contains("\"time\""), "{}", prompt(6));
}

#[tokio::test]
async fn earlier_calls_and_results_are_part_of_the_conversation() {
    let server = Server::start(says("x")).await;
    let calls =
        json!([{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Bonn\"}"}}]);
    let messages = json!([
        {"role": "user", "content": "What is the weather?"},
        {"role": "assistant", "content": null, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "rain"}]},
    ]);
    server.post(PATH, &chat(json!({"messages": messages, "tools": [tool("weather")]}))).await.ok();
    let prompt = MODEL.tokenizer.decode(&server.only_request().prompt);
    let called = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":\"Bonn\"}}\n</tool_call>";
    assert!(prompt.contains(called) && prompt.contains("<tool_response>\nrain\n</tool_response>"), "{prompt}");
}

#[tokio::test]
async fn schemas_that_cannot_be_held_to_are_refused_where_they_must_be() {
    let server = Server::start(says("x")).await;
    let parameters = json!({"type": "object", "properties": {"x": {"not": {}}}});
    let tools = |strict: bool| {
        let function = json!({"name": "f", "strict": strict, "parameters": parameters});
        chat(json!({"tools": [tool("time"), {"type": "function", "function": function}]}))
    };
    let answer = server.post(PATH, &tools(true)).await;
    let param = "tools[1].function.parameters".to_owned();
    assert_eq!(answer.error(), (400, "invalid_request_error".to_owned(), Some(param), "unsupported_value".to_owned()));
    assert!(answer.text().contains("#/properties/x"), "{}", answer.text());
    server.post(PATH, &tools(false)).await.ok();
}
