//! Embeddings are the same on any number of ranks, alone and among other requests.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::Group;
use engine::{Event, Generation, Pooling, Request};
use fabric::Transport;

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
