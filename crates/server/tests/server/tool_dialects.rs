//! Tools in Anthropic's messages, Ollama's chat and OpenAI's responses.

use serde_json::{Value, json};

use crate::harness::{NAME, Server, named_events, with};
use crate::script::{MODEL, says, tokens};
use crate::tools::{call, schema};

const MESSAGES: &str = "/v1/messages";
const OLLAMA: &str = "/api/chat";
const RESPONSES: &str = "/v1/responses";

const ARGUMENTS: &str = "{\"city\": \"Bonn\"}";

fn anthropic(more: Value) -> Value {
    let tool = json!({"name": "weather", "description": "Tells.", "input_schema": schema()});
    let base =
        json!({"model": NAME, "max_tokens": 400, "messages": [{"role": "user", "content": "Hi"}], "tools": [tool]});
    with(base, more)
}

fn ollama(more: Value) -> Value {
    let tool = json!({"type": "function", "function": {"name": "weather", "parameters": schema()}});
    let base = json!({"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "tools": [tool]});
    with(with(base, json!({"options": {"num_predict": 400}})), more)
}

fn responses(more: Value) -> Value {
    let tool = json!({"type": "function", "name": "weather", "parameters": schema(), "strict": true});
    with(json!({"model": NAME, "input": "Hi", "tools": [tool]}), more)
}

/// What the engine was asked last, as text.
fn prompt(server: &Server) -> String {
    MODEL.tokenizer.decode(&server.requests().last().unwrap().prompt)
}

#[tokio::test]
async fn messages_have_blocks_that_call() {
    let server = Server::start(says(&format!("So.\n{}", call("weather", ARGUMENTS)))).await;
    let mut body = server.post(MESSAGES, &anthropic(json!({}))).await.ok();
    assert!(body["content"][1]["id"].take().as_str().unwrap().starts_with("toolu_"));
    let used = json!({"type": "tool_use", "id": null, "name": "weather", "input": {"city": "Bonn"}});
    assert_eq!(body["content"], json!([{"type": "text", "text": "So."}, used]));
    assert_eq!(body["stop_reason"], "tool_use");
    let events = named_events(&server.post(MESSAGES, &anthropic(json!({"stream": true}))).await);
    let names: Vec<&str> =
        events.iter().map(|(name, _)| name.as_str()).filter(|name| *name != "content_block_delta").collect();
    let blocks = ["content_block_start", "content_block_stop"];
    assert_eq!(
        names,
        [&["message_start", "ping"], &blocks[..], &blocks[..], &["message_delta", "message_stop"]].concat()
    );
    let of = |index: u64| events.iter().filter(move |(_, event)| event["index"] == index).map(|(_, event)| event);
    let text: String = of(0).filter_map(|event| event["delta"]["text"].as_str()).collect();
    let input: String = of(1).filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
    assert_eq!((text.as_str(), input.as_str()), ("So.", ARGUMENTS));
    let begun = &of(1).next().unwrap()["content_block"];
    assert_eq!((&begun["name"], &begun["input"]), (&json!("weather"), &json!({})));
    assert!(of(1).any(|event| event["delta"]["type"] == "input_json_delta"));
    assert_eq!(events[events.len() - 2].1["delta"]["stop_reason"], "tool_use");
}

#[tokio::test]
async fn messages_without_a_call_have_a_block_of_text() {
    let server = Server::start(says("No.")).await;
    let body = server.post(MESSAGES, &anthropic(json!({}))).await.ok();
    assert_eq!(
        (&body["content"], &body["stop_reason"]),
        (&json!([{"type": "text", "text": "No."}]), &json!("end_turn"))
    );
    let server = Server::start(says("")).await;
    let events = named_events(&server.post(MESSAGES, &anthropic(json!({"stream": true}))).await);
    assert!(events.iter().any(|(name, _)| name == "content_block_start"));
}

#[tokio::test]
async fn messages_carry_earlier_calls_and_their_results() {
    let server = Server::start(says("x")).await;
    let used = json!([{"type": "text", "text": "So."}, {"type": "tool_use", "id": "t", "name": "weather", "input": {"city": "Bonn"}}]);
    let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "rain"}], "is_error": false});
    let messages = json!([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": used},
        {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
    ]);
    server.post(MESSAGES, &anthropic(json!({"messages": messages}))).await.ok();
    let expected = "So.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":\"Bonn\"}}\n</tool_call><|im_end|>\n\
        <|im_start|>user\n<tool_response>\nrain\n</tool_response>\nAnd?<|im_end|>\n";
    // Control tokens have no text.
    assert!(
        prompt(&server).contains(&expected.replace("<|im_end|>", "").replace("<|im_start|>", "")),
        "{}",
        prompt(&server)
    );
    let count = server
        .post("/v1/messages/count_tokens", &with(anthropic(json!({"messages": messages})), json!({"max_tokens": null})))
        .await;
    assert_eq!(count.ok()["input_tokens"], server.requests()[0].prompt.len());
    for choice in [
        json!({"type": "any"}),
        json!({"type": "tool", "name": "weather"}),
        json!({"type": "auto", "disable_parallel_tool_use": true}),
    ] {
        server.post(MESSAGES, &anthropic(json!({"tool_choice": choice}))).await.ok();
        assert!(server.requests().pop().unwrap().constraint.is_some());
    }
    let begun = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "{"}]);
    let answer = server.post(MESSAGES, &anthropic(json!({"messages": begun, "tool_choice": {"type": "any"}}))).await;
    assert_eq!(answer.status, 400);
    server.post(MESSAGES, &anthropic(json!({"messages": begun}))).await.ok();
}

#[tokio::test]
async fn ollama_gets_calls_whole() {
    let server = Server::start(says(&call("weather", ARGUMENTS))).await;
    let body = server.post(OLLAMA, &ollama(json!({"stream": false}))).await.ok();
    let function = json!({"name": "weather", "arguments": {"city": "Bonn"}});
    assert_eq!((&body["message"]["tool_calls"][0]["function"], &body["done_reason"]), (&function, &json!("stop")));
    let answer = server.post(OLLAMA, &ollama(json!({}))).await;
    let lines: Vec<Value> = answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[0]["message"]["tool_calls"][0]["function"], &lines[1]["done"]), (&function, &json!(true)));
    let cut = server.post(OLLAMA, &ollama(json!({"stream": false, "options": {"num_predict": 50}}))).await.ok();
    assert_eq!((cut["message"].get("tool_calls"), &cut["done_reason"]), (None, &json!("length")));
    let messages = json!([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Bonn"}}}]},
        {"role": "tool", "tool_name": "weather", "content": "rain"},
    ]);
    server.post(OLLAMA, &ollama(json!({"stream": false, "messages": messages}))).await.ok();
    assert!(prompt(&server).contains("<tool_response>\nrain"), "{}", prompt(&server));
}

#[tokio::test]
async fn responses_have_items_that_call() {
    let server = Server::start(says(&format!("So.\n{}", call("weather", ARGUMENTS)))).await;
    let body = server.post(RESPONSES, &responses(json!({}))).await.ok();
    let items = body["output"].as_array().unwrap();
    assert_eq!((&items[0]["type"], &items[0]["content"][0]["text"]), (&json!("message"), &json!("So.")));
    let called = (&items[1]["type"], &items[1]["name"], &items[1]["arguments"], &items[1]["status"]);
    assert_eq!(called, (&json!("function_call"), &json!("weather"), &json!(ARGUMENTS), &json!("completed")));
    let output = json!([{"type": "function_call_output", "call_id": items[1]["call_id"], "output": "rain"}]);
    server.post(RESPONSES, &responses(json!({"previous_response_id": body["id"], "input": output}))).await.ok();
    let remembered = prompt(&server);
    assert!(remembered.contains("So.\n<tool_call>") && remembered.contains("<tool_response>\nrain"), "{remembered}");
    let input = json!([
        {"role": "user", "content": "Hi"},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": ARGUMENTS},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "sun"}]},
    ]);
    server.post(RESPONSES, &responses(json!({"input": input, "tool_choice": "required"}))).await.ok();
    assert!(prompt(&server).contains("<tool_response>\nsun"), "{}", prompt(&server));
    assert!(server.requests().pop().unwrap().constraint.is_some());
}

#[tokio::test]
async fn responses_stream_the_arguments() {
    let server = Server::start(says(&format!("So.\n{}", call("weather", ARGUMENTS)))).await;
    let events = named_events(&server.post(RESPONSES, &responses(json!({"stream": true}))).await);
    let is_delta = |name: &str| name.ends_with(".delta");
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).filter(|name| !is_delta(name)).collect();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(names, expected);
    let deltas = events.iter().filter(|(name, _)| name == "response.function_call_arguments.delta");
    let arguments: String = deltas.map(|(_, event)| event["delta"].as_str().unwrap()).collect();
    assert_eq!(arguments, ARGUMENTS);
    let done = &events.last().unwrap().1["response"];
    assert_eq!((&done["output"][1]["name"], &done["output"][1]["arguments"]), (&json!("weather"), &json!(ARGUMENTS)));
    for (number, (_, event)) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    let cut = tokens("So.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"ci").len();
    let events =
        named_events(&server.post(RESPONSES, &responses(json!({"stream": true, "max_output_tokens": cut}))).await);
    let done = &events.last().unwrap().1["response"];
    assert_eq!((&done["status"], &done["output"][1]["status"]), (&json!("incomplete"), &json!("incomplete")));
}
