//! Drafts change how many steps an answer takes, and not a bit of it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{Answer, Group};
use engine::{Drafts, Event, Request, Sampling};
use fabric::Transport;

/// Greedy and drawn requests, with candidates and with all logits, with penalties, with prompts that repeat themselves.
fn requests() -> Vec<Request> {
    let request = |index: u32, length: u32, answer| Request {
        prompt: (0..length).map(|token| 3 + (token % 17 * 31 + index * 7) % 250).collect(),
        max_tokens: Some(answer),
        ignore_end: true,
        ..Request::default()
    };
    let drawn = Sampling { temperature: 0.7, top_k: 4, seed: Some(5), ..Sampling::default() };
    let penal = Sampling { frequency_penalty: 0.1, repetition_penalty: 1.02, ..drawn.clone() };
    vec![
        Request { logprobs: Some(2), prompt_logprobs: Some(1), ..request(0, 90, 60) },
        request(1, 5, 120),
        Request { sampling: drawn, logprobs: Some(1), ..request(2, 33, 80) },
        Request { sampling: penal, ..request(3, 60, 80) },
        request(4, 40, 1),
        Request { stop: vec!["e".to_owned()], ..request(5, 40, 50) },
    ]
}

/// The answers without drafts, and what each would be told if its author knew most of it in advance.
fn expected(name: &str) -> Vec<(Request, Answer)> {
    let group = Group::start_with(name, (1, 1), Transport::Tcp, |_, job| job.slots = 1);
    let answer = |mut request: Request| {
        let answer = Answer::untimed(group.engine.submit(request.clone()).unwrap());
        // A wrong token now and then, after which a draft is of no use.
        request.prediction = answer.ids();
        request.prediction.iter_mut().skip(9).step_by(10).for_each(|id| *id = 3 + (*id + 1) % 250);
        (request, answer)
    };
    requests().into_iter().map(answer).collect()
}

/// Drafts of all answers together.
fn check(name: &str, layout: (usize, usize), transport: Transport, expected: &[(Request, Answer)]) -> Drafts {
    let group = Group::start_with(name, layout, transport, |_, job| job.draft_max = 15);
    let mut total = Drafts::default();
    for alone in [true, false, false] {
        let mut running = Vec::new();
        for (request, answer) in expected {
            let generation = group.engine.submit(request.clone()).unwrap();
            if alone {
                add(&mut total, generation, answer);
            } else {
                running.push((generation, answer));
            }
        }
        running.into_iter().for_each(|(generation, answer)| add(&mut total, generation, answer));
    }
    group.stop().into_iter().for_each(|rank| rank.unwrap());
    total
}

fn add(total: &mut Drafts, generation: engine::Generation, expected: &Answer) {
    let mut answer = Answer::of(generation);
    let Some(Event::Done(completion)) = answer.last.take() else { panic!("{answer:?}") };
    assert!(answer == *expected, "{answer:?} is not {expected:?}");
    assert!(completion.drafts.accepted <= completion.completion_tokens);
    total.drafted += completion.drafts.drafted;
    total.accepted += completion.drafts.accepted;
}

#[test]
fn answers_are_the_same_with_drafts() {
    for name in ["tiny-llama-q4_1", "tiny-gemma3"] {
        let expected = expected(name);
        for (layout, transport) in [
            ((1, 1), Transport::Tcp),
            ((2, 1), Transport::SharedMemory),
            ((1, 2), Transport::SharedMemory),
            ((2, 2), Transport::Tcp),
        ] {
            let drafts = check(name, layout, transport, &expected);
            assert!(drafts.accepted > 100, "{name} {layout:?}: {drafts:?}");
            assert!(drafts.accepted < drafts.drafted, "{name} {layout:?}: {drafts:?}");
        }
    }
}
