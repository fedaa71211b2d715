//! What a group has evaluated is there for the next one, if it is of the same model and layout.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::fs;
use std::path::Path;

use common::Group;
use engine::ranks::{Job, PromptCache};
use engine::{Event, Request};
use fabric::Transport;
use kernels::KvType;

fn request(tokens: u32) -> Request {
    let prompt = (0..tokens).map(|token| 3 + token * 31 % 250).collect();
    Request { prompt, max_tokens: Some(9), ignore_end: true, logprobs: Some(2), ..Request::default() }
}

/// The tokens of an answer with their log-probabilities, and how many tokens of the prompt were there.
fn answer(group: &Group, tokens: u32) -> (String, usize) {
    let answer = group.run(request(tokens));
    let Some(Event::Done(completion)) = answer.last else { panic!("{:?}", answer.last) };
    (format!("{:?}", answer.tokens), completion.cached_tokens)
}

/// The `run`-th group that keeps its cache in `folder`, changed as the test wants.
fn start(name: &str, layout: (usize, usize), folder: &Path, run: u64, change: impl Fn(usize, &mut Job)) -> Group {
    let cache = PromptCache { folder: folder.display().to_string(), run };
    Group::start_with(name, layout, Transport::SharedMemory, |rank, job| {
        job.prompt_cache = Some(cache.clone());
        change(rank, job);
    })
}

fn stop(group: Group) {
    group.stop().into_iter().for_each(|rank| rank.unwrap());
}

#[test]
fn conversations_go_on_after_a_restart() {
    for (name, layout) in [("tiny-llama-q4_1", (1, 1)), ("tiny-gemma3", (2, 1)), ("tiny-qwen3", (2, 2))] {
        let folder = tempfile::tempdir().unwrap();
        let first = start(name, layout, folder.path(), 1, |_, _| {});
        let expected = answer(&first, 200);
        assert_eq!(expected.1, 0);
        stop(first);
        let second = start(name, layout, folder.path(), 2, |_, _| {});
        // A longer prompt that begins alike, and the same one again.
        assert_eq!(answer(&second, 230).1, 200, "{name}");
        assert_eq!(answer(&second, 200), (expected.0, 199), "{name}");
        stop(second);
        let third = start(name, layout, folder.path(), 3, |_, _| {});
        assert_eq!(answer(&third, 230).1, 229, "{name}");
        stop(third);
    }
}

#[test]
fn what_does_not_fit_is_left_aside() {
    let folder = tempfile::tempdir().unwrap();
    let first = start("tiny-llama-q4_1", (2, 1), folder.path(), 1, |_, _| {});
    let expected = answer(&first, 100).0;
    stop(first);
    let kept: Vec<_> = (0..2).map(|rank| fs::read(folder.path().join(format!("rank-{rank}.kv"))).unwrap()).collect();
    let restore =
        || (0..2).for_each(|rank| fs::write(folder.path().join(format!("rank-{rank}.kv")), &kept[rank]).unwrap());
    let check = |what: &str, layout, change: &dyn Fn(usize, &mut Job)| {
        let group = start("tiny-llama-q4_1", layout, folder.path(), 2, change);
        assert_eq!(answer(&group, 100), (expected.clone(), 0), "{what}");
        stop(group);
        restore();
    };
    check("another layout", (1, 2), &|_, _| {});
    check("another size", (2, 1), &|_, job| job.kv_blocks -= 1);
    // Of one rank there is nothing, of one it is from another run, or damaged.
    fs::remove_file(folder.path().join("rank-1.kv")).unwrap();
    check("a file is missing", (2, 1), &|_, _| {});
    let mut other = kept[1].clone();
    let run = other.windows(8).position(|bytes| bytes == b"\"run\":1,").unwrap();
    other[run + 6] = b'7';
    fs::write(folder.path().join("rank-1.kv"), other).unwrap();
    check("of another run", (2, 1), &|_, _| {});
    for damaged in [&kept[1][..kept[1].len() - 1], &kept[1][..5], &[255; 40], b""] {
        fs::write(folder.path().join("rank-1.kv"), damaged).unwrap();
        check("damaged", (2, 1), &|_, _| {});
    }
    let group = start("tiny-llama-q4_1", (2, 1), folder.path(), 2, |_, _| {});
    assert_eq!(answer(&group, 100), (expected, 99));
    stop(group);
    // Values of another type are of another size.
    let group = start("tiny-llama-q4_1", (2, 1), folder.path(), 3, |_, job| job.kv_type = KvType::Q8_0);
    assert_eq!(answer(&group, 100).1, 0);
    stop(group);
}

#[test]
fn a_folder_that_cannot_be_written_stops_nobody() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let group = start("tiny-llama-q4_1", (1, 1), &file.path().join("below"), 1, |_, _| {});
    assert_eq!(answer(&group, 40).1, 0);
    stop(group);
}
