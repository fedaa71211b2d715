//! From where pages in browsers may reach the server.
//!
//! A browser lets a page of another site send requests here, and hides the answers unless this server allows that site
//! ([CORS](https://fetch.spec.whatwg.org/#http-cors-protocol)), which it does for none unless told to. A site can also let
//! its own name lead to this machine; the browser takes the answers for the site's own then. Such requests carry that name,
//! and a server that only this machine reaches answers to none but the machine's own.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{HOST, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::app::App;
use crate::error::{ApiError, Code};

/// For how long browsers may remember what is allowed.
const ALLOWED_FOR: Duration = Duration::from_secs(600);
/// Headers of answers that pages may read.
const EXPOSED: [&str; 8] = [
    "x-request-id",
    "request-id",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
];

/// The names that a server answers to.
#[derive(Debug)]
pub(crate) struct Hosts {
    /// `None` if to all.
    allowed: Option<Vec<String>>,
}

impl Hosts {
    /// Those of a server at `address` that answers to `allowed` names as well.
    pub(crate) fn new(address: SocketAddr, allowed: &[String]) -> Self {
        let checked = address.ip().is_loopback() || !allowed.is_empty();
        Self { allowed: checked.then(|| allowed.iter().map(|host| host.to_ascii_lowercase()).collect()) }
    }

    /// Whether it answers to `host`, which may have a port. Addresses are no names, so that none can have been forged.
    fn answers_to(&self, host: &str) -> bool {
        let Some(allowed) = &self.allowed else { return true };
        let host = host.to_ascii_lowercase();
        let name = without_port(&host);
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        bare.parse::<IpAddr>().is_ok()
            || name == "localhost"
            || name.ends_with(".localhost")
            || allowed.iter().any(|allowed| *allowed == name || *allowed == host)
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() => name,
        _ => host,
    }
}

/// Refuses requests to names that are not this server's.
pub(crate) async fn check(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    // Browsers always send one header; programs of old may leave it out. Of several, others may read another one.
    let headers = request.headers().get_all(HOST).into_iter().map(|host| host.to_str().unwrap_or_default());
    let authority = request.uri().authority().map(|authority| authority.as_str());
    match headers.chain(authority).find(|host| !app.hosts.answers_to(host)) {
        None => next.run(request).await,
        Some(host) => {
            let message = format!(
                "this server does not answer to the name {host:?}, unless its operator allows it (serve --allowed-host)"
            );
            ApiError::new(Code::HostNotAllowed, message).into_response()
        }
    }
}

/// What lets pages of the sites `origins` read answers; `*` lets all. `None` if there are none.
pub(crate) fn cors(origins: &[String]) -> Option<CorsLayer> {
    let origin = match origins {
        [] => return None,
        origins if origins.iter().any(|origin| origin == "*") => AllowOrigin::any(),
        origins => AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok())),
    };
    let exposed = EXPOSED.into_iter().map(HeaderName::from_static).chain([RETRY_AFTER]);
    let layer = CorsLayer::new()
        .allow_origin(origin)
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        // Clients send headers of their own, which change nothing here.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(exposed.collect::<Vec<_>>())
        .max_age(ALLOWED_FOR);
    Some(layer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_sites_are_none_of_a_local_server() {
        let local = "127.0.0.1:8080".parse().unwrap();
        let hosts = Hosts::new(local, &["Models.example".to_owned(), "other.example:81".to_owned()]);
        let mine = [
            "localhost",
            "LOCALHOST:8080",
            "a.localhost:1",
            "127.0.0.1:8080",
            "[::1]:8080",
            "[::1]",
            "192.168.1.2",
            "models.example:8080",
            "other.example:81",
        ];
        for host in mine {
            assert!(hosts.answers_to(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "other.example:82",
            ":80",
        ] {
            assert!(!hosts.answers_to(host), "{host}");
        }
        assert!(Hosts::new("0.0.0.0:8080".parse().unwrap(), &[]).answers_to("any.example"));
        assert!(!Hosts::new("0.0.0.0:8080".parse().unwrap(), &["my.example".to_owned()]).answers_to("any.example"));
    }
}
