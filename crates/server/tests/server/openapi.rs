//! `/openapi.json`: it describes every route, and what it says is so.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hyper::Method;
use serde_json::{Value, json};

use crate::harness::{NAME, Server};
use crate::script::says;

const METHODS: [&str; 3] = ["get", "post", "delete"];

async fn document(server: &Server) -> Value {
    let answer = server.get("/openapi.json").await;
    assert_eq!(answer.headers["content-type"], "application/json");
    answer.ok()
}

/// Each operation: path, method and description.
fn operations(document: &Value) -> Vec<(&String, &String, &Value)> {
    let paths = document["paths"].as_object().unwrap().iter();
    paths
        .flat_map(|(path, item)| item.as_object().unwrap().iter().map(move |(method, it)| (path, method, it)))
        .collect()
}

/// All Rust sources under `folder`.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let files = files.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    files.chain(folders.iter().flat_map(|folder| sources(folder))).collect()
}

/// Path and method of every route that the sources name.
fn routes() -> BTreeSet<(String, String)> {
    let mut routes = BTreeSet::new();
    for file in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        let text = std::fs::read_to_string(file).unwrap();
        for route in text.split(".route(\"").skip(1) {
            let (path, handlers) = route.split_once('"').unwrap();
            let handlers = handlers.lines().next().unwrap();
            let methods = METHODS.into_iter().filter(|method| handlers.contains(&format!("{method}(")));
            // OpenAPI has no word for parameters that may contain slashes.
            routes.extend(methods.map(|method| (path.replace("{*", "{"), method.to_owned())));
        }
    }
    routes
}

#[tokio::test]
async fn every_route_is_described_and_nothing_else() {
    let server = Server::start(says("x")).await;
    let document = document(&server).await;
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let described: BTreeSet<_> =
        operations(&document).into_iter().map(|(path, method, _)| (path.clone(), method.clone())).collect();
    assert_eq!(described, routes());
    assert!(described.len() > 20);
    let names: BTreeSet<_> =
        operations(&document).iter().map(|(.., it)| it["operationId"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names.len(), described.len());
}

/// Where `value` does not fit `schema`, and why. Knows the words that the document uses.
fn misfit(document: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = document.pointer(reference.strip_prefix('#').unwrap());
        return misfit(document, target.unwrap_or_else(|| panic!("no {reference}")), value, at);
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        let misfits: Vec<_> = choices.iter().map(|choice| misfit(document, choice, value, at)).collect();
        return if misfits.contains(&None) { None } else { misfits.into_iter().flatten().next() };
    }
    let kinds = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().map(|kind| kind.as_str().unwrap()).collect(),
        Value::String(kind) => vec![kind.as_str()],
        _ => Vec::new(),
    };
    if !kinds.is_empty() && !kinds.iter().any(|kind| is_kind(value, kind)) {
        return Some(format!("{at} is {value}, not {kinds:?}"));
    }
    if schema["enum"].as_array().is_some_and(|choices| !choices.contains(value)) {
        return Some(format!("{at} is {value}, not one of {}", schema["enum"]));
    }
    if let Some(items) = value.as_array() {
        return items.iter().find_map(|item| misfit(document, &schema["items"], item, &format!("{at}[]")));
    }
    let object = value.as_object()?;
    let mut required = schema["required"].as_array().into_iter().flatten().map(|name| name.as_str().unwrap());
    if let Some(name) = required.find(|name| !object.contains_key(*name)) {
        return Some(format!("{at}.{name} is missing"));
    }
    let mut known = object.iter().filter(|(name, _)| schema["properties"].get(name).is_some());
    known.find_map(|(name, value)| misfit(document, &schema["properties"][name], value, &format!("{at}.{name}")))
}

fn is_kind(value: &Value, kind: &str) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no kind {other}"),
    }
}

/// All references in a value.
fn references<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        Value::Object(entries) => {
            found.extend(entries.get("$ref").and_then(Value::as_str));
            entries.values().for_each(|value| references(value, found));
        }
        _ => {}
    }
}

#[tokio::test]
async fn every_schema_is_there_and_used() {
    let server = Server::start(says("x")).await;
    let document = document(&server).await;
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let names: BTreeSet<_> = schemas.keys().map(|name| format!("#/components/schemas/{name}")).collect();
    assert_eq!(found, names.iter().map(String::as_str).collect::<BTreeSet<_>>());
}

/// Sends each example, and an empty request besides, and holds requests and answers against their schemas.
#[tokio::test]
async fn examples_are_answered_as_described() {
    let server = Server::start(says("Hello there")).await;
    let document = document(&server).await;
    let mut checked = 0;
    for (path, method, operation) in operations(&document) {
        let body = &operation["requestBody"]["content"]["application/json"];
        let schema = |status: &str| &operation["responses"][status]["content"]["application/json"]["schema"];
        if method == "post" {
            let mut example = body["example"].clone();
            assert_eq!(misfit(&document, &body["schema"], &example, path), None);
            if example.get("model").is_some() {
                example["model"] = NAME.into();
            }
            let answer = server.post(path, &example).await.ok();
            assert_eq!(misfit(&document, schema("200"), &answer, path), None);
            let refusal = server.post(path, &json!({"model": "other"})).await;
            assert!(refusal.status.is_client_error(), "{path}");
            assert_eq!(misfit(&document, schema("default"), &refusal.json(), path), None);
            checked += 1;
        } else if method == "get" && schema("200").is_object() && !path.contains('{') {
            let answer = server.get(path).await.ok();
            assert_eq!(misfit(&document, schema("200"), &answer, path), None);
            checked += 1;
        }
    }
    assert!(checked > 14);
    assert_eq!(
        misfit(&document, &json!({"$ref": "#/components/schemas/Model"}), &json!({}), "it").as_deref(),
        Some("it.id is missing")
    );
}

/// The events of a stream as clients see them: what has no name is a `message`.
fn events(stream: &str) -> Vec<Value> {
    let read = |block: &str| {
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
        json!({"event": field("event: ").unwrap_or("message"), "data": field("data: ").unwrap()})
    };
    stream.split("\n\n").filter(|block| !block.is_empty() && !block.starts_with(':')).map(read).collect()
}

#[tokio::test]
async fn events_of_streams_are_described() {
    let server = Server::start(says("Hello there")).await;
    let document = document(&server).await;
    let mut checked = 0;
    for (path, _, operation) in operations(&document) {
        let schema = &operation["responses"]["200"]["content"]["text/event-stream"]["schema"];
        if schema.is_null() {
            continue;
        }
        let mut request = operation["requestBody"]["content"]["application/json"]["example"].clone();
        request["model"] = NAME.into();
        request["stream"] = true.into();
        let answer = server.post(path, &request).await;
        assert_eq!(answer.headers["content-type"], "text/event-stream");
        let events = events(answer.text());
        assert!(events.len() > 2, "{path}");
        for event in &events {
            assert_eq!(misfit(&document, schema, event, path), None);
        }
        checked += 1;
    }
    assert!(checked >= 4);
}

#[tokio::test]
async fn responses_are_described_as_they_are_found_and_deleted() {
    let server = Server::start(says("x")).await;
    let document = document(&server).await;
    let response = server.post("/v1/responses", &json!({"model": NAME, "input": "Hi"})).await.ok();
    let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
    let item = &document["paths"]["/v1/responses/{id}"];
    for (method, name) in [(Method::GET, "get"), (Method::DELETE, "delete"), (Method::GET, "get")] {
        let answer = server.send(method, &path, None, Vec::new()).await.answer().await;
        let status = if answer.status == 200 { "200" } else { "default" };
        let schema = &item[name]["responses"][status]["content"]["application/json"]["schema"];
        assert_eq!(misfit(&document, schema, &answer.json(), name), None);
    }
}
