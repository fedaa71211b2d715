//! Whatever the layout and the transport, a group gives bit for bit what one rank gives.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{Answer, Group};
use engine::{Request, Sampling};
use fabric::Transport;

const LAYOUTS: [(usize, usize); 6] = [(2, 1), (3, 1), (5, 1), (1, 2), (1, 3), (2, 2)];

fn prompt(length: u32) -> Vec<u32> {
    (0..length).map(|index| 3 + index * 31 % 256).collect()
}

/// A prompt shorter than a step and one of several steps, with the log-probabilities of prompt and answer, because
/// these show every bit.
fn answers(group: &Group) -> Vec<Answer> {
    let request = |length, sampling| Request {
        prompt: prompt(length),
        sampling,
        max_tokens: Some(24),
        logprobs: Some(2),
        prompt_logprobs: Some(1),
        ignore_end: true,
        ..Request::default()
    };
    let drawn = Sampling { temperature: 0.8, top_p: 0.95, seed: Some(5), ..Sampling::default() };
    let requests = [request(20, Sampling::default()), request(150, Sampling::default()), request(33, drawn)];
    requests.into_iter().map(|request| Answer::untimed(group.engine.submit(request).unwrap())).collect()
}

fn check(name: &str) {
    let single = Group::start(name, (1, 1), Transport::Tcp);
    let expected = answers(&single);
    assert_eq!(expected[0].tokens.len(), 24);
    assert_eq!(expected[1].prompt.len(), 150);
    single.stop().into_iter().for_each(|rank| rank.unwrap());
    for transport in [Transport::SharedMemory, Transport::Tcp] {
        for layout in LAYOUTS {
            let group = Group::start(name, layout, transport);
            assert!(answers(&group) == expected, "{name} {layout:?} {transport:?} differs from one rank");
            group.stop().into_iter().for_each(|rank| rank.unwrap());
        }
    }
}

macro_rules! models {
    ($($test:ident: $name:literal,)*) => {$(
        #[test]
        fn $test() {
            check($name);
        }
    )*};
}

models! {
    llama: "tiny-llama",
    llama_in_q4_1: "tiny-llama-q4_1",
    mistral: "tiny-mistral",
    qwen2: "tiny-qwen2",
    qwen3: "tiny-qwen3",
    gemma3: "tiny-gemma3",
    qwen3_moe_in_q4_0: "tiny-qwen3moe-q4_0",
    mixtral: "tiny-mixtral",
}

/// More ranks than heads.
#[test]
fn ranks_without_heads() {
    let single = Group::start("tiny-gemma3", (1, 1), Transport::Tcp);
    let expected = answers(&single);
    let group = Group::start("tiny-gemma3", (7, 1), Transport::SharedMemory);
    assert!(answers(&group) == expected);
}

/// Shares in any proportion, on a model with 9 heads.
#[test]
fn uneven_shares() {
    let single = Group::start("tiny-llama", (1, 1), Transport::Tcp);
    let expected = answers(&single);
    // With the last of them one rank has no heads at all.
    for shares in [[1.0, 3.0], [8.0, 1.0], [1.0, 1.7], [40.0, 1.0]] {
        let change = |_, job: &mut engine::ranks::Job| job.layout.shares = shares.to_vec();
        let group = Group::start_with("tiny-llama", (2, 1), Transport::SharedMemory, change);
        assert!(answers(&group) == expected, "{shares:?}");
    }
}
