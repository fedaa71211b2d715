//! Killed, stopped and interrupted processes: everything ends, quickly and with a word about why.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::path::Path;
use std::process::Command;

use common::{Running, is_alive, json, tiny, wait_for};
use rustix::process::{Signal, kill_process};

/// A generation that would go on for a long time.
fn long_run(layout: &[&str]) -> Running {
    let model = tiny("tiny-llama");
    let arguments = ["run", &model, "-p", "Strands", "--ignore-eos", "-n", "4000", "--ctx-size", "4090"];
    Running::start(&[&arguments[..], layout].concat())
}

/// Waits until the command has printed something, which is when its ranks work.
fn wait_for_text(running: &mut Running) {
    use std::io::Read;
    let output = running.0.stdout.as_mut().unwrap();
    output.read_exact(&mut [0; 1]).unwrap();
    // Nobody reads the rest; a full pipe must not hold the command up.
    let mut output = running.0.stdout.take().unwrap();
    std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
}

#[test]
fn a_killed_rank_ends_the_command_with_its_name() {
    for layout in [&["--ranks", "2"][..], &["--ranks", "2", "--transport", "tcp"], &["--pp", "2"]] {
        let mut running = long_run(layout);
        let ranks = running.wait_for_children(2);
        wait_for_text(&mut running);
        kill_process(ranks[1], Signal::KILL).unwrap();
        let (code, error) = running.finish();
        assert_eq!(code, Some(1), "{layout:?}: {error}");
        assert!(error.contains("rank 1"), "{layout:?}: {error}");
        wait_for(|| (!is_alive(ranks[0])).then_some(()));
    }
}

#[test]
fn a_stopped_rank_ends_the_command_with_its_name() {
    for stopped in [0, 1] {
        let mut running = long_run(&["--ranks", "3"]);
        let ranks = running.wait_for_children(3);
        wait_for_text(&mut running);
        kill_process(ranks[stopped], Signal::STOP).unwrap();
        let (code, error) = running.finish();
        assert_eq!(code, Some(1), "{error}");
        assert!(error.contains(&format!("rank {stopped}")), "{error}");
        for rank in ranks {
            wait_for(|| (!is_alive(rank)).then_some(()));
        }
    }
}

#[test]
fn measurements_end_with_their_command_and_with_any_rank() {
    let measure = ["bench", "collectives", "--ranks", "3", "--sizes", "1K", "--seconds", "600"];
    let mut running = Running::start(&measure);
    let ranks = running.wait_for_children(3);
    // To start and to meet takes a rank a few hundredths of a second of processor time; once it measures, it takes ever more.
    let is_at_work = |rank: &rustix::process::Pid| common::processor_ticks(*rank) >= 30;
    wait_for(|| ranks.iter().all(is_at_work).then_some(()));
    running.signal(Signal::INT);
    assert_eq!(running.0.wait().unwrap().code(), Some(130));
    for rank in ranks {
        wait_for(|| (!is_alive(rank)).then_some(()));
    }
    let running = Running::start(&measure);
    let ranks = running.wait_for_children(3);
    wait_for(|| ranks.iter().all(is_at_work).then_some(()));
    kill_process(ranks[0], Signal::STOP).unwrap();
    let (code, error) = running.finish();
    assert!(code == Some(1) && error.contains("lost rank 0"), "{error}");
}

#[test]
fn ranks_end_when_their_command_is_killed() {
    let mut running = long_run(&["--ranks", "3"]);
    let ranks = running.wait_for_children(3);
    wait_for_text(&mut running);
    running.signal(Signal::KILL);
    for rank in ranks {
        wait_for(|| (!is_alive(rank)).then_some(()));
    }
}

#[test]
fn an_interrupt_ends_a_generation_in_good_order() {
    let mut running = long_run(&["--ranks", "2"]);
    let ranks = running.wait_for_children(2);
    wait_for_text(&mut running);
    running.signal(Signal::INT);
    let (code, error) = running.finish();
    assert_eq!((code, error.as_str()), (Some(130), ""));
    assert!(ranks.into_iter().all(|rank| !is_alive(rank)));
}

#[test]
fn an_interrupt_while_ranks_are_awaited_ends_the_command_and_its_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    let model = tiny("tiny-llama");
    let group = ["--ranks", "2", "--remote-ranks", "1", "--secret-file", secret.to_str().unwrap()];
    for signal in [Signal::INT, Signal::TERM] {
        let running = Running::start(&[&["run", &model, "-p", "x"], &group[..]].concat());
        let ranks = running.wait_for_children(1);
        running.signal(signal);
        assert_eq!(running.finish().0, Some(130));
        wait_for(|| (!is_alive(ranks[0])).then_some(()));
    }
}

#[test]
fn a_rank_started_by_hand_takes_part() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    let secret = secret.to_str().unwrap();
    let model = tiny("tiny-qwen2");
    let arguments = ["run", &model, "-p", "Strands", "-n", "8", "--temp", "0", "--ignore-eos", "--json"];
    let alone = json(&arguments);
    let address = free_address();
    let group = ["--ranks", "2", "--remote-ranks", "1", "--rendezvous", &address, "--secret-file", secret];
    let mut front = Running::start(&[&arguments[..], &group, &["--transport", "tcp"]].concat());
    wait_for(|| Path::new(secret).exists().then_some(()));
    // A stranger at the door disturbs nobody.
    wait_for(|| std::net::TcpStream::connect(&address).ok()).set_nodelay(true).unwrap();
    let wrong = folder.path().join("wrong");
    std::fs::write(&wrong, "another secret of sufficient length").unwrap();
    let wrong = wrong.to_str().unwrap();
    let refused = common::failure(&["rank", "--rendezvous", &address, "--secret-file", wrong, "--timeout", "20"]);
    assert!(refused.contains(&address), "{refused}");
    let rank = Running::start(&["rank", "--rendezvous", &address, "--secret-file", secret, "--transport", "tcp"]);
    let (code, error) = rank.finish();
    assert_eq!(code, Some(0), "{error}");
    let mut text = String::new();
    std::io::Read::read_to_string(front.0.stdout.as_mut().unwrap(), &mut text).unwrap();
    let together: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(together["tokens"], alone["tokens"]);
    assert_eq!(front.finish().0, Some(0));
}

fn free_address() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn a_closed_pipe_is_no_error() {
    let program = env!("CARGO_BIN_EXE_ropewalk");
    let model = tiny("tiny-llama");
    for command in [format!("inspect {model} --tensors"), format!("bench {model} -p 4 -n 4 -r 1")] {
        let script = format!("{program} {command} | true; exit ${{PIPESTATUS[0]}}");
        assert!(Command::new("bash").args(["-c", &script]).output().unwrap().status.success(), "{command}");
    }
}
