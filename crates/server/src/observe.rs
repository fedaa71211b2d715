//! What the operator sees of requests: a name for each, a count, a line in the log, and a span. Never what is asked or answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;

use crate::app::App;
use crate::client::Client;
use crate::dialect::Dialect;
use crate::kept::{Keepsake, Kept};
use crate::stamp;
use crate::tally::{Counts, Tally};
use crate::traces::{Outcome, Traced};

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest name of a request that a client may choose.
const ID_BYTES_MAX: usize = 128;
/// Stands for the status of a request whose client left before there was one, as in nginx's logs.
const CLIENT_LEFT: u16 = 499;

/// Names, counts, logs and traces each request.
pub(crate) async fn observe(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let id = chosen_id(request.headers()).unwrap_or_else(|| stamp::new_id("req-"));
    let header = HeaderValue::from_str(&id);
    let name = Dialect::of(request.uri()).request_id();
    let mut entry = Entry::begin(app, id, &request);
    request.extensions_mut().insert(entry.tally.clone());
    let mut response = next.run(request).await;
    entry.answered(&mut response);
    if let Ok(id) = header {
        response.headers_mut().insert(X_REQUEST_ID, id.clone());
        response.headers_mut().insert(name, id);
    }
    response.map(|body| Kept::until_end(body, entry))
}

/// The name that a client, or a proxy before it, has given the request. It goes into logs, so that it must be harmless.
fn chosen_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(X_REQUEST_ID)?.to_str().ok()?;
    let harmless = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(&byte));
    (harmless && (1..=ID_BYTES_MAX).contains(&id.len())).then(|| id.to_owned())
}

/// A request in the log. Its line is written once the answer has ended, or the client has left.
struct Entry {
    app: Arc<App>,
    began: Instant,
    id: String,
    client: Client,
    method: Method,
    route: Option<MatchedPath>,
    /// `None` until the answer begins.
    status: Option<u16>,
    tally: Tally,
    traced: Option<Traced>,
    /// How much of the answer was sent, and whether that was all.
    sent: u64,
    whole: bool,
}

impl Entry {
    fn begin(app: Arc<App>, id: String, request: &Request) -> Self {
        let extensions = request.extensions();
        let client = extensions.get::<Client>().cloned().unwrap_or_default();
        let (method, route) = (request.method().clone(), extensions.get::<MatchedPath>().cloned());
        let traced = Traced::begin(app.options.traces.as_ref(), request);
        let (began, tally) = (Instant::now(), Tally::default());
        Self { app, began, id, client, method, route, status: None, tally, traced, sent: 0, whole: false }
    }

    /// The answer begins, which may know more about its client.
    fn answered(&mut self, response: &mut Response) {
        self.status = Some(response.status().as_u16());
        if let Some(client) = response.extensions_mut().remove() {
            self.client = client;
        }
        self.count();
    }

    fn status(&self) -> u16 {
        self.status.unwrap_or(CLIENT_LEFT)
    }

    fn count(&self) {
        self.app.metrics.count_http(self.route(), self.status());
    }

    /// Paths that match no route are one: clients choose them and could make any number of series.
    fn route(&self) -> &str {
        self.route.as_ref().map_or("unknown", MatchedPath::as_str)
    }
}

impl Keepsake for Entry {
    fn end(&mut self, bytes: u64, whole: bool) {
        (self.sent, self.whole) = (bytes, whole);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.status.is_none() {
            self.count();
        }
        let (took, counts) = (self.began.elapsed(), self.tally.counts());
        let first_token = counts.first_token.map(|first| first.saturating_duration_since(self.began));
        self.log(took, first_token, &counts);
        if let Some(traced) = self.traced.take() {
            let (id, method, status) = (self.id.as_str(), self.method.as_str(), self.status());
            let route = self.route.as_ref().map(MatchedPath::as_str);
            traced.end(&Outcome { id, method, route, status, took, first_token, counts: &counts });
        }
    }
}

impl Entry {
    /// Writes the line.
    fn log(&self, took: Duration, first_token: Option<Duration>, counts: &Counts) {
        let (id, client, method, route) = (&self.id, self.client.name(), &self.method, self.route());
        let (status, bytes, whole, ms) = (self.status(), self.sent, self.whole, took.as_millis());
        let Some(model) = &counts.model else {
            tracing::info!(target: "access", id, client, %method, route, status, ms, bytes, whole, "request");
            return;
        };
        let &Counts { input_tokens, output_tokens, .. } = counts;
        let first_token_ms = first_token.map(|first| first.as_millis());
        tracing::info!(
            target: "access", id, client, %method, route, status, ms, bytes, whole,
            model, input_tokens, output_tokens, first_token_ms, "request"
        );
    }
}
