//! Anthropic's API.

use engine::{Sampling, TokenInfo};
use hyper::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, CONTEXT, NAME, Server, named_events, with};
use crate::script::{says, tokens};

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

/// The tokens of a conversation with the text `Hi` alone.
const PROMPT: &str = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";

fn message(more: Value) -> Value {
    with(json!({"model": NAME, "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]}), more)
}

/// Status, and the error's type and message.
fn error(answer: &Answer) -> (u16, String, String) {
    let body = answer.json();
    assert_eq!(body["type"], "error", "{body}");
    let text = |name: &str| body["error"][name].as_str().unwrap().to_owned();
    (answer.status.as_u16(), text("type"), text("message"))
}

#[tokio::test]
async fn answers_with_a_message_and_the_counts() {
    let server = Server::start(says("Hello there")).await;
    let headers = [
        ("content-type", "application/json"),
        ("x-api-key", "none"),
        ("anthropic-version", "2023-06-01"),
        ("anthropic-beta", "something-2026-01-01"),
    ];
    let body = message(json!({})).to_string().into_bytes();
    let answer = server.send_with(Method::POST, MESSAGES, &headers, body).await.answer().await;
    assert!(answer.headers.contains_key("request-id"));
    let mut body = answer.ok();
    assert!(body["id"].take().as_str().unwrap().starts_with("msg_"));
    let expected = json!({
        "id": null, "type": "message", "role": "assistant", "model": NAME,
        "content": [{"type": "text", "text": "Hello there"}], "stop_reason": "end_turn", "stop_sequence": null,
        "usage": {
            "input_tokens": tokens(PROMPT).len() - 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 1,
            "output_tokens": tokens("Hello there").len() + 1,
        },
    });
    assert_eq!(body, expected);
    assert_eq!(server.only_request().prompt, tokens(PROMPT));
}

#[tokio::test]
async fn a_stream_is_a_sequence_of_named_events() {
    let server = Server::start(says("Grüße ☃!")).await;
    let events = named_events(&server.post(MESSAGES, &message(json!({"stream": true}))).await);
    for (name, event) in &events {
        assert_eq!(&event["type"], name);
    }
    let names: Vec<_> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..3], ["message_start", "content_block_start", "ping"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let deltas = &events[3..events.len() - 3];
    assert!(deltas.len() > 1 && deltas.iter().all(|(name, _)| name == "content_block_delta"));
    let text: String = deltas.iter().map(|(_, event)| event["delta"]["text"].as_str().unwrap()).collect();
    assert_eq!(text, "Grüße ☃!");
    let start = &events[0].1["message"];
    assert_eq!((&start["content"], &start["stop_reason"]), (&json!([]), &Value::Null));
    assert_eq!(start["usage"]["input_tokens"], tokens(PROMPT).len());
    let last = &events[events.len() - 2].1;
    assert_eq!(last["delta"], json!({"stop_reason": "end_turn", "stop_sequence": null}));
    let whole = server.post(MESSAGES, &message(json!({}))).await.ok();
    assert_eq!(last["usage"], whole["usage"]);
}

#[tokio::test]
async fn sampling_fields_reach_the_engine() {
    let server = Server::start(says("x")).await;
    let fields = json!({
        "temperature": 0.5, "top_k": 7, "top_p": 0.25, "stop_sequences": ["END"], "max_tokens": 9,
        "metadata": {"user_id": "somebody"}, "service_tier": "auto", "thinking": {"type": "disabled"}, "tools": [],
        "tool_choice": {"type": "auto"}, "cache_control": {"type": "ephemeral"}, "output_config": {"effort": "low"},
    });
    server.post(MESSAGES, &message(fields)).await.ok();
    server.post(MESSAGES, &message(json!({"thinking": {"type": "adaptive"}}))).await.ok();
    let tool = json!({"name": "f", "input_schema": {"type": "object"}});
    server.post(MESSAGES, &message(json!({"tools": [tool], "tool_choice": {"type": "none"}}))).await.ok();
    let requests = server.requests();
    let expected = Sampling { temperature: 0.5, top_k: 7, top_p: 0.25, ..Sampling::default() };
    assert_eq!((&requests[0].sampling, requests[0].max_tokens), (&expected, Some(9)));
    assert_eq!(requests[0].stop, ["END"]);
    assert_eq!(requests[1].sampling, Sampling { temperature: 1.0, ..Sampling::default() });
}

#[tokio::test]
async fn the_reason_of_the_end_is_told() {
    let server = Server::start(says("one ##END two")).await;
    let body = server.post(MESSAGES, &message(json!({"stop_sequences": ["x", "##END"]}))).await.ok();
    assert_eq!((&body["content"][0]["text"], &body["stop_reason"]), (&json!("one "), &json!("stop_sequence")));
    assert_eq!(body["stop_sequence"], "##END");
    let body = server.post(MESSAGES, &message(json!({"max_tokens": 2}))).await.ok();
    assert_eq!((&body["stop_reason"], &body["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(2)));
    let body = server.post(MESSAGES, &message(json!({"max_tokens": 0}))).await.ok();
    assert_eq!((&body["stop_reason"], &body["content"][0]["text"]), (&json!("max_tokens"), &json!("")));
}

#[tokio::test]
async fn conversations_are_rendered_and_counted() {
    let server = Server::start(says("x")).await;
    let system = json!([{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]);
    let thought = json!({"type": "thinking", "thinking": "…", "signature": "s"});
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]},
        {"role": "user", "content": "C"},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "D"}]},
        {"role": "user", "content": "E"},
    ]);
    let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nA\nB\nC<|im_end|>\n\
        <|im_start|>assistant\nD<|im_end|>\n<|im_start|>user\nE<|im_end|>\n<|im_start|>assistant\n";
    let request = json!({"model": NAME, "system": system, "messages": messages});
    let count = server.post(COUNT, &request).await.ok();
    assert_eq!(count, json!({"input_tokens": tokens(expected).len()}));
    assert_eq!(server.requests(), []);
    server.post(MESSAGES, &with(request, json!({"max_tokens": 5}))).await.ok();
    assert_eq!(server.only_request().prompt, tokens(expected));
}

#[tokio::test]
async fn an_answer_goes_on_from_the_last_message_of_the_assistant() {
    let server = Server::start(says("x")).await;
    let messages = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The best is ("}]);
    server.post(MESSAGES, &message(json!({"messages": messages}))).await.ok();
    assert_eq!(server.only_request().prompt, tokens(&format!("{PROMPT}The best is (")));
}

/// Compares the answer to each request. Nothing of it may reach the engine.
#[tokio::test]
async fn bad_requests_are_refused_in_the_form_of_this_api() {
    let server = Server::start(says("x")).await;
    let of = |turn: Value| message(json!({"messages": [turn]}));
    let user = |content: Value| of(json!({"role": "user", "content": content}));
    let block = |block: Value| user(json!([block]));
    let tool = json!({"name": "f", "input_schema": {"type": "object"}});
    let cases = [
        (json!([]), "the request must be an object"),
        (json!({"max_tokens": 5, "messages": []}), "model is required"),
        (json!({"model": NAME, "messages": [{"role": "user", "content": "Hi"}]}), "max_tokens is required"),
        (json!({"model": NAME, "max_tokens": 5}), "messages is required"),
        (message(json!({"model": 5})), "model must be a string"),
        (message(json!({"max_tokens": -1})), "max_tokens must be between"),
        (message(json!({"max_tokens": "many"})), "max_tokens must be a whole number"),
        (message(json!({"messages": "Hi"})), "messages must be an array"),
        (message(json!({"messages": []})), "messages must have at least one message"),
        (of(json!("Hi")), "messages[0] must be an object"),
        (of(json!({"content": "Hi"})), "messages[0].role is required"),
        (of(json!({"role": "tool", "content": "Hi"})), "messages[0].role is \"tool\""),
        (of(json!({"role": "user"})), "messages[0].content is required"),
        (of(json!({"role": "assistant", "content": "Hi "})), "messages must not end with white space"),
        (user(json!("")), "messages[0].content must not be empty"),
        (user(json!([])), "messages[0].content must not be empty"),
        (user(json!(5)), "messages[0].content must be a string or an array"),
        (block(json!("Hi")), "messages[0].content[0] must be an object"),
        (block(json!({"text": "Hi"})), "messages[0].content[0].type is required"),
        (block(json!({"type": "text"})), "messages[0].content[0].text is required"),
        (block(json!({"type": "image", "source": {}})), "messages[0].content[0].type is \"image\""),
        (block(json!({"type": "tool_result"})), "messages[0].content[0].tool_use_id is required"),
        (block(json!({"type": "tool_use", "id": "t", "name": "f"})), "messages[0].content[0].type is tool_use, which"),
        (user(json!("long ".repeat(CONTEXT))), "the prompt has"),
        (message(json!({"system": 5})), "system must be a string or an array"),
        (message(json!({"system": [{"type": "image"}]})), "system[0].type is \"image\""),
        (message(json!({"temperature": 1.5})), "temperature must be between"),
        (message(json!({"temperature": "hot"})), "temperature must be a number"),
        (message(json!({"top_p": -1})), "top_p must be between"),
        (message(json!({"top_k": -1})), "top_k must be between"),
        (message(json!({"stop_sequences": "END"})), "stop_sequences must be an array"),
        (message(json!({"stop_sequences": [""]})), "stop_sequences[0] must not be empty"),
        (message(json!({"stream": "yes"})), "stream must be true or false"),
        (message(json!({"metadata": 5})), "metadata must be an object"),
        (message(json!({"thinking": {"type": "enabled", "budget_tokens": 1024}})), "thinking.type is \"enabled\""),
        (message(json!({"thinking": {"type": "deep"}})), "thinking.type is \"deep\""),
        (message(json!({"thinking": true})), "thinking must be an object"),
        (message(json!({"tools": [{"name": "f"}]})), "tools[0].input_schema is required"),
        (message(json!({"tools": [{"type": "bash_20250124", "name": "bash"}]})), "tools[0].type is \"bash_20250124\""),
        (message(json!({"tools": "all"})), "tools must be an array"),
        (message(json!({"tool_choice": {"type": "any"}})), "tool_choice asks for a call, but there are no tools"),
        (message(json!({"tools": [tool], "tool_choice": {"type": "tool", "name": "g"}})), "tool_choice names \"g\""),
        (message(json!({"tools": [tool], "tool_choice": {"type": "tool"}})), "tool_choice.name is required"),
        (message(json!({"tool_choice": {"type": "some"}})), "tool_choice has the type"),
        (message(json!({"mcp_servers": [{"url": "x"}]})), "mcp_servers is not supported"),
        (message(json!({"output_config": {"format": {}}})), "output_config.format.type is required"),
        (message(json!({"unheard_of": 1})), "unheard_of is no field of this API"),
    ];
    for (body, words) in cases {
        let answer = server.post(MESSAGES, &body).await;
        let (status, kind, message) = error(&answer);
        assert_eq!((status, kind.as_str()), (400, "invalid_request_error"), "{body} got {message}");
        assert!(message.contains(words), "{body} got {message}");
    }
    for path in [MESSAGES, COUNT] {
        let answer = server.post(path, &message(json!({"model": "other"}))).await;
        assert_eq!(error(&answer).1, "not_found_error");
        let answer = server.post_bytes(path, b"{".to_vec()).await;
        assert_eq!((error(&answer).0, error(&answer).1.as_str()), (400, "invalid_request_error"));
        let answer = server.send(Method::POST, path, Some("text/plain"), b"{}".to_vec()).await.answer().await;
        assert_eq!(error(&answer).0, 415);
        assert_eq!(error(&server.get(path).await).0, 405);
    }
    assert_eq!(error(&server.post("/v1/messages/batches", &json!({})).await).1, "not_found_error");
    assert_eq!(server.requests(), []);
    server.post(MESSAGES, &message(json!({}))).await.ok();
}

#[tokio::test]
async fn a_failure_in_the_middle_is_an_error_event() {
    let server = Server::start(move |_, observer| {
        observer.prompt(Vec::new(), 0);
        observer.token(TokenInfo { id: tokens("a")[0], logprob: None, top: Vec::new() });
        Err(engine::EngineError::RankLost { rank: 1, cause: "its process ended".to_owned() })
    })
    .await;
    let events = named_events(&server.post(MESSAGES, &message(json!({"stream": true}))).await);
    let (name, event) = events.last().unwrap();
    assert_eq!((name.as_str(), &event["error"]["type"]), ("error", &json!("api_error")));
    assert!(events.iter().all(|(name, _)| name != "message_stop"));
    let (status, kind, _) = error(&server.post(MESSAGES, &message(json!({}))).await);
    assert_eq!((status, kind.as_str()), (503, "api_error"));
}
