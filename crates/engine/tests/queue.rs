//! As many requests as may run at once do, the others wait.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use engine::{
    Backend, Drafts, Engine, EngineError, Event, FinishReason, Limits, ModelDetails, ModelInfo, Observer, Outcome,
    Request, SubmitError,
};
use model::{Gguf, Tokenizer};

/// A backend whose requests wait until so many of them are there.
struct Meeting {
    present: Arc<(Mutex<usize>, Condvar)>,
    wanted: usize,
}

impl Backend for Meeting {
    fn generate(&self, _: &Request, _: &mut dyn Observer) -> Result<Outcome, EngineError> {
        let (present, changed) = &*self.present;
        let mut present = present.lock().unwrap();
        *present += 1;
        changed.notify_all();
        let patience = Duration::from_secs(20);
        let missing = |present: &mut usize| *present < self.wanted;
        let present = changed.wait_timeout_while(present, patience, missing).unwrap().0;
        assert!(*present >= self.wanted, "waited in vain for the others");
        Ok(Outcome {
            finish: FinishReason::Length,
            prefill_ms: 0.0,
            decode_ms: 0.0,
            drafts: Drafts::default(),
            ranks: Vec::new(),
        })
    }
}

fn model() -> ModelInfo {
    let tokenizer = Tokenizer::from_gguf(&Gguf::open(&common::tiny("tiny-llama")).unwrap()).unwrap();
    let (tokenizer, details) = (Arc::new(tokenizer), ModelDetails::default());
    ModelInfo { id: "tiny".to_owned(), created: 0, tokenizer, chat_template: None, ranking: None, context: 8, details }
}

#[test]
fn as_many_run_at_once_as_may() {
    let present = Arc::new((Mutex::new(0), Condvar::new()));
    let meeting = Meeting { present: Arc::clone(&present), wanted: 4 };
    let engine = Engine::start(model(), Limits { running: 3, waiting: 2 }, Box::new(meeting));
    let submit = || engine.submit(Request { prompt: vec![5], ..Request::default() });
    let mut generations: Vec<_> = (0..3).map(|_| submit().unwrap()).collect();
    let (count, changed) = &*present;
    let patience = Duration::from_secs(20);
    let full = changed.wait_timeout_while(count.lock().unwrap(), patience, |present| *present < 3).unwrap();
    assert_eq!(*full.0, 3);
    drop(full);
    // The fourth, for which the others wait, has no place among them.
    generations.push(submit().unwrap());
    generations.push(submit().unwrap());
    let status = engine.status();
    assert_eq!((status.running, status.waiting), (3, 2));
    assert!(matches!(submit(), Err(SubmitError::QueueFull { waiting: 2, .. })));
    *count.lock().unwrap() += 1;
    changed.notify_all();
    for mut generation in generations {
        assert!(matches!(generation.next_blocking(), Some(Event::Done(_))));
    }
}

/// A rank that is lost with the first request.
struct Lost;

impl Backend for Lost {
    fn generate(&self, _: &Request, _: &mut dyn Observer) -> Result<Outcome, EngineError> {
        Err(EngineError::RankLost { rank: 0, cause: "this test wants it".to_owned() })
    }
}

#[test]
fn who_hears_of_a_failure_finds_the_engine_failed() {
    for _ in 0..300 {
        let engine = Engine::start(model(), Limits { running: 2, waiting: 2 }, Box::new(Lost));
        let mut generation = engine.submit(Request { prompt: vec![5], ..Request::default() }).unwrap();
        assert!(matches!(generation.next_blocking(), Some(Event::Failed(EngineError::RankLost { rank: 0, .. }))));
        assert!(engine.status().failure.is_some());
    }
}

#[test]
fn who_leaves_while_waiting_gives_the_place_back_at_once() {
    let present = Arc::new((Mutex::new(0), Condvar::new()));
    let meeting = Meeting { present: Arc::clone(&present), wanted: 2 };
    let engine = Engine::start(model(), Limits { running: 1, waiting: 2 }, Box::new(meeting));
    let submit = || engine.submit(Request { prompt: vec![5], ..Request::default() });
    let mut first = submit().unwrap();
    let (count, changed) = &*present;
    let patience = Duration::from_secs(20);
    drop(changed.wait_timeout_while(count.lock().unwrap(), patience, |present| *present < 1).unwrap());
    let (second, mut third) = (submit().unwrap(), submit().unwrap());
    assert!(first.has_begun() && !second.has_begun() && !third.has_begun());
    drop(second);
    assert_eq!(engine.status().waiting, 1);
    third.canceller().cancel();
    let Some(Event::Done(completion)) = third.next_blocking() else { panic!("it was not told") };
    assert_eq!((completion.finish, completion.completion_tokens), (FinishReason::Cancelled, 0));
    let status = engine.status();
    assert_eq!((status.running, status.waiting), (1, 0));
    *count.lock().unwrap() += 1;
    changed.notify_all();
    assert!(matches!(first.next_blocking(), Some(Event::Done(_))));
}
