//! What is refused, and how.

use hyper::Method;
use serde_json::{Value, json};

use crate::harness::{CONTEXT, NAME, Server, chat, completion};
use crate::script::{MODEL, says};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Posts each body and compares status, param and code of the answer. Nothing of it may reach the engine.
async fn refuse(path: &str, cases: Vec<(Value, u16, Option<&str>, &str)>) {
    let server = Server::start(says("x")).await;
    for (body, status, param, code) in cases {
        let answer = server.post(path, &body).await;
        let kind = "invalid_request_error".to_owned();
        let expected = (status, kind, param.map(str::to_owned), code.to_owned());
        assert_eq!(answer.error(), expected, "{body} got {}", answer.text());
        assert_eq!(answer.headers["content-type"], "application/json");
    }
    assert_eq!(server.requests(), []);
    // The server is as good as new.
    server.post(CHAT, &chat(json!({}))).await.ok();
}

/// A refusal with status 400 because of `param`.
fn bad<'a>(body: Value, param: &'a str, code: &'a str) -> (Value, u16, Option<&'a str>, &'a str) {
    (body, 400, Some(param), code)
}

#[tokio::test]
async fn sampling_values_out_of_range_or_of_the_wrong_type() {
    let out_of_range = [
        ("temperature", json!(-0.1)),
        ("temperature", json!(2.1)),
        ("temperature", json!(1e39)),
        ("top_p", json!(1.5)),
        ("top_p", json!(-1)),
        ("top_k", json!(-2)),
        ("min_p", json!(2)),
        ("repetition_penalty", json!(0)),
        ("presence_penalty", json!(2.5)),
        ("frequency_penalty", json!(-2.5)),
        ("n", json!(0)),
        ("n", json!(129)),
        ("stop", json!("")),
        ("stop", json!(vec!["x"; 17])),
        ("stop", json!("x".repeat(257))),
        ("stream_options", json!({"include_usage": true})),
    ];
    let wrong_type = [
        ("temperature", json!("hot")),
        ("temperature", json!([1])),
        ("top_p", json!({})),
        ("top_k", json!(1.5)),
        ("seed", json!("lucky")),
        ("seed", json!(0.5)),
        ("n", json!(true)),
        ("stop", json!(5)),
        ("logit_bias", json!([])),
        ("stream", json!("yes")),
        ("stream_options", json!(true)),
        ("ignore_eos", json!(1)),
        ("user", json!(7)),
        ("response_format", json!("text")),
        ("max_tokens", json!("many")),
    ];
    let out_of_range = out_of_range.into_iter().map(|(name, value)| (name, value, "invalid_value"));
    let wrong_type = wrong_type.into_iter().map(|(name, value)| (name, value, "invalid_type"));
    let fields: Vec<_> = out_of_range.chain(wrong_type).collect();
    let cases = |request: fn(Value) -> Value| {
        fields.iter().map(|(name, value, code)| bad(request(json!({*name: value})), name, code)).collect()
    };
    refuse(CHAT, cases(chat)).await;
    refuse(COMPLETIONS, cases(completion)).await;
}

#[tokio::test]
async fn nested_values_are_named_by_their_path() {
    let vocabulary = MODEL.tokenizer.vocabulary();
    let bias = |key: &str, bias: Value| chat(json!({"logit_bias": {key: bias}}));
    let many: Value = (0..1025).map(|id| (id.to_string(), json!(1))).collect::<serde_json::Map<_, _>>().into();
    let cases = vec![
        bad(bias(&vocabulary.to_string(), json!(1)), "logit_bias", "invalid_value"),
        bad(bias("x", json!(1)), "logit_bias", "invalid_value"),
        bad(bias("-1", json!(1)), "logit_bias", "invalid_value"),
        bad(bias("5", json!(101)), "logit_bias.5", "invalid_value"),
        bad(bias("5", json!("much")), "logit_bias.5", "invalid_type"),
        bad(chat(json!({"logit_bias": many})), "logit_bias", "invalid_value"),
        bad(chat(json!({"stop": ["a", ""]})), "stop[1]", "invalid_value"),
        bad(chat(json!({"stop": ["a", 5]})), "stop[1]", "invalid_type"),
        bad(
            chat(json!({"stream": true, "stream_options": {"include_usage": "yes"}})),
            "stream_options.include_usage",
            "invalid_type",
        ),
        bad(chat(json!({"response_format": {}})), "response_format.type", "missing_required_parameter"),
        bad(chat(json!({"response_format": {"type": "xml"}})), "response_format.type", "unsupported_value"),
    ];
    refuse(CHAT, cases).await;
}

#[tokio::test]
async fn chat_requests_that_mean_nothing() {
    let messages = |messages: Value| chat(json!({"messages": messages}));
    let user = |content: Value| messages(json!([{"role": "user", "content": content}]));
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let call = json!([{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let cases = vec![
        (json!({"model": "other", "messages": []}), 404, Some("model"), "model_not_found"),
        bad(json!({"messages": [{"role": "user", "content": "Hi"}]}), "model", "missing_required_parameter"),
        bad(json!({"model": 5, "messages": []}), "model", "invalid_type"),
        bad(json!({"model": NAME}), "messages", "missing_required_parameter"),
        bad(messages(json!("Hi")), "messages", "invalid_type"),
        bad(messages(json!([])), "messages", "invalid_value"),
        bad(messages(json!(["Hi"])), "messages[0]", "invalid_type"),
        bad(messages(json!([{"content": "Hi"}])), "messages[0].role", "missing_required_parameter"),
        bad(messages(json!([{"role": "wizard", "content": "Hi"}])), "messages[0].role", "invalid_value"),
        bad(messages(json!([{"role": "user"}])), "messages[0].content", "missing_required_parameter"),
        bad(user(json!(null)), "messages[0].content", "missing_required_parameter"),
        bad(user(json!(5)), "messages[0].content", "invalid_type"),
        bad(user(json!(["Hi"])), "messages[0].content[0]", "invalid_type"),
        bad(user(json!([{"text": "Hi"}])), "messages[0].content[0].type", "missing_required_parameter"),
        bad(user(json!([{"type": "text"}])), "messages[0].content[0].text", "missing_required_parameter"),
        bad(
            user(json!([{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "x"}}])),
            "messages[0].content[1].type",
            "unsupported_value",
        ),
        bad(
            messages(json!([{"role": "user", "content": "Hi", "tool_calls": call}])),
            "messages[0].tool_calls",
            "invalid_value",
        ),
        bad(
            messages(json!([{"role": "assistant", "tool_calls": [{"id": "c"}]}])),
            "messages[0].tool_calls[0].function",
            "missing_required_parameter",
        ),
        bad(chat(json!({"max_tokens": 0})), "max_tokens", "invalid_value"),
        bad(chat(json!({"max_completion_tokens": -5})), "max_completion_tokens", "invalid_value"),
        bad(chat(json!({"reasoning_effort": "much"})), "reasoning_effort", "invalid_value"),
        bad(chat(json!({"reasoning_effort": 5})), "reasoning_effort", "invalid_type"),
        bad(chat(json!({"logprobs": 5})), "logprobs", "invalid_type"),
        bad(chat(json!({"top_logprobs": 3})), "top_logprobs", "invalid_value"),
        bad(chat(json!({"logprobs": true, "top_logprobs": 21})), "top_logprobs", "invalid_value"),
        bad(chat(json!({"tools": "all"})), "tools", "invalid_type"),
        bad(chat(json!({"tools": [{"type": "function"}]})), "tools[0].function", "missing_required_parameter"),
        bad(chat(json!({"tools": [{"type": "magic"}]})), "tools[0].type", "unsupported_value"),
        bad(chat(json!({"tools": [{"type": "function", "function": {"name": ""}}]})), "tools", "invalid_value"),
        bad(chat(json!({"tools": vec![tool.clone(); 257]})), "tools", "invalid_value"),
        bad(
            chat(json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]})),
            "tools[0].function.parameters",
            "invalid_type",
        ),
        bad(chat(json!({"tools": [tool], "tool_choice": "always"})), "tool_choice", "invalid_value"),
        bad(chat(json!({"tools": [], "tool_choice": "required"})), "tool_choice", "invalid_value"),
        bad(chat(json!({"tool_choice": 5})), "tool_choice", "invalid_type"),
        bad(
            chat(json!({"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "g"}}})),
            "tool_choice",
            "invalid_value",
        ),
        bad(
            chat(json!({"tools": [tool], "tool_choice": {"type": "function"}})),
            "tool_choice.function",
            "missing_required_parameter",
        ),
        bad(chat(json!({"tools": [tool], "tool_choice": {"type": "code"}})), "tool_choice.type", "unsupported_value"),
        bad(chat(json!({"tools": [tool], "parallel_tool_calls": 1})), "parallel_tool_calls", "invalid_type"),
        bad(chat(json!({"tools": [tool], "guided_choice": ["a"]})), "response_format", "invalid_value"),
        bad(chat(json!({"functions": [{"name": "f"}]})), "functions", "unsupported_parameter"),
        bad(chat(json!({"audio": {"voice": "x"}})), "audio", "unsupported_parameter"),
        bad(chat(json!({"chat_template_kwargs": [1]})), "chat_template_kwargs", "invalid_type"),
        bad(chat(json!({"chat_template_kwargs": {"messages": []}})), "chat_template_kwargs.messages", "invalid_value"),
        bad(user(json!("long ".repeat(CONTEXT))), "messages", "context_length_exceeded"),
    ];
    refuse(CHAT, cases).await;
}

#[tokio::test]
async fn completion_requests_that_mean_nothing() {
    let prompt = |prompt: Value| completion(json!({"prompt": prompt}));
    let vocabulary = MODEL.tokenizer.vocabulary();
    let cases = vec![
        (json!({"model": "other", "prompt": "Hi"}), 404, Some("model"), "model_not_found"),
        bad(json!({"model": NAME}), "prompt", "missing_required_parameter"),
        bad(prompt(json!(5)), "prompt", "invalid_type"),
        bad(prompt(json!({})), "prompt", "invalid_type"),
        bad(prompt(json!([])), "prompt", "invalid_value"),
        bad(prompt(json!([[]])), "prompt[0]", "invalid_value"),
        bad(prompt(json!([true])), "prompt[0]", "invalid_type"),
        bad(prompt(json!(["a", 5])), "prompt[1]", "invalid_type"),
        bad(prompt(json!([5, "a"])), "prompt[1]", "invalid_type"),
        bad(prompt(json!([[5], 6])), "prompt[1]", "invalid_type"),
        bad(prompt(json!([[5], [6, "a"]])), "prompt[1][1]", "invalid_type"),
        bad(prompt(json!([5, vocabulary])), "prompt[1]", "invalid_value"),
        bad(prompt(json!([-1])), "prompt[0]", "invalid_value"),
        bad(prompt(json!([1.5])), "prompt[0]", "invalid_value"),
        bad(prompt(json!(vec!["a"; 2049])), "prompt", "invalid_value"),
        bad(completion(json!({"prompt": vec!["a"; 1025], "n": 2})), "n", "invalid_value"),
        bad(prompt(json!("long ".repeat(CONTEXT))), "prompt", "context_length_exceeded"),
        bad(prompt(json!(vec![5; CONTEXT])), "prompt", "context_length_exceeded"),
        bad(completion(json!({"max_tokens": -1})), "max_tokens", "invalid_value"),
        bad(completion(json!({"logprobs": true})), "logprobs", "invalid_type"),
        bad(completion(json!({"logprobs": 21})), "logprobs", "invalid_value"),
        bad(completion(json!({"echo": "yes"})), "echo", "invalid_type"),
        bad(completion(json!({"suffix": "end"})), "suffix", "unsupported_parameter"),
        bad(completion(json!({"best_of": 2})), "best_of", "unsupported_value"),
        bad(completion(json!({"add_special_tokens": 1})), "add_special_tokens", "invalid_type"),
    ];
    refuse(COMPLETIONS, cases).await;
}

#[tokio::test]
async fn values_that_ask_for_nothing_pass() {
    let server = Server::start(says("x")).await;
    let nothing = json!({"functions": [], "function_call": null, "web_search_options": null, "top_logprobs": 0});
    server.post(CHAT, &chat(nothing)).await.ok();
    server.post(COMPLETIONS, &completion(json!({"suffix": "", "best_of": 1, "logit_bias": {}}))).await.ok();
}

#[tokio::test]
async fn bodies_that_are_no_json() {
    let server = Server::start(says("x")).await;
    let deep = "[".repeat(100_000);
    let bodies: [&[u8]; 7] =
        [b"", b"{", b"{\"model\": }", b"\xff\xfe", b"nonsense", b"{\"model\": \"\\ud800\"}", deep.as_bytes()];
    for path in [CHAT, COMPLETIONS] {
        for body in bodies {
            let answer = server.post_bytes(path, body.to_vec()).await;
            let expected = (400, "invalid_request_error".to_owned(), None, "invalid_json".to_owned());
            assert_eq!(answer.error(), expected, "{:?}", String::from_utf8_lossy(body));
        }
        let answer = server.post(path, &json!([1, 2])).await;
        assert_eq!(answer.error(), (400, "invalid_request_error".to_owned(), None, "invalid_type".to_owned()));
    }
}

#[tokio::test]
async fn types_other_than_json_are_refused() {
    let server = Server::start(says("x")).await;
    let body = chat(json!({})).to_string().into_bytes();
    for kind in [None, Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("application/jsonx")] {
        let exchange = server.send(Method::POST, CHAT, kind, body.clone()).await;
        let (status, _, _, code) = exchange.answer().await.error();
        assert_eq!((status, code.as_str()), (415, "unsupported_media_type"), "{kind:?}");
    }
    for kind in ["application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json"] {
        let exchange = server.send(Method::POST, CHAT, Some(kind), body.clone()).await;
        exchange.answer().await.ok();
    }
}

#[tokio::test]
async fn unknown_paths_and_methods() {
    let server = Server::start(says("x")).await;
    for path in ["/v1", "/v1/chat", "/v1/completions/", "/v2/models", "/v1/audio/speech", "/../etc/passwd"] {
        let (status, _, _, code) = server.get(path).await.error();
        assert_eq!((status, code.as_str()), (404, "unknown_url"), "{path}");
    }
    let wrong = [
        (Method::GET, CHAT, "POST"),
        (Method::DELETE, COMPLETIONS, "POST"),
        (Method::OPTIONS, CHAT, "POST"),
        (Method::POST, "/v1/models", "GET,HEAD"),
        (Method::PUT, "/health", "GET,HEAD"),
    ];
    for (method, path, allowed) in wrong {
        let exchange = server.send(method, path, Some("application/json"), b"{}".to_vec()).await;
        let answer = exchange.answer().await;
        let (status, _, _, code) = answer.error();
        assert_eq!((status, code.as_str()), (405, "method_not_allowed"), "{path}");
        assert_eq!(answer.headers["allow"], allowed);
    }
}
