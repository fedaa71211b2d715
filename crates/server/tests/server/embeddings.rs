//! Texts as vectors, in the dialects that know them.

use engine::Pooling;
use serde_json::{Value, json};

use crate::harness::{CONTEXT, NAME, Server, with};
use crate::script::{says, tokens};

const OPENAI: &str = "/v1/embeddings";
const OLLAMA: &str = "/api/embed";

fn input(input: Value) -> Value {
    json!({"model": NAME, "input": input})
}

#[tokio::test]
async fn each_text_gets_a_vector() {
    let server = Server::start(says("")).await;
    let body = server.post(OPENAI, &input(json!(["Hi", "Hello there"]))).await.ok();
    let count = tokens("Hi").len() + tokens("Hello there").len();
    let vector =
        |index: usize| json!({"object": "embedding", "index": index, "embedding": [0.6_f32, 0.0_f32, 0.8_f32]});
    let expected = json!({"object": "list", "data": [vector(0), vector(1)], "model": NAME,
        "usage": {"prompt_tokens": count, "total_tokens": count}});
    assert_eq!(body, expected);
    let prompts: Vec<_> = server.requests().into_iter().map(|request| request.prompt).collect();
    assert_eq!(prompts, [tokens("Hi"), tokens("Hello there")]);
}

#[tokio::test]
async fn vectors_come_as_asked_for() {
    let server = Server::start(says("")).await;
    let body = server.post(OPENAI, &with(input(json!([5, 6])), json!({"encoding_format": "base64"}))).await.ok();
    assert_eq!(body["data"][0]["embedding"], "mpkZPwAAAADNzEw/");
    let body = server.post(OPENAI, &with(input(json!("Hi")), json!({"dimensions": 2}))).await.ok();
    assert_eq!(body["data"][0]["embedding"], json!([1.0, 0.0]));
    let body = server.post(OPENAI, &with(input(json!([[5], [6]])), json!({"pooling": "last"}))).await.ok();
    assert_eq!(body["data"][1]["embedding"], json!([0.0, 1.0, 0.0]));
    let pooling: Vec<_> = server.requests().into_iter().filter_map(|request| request.embed).collect();
    assert_eq!(pooling, [Pooling::Mean, Pooling::Mean, Pooling::Last, Pooling::Last]);
}

#[tokio::test]
async fn ollama_has_two_forms() {
    let server = Server::start(says("")).await;
    let mut body = server.post(OLLAMA, &input(json!(["Hi", "Ho"]))).await.ok();
    assert!(body["total_duration"].take().as_u64().unwrap() > 0);
    let vector = json!([0.6_f32, 0.0_f32, 0.8_f32]);
    let expected = json!({"model": NAME, "embeddings": [vector, vector], "total_duration": null, "load_duration": 0,
        "prompt_eval_count": tokens("Hi").len() + tokens("Ho").len()});
    assert_eq!(body, expected);
    let body = server.post("/api/embeddings", &json!({"model": NAME, "prompt": "Hi"})).await.ok();
    assert_eq!(body, json!({"embedding": vector}));
    // Without a text the model is only loaded.
    assert_eq!(server.post(OLLAMA, &json!({"model": NAME})).await.ok()["embeddings"], json!([]));
    // Long texts are cut, unless that is forbidden.
    let long = "x ".repeat(CONTEXT);
    server.post(OLLAMA, &input(json!(long))).await.ok();
    let refused = server.post(OLLAMA, &with(input(json!(long)), json!({"truncate": false}))).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
}

#[tokio::test]
async fn what_is_no_text_is_refused() {
    let server = Server::start(says("")).await;
    for (body, param) in [
        (json!({"model": NAME}), "input"),
        (input(json!("")), "input"),
        (input(json!([])), "input"),
        (input(json!(["Hi", ""])), "input[1]"),
        (input(json!(["Hi", 3])), "input[1]"),
        (input(json!({"text": "Hi"})), "input"),
        (input(json!([999_999])), "input[0]"),
        (input(json!("x ".repeat(CONTEXT))), "input"),
        (with(input(json!("Hi")), json!({"encoding_format": "int8"})), "encoding_format"),
        (with(input(json!("Hi")), json!({"dimensions": 0})), "dimensions"),
        (with(input(json!("Hi")), json!({"dimensions": 4})), "dimensions"),
        (with(input(json!("Hi")), json!({"pooling": "max"})), "pooling"),
        (with(input(json!("Hi")), json!({"user": 3})), "user"),
    ] {
        let (status, kind, found, _) = server.post(OPENAI, &body).await.error();
        assert_eq!((status, kind.as_str(), found.as_deref()), (400, "invalid_request_error", Some(param)), "{body}");
    }
    for body in [input(json!(3)), input(json!([""])), json!({"input": "Hi"})] {
        assert_eq!(server.post(OLLAMA, &body).await.status, 400, "{body}");
    }
}
