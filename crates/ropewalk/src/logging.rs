//! What goes to standard error beside errors.

use std::io::{IsTerminal, stderr};
use std::sync::OnceLock;

use clap::{Args, ValueEnum};
use tracing_subscriber::{EnvFilter, reload};

/// What is logged, and how.
#[derive(Args, Clone)]
#[command(next_help_heading = "Log")]
pub(crate) struct LogOptions {
    /// What is logged: error, warn, info (a line for each request, never its text), debug or trace
    #[arg(long, value_name = "LEVEL", env = "ROPEWALK_LOG", default_value = "warn", value_parser = parse_level)]
    log_level: String,
    /// Form of the log's lines
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum LogFormat {
    /// For people
    #[default]
    Text,
    /// An object of JSON a line, for programs
    Json,
}

fn parse_level(text: &str) -> Result<String, String> {
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("must be error, warn, info, debug or trace ({error})")),
    }
}

/// Puts another filter into the place of the one that is installed.
type Change = Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>;

static CHANGE: OnceLock<Change> = OnceLock::new();

fn keep<S: 'static>(handle: reload::Handle<EnvFilter, S>) {
    // Only one log can be installed.
    let _ = CHANGE.set(Box::new(move |filter| handle.reload(filter)));
}

impl Default for LogOptions {
    /// As the environment says.
    fn default() -> Self {
        let log_level = std::env::var("ROPEWALK_LOG").unwrap_or_else(|_| "warn".to_owned());
        Self { log_level, log_format: LogFormat::Text }
    }
}

impl LogOptions {
    /// Logs from now on.
    pub(crate) fn install(&self) {
        let filter = EnvFilter::try_new(&self.log_level).unwrap_or_else(|_| EnvFilter::new("warn"));
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
        match self.log_format {
            LogFormat::Text => {
                let log = log.with_ansi(stderr().is_terminal()).with_filter_reloading();
                keep(log.reload_handle());
                log.init();
            }
            LogFormat::Json => {
                let log = log.json().flatten_event(true).with_current_span(false).with_span_list(false);
                let log = log.with_filter_reloading();
                keep(log.reload_handle());
                log.init();
            }
        }
    }

    /// Logs at this level from now on, in the form of before.
    pub(crate) fn change_level(&self) -> anyhow::Result<()> {
        let Some(change) = CHANGE.get() else { return Ok(()) };
        Ok(change(EnvFilter::try_new(&self.log_level)?)?)
    }
}
