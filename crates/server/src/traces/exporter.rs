//! Sends spans to a collector, by OTLP over HTTP in JSON.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use ureq::Agent;
use ureq::http::Uri;
use ureq::http::header::CONTENT_TYPE;
use ureq::tls::{RootCerts, TlsConfig};

use super::span::{self, Span};

/// Where collectors take traces unless said otherwise.
const PATH: &str = "/v1/traces";
/// How long a batch may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why no traces can be sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TracesError {
    /// Not the URL of a collector.
    #[error("{endpoint:?} is not the URL of a collector of traces, such as http://localhost:4318")]
    Endpoint {
        /// What was given.
        endpoint: String,
    },
    /// The system gives no thread.
    #[error("there is no thread to send traces from: {0}")]
    NoThread(io::Error),
}

/// A client of one collector.
pub(super) struct Exporter {
    agent: Agent,
    url: String,
}

impl Exporter {
    /// For the collector at `endpoint`.
    pub(super) fn new(endpoint: &str) -> Result<Self, TracesError> {
        let url = url(endpoint).ok_or_else(|| TracesError::Endpoint { endpoint: endpoint.to_owned() })?;
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let mut config = Agent::config_builder()
            .tls_config(tls)
            .timeout_global(Some(PATIENCE))
            .max_redirects(0)
            .user_agent(concat!("ropewalk/", env!("CARGO_PKG_VERSION")));
        if is_on_this_machine(&url) {
            config = config.proxy(None);
        }
        Ok(Self { agent: config.build().new_agent(), url })
    }

    /// Sends `spans`, which the collector takes or not.
    pub(super) fn send(&self, spans: &[Span]) -> Result<(), ureq::Error> {
        let body = span::export(spans).to_string();
        self.agent.post(&self.url).header(CONTENT_TYPE, "application/json").send(body).map(drop)
    }
}

fn url(endpoint: &str) -> Option<String> {
    let uri: Uri = endpoint.parse().ok()?;
    let plain = uri.authority().is_some_and(|authority| !authority.host().is_empty());
    if !plain || !matches!(uri.scheme_str(), Some("http" | "https")) {
        return None;
    }
    let bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
    Some(if bare { format!("{}{PATH}", endpoint.trim_end_matches('/')) } else { endpoint.to_owned() })
}

/// No proxy leads there.
fn is_on_this_machine(url: &str) -> bool {
    let uri: Option<Uri> = url.parse().ok();
    let host = uri.as_ref().and_then(|uri| uri.host()).unwrap_or_default();
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_without_a_path_get_the_usual_one() {
        for (endpoint, expected) in [
            ("http://localhost:4318", Some("http://localhost:4318/v1/traces")),
            ("https://collector.example/", Some("https://collector.example/v1/traces")),
            ("http://127.0.0.1:1/otlp/v1/traces", Some("http://127.0.0.1:1/otlp/v1/traces")),
            ("localhost:4318", None),
            ("grpc://localhost:4317", None),
            ("/v1/traces", None),
            ("", None),
        ] {
            assert_eq!(url(endpoint).as_deref(), expected, "{endpoint}");
        }
    }
}
