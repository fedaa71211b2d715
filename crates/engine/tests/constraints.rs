//! Constrained answers over groups of ranks.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{Answer, Group};
use engine::{Constraint, Event, FinishReason, Request, Sampling};
use fabric::Transport;
use serde_json::{Value, json};

fn request(group: &Group, constraint: Option<Constraint>, seed: u64) -> Request {
    let options = model::EncodeOptions { add_special: true, parse_special: true };
    let prompt = group.engine.model().tokenizer.encode("Strands of hemp", options).unwrap();
    let sampling = Sampling { temperature: 1.0, seed: Some(seed), ..Sampling::default() };
    Request { prompt, sampling, constraint, max_tokens: Some(200), ..Request::default() }
}

fn finish(answer: &Answer) -> FinishReason {
    match &answer.last {
        Some(Event::Done(completion)) => completion.finish,
        other => panic!("the generation did not end well: {other:?}"),
    }
}

fn point() -> Constraint {
    let number = json!({"type": "integer", "minimum": -500, "maximum": 500});
    let properties = json!({"x": number, "name": {"enum": ["hemp", "sisal"]}});
    let schema = json!({"type": "object", "properties": properties, "required": ["x", "name"],
        "additionalProperties": false});
    Constraint::json_schema(&schema, true).unwrap()
}

#[test]
fn answers_have_the_form_that_was_asked_for_on_any_number_of_ranks() {
    let answers: Vec<Vec<String>> = [(1, 1), (2, 1), (1, 2)]
        .map(|layout| {
            let group = Group::start("tiny-llama", layout, Transport::SharedMemory);
            let answers = (0..6).map(|seed| group.run(request(&group, Some(point()), seed)));
            let texts = answers.map(|answer| {
                assert_eq!(finish(&answer), FinishReason::Stop);
                let value: Value = serde_json::from_str(&answer.text).unwrap();
                assert!((-500..=500).contains(&value["x"].as_i64().unwrap()), "{value}");
                assert!(value["name"] == "hemp" || value["name"] == "sisal", "{value}");
                answer.text
            });
            texts.collect()
        })
        .into();
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
    assert!(answers[0].iter().any(|text| *text != answers[0][0]), "all seeds lead to {:?}", answers[0][0]);
}

#[test]
fn constrained_and_free_sequences_run_beside_each_other() {
    let group = Group::start("tiny-llama", (2, 1), Transport::SharedMemory);
    let free = |seed| request(&group, None, seed);
    let alone: Vec<Answer> = (0..2).map(|seed| Answer::untimed(group.engine.submit(free(seed)).unwrap())).collect();
    let guided = group.run(request(&group, Some(point()), 7)).text;
    let requests = [free(0), request(&group, Some(point()), 7), free(1), request(&group, Some(point()), 8)];
    let generations: Vec<_> = requests.into_iter().map(|request| group.engine.submit(request).unwrap()).collect();
    let together: Vec<Answer> = generations.into_iter().map(Answer::untimed).collect();
    assert_eq!((&together[0], &together[2]), (&alone[0], &alone[1]));
    assert_eq!(together[1].text, guided);
    serde_json::from_str::<Value>(&together[3].text).unwrap();
}

#[test]
fn an_answer_can_be_cut_off_or_abandoned() {
    let group = Group::start("tiny-llama", (1, 1), Transport::SharedMemory);
    let digits = Constraint::regex("[0-9]{60}").unwrap();
    let cut = Request { max_tokens: Some(5), ..request(&group, Some(digits.clone()), 1) };
    let answer = group.run(cut);
    assert_eq!((finish(&answer), answer.text.len()), (FinishReason::Length, 5));
    drop(group.engine.submit(request(&group, Some(digits.clone()), 2)).unwrap());
    let whole = group.run(Request { ignore_end: true, ..request(&group, Some(digits), 3) });
    assert_eq!((finish(&whole), whole.text.len()), (FinishReason::Stop, 60));
}

#[test]
fn log_probabilities_are_those_of_the_model_without_constraint() {
    let group = Group::start("tiny-llama", (1, 1), Transport::SharedMemory);
    let asked = |constraint| {
        let mut request = request(&group, constraint, 1);
        request.sampling.temperature = 0.0;
        group.run(Request { logprobs: Some(3), max_tokens: Some(1), ..request })
    };
    let (free, guided) = (asked(None), asked(Some(Constraint::choice(&["~".to_owned()]).unwrap())));
    assert_eq!(free.tokens[0].top, guided.tokens[0].top);
    assert_eq!(guided.text, "~");
    assert!(guided.tokens[0].logprob < free.tokens[0].logprob);
}
