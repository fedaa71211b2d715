//! A connection that is cut when the client stops taking data.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Fails writes that make no progress for a given time; reads are bounded by the HTTP layer.
pub(crate) struct WriteDeadline<S> {
    stream: S,
    timeout: Duration,
    /// When the write that waits fails.
    timer: Pin<Box<Sleep>>,
    waiting: bool,
}

impl<S> WriteDeadline<S> {
    /// Watches over `stream`.
    pub(crate) fn new(stream: S, timeout: Duration) -> Self {
        Self { stream, timeout, timer: Box::pin(tokio::time::sleep(timeout)), waiting: false }
    }

    /// Passes on the outcome of a write, or the time-out if it waits too long.
    fn bounded(&mut self, context: &mut Context<'_>, outcome: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if outcome.is_ready() {
            self.waiting = false;
            return outcome;
        }
        if !std::mem::replace(&mut self.waiting, true) {
            self.timer.as_mut().reset(Instant::now() + self.timeout);
        }
        ready!(self.timer.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client stopped taking data")))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteDeadline<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(context, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.bounded(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteDeadline<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_write_fails_once_the_other_end_takes_nothing_for_the_timeout() {
        let (near, mut far) = tokio::io::duplex(4);
        let mut near = WriteDeadline::new(near, Duration::from_secs(5));
        let started = Instant::now();
        let reader = tokio::spawn(async move {
            let mut taken = [0; 4];
            tokio::time::sleep(Duration::from_secs(4)).await;
            far.read_exact(&mut taken).await.unwrap();
            far
        });
        // Eight bytes fit after four were taken; the next one has nowhere to go.
        near.write_all(&[0; 8]).await.unwrap();
        let error = near.write_all(&[0]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed().as_secs(), 9);
        drop(reader.await.unwrap());
    }
}
