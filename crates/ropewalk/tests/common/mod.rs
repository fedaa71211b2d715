//! Runs the program as a user would.
#![allow(clippy::unwrap_used, dead_code, reason = "helpers of several tests, none of which uses all of them")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// No command of the tests takes longer, however busy the machine.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn tiny(name: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden");
    folder.join(format!("{name}.gguf")).canonicalize().unwrap().display().to_string()
}

/// The program with these arguments, a cache folder of its own, and nothing of the user's environment in the way.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ropewalk"));
    command.args(arguments).env("ROPEWALK_HOME", home()).env("XDG_CONFIG_HOME", home()).stdin(Stdio::null());
    command.env_remove("ROPEWALK_LOG").env_remove("ROPEWALK_CONFIG");
    command
}

fn home() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// The JSON that a command prints which must succeed.
pub(crate) fn json(arguments: &[&str]) -> Value {
    let output = run(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{arguments:?} printed no JSON"))
}

/// The message of a command that must fail in good order: exit code 1 or 2, something said, no panic.
pub(crate) fn failure(arguments: &[&str]) -> String {
    let output = run(arguments);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(matches!(output.status.code(), Some(1 | 2)), "{arguments:?} ended with {}: {error}", output.status);
    assert!(error.contains("error: ") && !error.contains("panicked"), "{arguments:?}: {error}");
    error
}

/// A command under way. It is killed when this is dropped, should it still run.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let child = command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Self(child.unwrap())
    }

    /// The processes that this one has started, oldest first.
    pub(crate) fn children(&self) -> Vec<Pid> {
        let id = self.0.id();
        let list = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
    }

    /// Waits until there are `count` child processes.
    pub(crate) fn wait_for_children(&self, count: usize) -> Vec<Pid> {
        wait_for(|| Some(self.children()).filter(|children| children.len() == count))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.0.id() as i32).unwrap(), signal).unwrap();
    }

    /// Waits for the end and returns exit code and standard error.
    pub(crate) fn finish(mut self) -> (Option<i32>, String) {
        let status = wait_for(|| self.0.try_wait().unwrap());
        let error = std::io::read_to_string(self.0.stderr.take().unwrap()).unwrap();
        (status.code(), error)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks again and again until there is an answer.
pub(crate) fn wait_for<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "nothing happened within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Processor time of a process in hundredths of a second.
pub(crate) fn processor_ticks(pid: Pid) -> u64 {
    let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    // The name before may hold anything. The times in user and in system mode are fields 14 and 15 of all.
    let fields = state.rsplit_once(") ").map(|(_, rest)| rest.split(' ').skip(11).take(2)).into_iter().flatten();
    fields.filter_map(|field| field.parse::<u64>().ok()).sum()
}

pub(crate) fn is_alive(pid: Pid) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    !state.is_empty() && !state.contains(") Z ")
}
