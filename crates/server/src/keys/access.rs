//! Lets in requests with a key, and only as many as it allows.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Account;
use super::quota::{Excess, Figures};
use crate::app::App;
use crate::client::Client;
use crate::error::{ApiError, Code};
use crate::kept::{Keepsake, Kept};

/// What needs no key: that the server lives, what it counts, its description, and the pages, which ask for the key themselves.
const OPEN: [&str; 7] = ["/", "/docs", "/health", "/live", "/ready", "/metrics", "/openapi.json"];
const OPEN_FOLDER: &str = "/page/";
/// Where Anthropic's clients send the key.
const X_API_KEY: &str = "x-api-key";
/// After which time it may be worth trying again where requests under way have to end first.
const CONCURRENT_RETRY: Duration = Duration::from_secs(1);

/// Refuses requests that need a key and have none, and those beyond what the key allows.
pub(crate) async fn check(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let keys = &app.options.keys;
    let path = request.uri().path();
    if keys.is_empty() || OPEN.contains(&path) || path.starts_with(OPEN_FOLDER) {
        return next.run(request).await;
    }
    let Some(secret) = presented(request.headers()) else {
        return unauthorized(
            "this server wants an API key, in the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
        );
    };
    let Some(account) = keys.find(secret) else { return unauthorized("the API key is not one of this server's") };
    let client = Client::with_key(Arc::clone(&account));
    request.extensions_mut().insert(client.clone());
    let mut response = answer(&account, request, next).await;
    // For the log.
    response.extensions_mut().insert(client);
    response
}

async fn answer(account: &Arc<Account>, request: Request, next: Next) -> Response {
    // Only what may take long is counted.
    if request.method() != Method::POST {
        return next.run(request).await;
    }
    let underway = match Underway::begin(account) {
        Ok(underway) => underway,
        Err(excess) => return account.stamp(excess.error(account.name()).into_response()),
    };
    let response = account.stamp(next.run(request).await);
    response.map(|body| Kept::until_end(body, underway))
}

/// The key that a request carries.
fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked("bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
    });
    bearer.or_else(|| headers.get(X_API_KEY).map(|value| value.as_bytes().trim_ascii()))
}

fn unauthorized(message: &str) -> Response {
    let mut response = ApiError::new(Code::InvalidApiKey, message).into_response();
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

impl Excess {
    fn error(self, name: &str) -> ApiError {
        let (message, wait) = match self {
            Self::PerMinute { what, limit, wait } => {
                (format!("the key {name:?} allows {limit} {what} a minute, which are used up"), wait)
            }
            Self::Concurrent { limit } => (
                format!("the key {name:?} allows {limit} requests at the same time, which are under way"),
                CONCURRENT_RETRY,
            ),
        };
        ApiError::try_later(Code::RateLimitExceeded, message, wait)
    }
}

impl Account {
    /// Says in the headers of an answer what is left, as OpenAI does.
    fn stamp(&self, mut response: Response) -> Response {
        let figures = self.lock().figures(self.opened.elapsed());
        for Figures { what, limit, remaining, reset } in figures {
            let reset = format!("{:.3}s", reset.as_secs_f64());
            let headers = [("limit", limit.to_string()), ("remaining", remaining.to_string()), ("reset", reset)];
            for (figure, value) in headers {
                let name = HeaderName::try_from(format!("x-ratelimit-{figure}-{what}"));
                if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) {
                    response.headers_mut().insert(name, value);
                }
            }
        }
        response
    }
}

/// A request that counts as under way for as long as this lives.
struct Underway(Arc<Account>);

impl Underway {
    fn begin(account: &Arc<Account>) -> Result<Self, Excess> {
        account.lock().begin(account.opened.elapsed())?;
        Ok(Self(Arc::clone(account)))
    }
}

impl Keepsake for Underway {
    fn end(&mut self, _: u64, _: bool) {}
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.lock().end();
    }
}
