//! Encrypted connections.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use engine::Limits;
use serde_json::json;
use server::{Drained, Options, Tls, TlsError};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};

use crate::harness::{Server, chat, eventually, within};
use crate::script::{Activity, endless_with_pauses, says};

const REQUEST: &[u8] = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
const SHORT: Duration = Duration::from_millis(100);

/// A folder with a certificate for `localhost` and its key.
struct Files {
    folder: TempDir,
    trusted: CertificateDer<'static>,
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let trusted = write(&folder);
        Self { folder, trusted }
    }

    /// Puts others in their place.
    fn renew(&mut self) {
        self.trusted = write(&self.folder);
    }

    fn certificate(&self) -> PathBuf {
        self.folder.path().join("cert.pem")
    }

    fn key(&self) -> PathBuf {
        self.folder.path().join("key.pem")
    }

    fn load(&self) -> Result<Tls, TlsError> {
        Tls::load(&self.certificate(), &self.key())
    }
}

fn write(folder: &TempDir) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(folder.path().join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    made.cert.der().clone()
}

fn options(tls: &Tls) -> Options {
    Options { tls: Some(tls.clone()), ..Options::default() }
}

async fn connect(
    server: &Server,
    trusted: &CertificateDer<'static>,
    version: &'static SupportedProtocolVersion,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let mut config =
        config.with_protocol_versions(&[version]).unwrap().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let stream = TcpStream::connect(server.address).await.unwrap();
    within(TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), stream)).await
}

async fn ask(stream: &mut TlsStream<TcpStream>) -> String {
    within(stream.write_all(REQUEST)).await.unwrap();
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.unwrap();
    answer
}

#[tokio::test]
async fn connections_are_encrypted() {
    let files = Files::new();
    let server = Server::with(options(&files.load().unwrap()), Limits::default(), says("abc")).await;
    for version in [&TLS12, &TLS13] {
        let mut stream = connect(&server, &files.trusted, version).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"http/1.1".as_slice()));
        assert!(ask(&mut stream).await.starts_with("HTTP/1.1 200"));
    }
    // Nothing is told to whoever speaks in the clear.
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(REQUEST).await.unwrap();
    let mut answer = Vec::new();
    let _ = within(stream.read_to_end(&mut answer)).await;
    assert!(!answer.starts_with(b"HTTP"));
}

#[tokio::test]
async fn certificates_are_replaced_while_connections_go_on() {
    let mut files = Files::new();
    let tls = files.load().unwrap();
    let server = Server::with(options(&tls), Limits::default(), says("abc")).await;
    let mut before = connect(&server, &files.trusted, &TLS13).await.unwrap();
    let first = files.trusted.clone();
    files.renew();
    tls.reload().unwrap();
    assert!(ask(&mut before).await.starts_with("HTTP/1.1 200"));
    assert!(connect(&server, &first, &TLS13).await.is_err());
    assert!(ask(&mut connect(&server, &files.trusted, &TLS13).await.unwrap()).await.starts_with("HTTP/1.1 200"));
    // What cannot be used changes nothing.
    std::fs::write(files.certificate(), "").unwrap();
    assert!(matches!(tls.reload(), Err(TlsError::NoCertificate { .. })));
    assert!(ask(&mut connect(&server, &files.trusted, &TLS13).await.unwrap()).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn silent_clients_hold_nobody_up_and_are_cut_off() {
    let files = Files::new();
    let options = Options { handshake_timeout: SHORT, ..options(&files.load().unwrap()) };
    let server = Server::with(options, Limits::default(), says("abc")).await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    let mut stream = connect(&server, &files.trusted, &TLS13).await.unwrap();
    assert!(ask(&mut stream).await.starts_with("HTTP/1.1 200"));
    assert_eq!(within(silent.read(&mut [0; 1])).await.unwrap(), 0);
    // Nor do those that have shaken hands and then say nothing.
    let _idle = connect(&server, &files.trusted, &TLS13).await.unwrap();
}

#[tokio::test]
async fn handshakes_do_not_hold_up_the_end() {
    let files = Files::new();
    let mut server = Server::with(options(&files.load().unwrap()), Limits::default(), says("abc")).await;
    let _silent = TcpStream::connect(server.address).await.unwrap();
    // Connections are accepted in their order, so that the first one is under way once the second has its answer.
    ask(&mut connect(&server, &files.trusted, &TLS13).await.unwrap()).await;
    server.signal();
    let ended = tokio::time::timeout(Duration::from_secs(5), server.drained()).await;
    assert_eq!(ended.unwrap(), Drained { cancelled: 0 });
}

#[tokio::test]
async fn a_client_that_stops_reading_is_cut_off() {
    let files = Files::new();
    let activity = Activity::default();
    let script = endless_with_pauses(activity.clone(), "word ", Duration::ZERO);
    let options = Options { write_timeout: SHORT, ..options(&files.load().unwrap()) };
    let server = Server::with(options, Limits::default(), script).await;
    let mut stream = connect(&server, &files.trusted, &TLS13).await.unwrap();
    let body = chat(json!({"stream": true, "logprobs": true, "top_logprobs": 20})).to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    eventually("the first token", || activity.is_running()).await;
    eventually("the cut", || activity.stopped() == 1).await;
}

#[test]
fn what_is_wrong_with_files_is_told_with_their_names() {
    let (files, others) = (Files::new(), Files::new());
    let (certificate, key) = (files.certificate(), files.key());
    let told = |certificate: &PathBuf, key: &PathBuf| Tls::load(certificate, key).unwrap_err().to_string();
    let name = |path: &PathBuf| path.display().to_string();
    let gone = files.folder.path().join("gone.pem");
    let error = told(&gone, &key);
    assert!(error.starts_with(&format!("cannot read {}", name(&gone))), "{error}");
    let error = told(&key, &key);
    assert!(error.starts_with(&format!("there is no certificate in {}", name(&key))), "{error}");
    let error = told(&certificate, &certificate);
    assert!(error.starts_with(&format!("there is no private key in {}", name(&certificate))), "{error}");
    let error = told(&certificate, &others.key());
    assert!(error.contains(&name(&others.key())) && error.contains("is not that of the first certificate"), "{error}");
    let damaged = files.folder.path().join("damaged.pem");
    std::fs::write(&damaged, "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n").unwrap();
    let error = told(&damaged, &key);
    assert!(error.starts_with(&format!("{} is damaged", name(&damaged))), "{error}");
    // A section that is no certificate inside.
    std::fs::write(&damaged, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    let error = told(&damaged, &key);
    assert!(error.contains(&name(&damaged)), "{error}");
    // Both in one file are fine.
    let both = [std::fs::read(&certificate).unwrap(), std::fs::read(&key).unwrap()].concat();
    std::fs::write(&damaged, both).unwrap();
    Tls::load(&damaged, &damaged).unwrap();
}
