//! `/tokenize` and `/detokenize`

use serde_json::{Value, json};

use crate::harness::{CONTEXT, NAME, Server};
use crate::script::{MODEL, says, tokens};

#[tokio::test]
async fn texts_become_tokens_and_texts_again() {
    let server = Server::start(says("x")).await;
    let text = "Grüße, <|im_start|> ☃!";
    let expected = tokens(text);
    // As vLLM and as llama.cpp ask.
    let forms = [
        json!({"model": NAME, "prompt": text, "add_special_tokens": false}),
        json!({"content": text}),
        json!({"content": text, "add_special": false, "parse_special": true}),
    ];
    for form in forms {
        let answer = server.post("/tokenize", &form).await.ok();
        let whole = json!({"tokens": expected, "count": expected.len(), "max_model_len": CONTEXT, "token_strs": null});
        assert_eq!(answer, whole, "{form}");
    }
    let plain = server.post("/tokenize", &json!({"content": text, "parse_special": false})).await.ok();
    assert!(plain["count"].as_u64().unwrap() > expected.len() as u64);
    let back = server.post("/detokenize", &json!({"tokens": plain["tokens"]})).await.ok();
    assert_eq!(back, json!({"prompt": text, "content": text}));
    assert_eq!(server.post("/detokenize", &json!({"tokens": []})).await.ok()["content"], "");
}

#[tokio::test]
async fn pieces_are_texts_or_bytes() {
    let server = Server::start(says("x")).await;
    let answer = server.post("/tokenize", &json!({"content": "a☃", "with_pieces": true})).await.ok();
    let pieces = answer["tokens"].as_array().unwrap();
    assert_eq!(pieces[0], json!({"id": tokens("a")[0], "piece": "a"}));
    assert_eq!(pieces[1]["piece"], json!([0xe2]));
    let answer = server.post("/tokenize", &json!({"prompt": "a", "return_token_strs": true})).await.ok();
    assert_eq!(answer["token_strs"].as_array().unwrap().last(), Some(&json!("a")));
}

#[tokio::test]
async fn conversations_are_rendered() {
    let server = Server::start(says("x")).await;
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let turn = "<|im_start|>user\nHi<|im_end|>\n";
    for (wanted, expected) in [(true, format!("{turn}<|im_start|>assistant\n")), (false, turn.to_owned())] {
        let form = json!({"messages": messages, "add_generation_prompt": wanted});
        assert_eq!(server.post("/tokenize", &form).await.ok()["tokens"], json!(tokens(&expected)));
    }
    assert_eq!(server.requests(), []);
}

#[tokio::test]
async fn bad_requests_are_refused() {
    let server = Server::start(says("x")).await;
    let cases: [(&str, Value, &str, &str); 12] = [
        ("/tokenize", json!({}), "prompt", "missing_required_parameter"),
        ("/tokenize", json!({"prompt": 5}), "prompt", "invalid_type"),
        ("/tokenize", json!({"content": ["a"]}), "content", "invalid_type"),
        ("/tokenize", json!({"prompt": "a", "add_special_tokens": 1}), "add_special_tokens", "invalid_type"),
        ("/tokenize", json!({"content": "a", "parse_special": 1}), "parse_special", "invalid_type"),
        ("/tokenize", json!({"content": "a", "with_pieces": 1}), "with_pieces", "invalid_type"),
        ("/tokenize", json!({"messages": []}), "messages", "invalid_value"),
        ("/tokenize", json!({"model": 5, "prompt": "a"}), "model", "invalid_type"),
        ("/detokenize", json!({}), "tokens", "missing_required_parameter"),
        ("/detokenize", json!({"tokens": "a"}), "tokens", "invalid_type"),
        ("/detokenize", json!({"tokens": ["a"]}), "tokens[0]", "invalid_type"),
        ("/detokenize", json!({"tokens": [5, MODEL.tokenizer.vocabulary()]}), "tokens[1]", "invalid_value"),
    ];
    for (path, body, param, code) in cases {
        let answer = server.post(path, &body).await;
        let expected = (400, "invalid_request_error".to_owned(), Some(param.to_owned()), code.to_owned());
        assert_eq!(answer.error(), expected, "{path} {body} got {}", answer.text());
    }
    assert_eq!(server.post("/tokenize", &json!({"model": "other", "prompt": "a"})).await.error().0, 404);
}
