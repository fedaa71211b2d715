//! Ctrl-C: stops what runs instead of killing the process, so that ranks and files are left in good order.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use engine::Canceller;

use std::sync::{Mutex, PoisonError};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static GENERATION: Mutex<Option<Canceller>> = Mutex::new(None);

/// The command was stopped by the user.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// From here on an interrupt cancels the generation that runs, if one does, and is remembered. A second one that
/// nobody has taken note of ends the process.
pub(crate) fn install() -> anyhow::Result<()> {
    ctrlc::set_handler(|| {
        let second = INTERRUPTED.swap(true, Ordering::Relaxed);
        match &*GENERATION.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(generation) => generation.cancel(),
            None if second => std::process::exit(130),
            None => {}
        }
    })
    .context("cannot handle interrupts")
}

/// Whether there was an interrupt since the last call.
pub(crate) fn take() -> bool {
    INTERRUPTED.swap(false, Ordering::Relaxed)
}

/// Whether there was an interrupt.
pub(crate) fn seen() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Makes interrupts cancel this generation until the guard is dropped.
pub(crate) fn cancels(canceller: Canceller) -> Guard {
    *GENERATION.lock().unwrap_or_else(PoisonError::into_inner) = Some(canceller);
    Guard
}

/// See [`cancels`].
pub(crate) struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        *GENERATION.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
