//! `/v1/responses`

use engine::{Sampling, TokenInfo};
use hyper::Method;
use serde_json::{Value, json};

use crate::harness::{CONTEXT, NAME, Server, named_events, with};
use crate::script::{says, tokens};

const PATH: &str = "/v1/responses";

fn request(more: Value) -> Value {
    with(json!({"model": NAME, "input": "Hi"}), more)
}

fn prompt_of(turns: &[(&str, &str)]) -> Vec<u32> {
    let turns: String = turns.iter().map(|(role, text)| format!("<|im_start|>{role}\n{text}<|im_end|>\n")).collect();
    tokens(&format!("{turns}<|im_start|>assistant\n"))
}

#[tokio::test]
async fn answers_with_a_message_and_the_counts() {
    let server = Server::start(says("Hello there")).await;
    let fields = json!({"metadata": {"topic": "greeting"}, "max_output_tokens": 50, "temperature": 0.5});
    let mut body = server.post(PATH, &request(fields)).await.ok();
    assert!(body["id"].take().as_str().unwrap().starts_with("resp_"));
    assert!(body["output"][0]["id"].take().as_str().unwrap().starts_with("msg_"));
    assert!(body["created_at"].take().as_u64().unwrap() > 1_700_000_000);
    let (prompt, generated) = (prompt_of(&[("user", "Hi")]), tokens("Hello there").len() + 1);
    let part = json!({"type": "output_text", "text": "Hello there", "annotations": [], "logprobs": []});
    let message = json!({
        "type": "message", "id": null, "status": "completed", "role": "assistant", "content": [part],
    });
    let expected = json!({
        "id": null, "object": "response", "created_at": null, "status": "completed", "background": false,
        "error": null, "incomplete_details": null, "instructions": null, "max_output_tokens": 50,
        "metadata": {"topic": "greeting"}, "model": NAME, "output": [message], "parallel_tool_calls": true,
        "previous_response_id": null, "reasoning": {"effort": null, "summary": null}, "store": true,
        "temperature": 0.5, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
        "top_logprobs": 0, "top_p": 1.0, "truncation": "disabled", "user": null,
        "usage": {
            "input_tokens": prompt.len(), "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
            "output_tokens": generated, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt.len() + generated,
        },
    });
    assert_eq!(body, expected);
    let asked = server.only_request();
    assert_eq!((asked.prompt, asked.max_tokens), (prompt, Some(50)));
    assert_eq!(asked.sampling, Sampling { temperature: 0.5, ..Sampling::default() });
}

#[tokio::test]
async fn a_stream_is_a_sequence_of_numbered_events() {
    let server = Server::start(says("Grüße ☃!")).await;
    let events = named_events(&server.post(PATH, &request(json!({"stream": true}))).await);
    for (number, (name, event)) in events.iter().enumerate() {
        assert_eq!((&event["type"], &event["sequence_number"]), (&json!(name), &json!(number)));
    }
    let names: Vec<_> = events.iter().map(|(name, _)| name.as_str()).collect();
    let first =
        ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"];
    let last =
        ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"];
    assert_eq!((&names[..4], &names[names.len() - 4..]), (&first[..], &last[..]));
    let deltas = &events[4..events.len() - 4];
    assert!(deltas.len() > 1 && deltas.iter().all(|(name, _)| name == "response.output_text.delta"));
    let text: String = deltas.iter().map(|(_, event)| event["delta"].as_str().unwrap()).collect();
    assert_eq!(text, "Grüße ☃!");
    let begun = &events[0].1["response"];
    let done = &events.last().unwrap().1["response"];
    assert_eq!(
        (&begun["status"], &begun["output"], &begun["usage"]),
        (&json!("in_progress"), &json!([]), &Value::Null)
    );
    assert_eq!((&done["status"], &done["output"][0]["content"][0]["text"]), (&json!("completed"), &json!(text)));
    assert_eq!(begun["id"], done["id"]);
    let item = &events[2].1["item"]["id"];
    assert!(deltas.iter().all(|(_, event)| &event["item_id"] == item) && &done["output"][0]["id"] == item);
    // What was streamed is remembered as what was not.
    assert_eq!(&server.get(&format!("{PATH}/{}", done["id"].as_str().unwrap())).await.ok(), done);
}

#[tokio::test]
async fn the_token_limit_leaves_a_response_incomplete() {
    let server = Server::start(says("abcdefgh")).await;
    let fields = json!({"max_output_tokens": 3});
    let body = server.post(PATH, &request(fields.clone())).await.ok();
    assert_eq!((&body["status"], &body["output"][0]["status"]), (&json!("incomplete"), &json!("incomplete")));
    assert_eq!(body["incomplete_details"], json!({"reason": "max_output_tokens"}));
    let streamed = request(with(fields, json!({"stream": true})));
    let events = named_events(&server.post(PATH, &streamed).await);
    assert_eq!(events.last().unwrap().0, "response.incomplete");
}

#[tokio::test]
async fn a_conversation_goes_on_from_an_earlier_response() {
    let server = Server::start(says("Hello")).await;
    let first = server.post(PATH, &request(json!({"instructions": "Be brief."}))).await.ok();
    let more = json!({"previous_response_id": first["id"], "input": "And?", "instructions": "Be long."});
    let second = server.post(PATH, &request(more)).await.ok();
    assert_eq!(second["previous_response_id"], first["id"]);
    let more =
        json!({"previous_response_id": second["id"], "input": [{"role": "user", "content": "So?"}], "stream": true});
    named_events(&server.post(PATH, &request(more)).await);
    let prompts: Vec<_> = server.requests().into_iter().map(|request| request.prompt).collect();
    let turns = [("user", "Hi"), ("assistant", "Hello"), ("user", "And?"), ("assistant", "Hello"), ("user", "So?")];
    let with_system = |text, turns: &[_]| prompt_of(&[&[("system", text)][..], turns].concat());
    assert_eq!(prompts[0], with_system("Be brief.", &turns[..1]));
    assert_eq!(prompts[1], with_system("Be long.", &turns[..3]));
    assert_eq!(prompts[2], prompt_of(&turns));
}

#[tokio::test]
async fn responses_are_found_and_deleted_unless_they_were_not_to_be_stored() {
    let server = Server::start(says("x")).await;
    let response = server.post(PATH, &request(json!({}))).await.ok();
    let path = format!("{PATH}/{}", response["id"].as_str().unwrap());
    assert_eq!(server.get(&path).await.ok(), response);
    let deleted = server.send(Method::DELETE, &path, None, Vec::new()).await.answer().await.ok();
    assert_eq!(deleted, json!({"id": response["id"], "object": "response", "deleted": true}));
    let gone = (404, "invalid_request_error".to_owned(), Some("id".to_owned()), "response_not_found".to_owned());
    assert_eq!(server.get(&path).await.error(), gone);
    assert_eq!(server.send(Method::DELETE, &path, None, Vec::new()).await.answer().await.error(), gone);
    let response = server.post(PATH, &request(json!({"store": false}))).await.ok();
    assert_eq!(server.get(&format!("{PATH}/{}", response["id"].as_str().unwrap())).await.error(), gone);
}

#[tokio::test]
async fn items_become_messages() {
    let server = Server::start(says("x")).await;
    let parts = json!([{"type": "input_text", "text": "A"}, {"type": "input_text", "text": "B"}]);
    let answer = json!([{"type": "output_text", "text": "C", "annotations": []}]);
    let input = json!([
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": parts},
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": answer},
        {"role": "user", "content": "D"},
    ]);
    let nothing = json!({
        "input": input, "tools": [], "tool_choice": "auto", "text": {"format": {"type": "text"}, "verbosity": "low"},
        "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low"}, "background": false,
        "truncation": "auto", "prompt_cache_key": "k", "service_tier": "auto", "top_logprobs": 0, "unheard_of": 1,
    });
    server.post(PATH, &request(nothing)).await.ok();
    let turns = [("system", "Be brief."), ("user", "A\nB"), ("assistant", "C"), ("user", "D")];
    assert_eq!(server.only_request().prompt, prompt_of(&turns));
}

/// Compares param and code of the answer to each request. Nothing of it may reach the engine.
#[tokio::test]
async fn bad_requests_are_refused() {
    let server = Server::start(says("x")).await;
    let item = |item: Value| request(json!({"input": [item]}));
    let user = |content: Value| item(json!({"role": "user", "content": content}));
    let tool = json!({"type": "function", "name": "f", "parameters": {}});
    let many: Value = (0..17).map(|key| (key.to_string(), json!("x"))).collect::<serde_json::Map<_, _>>().into();
    let cases = [
        (json!({"input": "Hi"}), "model", "missing_required_parameter"),
        (json!({"model": NAME}), "input", "missing_required_parameter"),
        (request(json!({"input": 5})), "input", "invalid_type"),
        (request(json!({"input": []})), "input", "invalid_value"),
        (item(json!("Hi")), "input[0]", "invalid_type"),
        (item(json!({"content": "Hi"})), "input[0].role", "missing_required_parameter"),
        (item(json!({"role": "tool", "content": "Hi"})), "input[0].role", "invalid_value"),
        (item(json!({"role": "user"})), "input[0].content", "missing_required_parameter"),
        (item(json!({"type": "function_call", "name": "f"})), "input[0].call_id", "missing_required_parameter"),
        (
            item(json!({"type": "function_call_output", "call_id": "c"})),
            "input[0].output",
            "missing_required_parameter",
        ),
        (item(json!({"type": "item_reference", "id": "m"})), "input[0].type", "unsupported_value"),
        (user(json!(5)), "input[0].content", "invalid_type"),
        (user(json!([{"type": "input_image"}])), "input[0].content[0].type", "unsupported_value"),
        (user(json!([{"type": "input_text"}])), "input[0].content[0].text", "missing_required_parameter"),
        (user(json!("long ".repeat(CONTEXT))), "input", "context_length_exceeded"),
        (request(json!({"instructions": 5})), "instructions", "invalid_type"),
        (request(json!({"previous_response_id": "resp_0"})), "previous_response_id", "previous_response_not_found"),
        (request(json!({"previous_response_id": 5})), "previous_response_id", "invalid_type"),
        (request(json!({"max_output_tokens": 0})), "max_output_tokens", "invalid_value"),
        (request(json!({"temperature": 3})), "temperature", "invalid_value"),
        (request(json!({"top_p": "x"})), "top_p", "invalid_type"),
        (request(json!({"stream": 1})), "stream", "invalid_type"),
        (request(json!({"store": 1})), "store", "invalid_type"),
        (request(json!({"metadata": many})), "metadata", "invalid_value"),
        (request(json!({"metadata": {"a": 1}})), "metadata.a", "invalid_type"),
        (request(json!({"truncation": "middle"})), "truncation", "invalid_value"),
        (request(json!({"background": true})), "background", "unsupported_parameter"),
        (request(json!({"conversation": "c"})), "conversation", "unsupported_parameter"),
        (request(json!({"prompt": {"id": "p"}})), "prompt", "unsupported_parameter"),
        (request(json!({"include": ["message.output_text.logprobs"]})), "include", "unsupported_value"),
        (request(json!({"top_logprobs": 2})), "top_logprobs", "unsupported_parameter"),
        (request(json!({"text": {"format": {"type": "xml"}}})), "text.format.type", "unsupported_value"),
        (request(json!({"reasoning": {"effort": "much"}})), "reasoning.effort", "invalid_value"),
        (request(json!({"tools": [{"type": "web_search"}]})), "tools[0].type", "unsupported_value"),
        (request(json!({"tools": [{"type": "function"}]})), "tools[0].name", "missing_required_parameter"),
        (
            request(json!({"tools": [tool], "tool_choice": {"type": "function", "name": "g"}})),
            "tool_choice",
            "invalid_value",
        ),
        (request(json!({"tool_choice": 5})), "tool_choice", "invalid_type"),
    ];
    for (body, param, code) in cases {
        let answer = server.post(PATH, &body).await;
        let expected = (400, "invalid_request_error".to_owned(), Some(param.to_owned()), code.to_owned());
        assert_eq!(answer.error(), expected, "{body} got {}", answer.text());
    }
    assert_eq!(server.post(PATH, &request(json!({"model": "other"}))).await.error().0, 404);
    assert_eq!(server.requests(), []);
    server.post(PATH, &request(json!({"tools": [tool], "tool_choice": "none"}))).await.ok();
}

#[tokio::test]
async fn a_failure_in_the_middle_is_told_and_not_remembered() {
    let server = Server::start(move |_, observer| {
        observer.prompt(Vec::new(), 0);
        observer.token(TokenInfo { id: tokens("a")[0], logprob: None, top: Vec::new() });
        Err(engine::EngineError::RankLost { rank: 1, cause: "its process ended".to_owned() })
    })
    .await;
    let events = named_events(&server.post(PATH, &request(json!({"stream": true}))).await);
    let (name, event) = events.last().unwrap();
    let response = &event["response"];
    assert_eq!((name.as_str(), &response["status"]), ("response.failed", &json!("failed")));
    assert_eq!(response["error"], json!({"code": "server_error", "message": "rank 1 was lost: its process ended"}));
    assert_eq!(server.get(&format!("{PATH}/{}", response["id"].as_str().unwrap())).await.status, 404);
}
