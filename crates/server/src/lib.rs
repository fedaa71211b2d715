//! The HTTP APIs that clients already speak, over a running [`engine::Engine`].
//!
//! [`bind`] takes an address, [`serve()`] answers on it until told to stop. A dialect (OpenAI's, Anthropic's or
//! Ollama's) translates HTTP requests to [`engine::Request`] and the engine's events back; everything that dialects
//! share (limits, errors, queueing, cancellation, metrics) is written once beside them. The engine never hears of HTTP.
//! The chat page at `/` is a client like any other.
#![forbid(unsafe_code)]

mod anthropic;
mod app;
mod body;
mod client;
mod connection;
mod constraint;
mod dialect;
mod error;
mod exposition;
mod fields;
mod health;
mod hosts;
mod kept;
mod keys;
mod listen;
mod metrics;
mod models;
mod ndjson;
mod observe;
mod ollama;
mod openai;
mod openapi;
mod options;
mod page;
mod patience;
mod plan;
mod request;
mod run;
mod serve;
mod sse;
mod stamp;
mod stream;
mod tally;
mod timeouts;
mod tls;
mod tools;
mod traces;

pub use keys::{Key, KeyFileError, KeyLimits, Keys, parse_keys};
pub use listen::{BindError, Listener, bind};
pub use models::{Loaded, Loader, Models, Offer, Room, parse_keep_alive};
pub use options::Options;
pub use serve::{Drained, serve};
pub use timeouts::{SharedTimeouts, Timeouts};
pub use tls::{Tls, TlsError};
pub use traces::{Traces, TracesError};
