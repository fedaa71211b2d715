//! Ctrl-C and the signals that end programs.
//!
//! What they do depends on what runs: a generation is cancelled, a download stops at the next opportunity, and at any
//! other moment the process ends at once; its ranks then notice that their connection is gone and end too. A second
//! signal always ends the process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use engine::Canceller;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static RUNNING: Mutex<Running> = Mutex::new(Running::Nothing);

/// The exit code of an interrupted command, as shells have it.
pub(crate) const EXIT_CODE: u8 = 130;

/// What an interrupt meets.
enum Running {
    Nothing,
    /// Something that looks at [`seen`] often.
    Watchful,
    Generation(Canceller),
    /// Something that handles signals itself.
    Others,
}

/// The command was stopped by the user.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// Takes over the signals.
pub(crate) fn install() -> anyhow::Result<()> {
    let handler = || {
        let second = INTERRUPTED.swap(true, Ordering::Relaxed);
        match &*RUNNING.lock().unwrap_or_else(PoisonError::into_inner) {
            Running::Others => {}
            Running::Generation(generation) if !second => generation.cancel(),
            Running::Watchful if !second => {}
            _ => std::process::exit(EXIT_CODE.into()),
        }
    };
    ctrlc::set_handler(handler).context("cannot handle interrupts")
}

/// Whether there was an interrupt.
pub(crate) fn seen() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Leaves the signals to somebody else from here on.
pub(crate) fn leave_to_others() {
    set(Running::Others);
}

/// Until the guard is dropped, interrupts only show in [`seen`].
pub(crate) fn watched() -> Guard {
    set(Running::Watchful);
    Guard
}

/// Until the guard is dropped, interrupts cancel this generation.
pub(crate) fn cancels(canceller: Canceller) -> Guard {
    set(Running::Generation(canceller));
    Guard
}

/// See [`watched`] and [`cancels`].
pub(crate) struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        set(Running::Nothing);
        INTERRUPTED.store(false, Ordering::Relaxed);
    }
}

fn set(running: Running) {
    *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) = running;
}
