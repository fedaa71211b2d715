//! Names that the server answers to, pages of other sites, names of requests.

use engine::Limits;
use hyper::Method;
use serde_json::json;
use server::{Key, KeyLimits, Keys, Options};

use crate::harness::{Answer, Server, chat};
use crate::script::says;

const CHAT: &str = "/v1/chat/completions";

async fn with(options: Options) -> Server {
    Server::with(options, Limits::default(), says("abc")).await
}

async fn get(server: &Server, path: &str, headers: &[(&str, &str)]) -> Answer {
    server.send_with(Method::GET, path, headers, Vec::new()).await.answer().await
}

async fn preflight(server: &Server, origin: &str) -> Answer {
    let headers = [
        ("origin", origin),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type,x-stainless-os"),
    ];
    server.send_with(Method::OPTIONS, CHAT, &headers, Vec::new()).await.answer().await
}

#[tokio::test]
async fn names_of_other_sites_are_refused_on_loopback() {
    let server = with(Options { allowed_hosts: vec!["models.example".to_owned()], ..Options::default() }).await;
    for host in ["evil.example", "evil.example:8080"] {
        let uri = format!("http://{host}/health");
        let answer = get(&server, &uri, &[]).await;
        assert_eq!((answer.status.as_u16(), answer.error().3), (403, "host_not_allowed".to_owned()), "{host}");
    }
    // Two names would be two requests to different readers.
    let answer = get(&server, "/health", &[("host", "evil.example")]).await;
    assert_eq!(answer.status, 403);
    for host in ["models.example", "127.0.0.1:1", "localhost"] {
        assert_eq!(get(&server, &format!("http://{host}/health"), &[]).await.status, 200, "{host}");
    }
}

#[tokio::test]
async fn pages_of_other_sites_read_nothing_unless_allowed() {
    let closed = Server::start(says("abc")).await;
    let answer = preflight(&closed, "https://chat.example").await;
    assert!(answer.status == 405 && !answer.headers.contains_key("access-control-allow-origin"));
    let key = Key::new(None, "sk-1", KeyLimits::default());
    let origins = vec!["https://chat.example".to_owned(), "http://localhost:3000".to_owned()];
    let server = with(Options { cors_origins: origins, keys: Keys::new(vec![key]), ..Options::default() }).await;
    // Browsers send no key with this question.
    let answer = preflight(&server, "https://chat.example").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["access-control-allow-origin"], "https://chat.example");
    assert_eq!(answer.headers["access-control-allow-headers"], "authorization,content-type,x-stainless-os");
    let answer = preflight(&server, "https://evil.example").await;
    assert!(!answer.headers.contains_key("access-control-allow-origin"));
    // Refusals can be read as well, or pages could not say what is wrong.
    let answer = get(&server, "/v1/models", &[("origin", "https://chat.example")]).await;
    assert_eq!((answer.status.as_u16(), answer.error().3), (401, "invalid_api_key".to_owned()));
    assert_eq!(answer.headers["access-control-allow-origin"], "https://chat.example");
    assert!(answer.headers["access-control-expose-headers"].to_str().unwrap().contains("retry-after"));
}

#[tokio::test]
async fn all_sites_can_be_allowed() {
    let server = with(Options { cors_origins: vec!["*".to_owned()], ..Options::default() }).await;
    assert_eq!(preflight(&server, "https://any.example").await.headers["access-control-allow-origin"], "*");
}

#[tokio::test]
async fn requests_keep_the_name_that_they_come_with() {
    let server = Server::start(says("abc")).await;
    let named = |answer: &Answer| answer.headers["x-request-id"].to_str().unwrap().to_owned();
    let answer = get(&server, "/v1/models", &[("x-request-id", "trace-42/7")]).await;
    assert_eq!(named(&answer), "trace-42/7");
    for bad in ["", "two words", "line\tbreak", &"x".repeat(129)] {
        let answer = get(&server, "/v1/models", &[("x-request-id", bad)]).await;
        assert!(named(&answer).starts_with("req-"), "{bad:?}");
    }
    let answer = server.post("/v1/messages", &json!({})).await;
    assert_eq!(answer.headers["request-id"], answer.headers["x-request-id"]);
    assert_ne!(named(&server.post(CHAT, &chat(json!({}))).await), named(&server.post(CHAT, &chat(json!({}))).await));
}

#[tokio::test]
async fn a_server_that_runs_is_alive_and_ready() {
    let server = Server::start(says("abc")).await;
    for path in ["/live", "/ready", "/health"] {
        assert_eq!(server.get(path).await.ok(), json!({"status": "ok", "running": 0, "waiting": 0}), "{path}");
    }
}
