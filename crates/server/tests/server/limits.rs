//! Bounds on size, time and number.

use std::time::Duration;

use engine::Limits;
use hyper::Method;
use serde_json::json;
use server::{Options, SharedTimeouts, Timeouts};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{Server, chat, eventually, within};
use crate::script::{Activity, endless, endless_with_pauses, gated, says};

const CHAT: &str = "/v1/chat/completions";
const SHORT: Duration = Duration::from_millis(100);

/// Sends `bytes` and returns all that comes back until the server closes the connection.
async fn raw(server: &Server, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let mut answer = Vec::new();
    // The server may refuse before it has read everything; a reset after the answer is as good as an orderly end.
    let _ = within(stream.write_all(bytes)).await;
    let _ = within(stream.read_to_end(&mut answer)).await;
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn bodies_over_the_limit_are_refused() {
    let options = Options { body_bytes_max: 1000, ..Options::default() };
    let server = Server::with(options, Limits::default(), says("x")).await;
    let fits = chat(json!({"user": "u".repeat(800)}));
    server.post(CHAT, &fits).await.ok();
    let answer = server.post(CHAT, &chat(json!({"user": "u".repeat(1000)}))).await;
    assert_eq!(answer.error(), (413, "invalid_request_error".to_owned(), None, "request_too_large".to_owned()));
    // Also where the length is not announced.
    let chunk = format!("{:x}\r\n{}\r\n", 2000, "u".repeat(2000));
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
        transfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    let answer = raw(&server, format!("{head}{chunk}0\r\n\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[tokio::test]
async fn connections_that_send_nothing_or_half_a_head_are_cut_off() {
    let options = Options { header_timeout: SHORT, ..Options::default() };
    let server = Server::with(options, Limits::default(), says("x")).await;
    for bytes in ["", "GET /health HTTP/1.1\r\nhost: localhost\r\nx-slow: "] {
        raw(&server, bytes.as_bytes()).await;
    }
    // Also one that is kept open after an answer.
    assert!(raw(&server, b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.starts_with("HTTP/1.1 200"));
    server.get("/health").await.ok();
}

#[tokio::test]
async fn clients_that_send_half_a_body_are_told_and_cut_off() {
    let options = Options { body_timeout: SHORT, ..Options::default() };
    let server = Server::with(options, Limits::default(), says("x")).await;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
        content-length: 100\r\n\r\n{\"model\"";
    let answer = raw(&server, head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("request_timeout"), "{answer}");
}

#[tokio::test]
async fn heads_of_endless_length_are_refused() {
    let server = Server::start(says("x")).await;
    let head = format!("GET /health HTTP/1.1\r\nhost: localhost\r\nx-long: {}\r\n\r\n", "y".repeat(140_000));
    let answer = raw(&server, head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    let many: String = (0..101).map(|index| format!("x-{index}: y\r\n")).collect();
    let answer = raw(&server, format!("GET /health HTTP/1.1\r\nhost: localhost\r\n{many}\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test]
async fn connections_over_the_limit_wait_for_a_slot() {
    let (gate, script) = gated("done");
    let options = Options { connections_max: 1, ..Options::default() };
    let server = Server::with(options, Limits::default(), script).await;
    let first = server.post_in_background(CHAT, &chat(json!({})));
    server.wait_for_status(1, 0).await;
    let second = server.post_in_background(CHAT, &chat(json!({})));
    tokio::time::sleep(SHORT).await;
    assert_eq!(server.engine.status().waiting, 0);
    gate.open();
    first.answer().await.ok();
    gate.open();
    second.answer().await.ok();
}

#[tokio::test]
async fn requests_over_the_time_limit_end_and_free_the_engine() {
    let activity = Activity::default();
    let timeouts = SharedTimeouts::default();
    let options = Options { timeouts: timeouts.clone(), ..Options::default() };
    let server = Server::with(options, Limits::default(), endless(activity.clone(), "more ")).await;
    // It may be set while the server runs.
    timeouts.replace(Timeouts { request: Some(SHORT), ..Timeouts::default() });
    let answer = server.post(CHAT, &chat(json!({}))).await;
    assert_eq!(answer.error(), (504, "timeout_error".to_owned(), None, "generation_timeout".to_owned()));
    eventually("the end of the run", || activity.stopped() == 1).await;
    let answer = server.post(CHAT, &chat(json!({"stream": true}))).await;
    assert!(answer.text().contains("generation_timeout") && !answer.text().contains("[DONE]"));
    eventually("the end of the second run", || activity.stopped() == 2).await;
}

#[tokio::test]
async fn silent_streams_carry_comments() {
    let (gate, script) = gated("done");
    let options = Options { keep_alive_interval: Duration::from_millis(10), ..Options::default() };
    let server = Server::with(options, Limits::default(), script).await;
    let body = chat(json!({"stream": true})).to_string().into_bytes();
    let mut exchange = server.send(Method::POST, CHAT, Some("application/json"), body).await;
    while exchange.next().await.unwrap() != ": keep-alive\n\n" {}
    gate.open();
    while let Some(piece) = exchange.next().await {
        if piece.contains("[DONE]") {
            return;
        }
    }
    panic!("the stream ended without its marker");
}

#[tokio::test]
async fn a_client_that_stops_reading_is_cut_off() {
    let activity = Activity::default();
    let options = Options { write_timeout: SHORT, ..Options::default() };
    // Without pauses, and with many log-probabilities, the buffers of the connection are soon full.
    let script = endless_with_pauses(activity.clone(), "word ", Duration::ZERO);
    let server = Server::with(options, Limits::default(), script).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let body = chat(json!({"stream": true, "logprobs": true, "top_logprobs": 20})).to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.unwrap();
    eventually("the first token", || activity.is_running()).await;
    eventually("the cut", || activity.stopped() == 1).await;
    drop(stream);
}

#[tokio::test]
async fn a_request_can_set_its_own_time_limit() {
    let (_gate, script) = gated("x");
    let server = Server::start(script).await;
    let headers = [("content-type", "application/json"), ("x-request-timeout", "0.05")];
    let body = chat(json!({})).to_string();
    let answer = server.send_with(Method::POST, CHAT, &headers, body.clone().into()).await.answer().await;
    assert_eq!(answer.status, 504, "{}", answer.text());
    for wrong in ["soon", "-1", "0", "nan", "1e400"] {
        let headers = [("content-type", "application/json"), ("x-request-timeout", wrong)];
        let answer = server.send_with(Method::POST, CHAT, &headers, body.clone().into()).await.answer().await;
        assert_eq!(answer.status, 400, "{wrong}: {}", answer.text());
    }
}

#[tokio::test]
async fn priority_and_client_reach_the_engine() {
    let server = Server::start(says("x")).await;
    server.post(CHAT, &chat(json!({"priority": -3}))).await.ok();
    let request = server.only_request();
    assert_eq!((request.priority, request.client.as_str()), (-3, "127.0.0.1"));
    let wrong = server.post(CHAT, &chat(json!({"priority": 1.5}))).await;
    assert_eq!(wrong.error().3, "invalid_type");
}

#[tokio::test]
async fn requests_that_wait_too_long_leave_the_queue() {
    let (gate, script) = gated("done");
    let options =
        Options { timeouts: Timeouts { queue: Some(SHORT), ..Timeouts::default() }.into(), ..Options::default() };
    let server = Server::with(options, Limits { running: 1, waiting: 4 }, script).await;
    let first = server.post_in_background(CHAT, &chat(json!({})));
    server.wait_for_status(1, 0).await;
    let answer = server.post(CHAT, &chat(json!({}))).await;
    assert_eq!(answer.error(), (503, "server_error".to_owned(), None, "queue_timeout".to_owned()));
    assert!(answer.headers.contains_key("retry-after"));
    assert_eq!(server.engine.status().waiting, 0);
    // The first one has long had its turn.
    gate.open();
    first.answer().await.ok();
}
