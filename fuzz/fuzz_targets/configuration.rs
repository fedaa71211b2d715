//! A configuration file, for a program with options of every kind.
#![no_main]

use std::sync::LazyLock;

use clap::{Arg, ArgAction, Command, value_parser};
use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../crates/ropewalk/src/config/error.rs"]
mod error;
#[allow(dead_code)]
#[path = "../../crates/ropewalk/src/config/file.rs"]
mod file;
#[allow(dead_code)]
#[path = "../../crates/ropewalk/src/config/option.rs"]
mod option;

static PROGRAM: LazyLock<Command> = LazyLock::new(|| {
    let kernels = Command::new("kernels").arg(Arg::new("only").long("only"));
    let serve = Command::new("serve")
        .arg(Arg::new("models").action(ArgAction::Append).num_args(1..))
        .arg(Arg::new("parallel").long("parallel").value_parser(value_parser!(u16).range(1..=256)))
        .arg(
            Arg::new("shares")
                .long("shares")
                .action(ArgAction::Append)
                .value_delimiter(',')
                .value_parser(value_parser!(f64)),
        )
        .arg(Arg::new("map").long("map").action(ArgAction::SetTrue))
        .arg(Arg::new("kind").long("kind").value_parser(["auto", "tcp"]))
        .arg(Arg::new("key").long("key").action(ArgAction::Append).hide_env_values(true).env("FUZZ_KEY"))
        .subcommand(kernels);
    Command::new("program").arg(Arg::new("log").long("log")).subcommand(serve)
});

fuzz_target!(|text: &str| {
    let lines = text.split('\n').count();
    match file::parse(&PROGRAM, text) {
        Ok(entries) => assert!(entries.iter().all(|entry| (1..=lines).contains(&entry.line))),
        Err(mistakes) => {
            assert!(!mistakes.is_empty() && mistakes.iter().all(|mistake| (1..=lines).contains(&mistake.line)));
        }
    }
});
