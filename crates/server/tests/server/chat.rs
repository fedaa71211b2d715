//! `/v1/chat/completions`

use std::sync::Barrier;

use engine::{Limits, Observer, Request};
use serde_json::{Value, json};
use server::Options;

use crate::harness::{NAME, Server, chat};
use crate::script::{LOGPROB, MODEL, say, says, tokens};

const PATH: &str = "/v1/chat/completions";

/// The text that the chunks of choice `index` add up to.
fn text_of(chunks: &[Value], index: usize) -> String {
    let choices = chunks.iter().filter_map(|chunk| chunk["choices"].get(0)).filter(|choice| choice["index"] == index);
    choices.filter_map(|choice| choice["delta"]["content"].as_str()).collect()
}

#[tokio::test]
async fn answers_with_a_message_and_the_counts() {
    let server = Server::start(says("Hello there")).await;
    let answer = server.post(PATH, &chat(json!({}))).await;
    let mut body = answer.ok();
    assert!(answer.headers.contains_key("x-request-id"));
    assert!(body["id"].take().as_str().unwrap().starts_with("chatcmpl-"));
    assert!(body["created"].take().as_u64().unwrap() > 1_700_000_000);
    let prompt = tokens("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    let generated = tokens("Hello there").len() + 1;
    let expected = json!({
        "id": null,
        "object": "chat.completion",
        "created": null,
        "model": NAME,
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": "Hello there", "refusal": null},
            "logprobs": null,
            "finish_reason": "stop",
        }],
        "usage": {
            "prompt_tokens": prompt.len(),
            "completion_tokens": generated,
            "total_tokens": prompt.len() + generated,
            "prompt_tokens_details": {"cached_tokens": 1},
            "completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
        },
    });
    assert_eq!(body, expected);
    assert_eq!(server.only_request().prompt, prompt);
}

#[tokio::test]
async fn sampling_fields_reach_the_engine() {
    let server = Server::start(says("x")).await;
    let fields = json!({
        "temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "repetition_penalty": 1.5, "presence_penalty": -1,
        "frequency_penalty": 2, "logit_bias": {"5": -100, "9": 2.5}, "seed": -2, "stop": "end", "max_tokens": 9,
        "max_completion_tokens": 3, "ignore_eos": true, "user": "somebody",
        "reasoning_effort": "low", "unheard_of": {"a": 1}, "n": null,
    });
    server.post(PATH, &chat(fields)).await.ok();
    let request = server.only_request();
    let sampling = engine::Sampling {
        temperature: 0.5,
        top_k: 7,
        top_p: 0.25,
        min_p: 0.125,
        repetition_penalty: 1.5,
        repetition_window: 0,
        presence_penalty: -1.0,
        frequency_penalty: 2.0,
        logit_bias: vec![(5, -100.0), (9, 2.5)],
        seed: Some(u64::MAX - 1),
    };
    assert_eq!(request.sampling, sampling);
    assert_eq!(request.stop, ["end"]);
    assert_eq!(request.max_tokens, Some(3));
    assert!(request.ignore_end);
    assert_eq!(request.logprobs, None);
}

#[tokio::test]
async fn defaults_are_those_of_openai() {
    let server = Server::start(says("x")).await;
    server.post(PATH, &chat(json!({"top_k": -1, "seed": u64::MAX}))).await.ok();
    let request = server.only_request();
    let expected = engine::Sampling { temperature: 1.0, seed: Some(u64::MAX), ..engine::Sampling::default() };
    assert_eq!(request.sampling, expected);
    assert_eq!(request.max_tokens, None);
}

#[tokio::test]
async fn streams_role_then_text_then_the_reason_then_the_counts() {
    let server = Server::start(says("Grüße ☃!")).await;
    let chunks = server.stream(PATH, &chat(json!({"stream": true, "stream_options": {"include_usage": true}}))).await;
    assert_eq!(text_of(&chunks, 0), "Grüße ☃!");
    let (first, last, usage) = (&chunks[0], &chunks[chunks.len() - 2], &chunks[chunks.len() - 1]);
    assert_eq!(first["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], tokens("Grüße ☃!").len() + 1);
    for chunk in &chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["model"], NAME);
        assert_eq!(chunk["id"], first["id"]);
        assert_eq!(chunk["created"], first["created"]);
    }
    for chunk in &chunks[..chunks.len() - 1] {
        // Present and null.
        assert_eq!(chunk.as_object().unwrap().get("usage"), Some(&Value::Null));
    }
    for chunk in &chunks[..chunks.len() - 2] {
        assert_eq!(chunk["choices"][0]["finish_reason"], Value::Null);
    }
}

#[tokio::test]
async fn streams_have_no_counts_unless_asked_for() {
    let server = Server::start(says("one")).await;
    let chunks = server.stream(PATH, &chat(json!({"stream": true, "stream_options": {}}))).await;
    assert!(chunks.iter().all(|chunk| !chunk.as_object().unwrap().contains_key("usage")));
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn stop_strings_that_span_tokens_are_never_shown() {
    let server = Server::start(says("one ##END two")).await;
    let fields = json!({"stop": ["never", "##END"]});
    let body = server.post(PATH, &chat(fields.clone())).await.ok();
    assert_eq!(body["choices"][0]["message"]["content"], "one ");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    let mut streamed = chat(fields);
    streamed["stream"] = true.into();
    let chunks = server.stream(PATH, &streamed).await;
    assert_eq!(text_of(&chunks, 0), "one ");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn the_token_limit_ends_an_answer_with_length() {
    let server = Server::start(says("abcdefgh")).await;
    for field in ["max_tokens", "max_completion_tokens"] {
        let body = server.post(PATH, &chat(json!({field: 3}))).await.ok();
        assert_eq!(body["choices"][0]["finish_reason"], "length");
        assert_eq!(body["usage"]["completion_tokens"], 3);
    }
}

#[tokio::test]
async fn several_answers_have_indices_and_seeds_of_their_own() {
    let server = Server::start(says("same")).await;
    let body = server.post(PATH, &chat(json!({"n": 3, "seed": 5}))).await.ok();
    let choices = body["choices"].as_array().unwrap();
    assert_eq!(choices.iter().map(|choice| choice["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(choices.iter().all(|choice| choice["message"]["content"] == "same"));
    let seeds: Vec<_> = server.requests().iter().map(|request| request.sampling.seed).collect();
    assert_eq!(seeds, [Some(5), Some(6), Some(7)]);
    let prompt = server.requests()[0].prompt.len();
    assert_eq!(body["usage"]["prompt_tokens"], prompt);
    assert_eq!(body["usage"]["completion_tokens"], 3 * (tokens("same").len() + 1));

    let chunks = server.stream(PATH, &chat(json!({"n": 2, "stream": true}))).await;
    assert_eq!((text_of(&chunks, 0), text_of(&chunks, 1)), ("same".to_owned(), "same".to_owned()));
}

/// A backend that begins to answer when as many requests run at once as are wanted, and answers with their seeds.
#[tokio::test]
async fn several_answers_run_at_once() {
    let together = Barrier::new(3);
    let backend = move |request: &Request, observer: &mut dyn Observer| {
        together.wait();
        let text = request.sampling.seed.unwrap().to_string();
        Ok(say(&tokens(&text), request, observer))
    };
    let limits = Limits { running: 3, ..Limits::default() };
    let server = Server::over(Options::default(), limits, backend).await;
    let expected = ["5", "6", "7", "8", "9", "10"];
    let body = server.post(PATH, &chat(json!({"n": 6, "seed": 5}))).await.ok();
    let choices = body["choices"].as_array().unwrap();
    let texts: Vec<_> = choices.iter().map(|choice| choice["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(texts, expected);
    assert!(choices.iter().enumerate().all(|(index, choice)| choice["index"] == index));

    let chunks = server.stream(PATH, &chat(json!({"n": 6, "seed": 5, "stream": true}))).await;
    let texts: Vec<_> = (0..6).map(|index| text_of(&chunks, index)).collect();
    assert_eq!(texts, expected);
}

#[tokio::test]
async fn logprobs_name_tokens_bytes_and_alternatives() {
    let server = Server::start(says("a☃")).await;
    let fields = json!({"logprobs": true, "top_logprobs": 2, "max_tokens": 2});
    let body = server.post(PATH, &chat(fields)).await.ok();
    let content = body["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let first = &content[0];
    assert_eq!(first["token"], "a");
    assert_eq!(first["logprob"], json!(LOGPROB));
    assert_eq!(first["bytes"], json!([97]));
    let top = first["top_logprobs"].as_array().unwrap();
    assert_eq!(top.len(), 2);
    assert_eq!(top[0], json!({"token": "a", "logprob": LOGPROB, "bytes": [97]}));
    assert_eq!(top[1]["logprob"], json!(LOGPROB - 1.0));
    // The first byte of the snowman is no character.
    assert_eq!(content[1]["token"], "\\xe2");
    assert_eq!(content[1]["bytes"], json!([0xe2]));

    let server = Server::start(says("a")).await;
    let body = server.post(PATH, &chat(json!({"logprobs": true}))).await.ok();
    assert_eq!(body["choices"][0]["logprobs"]["content"][0]["top_logprobs"], json!([]));
}

#[tokio::test]
async fn streamed_logprobs_are_those_of_the_whole_answer() {
    let server = Server::start(says("a☃b")).await;
    let mut request = chat(json!({"logprobs": true, "top_logprobs": 1}));
    let whole = server.post(PATH, &request).await.ok()["choices"][0]["logprobs"]["content"].take();
    request["stream"] = true.into();
    let chunks = server.stream(PATH, &request).await;
    let pieces = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array());
    let pieces: Vec<Value> = pieces.flatten().cloned().collect();
    assert_eq!(Value::Array(pieces), whole);
}

#[tokio::test]
async fn contents_in_parts_and_developer_messages_are_rendered() {
    let server = Server::start(says("x")).await;
    let parts = json!([{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]);
    let messages = json!([
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "C", "refusal": null},
        {"role": "user", "content": "D", "name": "somebody"},
    ]);
    let more = json!({
        "messages": messages, "tools": [], "tool_choice": "none", "response_format": {"type": "text"},
        "chat_template_kwargs": {"enable_thinking": false},
    });
    server.post(PATH, &chat(more)).await.ok();
    let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nA\nB<|im_end|>\n\
        <|im_start|>assistant\nC<|im_end|>\n<|im_start|>user\nD<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(server.only_request().prompt, tokens(expected));
    assert!(MODEL.template.is_some());
}

#[tokio::test]
async fn a_prediction_reaches_the_engine() {
    let server = Server::start(says("x")).await;
    for content in
        [json!("Hello there"), json!([{"type": "text", "text": "Hello"}, {"type": "text", "text": " there"}])]
    {
        let prediction = json!({"type": "content", "content": content});
        server.post("/v1/chat/completions", &chat(json!({"prediction": prediction}))).await.ok();
    }
    assert!(server.requests().iter().all(|request| request.prediction == tokens("Hello there")));
    for wrong in [
        json!("Hello"),
        json!({"type": "content"}),
        json!({"type": "audio", "content": "x"}),
        json!({"type": "content", "content": 3}),
    ] {
        let answer = server.post("/v1/chat/completions", &chat(json!({"prediction": wrong}))).await;
        assert_eq!(answer.status, 400, "{wrong}: {}", answer.text());
    }
}
