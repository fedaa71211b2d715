//! Answers that somebody has to know the end of.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use hyper::body::{Body as _, Frame, SizeHint};

/// The body of an answer, which keeps a value until it was sent, or given up because its client has left.
pub(crate) struct Kept<T: Keepsake> {
    body: Body,
    bytes: u64,
    whole: bool,
    keepsake: T,
}

/// What is kept.
pub(crate) trait Keepsake: Unpin + Send + 'static {
    /// The body has ended after so many bytes, and was `whole` or not.
    fn end(&mut self, bytes: u64, whole: bool);
}

impl<T: Keepsake> Kept<T> {
    /// Keeps `keepsake` until the end of `body`.
    pub(crate) fn until_end(body: Body, keepsake: T) -> Body {
        Body::new(Self { body, bytes: 0, whole: false, keepsake })
    }
}

impl<T: Keepsake> Drop for Kept<T> {
    fn drop(&mut self) {
        // A body whose length is known is not asked again after its last byte.
        let whole = self.whole || self.body.is_end_stream();
        self.keepsake.end(self.bytes, whole);
    }
}

impl<T: Keepsake> hyper::body::Body for Kept<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match &polled {
            Poll::Ready(None) => self.whole = true,
            Poll::Ready(Some(Ok(frame))) => self.bytes += frame.data_ref().map_or(0, |data| data.len() as u64),
            _ => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
