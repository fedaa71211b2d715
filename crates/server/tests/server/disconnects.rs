//! Clients that go away free what they held within a second.

use std::time::Duration;

use hyper::Method;
use serde_json::json;
use tokio::time::Instant;

use crate::harness::{Server, chat, completion, eventually, within};
use crate::script::{Activity, endless};

const CHAT: &str = "/v1/chat/completions";
/// The time in which a slot must be free again.
const SECOND: Duration = Duration::from_secs(1);

/// A server whose engine never comes to an end, and what it does.
async fn start() -> (Server, Activity) {
    let activity = Activity::default();
    (Server::start(endless(activity.clone(), "never ending ")).await, activity)
}

#[tokio::test]
async fn in_the_middle_of_a_stream() {
    let (server, activity) = start().await;
    for (path, body) in [
        (CHAT, chat(json!({"stream": true}))),
        ("/v1/completions", completion(json!({"stream": true, "max_tokens": 1000000}))),
    ] {
        let before = activity.stopped();
        let body = body.to_string().into_bytes();
        let mut exchange = server.send(Method::POST, path, Some("application/json"), body).await;
        assert!(exchange.next().await.is_some());
        eventually("the first token", || activity.is_running()).await;
        exchange.vanish();
        let gone = Instant::now();
        eventually("the end of the run", || activity.stopped() > before).await;
        assert!(gone.elapsed() < SECOND, "took {:?}", gone.elapsed());
    }
}

#[tokio::test]
async fn while_a_whole_answer_is_computed() {
    let (server, activity) = start().await;
    let client = server.post_in_background(CHAT, &chat(json!({})));
    eventually("the first token", || activity.is_running()).await;
    client.vanish();
    let gone = Instant::now();
    eventually("the end of the run", || activity.stopped() == 1).await;
    assert!(gone.elapsed() < SECOND, "took {:?}", gone.elapsed());
    server.wait_for_status(0, 0).await;
}

#[tokio::test]
async fn between_two_answers_of_one_request() {
    let (server, activity) = start().await;
    let client = server.post_in_background(CHAT, &chat(json!({"n": 2})));
    eventually("the first token", || activity.is_running()).await;
    client.vanish();
    eventually("the end of the run", || activity.stopped() == 1).await;
    server.wait_for_status(0, 0).await;
    // The second answer was never begun.
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn while_waiting_behind_another() {
    let (server, activity) = start().await;
    let first = server.post_in_background(CHAT, &chat(json!({})));
    eventually("the first token", || activity.is_running()).await;
    let second = server.post_in_background(CHAT, &chat(json!({"stream": true})));
    server.wait_for_status(1, 1).await;
    second.vanish();
    // Give the server the time to see it: the place is counted until the engine looks at it.
    let third = server.post_in_background(CHAT, &chat(json!({})));
    within(async {
        while server.engine.status().waiting == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    first.vanish();
    eventually("the third run", || server.requests().len() == 2 && activity.is_running()).await;
    third.vanish();
    eventually("the end of the third run", || activity.stopped() == 2).await;
}
