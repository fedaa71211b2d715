//! A full queue, and engines that fail.

use engine::{EngineError, Limits};
use serde_json::json;
use server::Options;

use crate::harness::{Server, chat, completion, eventually};
use crate::script::{gated, say, says, tokens};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_full_queue_refuses_with_429_and_then_recovers() {
    let (gate, script) = gated("done");
    let server = Server::with(Options::default(), Limits { running: 1, waiting: 1 }, script).await;
    let first = server.post_in_background(CHAT, &chat(json!({})));
    server.wait_for_status(1, 0).await;
    let second = server.post_in_background(CHAT, &chat(json!({})));
    server.wait_for_status(1, 1).await;
    for stream in [false, true] {
        let refused = server.post(CHAT, &chat(json!({"stream": stream}))).await;
        assert_eq!(refused.error(), (429, "rate_limit_error".to_owned(), None, "queue_full".to_owned()));
        assert_eq!(refused.headers["retry-after"], "1");
    }
    gate.open();
    gate.open();
    first.answer().await.ok();
    second.answer().await.ok();
    gate.open();
    server.post(CHAT, &chat(json!({}))).await.ok();
}

#[tokio::test]
async fn the_second_answer_of_a_request_waits_for_a_place_in_the_queue() {
    let (gate, script) = gated("done");
    let server = Server::with(Options::default(), Limits { running: 1, waiting: 1 }, script).await;
    let twice = server.post_in_background(CHAT, &chat(json!({"n": 2})));
    server.wait_for_status(1, 0).await;
    let others = [0, 1].map(|_| chat(json!({})));
    let second = server.post_in_background(CHAT, &others[0]);
    server.wait_for_status(1, 1).await;
    gate.open();
    server.wait_for_status(1, 1).await;
    gate.open();
    gate.open();
    second.answer().await.ok();
    let body = twice.answer().await.ok();
    assert_eq!(body["choices"].as_array().unwrap().len(), 2);
}

fn lost() -> EngineError {
    EngineError::RankLost { rank: 1, cause: "its process ended".to_owned() }
}

#[tokio::test]
async fn an_engine_that_fails_answers_503_with_the_reason_from_then_on() {
    let server = Server::start(|_, _| Err(lost())).await;
    assert_eq!(server.get("/health").await.ok()["status"], "ok");
    let expected = (503, "server_error".to_owned(), None, "engine_failed".to_owned());
    let answer = server.post(CHAT, &chat(json!({}))).await;
    assert_eq!(answer.error(), expected);
    assert!(answer.text().contains("rank 1 was lost: its process ended"), "{}", answer.text());
    // Later requests are refused before anything runs, with the same reason.
    for path in [CHAT, "/v1/completions"] {
        let body = if path == CHAT { chat(json!({"stream": true})) } else { completion(json!({})) };
        let answer = server.post(path, &body).await;
        assert_eq!(answer.error(), expected);
        assert!(answer.text().contains("its process ended"), "{}", answer.text());
    }
    for path in ["/health", "/ready", "/live"] {
        let health = server.get(path).await;
        assert_eq!((health.status.as_u16(), &health.json()["status"]), (503, &json!("failed")), "{path}");
        assert!(health.json()["reason"].as_str().unwrap().contains("rank 1"), "{path}");
    }
    assert!(server.get("/metrics").await.text().contains("ropewalk:engine_up{model_name=\"tests/tiny\"} 0"));
    // Bad requests are still told so.
    assert_eq!(server.post(CHAT, &json!({})).await.status, 400);
}

#[tokio::test]
async fn a_failure_in_the_middle_of_a_stream_is_its_last_event() {
    let ids = tokens("begun");
    let server = Server::start(move |request, observer| {
        say(&ids, request, observer);
        Err(lost())
    })
    .await;
    let answer = server.post(CHAT, &chat(json!({"stream": true}))).await;
    assert_eq!(answer.status, 200);
    assert!(answer.text().contains("\"content\":\"b"), "{}", answer.text());
    let last = answer.text().lines().rfind(|line| !line.is_empty()).unwrap();
    let last: serde_json::Value = serde_json::from_str(last.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "engine_failed");
    assert!(!answer.text().contains("[DONE]"));
}

#[tokio::test]
async fn an_engine_that_was_shut_down_by_others_is_no_answer() {
    let (_gate, script) = gated("never");
    let server = Server::start(script).await;
    let client = server.post_in_background(CHAT, &chat(json!({})));
    server.wait_for_status(1, 0).await;
    let engine = server.engine.clone();
    tokio::task::spawn_blocking(move || engine.shutdown()).await.unwrap();
    assert_eq!(client.answer().await.error().3, "shutting_down");
    assert_eq!(server.post(CHAT, &chat(json!({}))).await.error().3, "engine_failed");
}

#[tokio::test]
async fn a_panic_of_the_engine_is_a_failure_and_no_hang() {
    let mut healthy = says("x");
    let mut runs = 0;
    let server = Server::start(move |request, observer| {
        runs += 1;
        assert!(runs < 2, "this panic is part of the test");
        healthy(request, observer)
    })
    .await;
    server.post(CHAT, &chat(json!({}))).await.ok();
    assert_eq!(server.post(CHAT, &chat(json!({}))).await.status, 503);
    eventually("the failure to be noted", || server.engine.status().failure.is_some()).await;
    assert_eq!(server.get("/health").await.status, 503);
}
