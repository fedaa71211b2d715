//! How a server treats those who connect to it.

use clap::Args;
use server::{Keys, Options};

/// Who may connect, with how much, and for how long.
#[derive(Args)]
#[command(next_help_heading = "HTTP")]
pub(crate) struct HttpOptions {
    /// Site whose pages may use the server from a browser, such as https://chat.example, or * for all; may be repeated
    #[arg(long, visible_alias = "allowed-origins", value_name = "ORIGIN", value_delimiter = ',', value_parser = parse_origin)]
    cors_origin: Vec<String>,
    /// Name under which the server can be reached beside localhost, for example through a proxy; may be repeated
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    allowed_host: Vec<String>,
    /// Connections served at once; further ones wait
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max_connections: u32,
    /// Largest request in bytes; larger ones are refused with status 413
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20, value_parser = clap::value_parser!(u32).range(1024..))]
    max_body_bytes: u32,
    /// How long running requests may go on once the server is told to stop, in seconds; told once more, it ends at once
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) drain_timeout: u64,
}

impl HttpOptions {
    /// The same for the server, which answers to those who have one of `keys`.
    pub(crate) fn options(&self, keys: Keys) -> Options {
        Options {
            body_bytes_max: self.max_body_bytes as usize,
            connections_max: self.max_connections as usize,
            keys,
            cors_origins: self.cors_origin.clone(),
            allowed_hosts: self.allowed_host.clone(),
            ..Options::default()
        }
    }
}

/// A site as browsers name it: scheme, host and perhaps a port.
fn parse_origin(text: &str) -> Result<String, String> {
    let site = text.split_once("://").map_or("", |(_, site)| site);
    let plain = !site.is_empty() && site.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
    if text == "*" || plain {
        return Ok(text.to_owned());
    }
    Err("must be * or a scheme and a host without a path, such as https://chat.example".to_owned())
}
