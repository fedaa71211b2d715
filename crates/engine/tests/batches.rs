//! Requests that run at the same time get bit for bit what each gets alone.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{Answer, Group};
use engine::{Request, Sampling};
use fabric::Transport;

/// Prompts shorter than a step and of several steps; greedy and drawn; with all log-probabilities, which show every bit,
/// and with the candidates only.
fn requests() -> Vec<Request> {
    let request = |index: u32, length: u32, answer| Request {
        prompt: (0..length).map(|token| 3 + (token * 31 + index * 7) % 250).collect(),
        max_tokens: Some(answer),
        ignore_end: true,
        ..Request::default()
    };
    let drawn = Sampling { temperature: 1.2, top_k: 40, top_p: 0.9, min_p: 0.01, seed: Some(5), ..Sampling::default() };
    let penal = Sampling { frequency_penalty: 0.5, repetition_penalty: 1.1, ..drawn.clone() };
    let all = Sampling { top_k: 0, ..drawn.clone() };
    vec![
        Request { logprobs: Some(2), prompt_logprobs: Some(1), ..request(0, 90, 20) },
        request(1, 5, 40),
        Request { sampling: drawn, ..request(2, 33, 30) },
        Request { logprobs: Some(1), ..request(3, 150, 12) },
        Request { sampling: penal, ..request(4, 1, 50) },
        Request { sampling: all, ..request(5, 64, 3) },
        Request { logprobs: Some(0), prompt_logprobs: Some(0), ..request(6, 31, 0) },
    ]
}

/// The answers to all requests one after the other, by a single rank with a single slot.
fn alone(name: &str) -> Vec<Answer> {
    let group = Group::start_with(name, (1, 1), Transport::Tcp, |_, job| job.slots = 1);
    requests().into_iter().map(|request| Answer::untimed(group.engine.submit(request).unwrap())).collect()
}

/// The answers to all requests, submitted at the same time.
fn together(group: &Group) -> Vec<Answer> {
    let generations: Vec<_> = requests().into_iter().map(|request| group.engine.submit(request).unwrap()).collect();
    generations.into_iter().map(Answer::untimed).collect()
}

fn check(name: &str) {
    let expected = alone(name);
    assert_eq!(expected[0].prompt.len(), 90);
    assert_eq!(expected.iter().map(|answer| answer.tokens.len()).collect::<Vec<_>>(), [20, 40, 30, 12, 50, 3, 0]);
    for (layout, transport) in [
        ((1, 1), Transport::Tcp),
        ((2, 1), Transport::SharedMemory),
        ((1, 2), Transport::SharedMemory),
        ((1, 3), Transport::Tcp),
        ((1, 3), Transport::SharedMemory),
        ((2, 2), Transport::SharedMemory),
        ((3, 2), Transport::Tcp),
    ] {
        // Stages with cores of their own have several steps under way whatever is wanted of them.
        let group = Group::start_with(name, layout, transport, |_, job| job.crowded = layout.1 < 3);
        // The second time, slots hold beginnings.
        for _ in 0..2 {
            assert!(together(&group) == expected, "{name} {layout:?} {transport:?}");
        }
        group.stop().into_iter().for_each(|rank| rank.unwrap());
    }
}

#[test]
fn llama() {
    check("tiny-llama-q4_1");
}

#[test]
fn gemma3() {
    check("tiny-gemma3");
}

#[test]
fn qwen3_moe() {
    check("tiny-qwen3moe-q4_0");
}

/// With few slots, requests wait for each other within the group too.
#[test]
fn more_requests_than_slots() {
    let expected = alone("tiny-llama");
    for slots in [1, 2] {
        let group = Group::start_with("tiny-llama", (1, 2), Transport::SharedMemory, |_, job| job.slots = slots);
        assert!(together(&group) == expected, "{slots}");
    }
}

/// A request that is given up makes room for the next and leaves the others alone.
#[test]
fn a_cancelled_request_leaves_the_others_alone() {
    let expected = alone("tiny-llama");
    let group = Group::start("tiny-llama", (1, 3), Transport::SharedMemory);
    let endless = Request { prompt: vec![7; 9], max_tokens: Some(480), ignore_end: true, ..Request::default() };
    let mut given_up: Vec<_> = (0..3).map(|_| group.engine.submit(endless.clone()).unwrap()).collect();
    given_up.iter_mut().for_each(|generation| drop(generation.next_blocking()));
    let generations: Vec<_> = requests().into_iter().map(|request| group.engine.submit(request).unwrap()).collect();
    drop(given_up);
    assert!(generations.into_iter().map(Answer::untimed).collect::<Vec<_>>() == expected);
    assert_eq!(group.engine.status().failure, None);
}

/// Where the KV cache does not hold all requests at once, some make room and go on later, which nobody notices.
#[test]
fn requests_make_room_for_each_other() {
    let expected = alone("tiny-llama-q4_1");
    for (layout, draft_max) in [((1, 1), 0), ((1, 1), 7), ((2, 1), 0), ((1, 2), 7)] {
        let group = Group::start_with("tiny-llama-q4_1", layout, Transport::SharedMemory, |_, job| {
            (job.context, job.kv_blocks, job.draft_max) = (192, 7, draft_max);
        });
        for _ in 0..2 {
            assert!(together(&group) == expected, "{layout:?}");
        }
        let cache = group.engine.status().cache;
        assert_eq!((cache.used, cache.blocks), (0, 7), "{layout:?}");
        assert!(cache.preemptions > 0, "{layout:?}: nobody had to make room");
        group.stop().into_iter().for_each(|rank| rank.unwrap());
    }
}

/// Several answers to one prompt evaluate it once.
#[test]
fn equal_prompts_are_evaluated_once() {
    let prompt: Vec<u32> = (0..200).map(|token| 3 + token * 7 % 250).collect();
    let request = |seed| Request {
        prompt: prompt.clone(),
        max_tokens: Some(8),
        ignore_end: true,
        sampling: Sampling { temperature: 1.0, seed: Some(seed), ..Sampling::default() },
        ..Request::default()
    };
    let group = Group::start("tiny-llama-q4_1", (1, 1), Transport::Tcp);
    let generations: Vec<_> = (0..4).map(|seed| group.engine.submit(request(seed)).unwrap()).collect();
    let cached = generations.into_iter().map(|generation| match Answer::of(generation).last {
        Some(engine::Event::Done(completion)) => completion.cached_tokens,
        other => panic!("{other:?}"),
    });
    let mut cached: Vec<_> = cached.collect();
    cached.sort_unstable();
    assert_eq!(cached, [0, 199, 199, 199]);
}
