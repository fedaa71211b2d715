//! Streams that begin before their model is in memory.
//!
//! Loading can take minutes, in which clients and proxies give up on a silent connection. So if a request for a stream waits
//! for its model longer than a stream may be silent, its answer begins, and says now and then how far the model is. What
//! goes wrong from then on is told as an event, as with any stream that has begun.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use tokio::sync::Notify;

use crate::app::App;
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::models::Presence;

/// With which a handler says that its request is one for a stream, and waits for a model.
#[derive(Clone, Default)]
pub(crate) struct Patience(Arc<Waiting>);

#[derive(Default)]
struct Waiting {
    model: OnceLock<Option<String>>,
    begun: Notify,
}

impl Patience {
    /// The request waits for the model of that name, or the first one.
    pub(crate) fn wait(&self, model: Option<&str>) {
        if self.0.model.set(model.map(str::to_owned)).is_ok() {
            self.0.begun.notify_one();
        }
    }
}

/// Begins the answers of requests that wait long for their model.
pub(crate) async fn begin_early(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let uri = request.uri().clone();
    let patience = Patience::default();
    request.extensions_mut().insert(patience.clone());
    let mut answer: Answer = Box::pin(next.run(request));
    tokio::select! {
        biased;
        response = &mut answer => return response,
        () = patience.0.begun.notified() => {}
    }
    let interval = app.options.keep_alive_interval;
    if let Ok(response) = tokio::time::timeout(interval, &mut answer).await {
        return response;
    }
    let dialect = Dialect::of(&uri);
    let early = Early { app, uri, dialect, model: patience.0.model.get().cloned().flatten(), interval };
    let content_type = if dialect == Dialect::Ollama { "application/x-ndjson" } else { "text/event-stream" };
    let headers = [(CONTENT_TYPE, content_type), (HeaderName::from_static("x-accel-buffering"), "no")];
    (headers, Body::from_stream(early.pieces(answer))).into_response()
}

type Answer = Pin<Box<dyn Future<Output = Response> + Send>>;

/// What is known of an answer that begins early.
struct Early {
    app: Arc<App>,
    uri: Uri,
    dialect: Dialect,
    model: Option<String>,
    interval: Duration,
}

/// Where it is.
enum Stage {
    /// Its model is being loaded, of which it is time to tell.
    Tell(Answer),
    Wait(Answer),
    Pass(BodyDataStream),
}

impl Early {
    /// Words about the model until there is an answer, then the answer.
    fn pieces(self, answer: Answer) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
        let pieces = stream::unfold(Some((self, Stage::Tell(answer))), |state| async {
            let (early, stage) = state?;
            let (piece, stage) = early.next(stage).await?;
            Some((piece, stage.map(|stage| (early, stage))))
        });
        pieces.map(Ok)
    }

    /// The next piece, and what comes then.
    async fn next(&self, stage: Stage) -> Option<(Bytes, Option<Stage>)> {
        match stage {
            Stage::Tell(answer) => Some((self.word().into(), Some(Stage::Wait(answer)))),
            Stage::Wait(mut answer) => match tokio::time::timeout(self.interval, &mut answer).await {
                Err(_) => Some((self.word().into(), Some(Stage::Wait(answer)))),
                Ok(mut response) => match response.extensions_mut().remove::<ApiError>() {
                    Some(error) => Some((self.failure(&error).into(), None)),
                    None => Self::pass(response.into_body().into_data_stream()).await,
                },
            },
            Stage::Pass(body) => Self::pass(body).await,
        }
    }

    async fn pass(mut body: BodyDataStream) -> Option<(Bytes, Option<Stage>)> {
        // A body of this server does not fail; if one does, the answer ends without what would make it complete.
        let piece = body.next().await?.ok()?;
        Some((piece, Some(Stage::Pass(body))))
    }

    /// How far the model is: a comment among events, an empty piece of the answer among lines.
    fn word(&self) -> String {
        if self.dialect == Dialect::Ollama {
            return format!(
                "{}\n",
                crate::ollama::empty_piece(self.uri.path(), self.model.as_deref().unwrap_or_default())
            );
        }
        match self.app.models.offer(self.model.as_deref()) {
            Ok((_, Presence::Loading(share))) => format!(": the model is loading, {:.0}% done\n\n", 100.0 * share),
            _ => ": waiting for the model\n\n".to_owned(),
        }
    }

    fn failure(&self, error: &ApiError) -> String {
        let body = self.dialect.error_body(error);
        match self.dialect {
            Dialect::OpenAi => format!("data: {body}\n\n"),
            Dialect::Anthropic => format!("event: error\ndata: {body}\n\n"),
            Dialect::Ollama => format!("{body}\n"),
        }
    }
}
