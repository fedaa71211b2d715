//! API keys: who is let in, how much a key allows, and what is kept apart.

use engine::Limits;
use hyper::Method;
use serde_json::{Value, json};
use server::{Key, KeyLimits, Keys, Options};

use crate::harness::{Answer, NAME, Server, chat, completion, eventually};
use crate::script::{Activity, endless, says, tokens};

const CHAT: &str = "/v1/chat/completions";
const JSON: (&str, &str) = ("content-type", "application/json");

fn options(limits: KeyLimits) -> Options {
    let keys = vec![Key::new(Some("alice"), "sk-alice", limits), Key::new(Some("bob"), "sk-bob", KeyLimits::default())];
    Options { keys: Keys::new(keys), ..Options::default() }
}

async fn with_limits(limits: KeyLimits) -> Server {
    Server::with(options(limits), Limits::default(), says("abc")).await
}

async fn post(server: &Server, path: &str, key: (&str, &str), body: &Value) -> Answer {
    server.send_with(Method::POST, path, &[JSON, key], body.to_string().into_bytes()).await.answer().await
}

#[tokio::test]
async fn only_requests_with_a_key_are_let_in() {
    let server = with_limits(KeyLimits::default()).await;
    let refused = [
        ("x-other", "sk-alice"),
        ("authorization", "Bearer sk-carol"),
        ("authorization", "sk-alice"),
        ("authorization", "Basic sk-alice"),
        ("authorization", ""),
        ("x-api-key", "alice"),
    ];
    for key in refused {
        let answer = post(&server, CHAT, key, &chat(json!({}))).await;
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
        let expected = (401, "invalid_request_error".to_owned(), None, "invalid_api_key".to_owned());
        assert_eq!(answer.error(), expected, "{key:?}");
    }
    for key in [("authorization", "Bearer sk-alice"), ("authorization", "bearer  sk-bob"), ("x-api-key", "sk-bob")] {
        post(&server, CHAT, key, &chat(json!({}))).await.ok();
    }
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn each_dialect_refuses_in_its_own_form() {
    let server = with_limits(KeyLimits::default()).await;
    let none = ("x-other", "1");
    let answer = post(&server, "/v1/messages", none, &json!({})).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["type"]), (401, &json!("authentication_error")));
    let answer = post(&server, "/api/chat", none, &json!({})).await;
    assert!(answer.status == 401 && answer.json()["error"].is_string());
    // Nobody without a key learns what there is.
    assert_eq!(server.get("/nowhere").await.status, 401);
    assert_eq!(server.get("/v1/models").await.status, 401);
    assert_eq!(server.get("/v1/models/other").await.status, 401);
}

#[tokio::test]
async fn what_tells_nothing_of_requests_stays_open() {
    let server = with_limits(KeyLimits::default()).await;
    for path in ["/", "/docs", "/page/app.js", "/health", "/metrics", "/openapi.json"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn requests_beyond_the_limit_are_told_when_to_come_again() {
    let limits = KeyLimits { requests_per_minute: Some(1), ..KeyLimits::default() };
    let server = with_limits(limits).await;
    let alice = ("x-api-key", "sk-alice");
    let answer = post(&server, CHAT, alice, &chat(json!({}))).await;
    answer.ok();
    assert_eq!(answer.headers["x-ratelimit-limit-requests"], "1");
    assert_eq!(answer.headers["x-ratelimit-remaining-requests"], "0");
    assert!(answer.headers["x-ratelimit-reset-requests"].to_str().unwrap().ends_with('s'));
    let answer = post(&server, CHAT, alice, &chat(json!({}))).await;
    let expected = (429, "rate_limit_error".to_owned(), None, "rate_limit_exceeded".to_owned());
    assert_eq!(answer.error(), expected);
    let seconds: u64 = answer.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
    // Others have limits of their own, and questions that cost nothing are not counted.
    post(&server, CHAT, ("x-api-key", "sk-bob"), &chat(json!({}))).await.ok();
    assert_eq!(server.send_with(Method::GET, "/v1/models", &[alice], Vec::new()).await.answer().await.status, 200);
}

#[tokio::test]
async fn tokens_of_prompt_and_answer_are_counted() {
    let used = tokens("Hi").len() + tokens("abc").len() + 1;
    let limits = KeyLimits { tokens_per_minute: Some(u32::try_from(used).unwrap()), ..KeyLimits::default() };
    let server = with_limits(limits).await;
    let request = completion(json!({"add_special_tokens": false}));
    post(&server, "/v1/completions", ("x-api-key", "sk-alice"), &request).await.ok();
    let answer = post(&server, "/v1/completions", ("x-api-key", "sk-alice"), &request).await;
    assert_eq!((answer.status.as_u16(), &answer.headers["x-ratelimit-remaining-tokens"]), (429, &"0".parse().unwrap()));
    assert!(answer.text().contains("tokens a minute"), "{}", answer.text());
}

#[tokio::test]
async fn requests_at_the_same_time_are_bounded_and_end_with_their_answer() {
    let limits = KeyLimits { concurrent: Some(1), ..KeyLimits::default() };
    let activity = Activity::default();
    let server = Server::with(options(limits), Limits::default(), endless(activity.clone(), "more ")).await;
    let headers = [JSON, ("x-api-key", "sk-alice")];
    let stream = chat(json!({"stream": true})).to_string().into_bytes();
    let exchange = server.send_with(Method::POST, CHAT, &headers, stream).await;
    eventually("the first token", || activity.is_running()).await;
    let answer = post(&server, CHAT, headers[1], &chat(json!({}))).await;
    assert_eq!((answer.status.as_u16(), answer.error().3), (429, "rate_limit_exceeded".to_owned()));
    exchange.vanish();
    eventually("the end of the run", || activity.stopped() == 1).await;
    // The answer's body is dropped a moment after the run.
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let answer = post(&server, "/tokenize", headers[1], &json!({"model": NAME, "prompt": "x"})).await;
        if answer.status == 200 {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline);
    }
}

#[tokio::test]
async fn remembered_responses_belong_to_their_key() {
    let server = with_limits(KeyLimits::default()).await;
    let (alice, bob) = (("x-api-key", "sk-alice"), ("x-api-key", "sk-bob"));
    let first = post(&server, "/v1/responses", alice, &json!({"model": NAME, "input": "Hi"})).await.ok();
    let id = first["id"].as_str().unwrap();
    let next = json!({"model": NAME, "input": "And?", "previous_response_id": id});
    let answer = post(&server, "/v1/responses", bob, &next).await;
    assert_eq!((answer.status.as_u16(), answer.error().3), (400, "previous_response_not_found".to_owned()));
    let path = format!("/v1/responses/{id}");
    let ask =
        async |method, key| server.send_with(method, &path, &[key], Vec::new()).await.answer().await.status.as_u16();
    assert_eq!(ask(Method::GET, bob).await, 404);
    assert_eq!(ask(Method::DELETE, bob).await, 404);
    assert_eq!(ask(Method::GET, alice).await, 200);
    post(&server, "/v1/responses", alice, &next).await.ok();
    assert_eq!(ask(Method::DELETE, alice).await, 200);
}

#[tokio::test]
async fn keys_can_be_replaced_while_the_server_runs() {
    let options = options(KeyLimits::default());
    let keys = options.keys.clone();
    let server = Server::with(options, Limits::default(), says("abc")).await;
    keys.replace(vec![Key::new(Some("alice"), "sk-new", KeyLimits::default())]);
    assert_eq!(post(&server, CHAT, ("x-api-key", "sk-alice"), &chat(json!({}))).await.status, 401);
    assert_eq!(post(&server, CHAT, ("x-api-key", "sk-new"), &chat(json!({}))).await.status, 200);
}
