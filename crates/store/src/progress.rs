//! How a download tells its caller what it does. What a terminal shows is the caller's business.

/// Receives what happens while a model is fetched.
///
/// One piece of work at a time is reported: `start`, any number of `advance`, `finish`. A model takes several pieces
/// of work one after the other (download, then unpack; or one piece of work for each file). `start` may come again
/// without a
/// `finish` when the work begins anew, or for the next try after an error.
pub trait Progress: Sync {
    /// A piece of work begins: a short description such as `downloading smollm2`, and its bytes where they are known.
    /// Where only an estimate is known, the work may end a little before or after it.
    fn start(&self, what: &str, total: Option<u64>);

    /// So many more bytes are done. For a resumed download the first call says what was already there.
    fn advance(&self, bytes: u64);

    /// The piece of work begun last is done.
    fn finish(&self);

    /// Nothing moves for a while, for a reason worth showing: another process fetches the same model, or a try
    /// failed and the next one comes soon.
    fn waiting(&self, why: &str) {
        tracing::info!("{why}");
    }

    /// Asked several times a second; `true` ends the work with [`StoreError::Cancelled`](crate::StoreError::Cancelled).
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Shows nothing and never cancels.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn start(&self, _what: &str, _total: Option<u64>) {}
    fn advance(&self, _bytes: u64) {}
    fn finish(&self) {}
}
