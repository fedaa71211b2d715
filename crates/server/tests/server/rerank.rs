//! Documents by how well they answer a query.

use std::sync::{Arc, Mutex};

use engine::{Engine, Limits, ModelInfo};
use serde_json::{Value, json};
use server::Options;

use crate::harness::{NAME, Server, model, with};
use crate::script::{Script, says, tokens};

const PATH: &str = "/v1/rerank";

fn request() -> Value {
    json!({"model": NAME, "query": "why?", "documents": ["A", {"text": "A very long document"}, "A {query}"]})
}

#[tokio::test]
async fn the_best_documents_come_first() {
    let server = Server::start(says("")).await;
    let body = server.post(PATH, &request()).await.ok();
    // The query has no place in the document that looks as if it had.
    let prompts =
        ["Does A answer why??", "Does A very long document answer why??", "Does A {query} answer why??"].map(tokens);
    assert_eq!(server.requests().into_iter().map(|request| request.prompt).collect::<Vec<_>>(), prompts);
    let lengths = prompts.map(|prompt| prompt.len());
    assert!(lengths[1] > lengths[2] && lengths[2] > lengths[0]);
    let ranked = body["results"].as_array().unwrap();
    assert_eq!(ranked.iter().map(|result| result["index"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 0]);
    for (result, index) in ranked.iter().zip([1, 2, 0]) {
        let expected = 1.0 / (1.0 + (-0.1 * lengths[index] as f64).exp());
        assert!((result["relevance_score"].as_f64().unwrap() - expected).abs() < 1e-6);
        assert_eq!(result.get("document"), None);
    }
    assert_eq!(
        (&body["model"], &body["usage"]["prompt_tokens"]),
        (&json!(NAME), &json!(lengths.iter().sum::<usize>()))
    );
}

#[tokio::test]
async fn as_many_results_as_wanted_with_their_texts() {
    let server = Server::start(says("")).await;
    let body = server.post("/rerank", &with(request(), json!({"top_n": 2, "return_documents": true}))).await.ok();
    let texts: Vec<_> = body["results"].as_array().unwrap().iter().map(|result| &result["document"]["text"]).collect();
    assert_eq!(texts, ["A very long document", "A {query}"]);
}

#[tokio::test]
async fn what_cannot_be_ranked_is_refused() {
    let server = Server::start(says("")).await;
    for (change, param) in [
        (json!({"query": null}), "query"),
        (json!({"query": 3}), "query"),
        (json!({"documents": null}), "documents"),
        (json!({"documents": "A"}), "documents"),
        (json!({"documents": []}), "documents"),
        (json!({"documents": ["A", 3]}), "documents[1]"),
        (json!({"documents": [{"title": "A"}]}), "documents[0]"),
        (json!({"top_n": 0}), "top_n"),
        (json!({"return_documents": "yes"}), "return_documents"),
    ] {
        let answer = server.post(PATH, &with(request(), change)).await;
        assert_eq!((answer.status.as_u16(), answer.json()["error"]["param"].as_str()), (400, Some(param)));
    }
}

#[tokio::test]
async fn other_models_say_that_they_cannot() {
    let model = ModelInfo { ranking: None, ..model(NAME) };
    let engine = Engine::start(model, Limits::default(), Box::new(Script(Mutex::new(says("")))));
    let server = Server::of(engine.clone().into(), engine, Options::default(), Arc::default()).await;
    let (status, _, param, _) = server.post(PATH, &request()).await.error();
    assert_eq!((status, param.as_deref()), (400, Some("model")));
}
