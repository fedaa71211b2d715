//! A server on a free port, and a plain client for it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::{Backend, Engine, Limits, ModelInfo, Observer, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{HeaderMap, Method, Response, StatusCode};
use hyper_util::rt::TokioIo;
use model::Ranking;
use serde_json::{Value, json};
use server::{Drained, Models, Options};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;

use crate::script::{AtOnce, MODEL, Run, Script};

/// Name of the model.
pub(crate) const NAME: &str = "tests/tiny";
/// What it is asked to rank a document.
pub(crate) const RANKING_PROMPT: &str = "Does {document} answer {query}?";
/// Tokens that its context holds.
pub(crate) const CONTEXT: usize = 4096;
/// No wait in these tests is meant to take longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// The model of the tests under some name.
pub(crate) fn model(id: &str) -> ModelInfo {
    ModelInfo {
        id: id.to_owned(),
        created: 1_700_000_000,
        tokenizer: Arc::clone(&MODEL.tokenizer),
        chat_template: MODEL.template.clone(),
        ranking: Some(Arc::new(Ranking::new(RANKING_PROMPT, &[0.1, 0.0], &[0.0, 0.0]))),
        context: CONTEXT,
        details: MODEL.details.clone(),
    }
}

/// A server that runs. It is stopped without drain when dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Engine,
    requests: Arc<Mutex<Vec<Request>>>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Drained>,
}

impl Server {
    pub(crate) async fn start(script: impl FnMut(&Request, &mut dyn Observer) -> Run + Send + 'static) -> Self {
        Self::with(Options::default(), Limits::default(), script).await
    }

    pub(crate) async fn with(
        options: Options,
        limits: Limits,
        script: impl FnMut(&Request, &mut dyn Observer) -> Run + Send + 'static,
    ) -> Self {
        let script = Script(Mutex::new(script));
        Self::over(options, limits, move |request, observer| script.generate(request, observer)).await
    }

    /// With a backend that runs requests at the same time, as many as the limits allow.
    pub(crate) async fn over(
        options: Options,
        limits: Limits,
        backend: impl Fn(&Request, &mut dyn Observer) -> Run + Send + Sync + 'static,
    ) -> Self {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&requests);
        let backend = AtOnce(move |request: &Request, observer: &mut dyn Observer| {
            record.lock().unwrap().push(request.clone());
            backend(request, observer)
        });
        let engine = Engine::start(model(NAME), limits, Box::new(backend));
        Self::of(engine.clone().into(), engine, options, requests).await
    }

    /// With several models, of which `engine` runs one.
    pub(crate) async fn of(
        models: Models,
        engine: Engine,
        options: Options,
        requests: Arc<Mutex<Vec<Request>>>,
    ) -> Self {
        let listener = server::bind("127.0.0.1:0").await.unwrap();
        let address = listener.address();
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async { drop(stopped.await) };
        let task = tokio::spawn(server::serve(listener, models, options, shutdown));
        Self { address, engine, requests, stop: Some(stop), task }
    }

    /// The only request that the engine got.
    pub(crate) fn only_request(&self) -> Request {
        let requests = self.requests.lock().unwrap();
        assert_eq!(requests.len(), 1);
        requests[0].clone()
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// Gives the shutdown signal.
    pub(crate) fn signal(&mut self) {
        drop(self.stop.take());
    }

    /// Waits for the end of the server after the signal.
    pub(crate) async fn drained(&mut self) -> Drained {
        within(&mut self.task).await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, None, Vec::new()).await.answer().await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_bytes(path, body.to_string().into_bytes()).await
    }

    pub(crate) async fn post_bytes(&self, path: &str, body: Vec<u8>) -> Answer {
        self.send(Method::POST, path, Some("application/json"), body).await.answer().await
    }

    /// Posts and reads the stream of the answer to its end.
    pub(crate) async fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let answer = self.post(path, body).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
        assert_eq!(answer.headers["content-type"], "text/event-stream");
        let mut events = Vec::new();
        for line in answer.text().lines().filter(|line| !line.is_empty() && !line.starts_with(':')) {
            events.push(line.strip_prefix("data: ").unwrap_or_else(|| panic!("not an event: {line}")).to_owned());
        }
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// Sends a request on a connection of its own and waits for the head of the answer.
    pub(crate) async fn send(&self, method: Method, path: &str, kind: Option<&str>, body: Vec<u8>) -> Exchange {
        Client { address: self.address }.send(method, path, kind, body).await
    }

    /// The same with any headers.
    pub(crate) async fn send_with(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Exchange {
        Client { address: self.address }.send_with(method, path, headers, body).await
    }

    /// Posts a request and leaves the answer to a task.
    pub(crate) fn post_in_background(&self, path: &'static str, body: &Value) -> Background {
        let client = Client { address: self.address };
        let body = body.to_string().into_bytes();
        Background(tokio::spawn(async move {
            client.send(Method::POST, path, Some("application/json"), body).await.answer().await
        }))
    }

    /// Waits until the engine has so many requests that run and wait.
    pub(crate) async fn wait_for_status(&self, running: usize, waiting: usize) {
        eventually("the engine's status", || {
            let status = self.engine.status();
            (status.running, status.waiting) == (running, waiting)
        })
        .await;
    }
}

struct Client {
    address: SocketAddr,
}

impl Client {
    async fn send(&self, method: Method, path: &str, kind: Option<&str>, body: Vec<u8>) -> Exchange {
        let headers: Vec<_> = kind.map(|kind| ("content-type", kind)).into_iter().collect();
        self.send_with(method, path, &headers, body).await
    }

    async fn send_with(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Exchange {
        let stream = within(TcpStream::connect(self.address)).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        // An error of the connection shows in the answer as well.
        let connection = Connection(tokio::spawn(async { drop(connection.await) }).abort_handle());
        let mut request = hyper::Request::builder().method(method).uri(path).header("host", "localhost");
        for &(name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        let response = within(sender.send_request(request)).await.unwrap();
        Exchange { response, connection }
    }
}

/// Closes the connection when dropped.
struct Connection(AbortHandle);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A request under way whose client can vanish.
pub(crate) struct Background(JoinHandle<Answer>);

impl Background {
    pub(crate) async fn answer(self) -> Answer {
        within(self.0).await.unwrap()
    }

    /// Closes the connection in the middle.
    pub(crate) fn vanish(self) {
        self.0.abort();
    }
}

/// An answer that has begun.
pub(crate) struct Exchange {
    pub(crate) response: Response<Incoming>,
    connection: Connection,
}

impl Exchange {
    /// The whole answer.
    pub(crate) async fn answer(self) -> Answer {
        let (head, body) = self.response.into_parts();
        let body = within(body.collect()).await.unwrap().to_bytes();
        Answer { status: head.status, headers: head.headers, body }
    }

    /// The next piece of the body.
    pub(crate) async fn next(&mut self) -> Option<String> {
        let frame = within(self.response.body_mut().frame()).await?;
        Some(String::from_utf8(frame.unwrap().into_data().unwrap().to_vec()).unwrap())
    }

    /// Closes the connection in the middle.
    pub(crate) fn vanish(self) {
        drop(self.connection);
    }
}

/// A whole answer.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(self.text()).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    /// The body of an answer that went well.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text());
        self.json()
    }

    /// Status, and the error's type, param and code.
    pub(crate) fn error(&self) -> (u16, String, Option<String>, String) {
        let body = self.json();
        let error = &body["error"];
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "no message in {body}");
        let text = |name: &str| error[name].as_str().map(str::to_owned);
        (self.status.as_u16(), text("type").unwrap(), text("param"), text("code").unwrap())
    }
}

/// The events of a stream that names them, and what they say.
pub(crate) fn named_events(answer: &Answer) -> Vec<(String, Value)> {
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    let blocks = answer.text().split("\n\n").filter(|block| !block.is_empty() && !block.starts_with(':'));
    let read = |block: &str| {
        // The order of the two lines is not fixed.
        let line =
            |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{block}"));
        (line("event: ").to_owned(), serde_json::from_str(line("data: ")).unwrap())
    };
    blocks.map(read).collect()
}

/// A chat request with one message and these further fields.
pub(crate) fn chat(more: Value) -> Value {
    with(json!({"model": NAME, "messages": [{"role": "user", "content": "Hi"}]}), more)
}

/// A completion request with the prompt `Hi` and these further fields.
pub(crate) fn completion(more: Value) -> Value {
    with(json!({"model": NAME, "prompt": "Hi"}), more)
}

/// A request with these further fields.
pub(crate) fn with(mut body: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("not an object: {more}") };
    body.as_object_mut().unwrap().extend(more);
    body
}

/// Waits for `future`, but not forever.
pub(crate) async fn within<F: IntoFuture>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future.into_future()).await.expect("took too long")
}

/// Waits until `condition` holds.
pub(crate) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
