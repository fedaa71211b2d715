//! What `ropewalk serve` does when it is told to read its configuration again (SIGHUP).

use anyhow::{anyhow, bail};
use server::{Keys, Models, SharedTimeouts, Tls};
use tokio::signal::unix::Signal;

use crate::Command;
use crate::config::{Loaded, Setting};

/// Options that can be changed while the server runs.
const LIVE: [&str; 7] =
    ["api-key", "api-key-file", "request-timeout", "queue-timeout", "drain-timeout", "keep-alive", "log-level"];

/// What of a running server can be changed.
pub(crate) struct Live {
    pub(crate) keys: Keys,
    /// Its certificates, if it has any. They are read anew from the files with which it began.
    pub(crate) tls: Option<Tls>,
    pub(crate) timeouts: SharedTimeouts,
    pub(crate) models: Models,
}

/// Reads the configuration, the API keys and the certificates anew whenever the process is told to. What cannot be used changes nothing.
pub(crate) async fn listen(mut hangups: Signal, live: Live, started: Loaded) {
    let mut now = started;
    while hangups.recv().await.is_some() {
        match live.change(&now) {
            Ok(changed) => now = changed,
            Err(error) => tracing::error!("the configuration and the API keys stay as they were: {error:#}"),
        }
        if let Some(Err(error)) = live.tls.as_ref().map(Tls::reload) {
            tracing::error!("the certificate stays as it was: {error}");
        }
    }
}

impl Live {
    /// Reads everything, then changes what can be changed, and says what cannot.
    fn change(&self, before: &Loaded) -> anyhow::Result<Loaded> {
        // What clap says of arguments begins with a word that the log has already.
        let (arguments, loaded) = crate::configured(std::env::args_os().collect())
            .map_err(|failure| anyhow!("{}", failure.to_string().trim_start_matches("error: ").trim_end()))?;
        let Command::Serve(arguments) = arguments.command else { bail!("another command is configured") };
        let keys = arguments.keys.read()?;
        arguments.log.change_level()?;
        self.keys.replace(keys);
        self.timeouts.replace(arguments.timeouts());
        let stays = !self.models.keep_alive(arguments.keep_alive(self.models.are_several()));
        let (live, fixed) =
            changes(&before.settings, &loaded.settings, |key| LIVE.contains(&key) && !(stays && key == "keep-alive"));
        tracing::info!("the configuration was read anew; changed: {}", listed(&live));
        if !fixed.is_empty() {
            tracing::warn!("these options have changed as well, but only a restart applies them: {}", listed(&fixed));
        }
        Ok(loaded)
    }
}

/// The options that have changed: those that can be changed at once, and the others.
fn changes(before: &[Setting], after: &[Setting], is_live: impl Fn(&str) -> bool) -> (Vec<String>, Vec<String>) {
    let changed = before.iter().zip(after).filter(|(before, after)| before.values != after.values);
    changed.map(|(_, after)| after.key.clone()).partition(|key| is_live(key))
}

fn listed(keys: &[String]) -> String {
    if keys.is_empty() { "nothing".to_owned() } else { keys.join(", ") }
}
