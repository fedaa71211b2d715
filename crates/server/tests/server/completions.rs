//! `/v1/completions`

use serde_json::{Value, json};

use crate::harness::{NAME, Server, completion};
use crate::script::{LOGPROB, says, tokens};

const PATH: &str = "/v1/completions";

#[tokio::test]
async fn answers_with_text_and_the_counts() {
    let server = Server::start(says(" world")).await;
    let mut body = server.post(PATH, &completion(json!({}))).await.ok();
    assert!(body["id"].take().as_str().unwrap().starts_with("cmpl-"));
    body["created"].take();
    let (prompt, generated) = (server.only_request().prompt.len(), tokens(" world").len() + 1);
    let expected = json!({
        "id": null,
        "object": "text_completion",
        "created": null,
        "model": NAME,
        "choices": [{"index": 0, "text": " world", "logprobs": null, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": 1},
            "completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
        },
    });
    assert_eq!(body, expected);
}

#[tokio::test]
async fn prompts_come_as_text_or_tokens_one_or_many() {
    let server = Server::start(says("x")).await;
    let (hi, ho) = (tokens("Hi"), tokens("Ho"));
    let forms = [json!("Hi"), json!(["Hi", "Ho"]), json!(hi), json!([hi, ho])];
    for prompt in forms {
        let body = server.post(PATH, &completion(json!({"prompt": prompt, "add_special_tokens": false}))).await.ok();
        let several = prompt[0].is_string() || prompt[0].is_array();
        assert_eq!(body["choices"].as_array().unwrap().len(), if several { 2 } else { 1 }, "{prompt}");
    }
    let prompts: Vec<_> = server.requests().into_iter().map(|request| request.prompt).collect();
    assert_eq!(prompts, [hi.clone(), hi.clone(), ho.clone(), hi.clone(), hi, ho]);
}

#[tokio::test]
async fn sixteen_tokens_unless_told_otherwise() {
    let server = Server::start(says("0123456789012345678901234567890123456789")).await;
    let body = server.post(PATH, &completion(json!({}))).await.ok();
    assert_eq!(body["usage"]["completion_tokens"], 16);
    assert_eq!(body["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn several_answers_to_several_prompts_are_numbered_prompt_by_prompt() {
    let server = Server::start(says("!")).await;
    let fields = json!({"prompt": ["Hi", "Ho"], "n": 2, "best_of": 2, "echo": true});
    let body = server.post(PATH, &completion(fields)).await.ok();
    let choices = body["choices"].as_array().unwrap();
    let texts: Vec<_> = choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["Hi!", "Hi!", "Ho!", "Ho!"]);
    assert!(choices.iter().enumerate().all(|(index, choice)| choice["index"] == index));
}

#[tokio::test]
async fn logprobs_list_tokens_offsets_and_the_likeliest() {
    let server = Server::start(says("é☃x")).await;
    let body = server.post(PATH, &completion(json!({"logprobs": 2}))).await.ok();
    let logprobs = &body["choices"][0]["logprobs"];
    let text = body["choices"][0]["text"].as_str().unwrap();
    assert_eq!(text, "é☃x");
    let names = logprobs["tokens"].as_array().unwrap();
    for list in ["token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[list].as_array().unwrap().len(), names.len());
    }
    let position = names.iter().position(|name| name == "x").unwrap();
    assert_eq!(logprobs["text_offset"][position], 2);
    assert_eq!(logprobs["token_logprobs"][position], json!(LOGPROB));
    let top = logprobs["top_logprobs"][position].as_object().unwrap();
    assert_eq!(top.len(), 2);
    assert_eq!(top["x"], json!(LOGPROB));
    assert!(names.contains(&json!("bytes:\\xe2")), "{names:?}");
}

#[tokio::test]
async fn the_token_itself_is_always_among_the_likeliest() {
    let server = Server::start(says("x")).await;
    let body = server.post(PATH, &completion(json!({"logprobs": 0}))).await.ok();
    assert_eq!(body["choices"][0]["logprobs"]["top_logprobs"][0], json!({"x": LOGPROB}));
}

/// What lm-evaluation-harness sends for a log-likelihood, and how it reads the answer: token ids, echo, one token
/// generated and then cut off again.
#[tokio::test]
async fn evaluation_harnesses_get_the_logprobs_of_the_prompt() {
    let server = Server::start(says("zzzz")).await;
    let (context, continuation) = (tokens("The sky"), tokens(" is blue"));
    let prompt = [context.clone(), continuation.clone()].concat();
    let fields = json!({
        "prompt": [prompt, prompt], "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": true,
    });
    let body = server.post(PATH, &completion(fields)).await.ok();
    for choice in body["choices"].as_array().unwrap() {
        let logprobs = &choice["logprobs"];
        let list = |name: &str| logprobs[name].as_array().unwrap().clone();
        let scores = list("token_logprobs");
        assert_eq!(scores.len(), prompt.len() + 1);
        assert_eq!(scores[0], Value::Null);
        assert_eq!(list("top_logprobs")[0], Value::Null);
        let scored = &scores[context.len()..scores.len() - 1];
        assert_eq!(scored.len(), continuation.len());
        let best = &list("top_logprobs")[context.len()..scores.len() - 1];
        for (score, best) in scored.iter().zip(best) {
            assert_eq!(
                best.as_object().unwrap().values().max_by(|a, b| a.as_f64().unwrap().total_cmp(&b.as_f64().unwrap())),
                Some(score)
            );
        }
        assert_eq!(choice["text"], "The sky is bluez");
        assert_eq!(list("text_offset").last(), Some(&json!("The sky is blue".len())));
    }
    let requests = server.requests();
    assert_eq!((requests[0].logprobs, requests[0].prompt_logprobs), (Some(1), Some(1)));
}

#[tokio::test]
async fn echo_alone_returns_the_prompt() {
    let server = Server::start(says("never said")).await;
    let body = server.post(PATH, &completion(json!({"echo": true, "max_tokens": 0, "logprobs": 1}))).await.ok();
    assert_eq!(body["choices"][0]["text"], "Hi");
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    assert_eq!(body["usage"]["completion_tokens"], 0);
}

#[tokio::test]
async fn streams_add_up_to_the_whole_answer() {
    let server = Server::start(says("one ☃ two")).await;
    let fields = json!({"prompt": ["Hi", "Ho"], "echo": true, "logprobs": 1});
    let mut request = completion(fields);
    let whole = server.post(PATH, &request).await.ok();
    request["stream"] = true.into();
    request["stream_options"] = json!({"include_usage": true});
    let chunks = server.stream(PATH, &request).await;
    for index in 0..2 {
        let expected = &whole["choices"][index];
        let pieces = chunks.iter().filter_map(|chunk| chunk["choices"].get(0));
        let pieces: Vec<_> = pieces.filter(|choice| choice["index"] == index).collect();
        let text: String = pieces.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
        assert_eq!(json!(text), expected["text"]);
        for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            let joined = pieces.iter().filter_map(|choice| choice["logprobs"][list].as_array());
            let joined: Vec<Value> = joined.flatten().cloned().collect();
            assert_eq!(Value::Array(joined), expected["logprobs"][list], "{list}");
        }
        assert_eq!(pieces.last().unwrap()["finish_reason"], "stop");
    }
    assert_eq!(chunks.last().unwrap()["usage"], whole["usage"]);
    assert_eq!(chunks.last().unwrap()["object"], "text_completion");
}
