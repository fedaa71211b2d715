//! What an answer must look like, in the words of each API.

use engine::{Constraint, EngineError, FinishReason, Request};
use serde_json::{Value, json};

use crate::harness::{NAME, Server, chat, completion};
use crate::script::{outcome, says};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const OLLAMA: &str = "/api/chat";

fn schema() -> Value {
    json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false})
}

/// A schema with a keyword that is not supported.
fn unsupported() -> Value {
    json!({"type": "object", "properties": {"n": {"not": {"type": "null"}}}})
}

fn anthropic(format: Value) -> Value {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    json!({"model": NAME, "max_tokens": 9, "messages": messages, "output_config": {"format": format}})
}

fn ollama(format: Value) -> Value {
    json!({"model": NAME, "stream": false, "messages": [{"role": "user", "content": "Hi"}], "format": format})
}

fn response(format: Value) -> Value {
    json!({"model": NAME, "input": "Hi", "text": {"format": format}})
}

#[tokio::test]
async fn constraints_reach_the_engine_from_every_api() {
    let strict = Constraint::json_schema(&schema(), true).unwrap();
    let object = Constraint::json_object().unwrap();
    let regex = Constraint::regex("[a-z]+").unwrap();
    let choice = Constraint::choice(&["a".to_owned(), "b".to_owned()]).unwrap();
    let lark = Constraint::lark("start: \"x\"").unwrap();
    let gbnf = Constraint::grammar("root ::= \"x\"").unwrap();
    let described = |strict: Value| json!({"name": "number", "schema": schema(), "strict": strict});
    let lenient = Constraint::json_schema(&schema(), false).unwrap();
    let format = |format: Value| json!({"response_format": format});
    let both = [
        (format(json!({"type": "json_object"})), &object),
        (format(json!({"type": "json_object", "schema": schema()})), &strict),
        (format(json!({"type": "json_schema", "json_schema": described(json!(true))})), &strict),
        (format(json!({"type": "json_schema", "json_schema": described(json!(null))})), &lenient),
        (json!({"structured_outputs": {"json": schema()}}), &strict),
        (json!({"structured_outputs": {"regex": "[a-z]+"}}), &regex),
        (json!({"structured_outputs": {"choice": ["a", "b"]}}), &choice),
        (json!({"structured_outputs": {"json_object": true}}), &object),
        (json!({"structured_outputs": {"grammar": "start: \"x\""}}), &lark),
        (json!({"guided_json": schema().to_string()}), &strict),
        (json!({"guided_regex": "[a-z]+"}), &regex),
        (json!({"guided_choice": ["a", "b"]}), &choice),
        (json!({"guided_grammar": "start: \"x\""}), &lark),
        (json!({"grammar": "root ::= \"x\""}), &gbnf),
        (json!({"json_schema": schema()}), &strict),
    ];
    let flat = json!({"type": "json_schema", "name": "number", "schema": schema(), "strict": true});
    let mut cases = vec![
        (RESPONSES, response(json!({"type": "json_object"})), &object),
        (RESPONSES, response(flat), &strict),
        (MESSAGES, anthropic(json!({"type": "json_schema", "schema": schema()})), &strict),
        (OLLAMA, ollama(json!("json")), &object),
        (OLLAMA, ollama(schema()), &strict),
        ("/api/generate", json!({"model": NAME, "stream": false, "prompt": "Hi", "format": "json"}), &object),
    ];
    for (body, constraint) in both {
        cases.push((CHAT, chat(body.clone()), constraint));
        cases.push((COMPLETIONS, completion(body), constraint));
    }
    let server = Server::start(says("x")).await;
    for (path, body, constraint) in cases {
        server.post(path, &body).await.ok();
        assert_eq!(server.requests().last().unwrap().constraint.as_ref(), Some(constraint), "{path} {body}");
    }
    server.post(CHAT, &chat(json!({"response_format": {"type": "text"}}))).await.ok();
    assert_eq!(server.requests().last().unwrap().constraint, None);
}

#[tokio::test]
async fn bad_constraints_are_refused_and_say_why() {
    let format = |format: Value| chat(json!({"response_format": format}));
    let described = |schema: Value| {
        format(json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": true}}))
    };
    let place = "response_format.json_schema.schema";
    let cases = [
        (described(unsupported()), place, "unsupported_value", "keyword \"not\" at #/properties/n, which"),
        (described(json!({"type": "thing"})), place, "invalid_value", "cannot be followed: Invalid type: thing"),
        (described(json!([])), place, "invalid_type", "must be a schema"),
        (
            format(json!({"type": "json_schema"})),
            "response_format.json_schema",
            "missing_required_parameter",
            "required",
        ),
        (
            format(json!({"type": "json_schema", "json_schema": {}})),
            "response_format.json_schema.name",
            "missing_required_parameter",
            "required",
        ),
        (chat(json!({"guided_regex": "("})), "guided_regex", "invalid_value", "cannot be followed"),
        (chat(json!({"guided_regex": 5})), "guided_regex", "invalid_type", "must be a string"),
        (chat(json!({"guided_choice": ["a", 5]})), "guided_choice[1]", "invalid_type", "must be a string"),
        (chat(json!({"guided_choice": []})), "guided_choice", "invalid_value", "nothing to choose from"),
        (chat(json!({"guided_json": "{"})), "guided_json", "invalid_value", "no JSON"),
        (chat(json!({"grammar": "root ::= x"})), "grammar", "invalid_value", "\"x\" is not defined"),
        (
            chat(json!({"structured_outputs": {"structural_tag": "x"}})),
            "structured_outputs.structural_tag",
            "unsupported_parameter",
            "is not supported",
        ),
        (
            chat(json!({"guided_regex": "a", "guided_choice": ["a"]})),
            "guided_choice",
            "invalid_value",
            "cannot be combined with guided_regex",
        ),
    ];
    let server = Server::start(says("x")).await;
    for (body, param, code, words) in cases {
        let answer = server.post(CHAT, &body).await;
        let expected = (400, "invalid_request_error".to_owned(), Some(param.to_owned()), code.to_owned());
        assert_eq!(answer.error(), expected, "{body}");
        assert!(answer.text().replace("\\\"", "\"").contains(words), "{}", answer.text());
    }
    for (path, body) in [
        (RESPONSES, response(json!({"type": "json_schema", "name": "x", "schema": unsupported(), "strict": true}))),
        (MESSAGES, anthropic(json!({"type": "json_schema", "schema": unsupported()}))),
        (OLLAMA, ollama(unsupported())),
    ] {
        let answer = server.post(path, &body).await;
        assert_eq!(answer.status, 400);
        assert!(answer.text().contains("#/properties/n"), "{}", answer.text());
    }
    assert_eq!(server.requests(), []);
    // Without strict, what is not supported is left out.
    let lenient = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": unsupported()}});
    server.post(CHAT, &format(lenient)).await.ok();
}

#[tokio::test]
async fn a_form_that_becomes_too_complex_is_an_error() {
    let script = |_: &Request, _: &mut dyn engine::Observer| -> Result<_, EngineError> {
        Ok(outcome(FinishReason::ConstraintFailed))
    };
    let server = Server::start(script).await;
    let answer = server.post(CHAT, &chat(json!({"guided_regex": "a*"}))).await;
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("too complex"), "{}", answer.text());
}
