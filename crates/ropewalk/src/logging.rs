//! What goes to standard error beside errors.

use std::io::{IsTerminal, stderr};

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

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
            LogFormat::Text => log.with_ansi(stderr().is_terminal()).init(),
            LogFormat::Json => log.json().flatten_event(true).with_current_span(false).with_span_list(false).init(),
        }
    }
}
