//! Every bad request of a table gets the status, the form of error and the words that the table says, in each dialect.
//!
//! The table is `refusals.json`. Its `requests` are good ones, by name: method, path, body. A row of `refusals` names one
//! of them in `ask` (or else a method and a path) and says what is changed: fields of the body in `with` (`null` leaves one
//! out), the whole body in `text`, the `method`, the content type in `type` (`null` for none), the site in `origin`. In place
//! of what is long stands `{"$repeat": [text, times]}` or `{"$copies": [value, times]}`. The `answer` is the status and what
//! the dialect tells besides the message: type, param and code for OpenAI, the type for Anthropic, nothing for Ollama.

use hyper::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, NAME, Server};
use crate::script::says;

/// A row of the table as a request.
struct Request {
    method: Method,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Request {
    fn of(row: &Value, requests: &Value) -> Self {
        let ask = row["ask"].as_str().unwrap();
        let (method, path, good) = match requests.get(ask) {
            Some(request) => (request[0].as_str().unwrap(), request[1].as_str().unwrap(), request[2].clone()),
            None => {
                let (method, path) = ask.split_once(' ').unwrap();
                (method, path, json!({}))
            }
        };
        let body = match row.get("text") {
            Some(text) => expanded(text).as_str().unwrap().to_owned(),
            None => changed(good, row.get("with")).to_string(),
        };
        let kind = row.get("type").map_or(Some("application/json"), Value::as_str);
        let headers = [("content-type", kind), ("origin", row["origin"].as_str())];
        Self {
            method: row["method"].as_str().unwrap_or(method).parse().unwrap(),
            path: path.to_owned(),
            headers: headers.into_iter().filter_map(|(name, value)| Some((name, value?.to_owned()))).collect(),
            body: body.into_bytes(),
        }
    }
}

/// `body` with the fields of `with`, without those that are `null` there.
fn changed(mut body: Value, with: Option<&Value>) -> Value {
    let fields = body.as_object_mut().unwrap();
    for (name, value) in with.and_then(Value::as_object).into_iter().flatten() {
        if value.is_null() {
            fields.remove(name);
        } else {
            fields.insert(name.clone(), expanded(value));
        }
    }
    body
}

/// `value` with the long things in full.
fn expanded(value: &Value) -> Value {
    let times = |what: &Value| usize::try_from(what[1].as_u64().unwrap()).unwrap();
    match value {
        Value::Object(fields) => match (fields.get("$repeat"), fields.get("$copies")) {
            (Some(what), _) => what[0].as_str().unwrap().repeat(times(what)).into(),
            (_, Some(what)) => vec![what[0].clone(); times(what)].into(),
            _ => fields.iter().map(|(name, value)| (name.clone(), expanded(value))).collect(),
        },
        Value::Array(items) => items.iter().map(expanded).collect(),
        other => other.clone(),
    }
}

/// What an answer says besides the message, and the message, which must come in the form of the path's dialect alone.
fn told(path: &str, answer: &Answer) -> (Value, String) {
    let body = answer.json();
    let status = answer.status.as_u16();
    let (told, message) = if path.starts_with("/api/") {
        (json!([status]), body["error"].clone())
    } else if path.starts_with("/v1/messages") {
        assert_eq!(body["type"], "error");
        (json!([status, body["error"]["type"]]), body["error"]["message"].clone())
    } else {
        let error = &body["error"];
        (json!([status, error["type"], error["param"], error["code"]]), error["message"].clone())
    };
    (told, message.as_str().unwrap_or_else(|| panic!("no message in {body}")).to_owned())
}

#[tokio::test]
async fn every_bad_request_of_the_table_is_refused_as_the_table_says() {
    let table: Value = serde_json::from_str(include_str!("refusals.json")).unwrap();
    let requests = &table["requests"];
    let server = Server::start(says("x")).await;
    let rows = table["refusals"].as_array().unwrap();
    assert!(rows.len() >= 80);
    let mut wrong = Vec::new();
    for row in rows {
        let request = Request::of(row, requests);
        let headers: Vec<_> = request.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let exchange = server.send_with(request.method, &request.path, &headers, request.body).await;
        let answer = exchange.answer().await;
        assert_eq!(answer.headers["content-type"], "application/json", "{row}");
        let (told, message) = told(&request.path, &answer);
        if (&told, message.as_str()) != (&row["answer"], row["message"].as_str().unwrap()) {
            wrong.push(format!("{row}\n    was answered {told}: {message:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
    // Nothing of it reached the engine, and the good ones pass.
    assert_eq!(server.requests(), []);
    for (name, request) in requests.as_object().unwrap() {
        assert!(request[2].get("model").is_some_and(|model| model == NAME), "{name}");
        let answer = server.post(request[1].as_str().unwrap(), &request[2]).await;
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
    }
}
