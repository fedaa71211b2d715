//! Drafts change how many steps an answer takes, and not a bit of it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{Answer, Group, tiny};
use engine::ranks::{DraftFile, Job, model_bytes};
use engine::{Drafts, Event, Request, Sampling};
use fabric::Transport;
use model::Gguf;

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

/// Has a small model draft, whatever time it takes.
fn draft_with(job: &mut Job, name: &str) {
    let path = tiny(name);
    let model_bytes = model_bytes(&Gguf::open(&path).unwrap());
    job.draft_model = Some(DraftFile { model: name.to_owned(), path: path.display().to_string(), model_bytes });
    (job.draft_max, job.draft_price) = (15, Some(0.1));
}

/// Drafts of all answers together.
fn check(
    name: &str,
    layout: (usize, usize),
    transport: Transport,
    expected: &[(Request, Answer)],
    draft_model: Option<&str>,
) -> Drafts {
    let group = Group::start_with(name, layout, transport, |_, job| {
        job.draft_max = 15;
        draft_model.into_iter().for_each(|name| draft_with(job, name));
    });
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
            let drafts = check(name, layout, transport, &expected, None);
            assert!(drafts.accepted > 100, "{name} {layout:?}: {drafts:?}");
            assert!(drafts.accepted < drafts.drafted, "{name} {layout:?}: {drafts:?}");
        }
    }
}

/// One that is the model itself is right wherever the likeliest token is taken; another one now and then. Prompts are longer than
/// a step, so that the draft model sees them late.
#[test]
fn answers_are_the_same_with_a_draft_model() {
    let name = "tiny-llama-q4_1";
    let mut expected = expected(name);
    expected.iter_mut().for_each(|(request, _)| request.prediction.clear());
    for (draft_model, accepted) in [(name, 300), ("tiny-llama-q4_0", 30)] {
        for (layout, transport) in
            [((1, 1), Transport::Tcp), ((2, 1), Transport::SharedMemory), ((1, 2), Transport::Tcp)]
        {
            let drafts = check(name, layout, transport, &expected, Some(draft_model));
            assert!(drafts.accepted > accepted, "{draft_model} {layout:?}: {drafts:?}");
            assert!(drafts.accepted < drafts.drafted, "{draft_model} {layout:?}: {drafts:?}");
        }
    }
}

/// Requests that begin alike share blocks, and most have to make room for others now and then: the draft model's cache is its own
/// and has to follow. As the likeliest tokens are taken, it is right but for the drafts that are found in the text.
#[test]
fn answers_are_the_same_where_requests_make_room_for_each_other() {
    let name = "tiny-llama-q4_1";
    let request = |index: u32| Request {
        prompt: (0..70 + index).map(|token| 3 + (token * 31 + token / 60 * index) % 250).collect(),
        max_tokens: Some(40),
        ignore_end: true,
        ..Request::default()
    };
    let alone = Group::start_with(name, (1, 1), Transport::Tcp, |_, job| job.slots = 1);
    let expected: Vec<_> = (0..6).map(|index| (request(index), alone.run(request(index)).ids())).collect();
    for layout in [(1, 1), (2, 1), (1, 2)] {
        let group = Group::start_with(name, layout, Transport::SharedMemory, |_, job| {
            (job.context, job.kv_blocks) = (192, 7);
            draft_with(job, name);
        });
        let mut total = Drafts::default();
        for _ in 0..2 {
            let running: Vec<_> = expected.iter().map(|(it, _)| group.engine.submit(it.clone()).unwrap()).collect();
            for (generation, (_, expected)) in running.into_iter().zip(&expected) {
                let answer = Answer::of(generation);
                assert!(answer.ids() == *expected, "{layout:?}: {answer:?}");
                let Some(Event::Done(completion)) = answer.last else { panic!("{answer:?}") };
                total.drafted += completion.drafts.drafted;
                total.accepted += completion.drafts.accepted;
            }
        }
        let cache = group.engine.status().cache;
        assert!(cache.preemptions > 0, "{layout:?}: nobody had to make room");
        assert!(total.accepted > 300 && 10 * total.accepted > 9 * total.drafted, "{layout:?}: {total:?}");
        group.stop().into_iter().for_each(|rank| rank.unwrap());
    }
}

/// Requests that are given up in the middle of their drafts leave the others alone, also those that follow in their slots.
#[test]
fn answers_are_the_same_where_others_are_given_up() {
    let name = "tiny-llama-q4_1";
    let expected = expected(name);
    for layout in [(1, 1), (1, 3)] {
        let group = Group::start_with(name, layout, Transport::SharedMemory, |_, job| draft_with(job, name));
        let endless = Request { prompt: vec![7; 9], max_tokens: Some(480), ignore_end: true, ..Request::default() };
        let mut given_up: Vec<_> = (0..3).map(|_| group.engine.submit(endless.clone()).unwrap()).collect();
        given_up.iter_mut().for_each(|generation| drop(generation.next_blocking()));
        let running: Vec<_> = expected.iter().map(|(it, _)| group.engine.submit(it.clone()).unwrap()).collect();
        drop(given_up);
        for (generation, (_, expected)) in running.into_iter().zip(&expected) {
            assert!(Answer::untimed(generation) == *expected, "{layout:?}");
        }
        assert_eq!(group.engine.status().failure, None);
    }
}
