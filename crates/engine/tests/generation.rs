//! Requests from submission to the last event, over a group of two ranks.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::time::{Duration, Instant};

use common::{Answer, Group};
use engine::{Event, FinishReason, Request, Sampling, SubmitError};
use fabric::Transport;

fn group() -> Group {
    Group::start("tiny-llama", (2, 1), Transport::SharedMemory)
}

fn request(group: &Group, text: &str, max_tokens: usize) -> Request {
    let options = model::EncodeOptions { add_special: true, parse_special: true };
    let prompt = group.engine.model().tokenizer.encode(text, options).unwrap();
    Request { prompt, max_tokens: Some(max_tokens), ignore_end: true, ..Request::default() }
}

fn completion(answer: &Answer) -> engine::Completion {
    match &answer.last {
        Some(Event::Done(completion)) => completion.clone(),
        other => panic!("the generation did not end well: {other:?}"),
    }
}

#[test]
fn the_same_seed_gives_the_same_text_and_another_seed_does_not() {
    let group = group();
    let drawn = |seed| {
        let sampling = Sampling { temperature: 1.5, seed: Some(seed), ..Sampling::default() };
        group.run(Request { sampling, ..request(&group, "Strands", 40) }).ids()
    };
    assert_eq!(drawn(1), drawn(1));
    assert_ne!(drawn(1), drawn(2));
}

#[test]
fn a_stop_string_ends_the_text_before_it_and_stops_the_ranks() {
    let group = group();
    let whole = group.run(request(&group, "Strands of hemp", 48));
    // Three characters in a row from the middle on; random weights also give bytes that are no characters.
    let characters: Vec<char> = whole.text.chars().collect();
    let middle = characters[characters.len() / 3..].windows(3);
    let stop: String = middle.into_iter().find(|three| !three.contains(&'\u{fffd}')).unwrap().iter().collect();
    let before = whole.text.split(&stop).next().unwrap();
    let stopped = group.run(Request { stop: vec![stop.clone()], ..request(&group, "Strands of hemp", 48) });
    let completion = completion(&stopped);
    assert_eq!(stopped.text, before);
    assert_eq!((completion.finish, completion.stop_text), (FinishReason::Stop, Some(stop)));
    assert!(completion.completion_tokens < 48);
}

#[test]
fn a_common_beginning_is_not_evaluated_again_and_changes_nothing() {
    let group = group();
    let long = "A rope is made of strands, and strands of yarns. ".repeat(3);
    let fresh = group.run(request(&group, &long, 8));
    assert_eq!(completion(&fresh).cached_tokens, 0);
    let again = group.run(request(&group, &long, 8));
    assert_eq!(completion(&again).cached_tokens, completion(&again).prompt_tokens - 1);
    assert_eq!(again.ids(), fresh.ids());
    let longer = group.run(request(&group, &format!("{long}And"), 8));
    assert!(completion(&longer).cached_tokens >= completion(&fresh).prompt_tokens - 8);
    let other = group.run(request(&group, "Something else", 8));
    assert_eq!(completion(&other).cached_tokens, 0);
    assert_eq!(group.run(request(&group, &long, 8)).ids(), fresh.ids());
}

#[test]
fn no_tokens_only_evaluates_the_prompt() {
    let group = group();
    let answer = group.run(Request { prompt_logprobs: Some(2), ..request(&group, "Strands of hemp", 0) });
    let completion = completion(&answer);
    assert_eq!((completion.finish, completion.completion_tokens), (FinishReason::Length, 0));
    assert_eq!(answer.prompt.len(), completion.prompt_tokens);
    assert_eq!(answer.prompt[0].logprob, None);
    assert!(answer.prompt[1..].iter().all(|token| token.logprob.unwrap() < 0.0 && token.top.len() == 2));
    // What was evaluated for log-probabilities serves the next request as well.
    assert!(group.run(request(&group, "Strands of hemp", 1)).last.is_some());
}

#[test]
fn the_end_of_the_context_ends_a_generation() {
    let group = group();
    let mut long = request(&group, "x", 0);
    long.prompt = vec![5; 500];
    let answer = group.run(Request { max_tokens: None, ..long });
    let completion = completion(&answer);
    assert_eq!((completion.finish, completion.completion_tokens), (FinishReason::Length, 12));
    let refused = group.engine.submit(Request { prompt: vec![5; 512], ..Request::default() });
    assert_eq!(refused.err(), Some(SubmitError::PromptTooLong { prompt: 512, context: 512 }));
}

#[test]
fn a_caller_that_leaves_frees_the_ranks_at_once() {
    let group = group();
    let abandoned = group.engine.submit(request(&group, "x", 400)).unwrap();
    drop(abandoned);
    let started = Instant::now();
    group.run(request(&group, "y", 1));
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}

#[test]
fn requests_wait_in_order_and_are_all_answered() {
    let group = group();
    let alone = group.run(request(&group, "Strands", 12)).ids();
    let mut generations: Vec<_> =
        (0..8).map(|_| group.engine.submit(request(&group, "Strands", 12)).unwrap()).collect();
    for generation in &mut generations {
        let mut ids = Vec::new();
        while let Some(event) = generation.next_blocking() {
            if let Event::Text { tokens, .. } = event {
                ids.extend(tokens.into_iter().map(|token| token.id));
            }
        }
        assert_eq!(ids, alone);
    }
}

#[test]
fn shutdown_cancels_what_runs_and_refuses_what_comes() {
    let group = group();
    let mut running = group.engine.submit(request(&group, "x", 450)).unwrap();
    running.next_blocking();
    group.engine.shutdown();
    let mut last = None;
    while let Some(event) = running.next_blocking() {
        last = Some(event);
    }
    assert!(matches!(&last, Some(Event::Done(completion)) if completion.finish == FinishReason::Cancelled), "{last:?}");
    assert!(matches!(group.engine.submit(request(&group, "y", 1)), Err(SubmitError::NotRunning(_))));
    group.stop().into_iter().for_each(|rank| rank.unwrap());
}
