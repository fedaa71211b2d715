//! Embeddings are those of a reference implementation, and the same on any number of ranks, alone and among other requests.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::BTreeMap;

use common::{Group, tiny};
use engine::{Event, Generation, Pooling, Request};
use fabric::Transport;
use kernels::KvType;
use model::{Gguf, Ranking};
use serde::Deserialize;
use serde::de::DeserializeOwned;

fn requests() -> Vec<Request> {
    let text = |index: u32, length: u32, embed| Request {
        prompt: (0..length).map(|token| 3 + (token * 31 + index * 7) % 250).collect(),
        max_tokens: Some(9),
        ignore_end: true,
        embed,
        ..Request::default()
    };
    // Some take several steps; an answer goes on between them.
    vec![
        text(0, 200, Some(Pooling::Mean)),
        text(0, 200, Some(Pooling::Last)),
        text(1, 20, None),
        text(2, 1, Some(Pooling::Mean)),
        text(2, 1, Some(Pooling::Last)),
        text(3, 79, Some(Pooling::Mean)),
    ]
}

fn embedding(mut generation: Generation) -> Vec<f32> {
    let (mut embedding, mut done) = (Vec::new(), false);
    while let Some(event) = generation.next_blocking() {
        match event {
            Event::Embedding(values) => embedding = values,
            Event::Done(_) => done = true,
            Event::Failed(error) => panic!("{error}"),
            Event::Prompt(_) | Event::Text { .. } => {}
        }
    }
    assert!(done);
    embedding
}

fn embeddings(name: &str, layout: (usize, usize), transport: Transport, together: bool) -> Vec<Vec<f32>> {
    let group = Group::start(name, layout, transport);
    let submit = |request| group.engine.submit(request).unwrap();
    let all: Vec<_> = if together {
        let generations: Vec<_> = requests().into_iter().map(submit).collect();
        generations.into_iter().map(embedding).collect()
    } else {
        requests().into_iter().map(|request| embedding(submit(request))).collect()
    };
    group.stop().into_iter().for_each(|rank| rank.unwrap());
    all
}

#[test]
fn embeddings_do_not_depend_on_ranks_or_company() {
    for name in ["tiny-llama-q4_1", "tiny-gemma3"] {
        let expected = embeddings(name, (1, 1), Transport::Tcp, false);
        for (index, values) in expected.iter().enumerate() {
            let length: f32 = values.iter().map(|value| value * value).sum();
            assert!(if index == 2 { values.is_empty() } else { (length - 1.0).abs() < 1e-4 }, "{index}: {length}");
        }
        assert_ne!(expected[0], expected[1]);
        // With a single token there is nothing to choose.
        assert_eq!(expected[3], expected[4]);
        for (layout, transport) in [
            ((1, 1), Transport::Tcp),
            ((2, 1), Transport::SharedMemory),
            ((1, 2), Transport::Tcp),
            ((2, 2), Transport::SharedMemory),
        ] {
            assert!(embeddings(name, layout, transport, true) == expected, "{name} {layout:?}");
        }
    }
}

/// A reranker reads the likelihood of one token against another from the same state from which tokens are drawn.
#[test]
fn a_score_is_what_the_next_token_says() {
    let gguf = Gguf::open(&common::tiny("tiny-qwen3")).unwrap();
    let tensor = gguf.tensor("token_embd.weight").unwrap();
    let (width, vocabulary) = (tensor.info.shape[0], tensor.info.shape[1]);
    let mut rows = vec![0.0; width * vocabulary];
    kernels::dequantize(tensor.info.dtype, &tensor.data, &mut rows).unwrap();
    let row = |token: usize| &rows[token * width..(token + 1) * width];
    let (yes, no) = (41, 97);
    let ranking = Ranking::new("", row(yes), row(no));

    let group = Group::start("tiny-qwen3", (2, 1), Transport::SharedMemory);
    let prompt: Vec<u32> = (0..50).map(|token| 3 + token * 17 % 250).collect();
    let state = Request { prompt: prompt.clone(), embed: Some(Pooling::Ranking), ..Request::default() };
    let score = ranking.score(&embedding(group.engine.submit(state).unwrap()));
    let next = Request { prompt, max_tokens: Some(1), logprobs: Some(vocabulary), ..Request::default() };
    let mut generation = group.engine.submit(next).unwrap();
    let mut logprobs = vec![0.0; vocabulary];
    while let Some(event) = generation.next_blocking() {
        if let Event::Text { tokens, .. } = event {
            tokens.iter().flat_map(|token| &token.top).for_each(|top| logprobs[top.id as usize] = top.logprob);
        }
    }
    let expected = 1.0 / (1.0 + (logprobs[no] - logprobs[yes]).exp());
    assert!(logprobs[yes] < 0.0 && (score - expected).abs() < 1e-5, "{score}, not {expected}");
    group.stop().into_iter().for_each(|rank| rank.unwrap());
}

#[derive(Deserialize)]
struct Prompts {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    tokens: Vec<u32>,
}

#[derive(Deserialize)]
struct Golden {
    mean: Vec<f32>,
    last: Vec<f32>,
}

fn golden<T: DeserializeOwned>(name: &str) -> T {
    let path = tiny(name).with_extension("json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// `make_embeddings.py` has recorded them.
#[test]
fn embeddings_are_those_of_transformers() {
    let expected: BTreeMap<String, Vec<Golden>> = golden("embeddings");
    assert_eq!(expected.len(), 6);
    for (name, expected) in expected {
        let Prompts { prompts } = golden(&name);
        assert_eq!(prompts.len(), expected.len());
        let group = Group::start_with(&name, (1, 1), Transport::Tcp, |_, job| job.kv_type = KvType::F32);
        for (index, (Prompt { tokens }, Golden { mean, last })) in prompts.into_iter().zip(expected).enumerate() {
            for (pooling, expected) in [(Pooling::Mean, mean), (Pooling::Last, last)] {
                let request = Request { prompt: tokens.clone(), embed: Some(pooling), ..Request::default() };
                let ours = embedding(group.engine.submit(request).unwrap());
                assert_eq!(ours.len(), expected.len());
                let worst = ours.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 2e-5, "{name}, prompt {index}, {pooling:?}: off by {worst}");
            }
        }
    }
}
