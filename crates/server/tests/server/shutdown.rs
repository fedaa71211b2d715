//! Graceful shutdown.

use std::time::Duration;

use engine::Limits;
use hyper::Method;
use serde_json::json;
use server::{Drained, Options, Timeouts};
use tokio::net::TcpStream;

use crate::harness::{Server, chat, eventually};
use crate::script::{Activity, endless, gated, says};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn an_idle_server_ends_at_once_also_with_open_connections() {
    let mut server = Server::start(says("x")).await;
    let _never_used = TcpStream::connect(server.address).await.unwrap();
    // A second connection that is kept alive after its answer.
    let exchange = server.send(Method::GET, "/health", None, Vec::new()).await;
    server.signal();
    assert_eq!(server.drained().await, Drained { cancelled: 0 });
    drop(exchange);
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn running_and_waiting_requests_finish() {
    let (gate, script) = gated("the whole answer");
    let mut server = Server::start(script).await;
    let first = server.post_in_background(CHAT, &chat(json!({})));
    server.wait_for_status(1, 0).await;
    let second = server.post_in_background(CHAT, &chat(json!({"stream": true})));
    server.wait_for_status(1, 1).await;
    server.signal();
    gate.open();
    gate.open();
    assert_eq!(first.answer().await.ok()["choices"][0]["message"]["content"], "the whole answer");
    assert!(second.answer().await.text().ends_with("data: [DONE]\n\n"));
    assert_eq!(server.drained().await, Drained { cancelled: 0 });
}

#[tokio::test]
async fn requests_that_outlast_the_drain_are_cancelled_and_told() {
    let activity = Activity::default();
    let options = Options {
        timeouts: Timeouts { drain: Duration::from_millis(50), ..Timeouts::default() }.into(),
        ..Options::default()
    };
    let mut server = Server::with(options, Limits::default(), endless(activity.clone(), "more ")).await;
    let stream = server.post_in_background(CHAT, &chat(json!({"stream": true})));
    eventually("the first token", || activity.is_running()).await;
    let waiting = server.post_in_background(CHAT, &chat(json!({})));
    server.wait_for_status(1, 1).await;
    server.signal();
    assert_eq!(server.drained().await, Drained { cancelled: 2 });
    let stream = stream.answer().await;
    assert!(stream.text().contains("shutting_down") && !stream.text().contains("[DONE]"), "{}", stream.text());
    assert_eq!(waiting.answer().await.error().3, "shutting_down");
    eventually("the end of the run", || activity.stopped() == 1).await;
    server.wait_for_status(0, 0).await;
}
