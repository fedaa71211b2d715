//! The routes, and what all handlers share.

use std::sync::Arc;
use std::thread;

use axum::Router;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, Uri};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use engine::Engine;
use tokio::sync::{Semaphore, watch};

use crate::dialect::Dialect;
use crate::error::{ApiError, Code};
use crate::health;
use crate::metrics::{self, Metrics};
use crate::openai::Responses;
use crate::options::Options;
use crate::{anthropic, dialect, ollama, openai, openapi, page, stamp};

/// What all handlers share.
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) options: Options,
    pub(crate) metrics: Metrics,
    /// What clients of `/v1/responses` may come back to.
    pub(crate) responses: Responses,
    /// Becomes `true` when requests that still run are to end now.
    pub(crate) stopping: watch::Receiver<bool>,
    /// Bounds how many requests are parsed and tokenized at once, and with it the memory that takes.
    preparing: Arc<Semaphore>,
}

impl App {
    /// The state of a server over `engine`.
    pub(crate) fn new(engine: Engine, options: Options, stopping: watch::Receiver<bool>) -> Self {
        let metrics = Metrics::new(&engine.model().id);
        let preparing = Arc::new(Semaphore::new(thread::available_parallelism().map_or(1, usize::from)));
        Self { engine, options, metrics, responses: Responses::default(), stopping, preparing }
    }

    /// Runs `prepare` (parsing, rendering, tokenizing) off the network threads.
    pub(crate) async fn prepare<T: Send + 'static>(
        self: &Arc<Self>,
        prepare: impl FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let app = Arc::clone(self);
        let failed = |_| ApiError::new(Code::Internal, "the request could not be prepared");
        let permit = Arc::clone(&self.preparing).acquire_owned().await.map_err(|_| failed(()))?;
        // The permit moves along, since the work goes on even if the client leaves.
        let work = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            prepare(&app)
        });
        work.await.map_err(|_| failed(()))?
    }
}

/// All routes over `app`.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/health", get(health::health))
        .route("/metrics", get(metrics::metrics))
        .route("/openapi.json", get(openapi::openapi))
        .merge(openai::routes())
        .merge(anthropic::routes())
        .merge(ollama::routes())
        .merge(page::routes())
        .fallback(unknown_url)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(app.options.body_bytes_max))
        .layer(middleware::from_fn(dialect::write_errors))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), observe))
        .with_state(app)
}

async fn unknown_url(method: Method, uri: Uri) -> ApiError {
    ApiError::new(Code::UnknownUrl, format!("there is nothing at {method} {}", uri.path()))
}

async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    ApiError::new(Code::MethodNotAllowed, format!("{} does not take {method}", uri.path()))
}

/// Names, counts and logs each request.
async fn observe(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    // Paths that match no route are counted as one: clients choose them and could make any number of series.
    let route = route.as_ref().map_or("unknown", MatchedPath::as_str);
    let id = stamp::new_id("req-");
    let name = Dialect::of(request.uri()).request_id();
    let mut response = next.run(request).await;
    let status = response.status().as_u16();
    app.metrics.count_http(route, status);
    tracing::debug!(%id, %method, route, status, "request answered");
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(name, id);
    }
    response
}
