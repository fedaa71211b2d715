//! What an operator may set.

use std::time::Duration;

use crate::keys::Keys;
use crate::timeouts::SharedTimeouts;
use crate::tls::Tls;
use crate::traces::Traces;

/// Limits and time-outs of the server. The defaults suit one machine on a desk.
#[derive(Debug, Clone)]
pub struct Options {
    /// Largest request body in bytes; larger ones are refused with status 413.
    pub body_bytes_max: usize,
    /// Connections served at once; further ones wait in the operating system's backlog.
    pub connections_max: usize,
    /// What connections are encrypted with; `None` leaves them in the clear.
    pub tls: Option<Tls>,
    /// Time a client has to agree on the encryption.
    pub handshake_timeout: Duration,
    /// Time a client has to send the head of a request, and how long an idle connection is kept.
    pub header_timeout: Duration,
    /// Time a client has to send the body of a request.
    pub body_timeout: Duration,
    /// How long a client may refuse to take data before its connection is cut.
    pub write_timeout: Duration,
    /// How long requests may take.
    pub timeouts: SharedTimeouts,
    /// Silence after which a stream carries a comment, so that nothing on the way takes it for dead.
    pub keep_alive_interval: Duration,
    /// The API keys; if there are none, everybody may ask.
    pub keys: Keys,
    /// Sites whose pages may read answers, such as `https://chat.example`; `*` is all.
    pub cors_origins: Vec<String>,
    /// Names under which the server can be reached beside `localhost`. Others are refused if there are any, or only this
    /// machine reaches it.
    pub allowed_hosts: Vec<String>,
    /// Where spans of requests are sent.
    pub traces: Option<Traces>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            body_bytes_max: 4 << 20,
            connections_max: 512,
            tls: None,
            handshake_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            timeouts: SharedTimeouts::default(),
            keep_alive_interval: Duration::from_secs(15),
            keys: Keys::default(),
            cors_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            traces: None,
        }
    }
}
