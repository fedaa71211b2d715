//! Spans of requests, at a collector.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use engine::Limits;
use hyper::Method;
use serde_json::{Value, json};
use server::{Options, Traces, TracesError};

use crate::harness::{NAME, Server, chat, within};
use crate::script::{gated, says, tokens};

const CHAT: &str = "/v1/chat/completions";
const ANSWER: &str = "zebra";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// A collector on a free port: its URL, and the paths and bodies that are sent to it.
fn collector() -> (String, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (heard, hear) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let lines: Vec<_> =
                stream.by_ref().lines().map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
            let length =
                lines.iter().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            let mut body = vec![0; length.unwrap()];
            stream.read_exact(&mut body).unwrap();
            stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}").unwrap();
            let path = lines[0].split(' ').nth(1).unwrap().to_owned();
            if heard.send((path, serde_json::from_slice(&body).unwrap())).is_err() {
                return;
            }
        }
    });
    (url, hear)
}

async fn server(traces: &Traces) -> Server {
    let options = Options { traces: Some(traces.clone()), ..Options::default() };
    Server::with(options, Limits::default(), says(ANSWER)).await
}

async fn ask(server: &Server, traceparent: &str, body: Value) {
    let headers = [("content-type", "application/json"), ("traceparent", traceparent), ("x-request-id", "mine")];
    let exchange = server.send_with(Method::POST, CHAT, &headers, body.to_string().into()).await;
    assert_eq!(exchange.answer().await.status, 200);
}

/// The value of an attribute.
fn attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let found = span["attributes"].as_array().unwrap().iter().find(|attribute| attribute["key"] == key);
    &found.unwrap_or_else(|| panic!("no {key} in {span}"))["value"]
}

#[tokio::test]
async fn a_span_of_each_request_reaches_the_collector() {
    let (url, hear) = collector();
    let traces = Traces::start(&url).unwrap();
    let server = server(&traces).await;
    server.get("/health").await.ok();
    ask(&server, &format!("00-{TRACE}-{PARENT}-00"), chat(json!({"user": "not recorded"}))).await;
    ask(&server, &format!("00-{TRACE}-{PARENT}-01"), chat(json!({"stream": true}))).await;
    server.get("/nowhere").await.error();
    let mut spans = Vec::new();
    let spans = tokio::task::spawn_blocking(move || {
        while spans.len() < 2 {
            let (path, body) = hear.recv_timeout(Duration::from_secs(20)).unwrap();
            assert_eq!(path, "/v1/traces");
            let resource = &body["resourceSpans"][0];
            assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "ropewalk");
            spans.extend(resource["scopeSpans"][0]["spans"].as_array().unwrap().clone());
        }
        spans
    });
    let spans = within(spans).await.unwrap();
    let span = &spans[0];
    assert_eq!((&span["traceId"], &span["parentSpanId"]), (&json!(TRACE), &json!(PARENT)));
    assert_eq!((&span["name"], &span["kind"]), (&json!("POST /v1/chat/completions"), &json!(2)));
    let output = tokens(ANSWER).len() + 1;
    for (key, value) in [
        ("http.request.method", json!({"stringValue": "POST"})),
        ("http.response.status_code", json!({"intValue": "200"})),
        ("url.path", json!({"stringValue": CHAT})),
        ("http.route", json!({"stringValue": CHAT})),
        ("gen_ai.request.id", json!({"stringValue": "mine"})),
        ("gen_ai.request.model", json!({"stringValue": NAME})),
        ("gen_ai.usage.output_tokens", json!({"intValue": output.to_string()})),
        ("gen_ai.response.finish_reasons", json!({"arrayValue": {"values": [{"stringValue": "stop"}]}})),
    ] {
        assert_eq!(attribute(span, key), &value, "{key}");
    }
    let input: usize = attribute(span, "gen_ai.usage.input_tokens")["intValue"].as_str().unwrap().parse().unwrap();
    assert_eq!(input, server.requests()[1].prompt.len());
    let first = attribute(span, "gen_ai.latency.time_to_first_token")["doubleValue"].as_f64().unwrap();
    let whole = attribute(span, "gen_ai.latency.e2e")["doubleValue"].as_f64().unwrap();
    assert!(0.0 < first && first <= whole, "{first} {whole}");
    let time = |name: &str| span[name].as_str().unwrap().parse::<u64>().unwrap();
    assert!(time("startTimeUnixNano") <= time("endTimeUnixNano"));
    // Neither what was asked nor what was answered.
    assert!(!span.to_string().contains("Hi") && !span.to_string().contains(ANSWER), "{span}");
    // One without a parent begins a trace of its own.
    let lost = &spans[1];
    assert_eq!((&lost["name"], &lost["parentSpanId"]), (&json!("GET"), &json!("")));
    assert_eq!(attribute(lost, "http.response.status_code"), &json!({"intValue": "404"}));
    assert_ne!(lost["traceId"], TRACE);
}

#[tokio::test]
async fn requests_do_not_care_whether_the_collector_listens() {
    // A collector that takes connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let traces = Traces::start(&format!("http://{}/v1/traces", silent.local_addr().unwrap())).unwrap();
    let quiet = server(&traces).await;
    quiet.post(CHAT, &chat(json!({}))).await.ok();
    traces.finish(Duration::from_millis(1));
    // One that is not there.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let traces = Traces::start(&format!("http://{free}")).unwrap();
    let server = server(&traces).await;
    server.post(CHAT, &chat(json!({}))).await.ok();
    // The span is there once the answer's connection is done with.
    server.get("/health").await.ok();
    traces.finish(Duration::from_secs(20));
    let metrics = server.get("/metrics").await;
    for line in ["ropewalk:trace_spans_dropped_total 1", "ropewalk:trace_spans_exported_total 0"] {
        assert!(metrics.text().lines().any(|have| have == line), "no {line} in\n{}", metrics.text());
    }
}

#[tokio::test]
async fn the_span_of_a_client_that_leaves_says_so() {
    let (url, hear) = collector();
    let (_gate, script) = gated("x");
    let traces = Traces::start(&url).unwrap();
    let options = Options { traces: Some(traces), ..Options::default() };
    let server = Server::with(options, Limits::default(), script).await;
    let request = server.post_in_background(CHAT, &chat(json!({})));
    server.wait_for_status(1, 0).await;
    request.vanish();
    let heard = tokio::task::spawn_blocking(move || hear.recv_timeout(Duration::from_secs(20)).unwrap());
    let (_, body) = within(heard).await.unwrap();
    let span = &body["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
    assert_eq!(attribute(span, "http.response.status_code"), &json!({"intValue": "499"}));
    assert_eq!(attribute(span, "gen_ai.response.finish_reasons")["arrayValue"]["values"][0]["stringValue"], "abort");
}

#[test]
fn what_is_no_collector_is_refused() {
    for wrong in ["localhost:4318", "grpc://localhost:4317", "nonsense", ""] {
        assert!(matches!(Traces::start(wrong), Err(TracesError::Endpoint { .. })), "{wrong}");
    }
}
