//! The routes, and what all handlers share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, Uri};
use axum::middleware;
use axum::routing::get;
use engine::ModelInfo;
use serde_json::Value;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::body::JsonBody;
use crate::dialect::Dialect;
use crate::error::{ApiError, Code};
use crate::hosts::{self, Hosts};
use crate::metrics::{self, Metrics};
use crate::models::{Asker, Lease, Models};
use crate::openai::Responses;
use crate::options::Options;
use crate::{anthropic, dialect, health, keys, observe, ollama, openai, openapi, page, patience, request, run};

/// What all handlers share.
pub(crate) struct App {
    pub(crate) models: Models,
    pub(crate) options: Options,
    pub(crate) metrics: Metrics,
    /// What clients of `/v1/responses` may come back to.
    pub(crate) responses: Responses,
    /// The names that it answers to.
    pub(crate) hosts: Hosts,
    /// Becomes `true` when requests that still run are to end now.
    pub(crate) stopping: watch::Receiver<bool>,
    /// Bounds how many requests are parsed and tokenized at once, and with it the memory that takes.
    preparing: Arc<Semaphore>,
}

impl App {
    /// The state of a server of `models` at `address`.
    pub(crate) fn new(models: Models, options: Options, address: SocketAddr, stopping: watch::Receiver<bool>) -> Self {
        let hosts = Hosts::new(address, &options.allowed_hosts);
        let metrics = Metrics::new(options.traces.as_ref());
        let preparing = Arc::new(Semaphore::new(thread::available_parallelism().map_or(1, usize::from)));
        Self { models, options, metrics, responses: Responses::default(), hosts, stopping, preparing }
    }

    /// Waits for the model that `body` names, and runs `read` (rendering, tokenizing) on it.
    pub(crate) async fn prepare<T: Send + 'static>(
        self: &Arc<Self>,
        body: JsonBody,
        read: impl FnOnce(&App, &Value, &ModelInfo) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(Arc<Lease>, T), ApiError> {
        let (patience, streams_by_default) = (body.patience(), body.dialect() == Dialect::Ollama);
        let asker = Asker { client: body.client(), tally: body.tally(), deadline: self.deadline(body.timeout()) };
        let body = self.work(move |_| body.parse()).await?;
        let name = request::model_name(&body);
        if body.get("stream").map_or(streams_by_default, |stream| *stream == true) {
            patience.wait(name);
        }
        let lease = Arc::new(self.lend(name, asker).await?);
        let lent = Arc::clone(&lease);
        let read = self.work(move |app| read(app, &body, lent.model())).await?;
        Ok((lease, read))
    }

    /// When a request that comes now and is to be answered within `timeout` has taken too long.
    fn deadline(&self, timeout: Option<Duration>) -> Option<Instant> {
        let shortest = self.options.timeouts.get().request.into_iter().chain(timeout).min()?;
        Instant::now().checked_add(shortest)
    }

    /// Waits for the model of that name, or the first one, within the time that the request may take.
    async fn lend(&self, name: Option<&str>, asker: Asker) -> Result<Lease, ApiError> {
        let mut stopping = self.stopping.clone();
        let deadline = asker.deadline;
        tokio::select! {
            lease = self.models.lend(name, asker) => lease,
            _ = stopping.wait_for(|&stopping| stopping) => Err(run::shutting_down()),
            () = run::passing(deadline) => Err(run::timed_out()),
        }
    }

    /// Does work that takes a while off the network threads.
    async fn work<T: Send + 'static>(
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
    let router = Router::new()
        .route("/health", get(health::health))
        .route("/ready", get(health::health))
        .route("/live", get(health::live))
        .route("/metrics", get(metrics::metrics))
        .route("/openapi.json", get(openapi::openapi))
        .merge(openai::routes())
        .merge(anthropic::routes())
        .merge(ollama::routes())
        .merge(page::routes())
        .fallback(unknown_url)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(app.options.body_bytes_max))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), patience::begin_early))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), keys::check))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), hosts::check))
        .layer(middleware::from_fn(dialect::write_errors));
    let router = match hosts::cors(&app.options.cors_origins) {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router.layer(middleware::from_fn_with_state(Arc::clone(&app), observe::observe)).with_state(app)
}

async fn unknown_url(method: Method, uri: Uri) -> ApiError {
    ApiError::new(
        Code::UnknownUrl,
        format!("there is nothing at {method} {}: /openapi.json describes what there is", uri.path()),
    )
}

async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    ApiError::new(
        Code::MethodNotAllowed,
        format!("{} does not take {method}: the header Allow says what it takes", uri.path()),
    )
}
