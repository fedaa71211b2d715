//! Models, health, metrics, and what answers say of themselves.

use hyper::Method;
use serde_json::json;

use crate::harness::{CONTEXT, NAME, Server, chat, completion, eventually};
use crate::script::{Activity, endless, gated, says, tokens};

#[tokio::test]
async fn models_are_listed_and_found_by_name() {
    let server = Server::start(says("x")).await;
    let model = json!({
        "id": NAME, "object": "model", "created": 1_700_000_000, "owned_by": "ropewalk", "max_model_len": CONTEXT,
        "status": {"value": "loaded"},
        "type": "model", "display_name": NAME, "created_at": "2023-11-14T22:13:20.000000000Z",
    });
    let list = json!({"object": "list", "data": [model], "has_more": false, "first_id": NAME, "last_id": NAME});
    assert_eq!(server.get("/v1/models").await.ok(), list);
    // With the slash of the name as it is, and escaped as clients do.
    assert_eq!(server.get("/v1/models/tests/tiny").await.ok(), model);
    assert_eq!(server.get("/v1/models/tests%2Ftiny").await.ok(), model);
    let missing = server.get("/v1/models/other").await.error();
    let expected = (404, "invalid_request_error".to_owned(), Some("model".to_owned()), "model_not_found".to_owned());
    assert_eq!(missing, expected);
}

#[tokio::test]
async fn health_tells_what_runs_and_waits() {
    let (gate, script) = gated("x");
    let server = Server::start(script).await;
    assert_eq!(server.get("/health").await.ok(), json!({"status": "ok", "running": 0, "waiting": 0}));
    let first = server.post_in_background("/v1/chat/completions", &chat(json!({})));
    server.wait_for_status(1, 0).await;
    let second = server.post_in_background("/v1/chat/completions", &chat(json!({})));
    server.wait_for_status(1, 1).await;
    assert_eq!(server.get("/health").await.ok(), json!({"status": "ok", "running": 1, "waiting": 1}));
    let metrics = server.get("/metrics").await;
    for gauge in ["ropewalk:num_requests_running", "ropewalk:num_requests_waiting", "ropewalk:engine_up"] {
        let line = format!("{gauge}{{model_name=\"{NAME}\"}} 1");
        assert!(metrics.text().contains(&line), "no {line} in {}", metrics.text());
    }
    gate.open();
    gate.open();
    first.answer().await.ok();
    second.answer().await.ok();
}

#[tokio::test]
async fn metrics_count_what_was_done() {
    let server = Server::start(says("abc")).await;
    let prompt = tokens("Hi").len();
    let request = completion(json!({"add_special_tokens": false}));
    server.post("/v1/completions", &request).await.ok();
    server.post("/v1/completions", &completion(json!({"add_special_tokens": false, "max_tokens": 2}))).await.ok();
    server.post("/v1/completions", &json!({})).await.error();
    server.get("/nowhere").await.error();
    let metrics = server.get("/metrics").await;
    assert_eq!(metrics.headers["content-type"], "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let whole = tokens("abc").len() + 1;
    let model = format!("model_name=\"{NAME}\"");
    let expected = [
        format!("ropewalk:prompt_tokens_total{{{model}}} {}", 2 * prompt),
        format!("ropewalk:prefix_cache_queries_total{{{model}}} {}", 2 * prompt),
        format!("ropewalk:prefix_cache_hits_total{{{model}}} 2"),
        format!("ropewalk:generation_tokens_total{{{model}}} {}", whole + 2),
        format!("ropewalk:request_success_total{{{model},finished_reason=\"stop\"}} 1"),
        format!("ropewalk:request_success_total{{{model},finished_reason=\"length\"}} 1"),
        format!("ropewalk:time_to_first_token_seconds_count{{{model}}} 2"),
        format!("ropewalk:e2e_request_latency_seconds_count{{{model}}} 2"),
        format!("ropewalk:request_queue_time_seconds_count{{{model}}} 2"),
        format!("ropewalk:request_prefill_time_seconds_sum{{{model}}} 0.006"),
        format!("ropewalk:request_decode_time_seconds_sum{{{model}}} 0.01"),
        format!("ropewalk:rank_compute_seconds_total{{{model},rank=\"0\"}} 4.0"),
        format!("ropewalk:rank_wait_seconds_total{{{model},rank=\"1\"}} 1.0"),
        format!("ropewalk:rank_peak_resident_bytes{{{model},rank=\"1\"}} 1048576"),
        r#"ropewalk:http_requests_total{route="/v1/completions",status="200"} 2"#.to_owned(),
        r#"ropewalk:http_requests_total{route="/v1/completions",status="400"} 1"#.to_owned(),
        r#"ropewalk:http_requests_total{route="unknown",status="404"} 1"#.to_owned(),
    ];
    assert!(metrics.text().contains("ropewalk:inter_token_latency_seconds_bucket"));
    for line in expected {
        assert!(metrics.text().lines().any(|have| have == line), "no {line} in\n{}", metrics.text());
    }
    assert!(metrics.text().ends_with("# EOF\n"));
}

#[tokio::test]
async fn all_dialects_count() {
    let server = Server::start(says("abc")).await;
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let requests = [
        ("/v1/messages", json!({"model": NAME, "max_tokens": 9, "messages": messages})),
        ("/v1/responses", json!({"model": NAME, "input": "Hi"})),
        ("/api/chat", json!({"model": NAME, "messages": messages})),
        ("/api/generate", json!({"model": NAME, "prompt": "Hi", "stream": false})),
    ];
    for (path, request) in &requests {
        assert_eq!(server.post(path, request).await.status, 200);
        server.post(path, &json!({})).await;
    }
    let metrics = server.get("/metrics").await;
    let model = format!("model_name=\"{NAME}\"");
    let generated = requests.len() * (tokens("abc").len() + 1);
    let mut expected = vec![
        format!("ropewalk:generation_tokens_total{{{model}}} {generated}"),
        format!("ropewalk:prefix_cache_hits_total{{{model}}} {}", requests.len()),
        format!("ropewalk:request_success_total{{{model},finished_reason=\"stop\"}} {}", requests.len()),
    ];
    for (path, status) in requests.iter().flat_map(|(path, _)| [(path, 200), (path, 400)]) {
        expected.push(format!("ropewalk:http_requests_total{{route=\"{path}\",status=\"{status}\"}} 1"));
    }
    for line in expected {
        assert!(metrics.text().lines().any(|have| have == line), "no {line} in\n{}", metrics.text());
    }
}

#[tokio::test]
async fn clients_that_leave_count_as_aborted() {
    let activity = Activity::default();
    let server = Server::start(endless(activity.clone(), "more ")).await;
    let body = chat(json!({"stream": true})).to_string().into_bytes();
    let mut exchange = server.send(Method::POST, "/v1/chat/completions", Some("application/json"), body).await;
    assert!(exchange.next().await.is_some());
    eventually("the first token", || activity.is_running()).await;
    exchange.vanish();
    eventually("the end of the run", || activity.stopped() == 1).await;
    let line = format!("ropewalk:request_success_total{{model_name=\"{NAME}\",finished_reason=\"abort\"}} 1");
    assert!(server.get("/metrics").await.text().contains(&line));
}

#[tokio::test]
async fn clients_that_leave_before_their_answer_have_a_status_of_their_own() {
    let (_gate, script) = gated("x");
    let server = Server::start(script).await;
    let request = server.post_in_background("/v1/chat/completions", &chat(json!({})));
    server.wait_for_status(1, 0).await;
    request.vanish();
    server.wait_for_status(0, 0).await;
    let line = r#"ropewalk:http_requests_total{route="/v1/chat/completions",status="499"} 1"#;
    let metrics = server.get("/metrics").await;
    assert!(metrics.text().contains(line), "{}", metrics.text());
}

#[tokio::test]
async fn other_origins_are_told_nothing_and_every_answer_has_a_request_id() {
    let server = Server::start(says("x")).await;
    let mut ids = Vec::new();
    for path in ["/health", "/v1/models", "/nowhere"] {
        let answer = server.get(path).await;
        assert!(answer.headers.keys().all(|name| !name.as_str().starts_with("access-control-")));
        ids.push(answer.headers["x-request-id"].to_str().unwrap().to_owned());
    }
    ids.dedup();
    assert_eq!(ids.len(), 3);
}

#[tokio::test]
async fn requests_are_served_one_after_the_other_in_the_order_of_their_arrival() {
    let (gate, script) = gated("x");
    let server = Server::start(script).await;
    let mut clients = Vec::new();
    for seed in 0..4 {
        clients.push(server.post_in_background("/v1/chat/completions", &chat(json!({"seed": seed}))));
        server.wait_for_status(1, seed).await;
    }
    clients.iter().for_each(|_| gate.open());
    for client in clients {
        client.answer().await.ok();
    }
    let seeds: Vec<_> = server.requests().iter().map(|request| request.sampling.seed).collect();
    assert_eq!(seeds, [Some(0), Some(1), Some(2), Some(3)]);
}
