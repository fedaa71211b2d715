//! Progress of downloads on a terminal: bytes, rate, time left. Silent in a pipe.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressStyle};

use crate::interrupt;

/// Shows a download on standard error, if that is a terminal.
#[derive(Default)]
pub(crate) struct DownloadProgress {
    bar: Mutex<Option<ProgressBar>>,
}

impl DownloadProgress {
    fn with_bar(&self, act: impl FnOnce(&ProgressBar)) {
        if let Some(bar) = &*self.bar.lock().unwrap_or_else(PoisonError::into_inner) {
            act(bar);
        }
    }

    fn replace(&self, bar: Option<ProgressBar>) {
        let before = std::mem::replace(&mut *self.bar.lock().unwrap_or_else(PoisonError::into_inner), bar);
        if let Some(before) = before {
            before.finish_and_clear();
        }
    }
}

impl store::Progress for DownloadProgress {
    fn start(&self, what: &str, total: Option<u64>) {
        if !std::io::stderr().is_terminal() {
            return;
        }
        let (bar, template) = match total {
            Some(total) => (
                ProgressBar::new(total),
                "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left",
            ),
            None => (ProgressBar::new_spinner(), "{msg} {spinner} {binary_bytes} {binary_bytes_per_sec}"),
        };
        // The templates are constants, so that a mistake in one would show in every run; the default style then serves.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        self.replace(Some(bar));
    }

    fn advance(&self, bytes: u64) {
        self.with_bar(|bar| bar.inc(bytes));
    }

    fn finish(&self) {
        self.replace(None);
    }

    fn waiting(&self, why: &str) {
        if std::io::stderr().is_terminal() {
            self.with_bar(|bar| bar.println(why));
        }
        tracing::info!("{why}");
    }

    fn is_cancelled(&self) -> bool {
        interrupt::seen()
    }
}
