//! Any text, as what launchers put into the environment: variables, one a line, and after an empty line the files that
//! they name. Also as a list of hosts and as a host file.
#![no_main]

use fabric::launch::{Environment, HOSTS_MAX, Hostfile, Launch, expand_hostlist};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(hosts) = expand_hostlist(text) {
        assert!((1..=HOSTS_MAX).contains(&hosts.len()));
    }
    if let Ok(file) = Hostfile::parse(text) {
        assert!((1..=fabric::MAX_RANKS).contains(&file.size()));
    }
    let (variables, file) = text.split_once("\n\n").unwrap_or((text, ""));
    let look_up = |name: &str| {
        let mut lines = variables.lines().filter_map(|line| line.split_once('='));
        lines.find(|(other, _)| *other == name).map(|(_, value)| value.to_owned())
    };
    let environment = Environment::new(look_up, |_| Ok(file.to_owned()));
    if let Ok(Some(launch)) = Launch::from_environment(&environment) {
        assert!(launch.rank < launch.size && launch.size <= fabric::MAX_RANKS && launch.coordinator.1 > 0);
        let _ = launch.secret();
    }
});
