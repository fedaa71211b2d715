//! Ollama's API.

use engine::{Sampling, TokenInfo};
use hyper::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, CONTEXT, NAME, Server, with};
use crate::script::{MODEL, says, tokens};

const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";

fn chat(more: Value) -> Value {
    with(json!({"model": NAME, "messages": [{"role": "user", "content": "Hi"}]}), more)
}

fn generate(more: Value) -> Value {
    with(json!({"model": NAME, "prompt": "Hi"}), more)
}

/// The lines of an answer that went well.
fn lines(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.headers["content-type"], "application/x-ndjson");
    answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Takes what differs from time to time out of an answer, and checks that it was there.
fn untimed(mut line: Value) -> Value {
    assert!(line["created_at"].take().as_str().unwrap().ends_with('Z'));
    assert!(line["total_duration"].take().as_u64().unwrap() > 0);
    line
}

#[tokio::test]
async fn a_whole_answer_has_counts_and_times() {
    let server = Server::start(says("Hello there")).await;
    let body = server.post(CHAT, &chat(json!({"stream": false}))).await.ok();
    let prompt = tokens("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    let expected = json!({
        "model": NAME, "created_at": null, "message": {"role": "assistant", "content": "Hello there"}, "done": true,
        "done_reason": "stop", "total_duration": null, "load_duration": 0, "prompt_eval_count": prompt.len(),
        "prompt_eval_duration": 3_000_000, "eval_count": tokens("Hello there").len() + 1, "eval_duration": 5_000_000,
    });
    assert_eq!(untimed(body), expected);
    assert_eq!(server.only_request().prompt, prompt);
}

#[tokio::test]
async fn answers_are_streamed_line_by_line_unless_told_otherwise() {
    let server = Server::start(says("Grüße ☃!")).await;
    for (path, request) in [(CHAT, chat(json!({}))), (GENERATE, generate(json!({})))] {
        let lines = lines(&server.post(path, &request).await);
        let (last, others) = lines.split_last().unwrap();
        let text = |line: &Value| {
            let text = if path == CHAT { &line["message"]["content"] } else { &line["response"] };
            text.as_str().unwrap().to_owned()
        };
        assert_eq!(others.iter().map(text).collect::<String>(), "Grüße ☃!");
        assert!(others.len() > 1 && others.iter().all(|line| line["done"] == false && line["model"] == NAME));
        assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("stop")));
        assert_eq!((text(last).as_str(), &last["eval_count"]), ("", &json!(tokens("Grüße ☃!").len() + 1)));
    }
}

#[tokio::test]
async fn options_reach_the_engine() {
    let server = Server::start(says("abcdefgh")).await;
    let options = json!({
        "num_predict": 3, "temperature": 0.5, "top_k": 7, "top_p": 0.25, "min_p": 0.125, "repeat_penalty": 1.5,
        "repeat_last_n": 9, "presence_penalty": 1, "frequency_penalty": -1, "seed": 5, "stop": ["END"],
        "num_ctx": 4096, "num_thread": 8, "unheard_of": [],
    });
    let body = server.post(GENERATE, &generate(json!({"stream": false, "options": options}))).await.ok();
    assert_eq!((&body["done_reason"], &body["eval_count"]), (&json!("length"), &json!(3)));
    let request = server.only_request();
    let expected = Sampling {
        temperature: 0.5,
        top_k: 7,
        top_p: 0.25,
        min_p: 0.125,
        repetition_penalty: 1.5,
        repetition_window: 9,
        presence_penalty: 1.0,
        frequency_penalty: -1.0,
        logit_bias: Vec::new(),
        seed: Some(5),
    };
    assert_eq!(request.sampling, expected);
    assert_eq!((request.max_tokens, request.stop), (Some(3), vec!["END".to_owned()]));
}

#[tokio::test]
async fn defaults_are_those_of_ollama() {
    let server = Server::start(says("x")).await;
    let nothing = json!({"num_predict": -1, "seed": -1, "stop": []});
    let off = json!({"num_predict": -2, "repeat_last_n": 0, "top_k": 0, "stop": "END"});
    for more in [json!({}), json!({"options": {}}), json!({"options": nothing}), json!({"options": off})] {
        lines(&server.post(CHAT, &chat(more)).await);
    }
    let defaults = Sampling { temperature: 0.8, top_k: 40, top_p: 0.9, ..Sampling::default() };
    let off = Sampling { top_k: 0, ..defaults.clone() };
    let defaults = Sampling { repetition_penalty: 1.1, repetition_window: 64, ..defaults };
    let requests = server.requests();
    assert!(requests.iter().all(|request| request.max_tokens.is_none()));
    assert!(requests[..3].iter().all(|request| request.sampling == defaults));
    assert_eq!(requests[3].sampling, Sampling { repetition_window: 0, ..off });
}

#[tokio::test]
async fn stop_strings_are_never_shown() {
    let server = Server::start(says("one ##END two")).await;
    let body = server.post(CHAT, &chat(json!({"stream": false, "options": {"stop": ["##END"]}}))).await.ok();
    assert_eq!((&body["message"]["content"], &body["done_reason"]), (&json!("one "), &json!("stop")));
}

#[tokio::test]
async fn prompts_are_rendered_unless_raw() {
    let server = Server::start(says("x")).await;
    let forms = [json!({}), json!({"system": "Be brief."}), json!({"raw": true})];
    for more in forms {
        lines(&server.post(GENERATE, &generate(more)).await);
    }
    let prompts: Vec<_> = server.requests().into_iter().map(|request| request.prompt).collect();
    let turn = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(prompts[0], tokens(turn));
    assert_eq!(prompts[1], tokens(&format!("<|im_start|>system\nBe brief.<|im_end|>\n{turn}")));
    assert!(prompts[2].ends_with(&tokens("Hi")) && prompts[2].len() < prompts[0].len());
}

#[tokio::test]
async fn a_conversation_goes_on_from_the_context_of_the_last_answer() {
    let server = Server::start(says("Hello")).await;
    let whole = server.post(GENERATE, &generate(json!({"stream": false}))).await.ok();
    let streamed = lines(&server.post(GENERATE, &generate(json!({}))).await);
    let context = whole["context"].clone();
    assert_eq!(streamed.last().unwrap()["context"], context);
    lines(&server.post(GENERATE, &generate(json!({"context": context}))).await);
    let prompts: Vec<_> = server.requests().into_iter().map(|request| request.prompt).collect();
    let end = MODEL.tokenizer.eos().unwrap();
    let expected = [prompts[0].clone(), tokens("Hello"), vec![end], prompts[0].clone()].concat();
    assert_eq!(prompts[2], expected);
}

#[tokio::test]
async fn a_request_without_a_prompt_loads_the_model() {
    let server = Server::start(says("never said")).await;
    for (path, request) in [
        (CHAT, json!({"model": NAME})),
        (CHAT, json!({"model": NAME, "messages": [], "keep_alive": -1})),
        (GENERATE, json!({"model": format!("{NAME}:latest"), "keep_alive": "5m"})),
        (GENERATE, json!({"name": NAME, "prompt": ""})),
    ] {
        let body = server.post(path, &request).await.ok();
        assert_eq!((&body["done"], &body["done_reason"]), (&json!(true), &json!("load")), "{request}");
    }
    assert_eq!(server.requests(), []);
}

#[tokio::test]
async fn the_model_is_listed_shown_and_running() {
    let server = Server::start(says("x")).await;
    assert!(server.get("/api/version").await.ok()["version"].is_string());
    let tags = server.get("/api/tags").await.ok();
    let listed = &tags["models"][0];
    assert_eq!((&listed["name"], &listed["model"]), (&json!(NAME), &json!(NAME)));
    assert_eq!(listed["modified_at"], "2023-11-14T22:13:20.000000000Z");
    assert_eq!(listed["size"], MODEL.details.bytes);
    assert_eq!(listed["details"]["family"], "llama");
    let running = &server.get("/api/ps").await.ok()["models"][0];
    assert_eq!((&running["context_length"], &running["details"]), (&json!(CONTEXT), &listed["details"]));
    for request in [json!({"model": NAME}), json!({"name": NAME, "verbose": true})] {
        let shown = server.post("/api/show", &request).await.ok();
        assert_eq!(shown["model_info"]["llama.context_length"], CONTEXT);
        assert_eq!(
            (&shown["details"], &shown["capabilities"]),
            (&listed["details"], &json!(["completion", "tools", "embedding"]))
        );
    }
}

/// Compares status and message of the answer to each request. Nothing of it may reach the engine.
#[tokio::test]
async fn bad_requests_are_answered_with_an_error_in_one_string() {
    let server = Server::start(says("x")).await;
    let options = |options: Value| chat(json!({"options": options}));
    let message = |message: Value| chat(json!({"messages": [message]}));
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let vocabulary = MODEL.tokenizer.vocabulary();
    let cases = [
        (CHAT, json!({}), 400, "model is required"),
        (CHAT, json!([]), 400, "the request must be an object"),
        (CHAT, json!({"model": 5}), 400, "model must be a string"),
        (CHAT, json!({"model": "other"}), 404, "the model \"other\" does not run here"),
        (CHAT, json!({"model": "other:latest"}), 404, "the model \"other:latest\""),
        (CHAT, chat(json!({"stream": "yes"})), 400, "stream must be true or false"),
        (CHAT, chat(json!({"messages": "Hi"})), 400, "messages must be an array"),
        (CHAT, message(json!("Hi")), 400, "messages[0] must be an object"),
        (CHAT, message(json!({"content": "Hi"})), 400, "messages[0].role is required"),
        (CHAT, message(json!({"role": "wizard"})), 400, "messages[0].role is \"wizard\""),
        (CHAT, message(json!({"role": "user", "content": ["Hi"]})), 400, "messages[0].content must be a string"),
        (CHAT, message(json!({"role": "user", "images": ["aGk="]})), 400, "messages[0].images is not supported"),
        (CHAT, message(json!({"role": "user", "content": "long ".repeat(CONTEXT)})), 400, "the prompt has"),
        (CHAT, chat(json!({"tools": "all"})), 400, "tools must be an array"),
        (CHAT, chat(json!({"tools": [{"type": "magic"}]})), 400, "tools[0].type must be \"function\""),
        (CHAT, chat(json!({"tools": [tool, {"function": {}}]})), 400, "tools[1].function.name is required"),
        (CHAT, chat(json!({"format": "yaml"})), 400, "format is \"yaml\", but must be"),
        (CHAT, chat(json!({"format": {"type": "thing"}})), 400, "format cannot be followed: Invalid type: thing"),
        (CHAT, chat(json!({"think": true})), 400, "think is not supported"),
        (CHAT, chat(json!({"think": "high"})), 400, "think is not supported"),
        (CHAT, chat(json!({"think": 1})), 400, "think must be"),
        (CHAT, chat(json!({"keep_alive": []})), 400, "keep_alive must be a duration"),
        (CHAT, chat(json!({"logprobs": true})), 400, "logprobs is not supported"),
        (CHAT, chat(json!({"options": 5})), 400, "options must be an object"),
        (CHAT, options(json!({"temperature": "hot"})), 400, "options.temperature must be a number"),
        (CHAT, options(json!({"temperature": -1})), 400, "options.temperature must be between"),
        (CHAT, options(json!({"top_p": 2})), 400, "options.top_p must be between"),
        (CHAT, options(json!({"top_k": 0.5})), 400, "options.top_k must be a whole number"),
        (CHAT, options(json!({"num_predict": "all"})), 400, "options.num_predict must be"),
        (CHAT, options(json!({"seed": "x"})), 400, "options.seed must be"),
        (CHAT, options(json!({"repeat_last_n": -2})), 400, "options.repeat_last_n must be between"),
        (CHAT, options(json!({"stop": 5})), 400, "options.stop must be"),
        (CHAT, options(json!({"stop": ["a", ""]})), 400, "options.stop[1] must not be empty"),
        (GENERATE, json!({"model": "other", "prompt": "Hi"}), 404, "the model \"other\""),
        (GENERATE, generate(json!({"prompt": 5})), 400, "prompt must be a string"),
        (GENERATE, generate(json!({"system": 5})), 400, "system must be a string"),
        (GENERATE, generate(json!({"raw": 5})), 400, "raw must be true or false"),
        (GENERATE, generate(json!({"suffix": "end"})), 400, "suffix is not supported"),
        (GENERATE, generate(json!({"template": "{{ .Prompt }}"})), 400, "template is not supported"),
        (GENERATE, generate(json!({"images": ["aGk="]})), 400, "images is not supported"),
        (GENERATE, generate(json!({"context": [vocabulary]})), 400, "context has the element"),
        (GENERATE, generate(json!({"context": ["a"]})), 400, "context has the element"),
        (GENERATE, generate(json!({"context": vec![5; CONTEXT]})), 400, "the prompt has"),
        ("/api/show", json!({}), 400, "model is required"),
        ("/api/show", json!({"model": "other"}), 404, "the model \"other\""),
        ("/api/pull", json!({"model": NAME}), 404, "there is nothing at POST /api/pull"),
        ("/api/tags", json!({}), 405, "/api/tags does not take POST"),
    ];
    for (path, body, status, message) in cases {
        let answer = server.post(path, &body).await;
        let error = answer.json();
        assert_eq!(answer.status, status, "{path} {body} got {error}");
        assert_eq!(answer.headers["content-type"], "application/json");
        assert!(error["error"].as_str().unwrap().contains(message), "{path} {body} got {error}");
        assert_eq!(error.as_object().unwrap().len(), 1);
    }
    assert_eq!(server.requests(), []);
    let answer = server.post_bytes(CHAT, b"{".to_vec()).await;
    assert!(answer.status == 400 && answer.json()["error"].as_str().unwrap().contains("not valid JSON"));
    lines(&server.post(CHAT, &chat(json!({}))).await);
}

#[tokio::test]
async fn values_that_ask_for_nothing_pass() {
    let server = Server::start(says("x")).await;
    let nothing = json!({"tools": [], "format": "", "think": false, "options": null, "keep_alive": null});
    lines(&server.post(CHAT, &chat(nothing)).await);
    let nothing = json!({"suffix": "", "system": "", "template": "", "context": [], "images": [], "raw": false});
    lines(&server.post(GENERATE, &generate(nothing)).await);
}

#[tokio::test]
async fn a_failure_in_the_middle_is_the_last_line() {
    let error = || engine::EngineError::RankLost { rank: 1, cause: "its process ended".to_owned() };
    let server = Server::start(move |_, observer| {
        observer.prompt(Vec::new(), 0);
        observer.token(TokenInfo { id: tokens("a")[0], logprob: None, top: Vec::new() });
        Err(error())
    })
    .await;
    let lines = lines(&server.post(CHAT, &chat(json!({}))).await);
    assert_eq!(lines.last().unwrap(), &json!({"error": "rank 1 was lost: its process ended"}));
    assert!(lines.iter().all(|line| line["done"] != true));
}

#[tokio::test]
async fn bodies_need_no_type_unless_a_browser_sends_them() {
    let server = Server::start(says("x")).await;
    let body = chat(json!({})).to_string().into_bytes();
    for kind in [None, Some("application/x-www-form-urlencoded"), Some("application/json")] {
        lines(&server.send(Method::POST, CHAT, kind, body.clone()).await.answer().await);
    }
    let origin = [("origin", "https://example.com"), ("content-type", "text/plain")];
    let refused = server.send_with(Method::POST, CHAT, &origin, body).await.answer().await;
    assert_eq!(refused.status, 415);
}
