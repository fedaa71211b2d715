//! What is told of a request, in OTLP's JSON.

use std::time::Duration;

use serde_json::{Value, json};

use super::Parent;
use crate::stamp;

/// The number of a span in a server.
const KIND_SERVER: u8 = 2;
const STATUS_ERROR: u8 = 2;

/// What is told of one request.
pub(crate) struct Span {
    /// The span that it belongs to, if the client has named one.
    pub(crate) parent: Option<Parent>,
    pub(crate) name: String,
    /// When it began and ended, since the Unix epoch.
    pub(crate) began: Duration,
    pub(crate) ended: Duration,
    /// Names and values; values are strings, integers, other numbers or lists of those.
    pub(crate) attributes: Vec<(&'static str, Value)>,
    /// Whether it is the server's fault that it failed.
    pub(crate) failed: bool,
}

impl Span {
    fn json(&self) -> Value {
        let trace = self.parent.as_ref().map_or_else(|| stamp::new_id(""), |parent| parent.trace.clone());
        json!({
            "traceId": trace,
            "spanId": stamp::new_id("")[..16],
            "parentSpanId": self.parent.as_ref().map_or("", |parent| parent.span.as_str()),
            "name": self.name,
            "kind": KIND_SERVER,
            "startTimeUnixNano": self.began.as_nanos().to_string(),
            "endTimeUnixNano": self.ended.as_nanos().to_string(),
            "attributes": self.attributes.iter().map(|(key, value)| attribute(key, value)).collect::<Vec<_>>(),
            "status": if self.failed { json!({"code": STATUS_ERROR}) } else { json!({}) },
        })
    }
}

/// What is sent to a collector.
pub(super) fn export(spans: &[Span]) -> Value {
    let version = env!("CARGO_PKG_VERSION");
    let name = "ropewalk";
    let resource = [attribute("service.name", &json!(name)), attribute("service.version", &json!(version))];
    let spans: Vec<_> = spans.iter().map(Span::json).collect();
    let scope = json!({"scope": {"name": name, "version": version}, "spans": spans});
    json!({"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [scope]}]})
}

fn attribute(key: &str, value: &Value) -> Value {
    json!({"key": key, "value": any(value)})
}

fn any(value: &Value) -> Value {
    match value {
        Value::Array(values) => json!({"arrayValue": {"values": values.iter().map(any).collect::<Vec<_>>()}}),
        // Integers of 64 bits are strings in the JSON of protocol buffers.
        Value::Number(number) if number.is_u64() => json!({"intValue": number.to_string()}),
        Value::Number(number) => json!({"doubleValue": number}),
        Value::Bool(flag) => json!({"boolValue": flag}),
        Value::String(text) => json!({"stringValue": text}),
        other => json!({"stringValue": other.to_string()}),
    }
}

#[cfg(test)]
impl Span {
    pub(super) fn example() -> Self {
        let attributes = vec![("http.route", json!("/health")), ("numbers", json!([1, 0.5]))];
        let (began, ended) = (Duration::from_nanos(5), Duration::from_secs(1));
        Self { parent: None, name: "GET /health".to_owned(), began, ended, attributes, failed: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_written_as_collectors_read_them() {
        let spans = [Span::example(), Span { failed: true, ..Span::example() }];
        let written = export(&spans);
        let spans = &written["resourceSpans"][0]["scopeSpans"][0]["spans"];
        let span = &spans[0];
        assert_eq!((&span["startTimeUnixNano"], &span["endTimeUnixNano"]), (&json!("5"), &json!("1000000000")));
        assert_eq!((&span["kind"], &span["parentSpanId"], &span["status"]), (&json!(2), &json!(""), &json!({})));
        assert_eq!(span["attributes"][0], json!({"key": "http.route", "value": {"stringValue": "/health"}}));
        let numbers = json!([{"intValue": "1"}, {"doubleValue": 0.5}]);
        assert_eq!(span["attributes"][1]["value"]["arrayValue"]["values"], numbers);
        assert_eq!(spans[1]["status"], json!({"code": 2}));
        let (trace, id) = (span["traceId"].as_str().unwrap(), span["spanId"].as_str().unwrap());
        assert_eq!((trace.len(), id.len()), (32, 16));
        assert_ne!(spans[1]["traceId"], span["traceId"]);
    }
}
