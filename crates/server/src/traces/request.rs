//! What a span tells of a request: how it went, and how much there was of it. Never what was asked or answered.

use std::time::Duration;

use axum::extract::Request;
use serde_json::{Value, json};

use super::{Parent, Span, Traces};
use crate::stamp;
use crate::tally::Counts;

/// What is asked all the time by those who watch over the server, and would hide everything else.
const UNTRACED: [&str; 4] = ["/health", "/ready", "/live", "/metrics"];
/// Clients choose paths, and spans wait in memory.
const PATH_CHARS_MAX: usize = 256;

/// A request whose span is sent when it has ended.
pub(crate) struct Traced {
    traces: Traces,
    parent: Option<Parent>,
    path: String,
    began: Duration,
}

/// How a request went.
pub(crate) struct Outcome<'a> {
    pub(crate) id: &'a str,
    pub(crate) method: &'a str,
    /// `None` if there is nothing at its path.
    pub(crate) route: Option<&'a str>,
    pub(crate) status: u16,
    /// From its beginning to the end of its answer.
    pub(crate) took: Duration,
    /// From its beginning to the first token.
    pub(crate) first_token: Option<Duration>,
    pub(crate) counts: &'a Counts,
}

impl Traced {
    /// Begins the span of `request`, unless it is not to be traced, or its client has said that the trace is not recorded.
    pub(crate) fn begin(traces: Option<&Traces>, request: &Request) -> Option<Self> {
        let (traces, path) = (traces?, request.uri().path());
        let parent = Parent::of(request.headers());
        if UNTRACED.contains(&path) || parent.as_ref().is_some_and(|parent| !parent.sampled) {
            return None;
        }
        let path = path.chars().take(PATH_CHARS_MAX).collect();
        Some(Self { traces: traces.clone(), parent, path, began: stamp::now() })
    }

    /// Sends the span.
    pub(crate) fn end(self, outcome: &Outcome<'_>) {
        let &Outcome { method, route, status, took, .. } = outcome;
        let name = route.map_or_else(|| method.to_owned(), |route| format!("{method} {route}"));
        let mut attributes = vec![
            ("http.request.method", json!(method)),
            ("http.response.status_code", json!(status)),
            ("url.path", json!(self.path)),
        ];
        attributes.extend(route.map(|route| ("http.route", json!(route))));
        attributes.extend(generation(outcome));
        let failed = status >= 500;
        self.traces.push(Span {
            parent: self.parent,
            name,
            began: self.began,
            ended: self.began + took,
            attributes,
            failed,
        });
    }
}

/// What a model has done, under the names of OpenTelemetry's conventions, or vLLM's where those have none.
fn generation(outcome: &Outcome<'_>) -> Vec<(&'static str, Value)> {
    let counts = outcome.counts;
    let Some(model) = &counts.model else { return Vec::new() };
    let mut attributes = vec![
        ("gen_ai.request.id", json!(outcome.id)),
        ("gen_ai.request.model", json!(model)),
        ("gen_ai.usage.input_tokens", json!(counts.input_tokens)),
        ("gen_ai.usage.output_tokens", json!(counts.output_tokens)),
        ("gen_ai.latency.e2e", json!(outcome.took.as_secs_f64())),
    ];
    if !counts.finishes.is_empty() {
        attributes.push(("gen_ai.response.finish_reasons", json!(counts.finishes)));
    }
    let first = outcome.first_token.map(|first| json!(first.as_secs_f64()));
    attributes.extend(first.map(|first| ("gen_ai.latency.time_to_first_token", first)));
    attributes
}
