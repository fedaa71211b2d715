//! Documents by schemas: whatever a model would say, what it writes is valid.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::HashSet;

use common::{Answer, Group};
use engine::{Constraint, Event, FinishReason, Request, Sampling};
use fabric::Transport;
use model::EncodeOptions;
use serde_json::Value;

const SCHEMAS: &str = include_str!("schemas/schemas.json");
const DOCUMENTS_PER_SCHEMA: u64 = 10;

/// A model of random weights never tires of a string or a list, so that what ends them is made likelier; and what makes
/// exponents is left out, as few readers take a number such as 1e999, which is JSON.
fn biases(group: &Group) -> Vec<(u32, f32)> {
    let tokenizer = &group.engine.model().tokenizer;
    let id = |text| tokenizer.encode(text, EncodeOptions::default()).unwrap()[0];
    let biases = [("\"", 8.0), ("}", 7.0), ("]", 7.0), ("e", -100.0), ("E", -100.0)];
    biases.map(|(text, bias)| (id(text), bias)).into_iter().chain([(2, 5.0)]).collect()
}

fn request(group: &Group, constraint: &Constraint, seed: u64) -> Request {
    let options = EncodeOptions { add_special: true, parse_special: true };
    let prompt = group.engine.model().tokenizer.encode("A document:", options).unwrap();
    let logit_bias = biases(group);
    let sampling = Sampling { temperature: 1.0, seed: Some(seed), logit_bias, ..Sampling::default() };
    Request { prompt, sampling, constraint: Some(constraint.clone()), ..Request::default() }
}

/// What is wrong with a document, if anything is.
fn fault(answer: &Answer, validator: &jsonschema::Validator) -> Option<String> {
    match &answer.last {
        Some(Event::Done(completion)) if completion.finish == FinishReason::Stop => {}
        other => return Some(format!("it ended by {other:?}: {}", answer.text)),
    }
    match serde_json::from_str::<Value>(&answer.text) {
        Err(error) => Some(format!("{error}: {}", answer.text)),
        Ok(document) => validator.validate(&document).err().map(|error| format!("{error}: {}", answer.text)),
    }
}

#[test]
fn five_hundred_documents_by_fifty_schemas_are_valid() {
    let group = Group::start("tiny-llama", (1, 1), Transport::SharedMemory);
    let schemas: Vec<Value> = serde_json::from_str(SCHEMAS).unwrap();
    let mut faults = Vec::new();
    let (mut documents, mut different) = (0, 0);
    for entry in &schemas {
        let (name, schema) = (&entry["name"], &entry["schema"]);
        let validator = jsonschema::options().should_validate_formats(true).build(schema).unwrap();
        let constraint = match Constraint::json_schema(schema, true) {
            Ok(constraint) => constraint,
            Err(error) => {
                faults.push(format!("{name} {error}"));
                continue;
            }
        };
        let requests = (0..DOCUMENTS_PER_SCHEMA).map(|seed| request(&group, &constraint, seed));
        let generations: Vec<_> = requests.map(|request| group.engine.submit(request).unwrap()).collect();
        let answers: Vec<Answer> = generations.into_iter().map(Answer::of).collect();
        faults.extend(answers.iter().filter_map(|answer| Some(format!("{name} {}", fault(answer, &validator)?))));
        documents += answers.len();
        different += answers.iter().map(|answer| answer.text.as_str()).collect::<HashSet<_>>().len();
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert_eq!((schemas.len(), documents), (50, 500));
    assert!(different > 200, "only {different} documents are different");
}
