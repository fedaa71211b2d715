//! The API keys of a server, as an operator gives them.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use server::{Key, KeyLimits, parse_keys};

/// Who may use the server.
#[derive(Args, Clone)]
#[command(next_help_heading = "API keys")]
pub(crate) struct KeyOptions {
    /// Answer only requests with this key; may be repeated. Other users of this machine see arguments: prefer the
    /// environment or a file
    #[arg(long, value_name = "KEY", env = "ROPEWALK_API_KEY", hide_env_values = true)]
    api_key: Vec<String>,
    /// File with keys, one a line
    #[arg(long, value_name = "FILE", env = "ROPEWALK_API_KEY_FILE", long_help = FILE_HELP)]
    api_key_file: Option<PathBuf>,
}

const FILE_HELP: &str = "\
File with keys, one a line: [NAME] KEY [LIMIT=NUMBER]...

The name stands in logs. For KEY there may be `sha256:` and the digest of the key in hexadecimal, so that the file holds no
secrets (`printf %s KEY | sha256sum`). Limits are requests-per-minute, tokens-per-minute (of prompts and answers) and
concurrent (requests at the same time). Lines that begin with # are comments. For example:

  alice  sk-4f9c1d  requests-per-minute=60 concurrent=4
  bob    sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

impl KeyOptions {
    /// The keys; none if everybody may use the server.
    pub(crate) fn read(&self) -> anyhow::Result<Vec<Key>> {
        let mut keys = Vec::new();
        if let Some(path) = &self.api_key_file {
            let name = path.display();
            let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the API keys in {name}"))?;
            keys = parse_keys(&text).with_context(|| format!("cannot use the API keys in {name}"))?;
            if keys.is_empty() {
                // It would leave open what was meant to be closed.
                bail!("there is no API key in {name}");
            }
        }
        for secret in &self.api_key {
            if secret.is_empty() || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
                bail!("an API key must consist of letters, digits and signs of ASCII, and not be empty");
            }
            let key = Key::new(None, secret, KeyLimits::default());
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        Ok(keys)
    }
}
