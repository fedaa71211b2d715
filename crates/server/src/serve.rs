//! Accepts connections, serves them within the limits, and drains them at the end.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::app::{self, App};
use crate::client::Client;
use crate::connection::WriteDeadline;
use crate::listen::Listener;
use crate::models::Models;
use crate::options::Options;

/// Largest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Most headers of a request.
const HEADERS_MAX: usize = 100;
/// Pause after a failed accept (usually: no file descriptors left), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time that cancelled requests have to tell their clients before the connections are cut.
const FAREWELL: Duration = Duration::from_secs(1);

/// How a shutdown went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Connections whose requests were still running at the drain time-out and were cancelled.
    pub cancelled: usize,
}

/// Answers requests on `listener` with `models` (or a single engine) until `shutdown` resolves and what runs then has ended.
///
/// After `shutdown` no connection is accepted and no further request taken on open ones; running requests may finish
/// within [`Timeouts::drain`](crate::Timeouts::drain) and are then cancelled, which their clients are told. The models are left
/// running; stopping them is the caller's to do. A failed engine does not end the server: it answers with status 503, so
/// that whoever watches `/health` learns the reason.
pub async fn serve(
    listener: Listener,
    models: impl Into<Models>,
    options: Options,
    shutdown: impl Future<Output = ()>,
) -> Drained {
    let (stop, stopping) = watch::channel(false);
    let app = Arc::new(App::new(models.into(), options, listener.address(), stopping));
    let router = app::router(Arc::clone(&app));
    let slots = Arc::new(Semaphore::new(app.options.connections_max));
    let graceful = GracefulShutdown::new();
    let (open, closing) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    let models = app.models.clone();
    let mut managed = pin!(models.manage());
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            (stream, client, slot) = accept(&listener.socket, &slots) => {
                let router = router.clone().layer(Extension(client));
                let connection = Connection { router, watcher: graceful.watcher(), closing: closing.clone(), options: app.options.clone() };
                connections.spawn(async move {
                    connection.serve(stream).await;
                    drop(slot);
                });
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            () = &mut managed => {}
        }
    }
    drop((listener, open));
    drain(connections, graceful, &stop, app.options.timeouts.get().drain).await
}

/// The next connection, once there is a slot for it. Cancel-safe.
async fn accept(socket: &TcpListener, slots: &Arc<Semaphore>) -> (TcpStream, Client, OwnedSemaphorePermit) {
    loop {
        // The semaphore is never closed, so this is the only branch there is.
        let Ok(slot) = Arc::clone(slots).acquire_owned().await else { return std::future::pending().await };
        match socket.accept().await {
            Ok((stream, peer)) => return (stream, Client::at(peer.ip()), slot),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// What serves one connection.
struct Connection {
    router: Router,
    watcher: Watcher,
    /// Whose sender is gone once no further requests are taken.
    closing: watch::Receiver<()>,
    options: Options,
}

impl Connection {
    /// Serves `stream` to its end.
    async fn serve(mut self, stream: TcpStream) {
        // Tokens are small and must not wait for more of them. A failure only costs that.
        let _ = stream.set_nodelay(true);
        let stream = WriteDeadline::new(stream, self.options.write_timeout);
        let Some(tls) = self.options.tls.clone() else { return self.speak(stream).await };
        tokio::select! {
            accepted = tls.accept(stream, self.options.handshake_timeout) => match accepted {
                Ok(stream) => self.speak(stream).await,
                Err(error) => tracing::debug!(%error, "a connection could not be encrypted"),
            },
            // It carries no request yet.
            _ = self.closing.changed() => {}
        }
    }

    async fn speak(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.options.header_timeout)
            .max_buf_size(HEAD_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(self.router));
        if let Err(error) = self.watcher.watch(connection).await {
            // Clients that leave in the middle are everyday life.
            tracing::debug!(%error, "a connection ended early");
        }
    }
}

/// Lets running requests finish, then cancels them, then cuts their connections.
async fn drain(
    mut connections: JoinSet<()>,
    graceful: GracefulShutdown,
    stop: &watch::Sender<bool>,
    drain_timeout: Duration,
) -> Drained {
    if tokio::time::timeout(drain_timeout, graceful.shutdown()).await.is_ok() {
        return Drained { cancelled: 0 };
    }
    while connections.try_join_next().is_some() {}
    let cancelled = connections.len();
    stop.send_replace(true);
    let farewell = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(FAREWELL, farewell).await.is_err() {
        connections.shutdown().await;
    }
    Drained { cancelled }
}
