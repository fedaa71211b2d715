//! Progress of downloads and of loading on a terminal: bytes, rate, time left. Silent in a pipe.

use std::cell::OnceCell;
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};

use engine::ranks::Loading;
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
        self.replace(Some(bar(what.to_owned(), total)));
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

/// Shows on standard error how far ranks are in loading a model, if that is a terminal. Nothing is shown of a model that is
/// loaded at once.
pub(crate) struct LoadingProgress {
    bar: OnceCell<ProgressBar>,
    name: String,
}

impl LoadingProgress {
    pub(crate) fn new(name: &str) -> Self {
        Self { bar: OnceCell::new(), name: name.to_owned() }
    }

    pub(crate) fn show(&self, Loading { done, total }: Loading) {
        if std::io::stderr().is_terminal() {
            let bar = self.bar.get_or_init(|| bar(format!("loading {}", self.name), Some(total)));
            bar.set_length(total);
            bar.set_position(done);
        }
    }
}

impl Drop for LoadingProgress {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.get() {
            bar.finish_and_clear();
        }
    }
}

fn bar(message: String, total: Option<u64>) -> ProgressBar {
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
    bar.set_message(message);
    bar
}
