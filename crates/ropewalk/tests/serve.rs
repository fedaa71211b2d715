//! The server as a process: serves, frees its slot when a client leaves, and ends in good order.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Running, tiny, wait_for};
use rustix::process::Signal;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};

/// A server with two ranks, and the address it says it listens on.
fn serve() -> (Running, String) {
    serve_with(&[&tiny("tiny-llama"), "--ranks", "2"])
}

fn serve_with(arguments: &[&str]) -> (Running, String) {
    let mut running = Running::start(&[&["serve", "--listen", "127.0.0.1:0"], arguments].concat());
    let mut line = String::new();
    BufReader::new(running.0.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.split("://").nth(1).unwrap_or_else(|| panic!("no address in {line:?}"));
    let address = address.split_whitespace().next().unwrap().to_owned();
    (running, address)
}

fn send(address: &str, method: &str, path: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    let head = format!("{head}content-type: application/json\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all((head + body).as_bytes()).unwrap();
    stream
}

fn ask(address: &str, method: &str, path: &str, body: &str) -> String {
    let mut answer = String::new();
    send(address, method, path, body).read_to_string(&mut answer).unwrap();
    answer
}

/// The first line of the answer to a request with a key.
fn status_with(address: &str, key: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = format!("GET /v1/models HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\nx-api-key: {key}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.lines().next().unwrap().to_owned()
}

fn chat(tokens: u32, stream: bool) -> String {
    let messages = json!([{ "role": "user", "content": "Hello" }]);
    json!({ "model": "tiny-llama", "messages": messages, "max_tokens": tokens, "stream": stream, "ignore_eos": true })
        .to_string()
}

#[test]
fn answers_and_counts() {
    let (running, address) = serve();
    let answer = ask(&address, "POST", "/v1/chat/completions", &chat(6, false));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["usage"]["completion_tokens"], 6, "{body}");
    assert!(ask(&address, "GET", "/health", "").starts_with("HTTP/1.1 200"));
    assert!(ask(&address, "GET", "/metrics", "").contains("generation_tokens_total"));
    assert!(ask(&address, "POST", "/v1/chat/completions", "{").starts_with("HTTP/1.1 400"));
    running.signal(Signal::TERM);
    assert_eq!(running.finish().0, Some(0));
}

#[test]
fn several_models_take_turns_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["tiny-llama", "tiny-qwen2"] {
        std::fs::copy(tiny(name), folder.path().join(format!("{name}.gguf"))).unwrap();
    }
    std::fs::write(folder.path().join("notes.txt"), "no model").unwrap();
    let (running, address) =
        serve_with(&["--models-dir", folder.path().to_str().unwrap(), "--models-max", "1", "--ranks", "2"]);
    let models = |address: &str| {
        let answer = ask(address, "GET", "/v1/models", "");
        let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        let place = |model: &Value| (model["id"].as_str().unwrap().to_owned(), model["status"]["value"] == "loaded");
        body["data"].as_array().unwrap().iter().map(place).collect::<Vec<_>>()
    };
    let places = |first, second| vec![("tiny-llama".to_owned(), first), ("tiny-qwen2".to_owned(), second)];
    assert_eq!(models(&address), places(true, false));
    let of_first = running.wait_for_children(2);
    let request = chat(3, false).replace("tiny-llama", "tiny-qwen2");
    let answer = ask(&address, "POST", "/v1/chat/completions", &request);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("tiny-qwen2"), "{answer}");
    assert_eq!(models(&address), places(false, true));
    for rank in of_first {
        wait_for(|| (!common::is_alive(rank)).then_some(()));
    }
    assert!(ask(&address, "POST", "/v1/chat/completions", &chat(3, false)).starts_with("HTTP/1.1 200"));
    running.signal(Signal::TERM);
    assert_eq!(running.finish().0, Some(0));
}

#[test]
fn a_client_that_leaves_frees_its_slot_within_a_second() {
    let (_running, address) = serve();
    let mut stream = send(&address, "POST", "/v1/chat/completions", &chat(3000, true));
    stream.read_exact(&mut [0; 200]).unwrap();
    drop(stream);
    let left = Instant::now();
    let answer = ask(&address, "POST", "/v1/chat/completions", &chat(1, false));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(left.elapsed() < Duration::from_secs(1), "{:?}", left.elapsed());
}

#[test]
fn a_dead_rank_makes_the_server_unhealthy() {
    let (running, address) = serve();
    let ranks = running.wait_for_children(2);
    rustix::process::kill_process(ranks[1], Signal::KILL).unwrap();
    wait_for(|| ask(&address, "GET", "/health", "").starts_with("HTTP/1.1 503").then_some(()));
    let answer = ask(&address, "POST", "/v1/chat/completions", &chat(1, false));
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("rank 1"), "{answer}");
}

#[test]
fn idle_ranks_end_when_their_server_is_killed() {
    let (running, address) = serve();
    assert!(ask(&address, "GET", "/health", "").starts_with("HTTP/1.1 200"));
    let ranks = running.wait_for_children(2);
    running.signal(Signal::KILL);
    for rank in ranks {
        wait_for(|| (!common::is_alive(rank)).then_some(()));
    }
}

#[test]
fn a_stopping_server_finishes_what_runs() {
    let (running, address) = serve();
    let mut stream = send(&address, "POST", "/v1/chat/completions", &chat(200, true));
    let mut begin = [0; 200];
    stream.read_exact(&mut begin).unwrap();
    running.signal(Signal::TERM);
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("[DONE]"), "{rest}");
    assert_eq!(running.finish().0, Some(0));
}

#[test]
fn keys_come_from_a_file_which_is_read_anew_on_a_hangup() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    std::fs::write(&path, "alice sk-1 concurrent=2\n").unwrap();
    let (model, file) = (tiny("tiny-llama"), path.to_str().unwrap());
    let arguments = [&model, "--ranks", "1", "--api-key-file", file, "--api-key", "sk-other"];
    let (running, address) = serve_with(&arguments);
    assert_eq!(status_with(&address, "sk-0"), "HTTP/1.1 401 Unauthorized");
    assert_eq!(status_with(&address, "sk-1"), "HTTP/1.1 200 OK");
    assert_eq!(status_with(&address, "sk-other"), "HTTP/1.1 200 OK");
    std::fs::write(&path, "alice sk-2\n").unwrap();
    running.signal(Signal::HUP);
    wait_for(|| status_with(&address, "sk-1").contains("401").then_some(()));
    assert_eq!(status_with(&address, "sk-2"), "HTTP/1.1 200 OK");
    // A file that cannot be used changes nothing.
    std::fs::write(&path, "alice sk-2 concurrent=two\n").unwrap();
    running.signal(Signal::HUP);
    assert_eq!(status_with(&address, "sk-2"), "HTTP/1.1 200 OK");
    running.signal(Signal::TERM);
    assert_eq!(running.finish().0, Some(0));
}

/// Writes a new certificate for `localhost` and its key into `folder`.
fn certify(folder: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(folder.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    made.cert.der().clone()
}

/// Whether the server at `address` proves by the certificate `trusted` that it is `localhost`, and answers.
fn answers_securely(address: &str, trusted: &CertificateDer<'static>) -> bool {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let config =
        config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots).with_no_client_auth();
    let client = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut stream = StreamOwned::new(client, TcpStream::connect(address).unwrap());
    let asked = stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let mut answer = String::new();
    asked.is_ok() && stream.read_to_string(&mut answer).is_ok() && answer.starts_with("HTTP/1.1 200")
}

#[test]
fn certificates_are_read_anew_on_a_hangup() {
    let folder = tempfile::tempdir().unwrap();
    let first = certify(folder.path());
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (model, certificate, key) = (tiny("tiny-llama"), path("cert.pem"), path("key.pem"));
    let files = ["--ssl-certfile", &certificate, "--ssl-keyfile", &key];
    let (mut running, address) = serve_with(&[&[model.as_str(), "--ranks", "1"], files.as_slice()].concat());
    assert!(answers_securely(&address, &first));
    let second = certify(folder.path());
    running.signal(Signal::HUP);
    wait_for(|| answers_securely(&address, &second).then_some(()));
    assert!(!answers_securely(&address, &first));
    // What cannot be used changes nothing, and the log says why.
    std::fs::write(&certificate, "no certificate").unwrap();
    let mut log = BufReader::new(running.0.stderr.take().unwrap());
    running.signal(Signal::HUP);
    let mut line = String::new();
    log.read_line(&mut line).unwrap();
    assert!(line.contains("stays as it was") && line.contains(&certificate), "{line}");
    assert!(answers_securely(&address, &second));
}

#[test]
fn the_last_traces_are_sent_before_the_end() {
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    collector.set_nonblocking(true).unwrap();
    let endpoint = format!("http://{}", collector.local_addr().unwrap());
    let model = tiny("tiny-llama");
    let (running, address) = serve_with(&[&model, "--ranks", "1", "--otlp-traces-endpoint", &endpoint]);
    assert!(ask(&address, "POST", "/v1/chat/completions", &chat(3, false)).starts_with("HTTP/1.1 200"));
    running.signal(Signal::TERM);
    let (mut stream, _) = wait_for(|| collector.accept().ok());
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut sent = Vec::new();
    while !sent.ends_with(b"]}]}") {
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).unwrap();
        assert!(length > 0, "{}", String::from_utf8_lossy(&sent));
        sent.extend_from_slice(&piece[..length]);
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
    let sent = String::from_utf8(sent).unwrap();
    assert!(sent.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{sent}");
    assert!(sent.contains("gen_ai.usage.output_tokens") && !sent.contains("Hello"), "{sent}");
    assert_eq!(running.finish().0, Some(0));
}

#[test]
fn the_configuration_is_read_anew_while_the_server_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    let configure = |text: &str| std::fs::write(&path, format!("[serve]\nranks = 1\n{text}")).unwrap();
    configure("parallel = 2\napi-key = 'sk-1'\nlog-level = 'warn'\n");
    let (mut running, address) = serve_with(&[&tiny("tiny-llama"), "--config", path.to_str().unwrap()]);
    let mut log = BufReader::new(running.0.stderr.take().unwrap()).lines();
    let mut said = |words: &str| log.find(|line| line.as_ref().unwrap().contains(words)).unwrap().unwrap();
    assert_eq!(status_with(&address, "sk-1"), "HTTP/1.1 200 OK");
    configure("parallel = 3\napi-key = 'sk-2'\nlog-level = 'info'\nrequest-timeout = 60\n");
    running.signal(Signal::HUP);
    let line = said("read anew");
    assert!(["api-key", "log-level", "request-timeout"].iter().all(|name| line.contains(name)), "{line}");
    assert!(!line.contains("parallel") && !line.contains("sk-"), "{line}");
    assert!(said("restart").ends_with(": parallel"));
    assert!(status_with(&address, "sk-1").contains("401"));
    assert_eq!(status_with(&address, "sk-2"), "HTTP/1.1 200 OK");
    // A file with a mistake changes nothing, not even what is right in it.
    configure("api-key = 'sk-3'\nrequest-timeout = 'soon'\n");
    running.signal(Signal::HUP);
    let line = said("as they were");
    assert!(line.contains("config.toml:4: ") && line.contains("a number"), "{line}");
    assert_eq!(status_with(&address, "sk-2"), "HTTP/1.1 200 OK");
    assert!(status_with(&address, "sk-3").contains("401"));
    running.signal(Signal::TERM);
    assert!(wait_for(|| running.0.try_wait().unwrap()).success());
}

#[test]
fn a_second_signal_ends_a_draining_server_at_once() {
    let (running, address) = serve();
    let mut stream = send(&address, "POST", "/v1/chat/completions", &chat(3000, true));
    stream.read_exact(&mut [0; 200]).unwrap();
    running.signal(Signal::TERM);
    wait_for(|| TcpStream::connect(&address).is_err().then_some(()));
    running.signal(Signal::TERM);
    assert_eq!(running.finish().0, Some(130));
}

#[test]
fn requests_are_logged_without_their_text() {
    let model = tiny("tiny-llama");
    let arguments = [&model, "--ranks", "1", "--log-level", "warn,access=info", "--log-format", "json"];
    let (mut running, address) = serve_with(&arguments);
    let mut log = BufReader::new(running.0.stderr.take().unwrap());
    let body = chat(3, false).replace("Hello", "a secret");
    assert!(ask(&address, "POST", "/v1/chat/completions", &body).starts_with("HTTP/1.1 200"));
    let mut line = String::new();
    log.read_line(&mut line).unwrap();
    let entry: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&entry["route"], &entry["status"]), (&json!("/v1/chat/completions"), &json!(200)), "{line}");
    assert!(entry["id"].is_string() && entry["whole"] == true && entry["client"] == "127.0.0.1", "{line}");
    assert!(!line.contains("secret"), "{line}");
}
