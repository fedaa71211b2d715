//! Whatever a client sends is answered or refused, and never breaks anything.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::harness::{NAME, Server};
use crate::script::says;

const OPENAI: [&str; 5] = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize"];

const FIELDS: [&str; 62] = [
    "messages",
    "prompt",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "stop",
    "max_tokens",
    "max_completion_tokens",
    "stream",
    "stream_options",
    "logprobs",
    "top_logprobs",
    "n",
    "best_of",
    "echo",
    "suffix",
    "user",
    "tools",
    "tool_choice",
    "response_format",
    "structured_outputs",
    "guided_choice",
    "grammar",
    "json_schema",
    "chat_template_kwargs",
    "ignore_eos",
    "functions",
    "unheard_of",
    "input",
    "instructions",
    "previous_response_id",
    "max_output_tokens",
    "reasoning",
    "reasoning_effort",
    "store",
    "truncation",
    "include",
    "text",
    "tokens",
    "content",
    "parse_special",
    "return_token_strs",
    "with_pieces",
    // Of Anthropic's API.
    "system",
    "stop_sequences",
    "thinking",
    "metadata",
    // Of Ollama's.
    "options",
    "format",
    "think",
    "keep_alive",
    "raw",
    "context",
    "images",
    "template",
    "name",
];

/// Any JSON, with a liking for values that mean something here.
fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3_i64..30).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
        prop::sample::select(vec!["user", "assistant", "text", "function", "auto", "5"]).prop_map(Value::from),
        Just(json!({"role": "user", "content": "Hi"})),
        Just(json!({"type": "text", "text": "Hi"})),
    ];
    let names = prop::sample::select(vec![
        "role",
        "content",
        "type",
        "text",
        "function",
        "name",
        "include_usage",
        "5",
        "num_predict",
        "temperature",
    ]);
    leaf.prop_recursive(3, 16, 4, move |inner| {
        let object = prop::collection::vec((names.clone(), inner.clone()), 0..4);
        let object = object.prop_map(|entries| {
            entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>().into()
        });
        prop_oneof![prop::collection::vec(inner, 0..4).prop_map(Value::from), object]
    })
}

fn body() -> impl Strategy<Value = Value> {
    let fields = prop::collection::vec((prop::sample::select(FIELDS.to_vec()), json_value()), 0..6);
    fields.prop_map(|fields| {
        let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value));
        let mut body: Map<_, _> = fields.collect();
        body.insert("model".to_owned(), NAME.into());
        body.entry("messages").or_insert_with(|| json!([{"role": "user", "content": "Hi"}]));
        body.entry("prompt").or_insert_with(|| "Hi".into());
        body.entry("input").or_insert_with(|| "Hi".into());
        body.into()
    })
}

#[test]
fn any_body_is_answered_or_refused() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::start(says("x")));
    proptest!(ProptestConfig { cases: 400, ..ProptestConfig::default() }, |(body in body())| {
        runtime.block_on(async {
            for path in OPENAI {
                let answer = server.post(path, &body).await;
                if answer.status != 200 {
                    let (status, kind, param, _) = answer.error();
                    prop_assert_eq!((status, kind.as_str()), (400, "invalid_request_error"));
                    prop_assert!(param.is_some(), "{}", answer.text());
                }
            }
            for path in ["/api/chat", "/api/generate", "/api/show", "/v1/messages", "/v1/messages/count_tokens"] {
                let answer = server.post(path, &body).await;
                prop_assert!([200, 400, 404].contains(&answer.status.as_u16()), "{} {}", path, answer.text());
            }
            Ok(())
        })?;
    });
}
