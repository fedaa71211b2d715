//! The ranks of this machine: child processes of the command.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use fabric::Secret;

use crate::options::LinkOptions;

/// How long a rank may take to end after its group has ended.
const PATIENCE: Duration = Duration::from_secs(3);

/// Child processes. They are waited for, and killed if they do not end, when this is dropped.
pub(crate) struct Children {
    children: Vec<Child>,
}

impl Children {
    /// Starts the ranks `0..count`, which find the rendezvous at `address`.
    pub(crate) fn spawn(
        count: usize,
        address: SocketAddr,
        secret: &Secret,
        links: &LinkOptions,
    ) -> anyhow::Result<Self> {
        let mut children = Self { children: Vec::new() };
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        for rank in 0..count {
            let mut child = Command::new(&program)
                .args(["rank", "--rendezvous", &address.to_string(), "--rank", &rank.to_string()])
                // Its configuration is this command's, which says all that a rank needs to know.
                .args(["--secret-stdin", "--no-config"])
                .args(links.arguments())
                // An interrupt from the terminal is for the command, which then stops its ranks in good order.
                .process_group(0)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .with_context(|| format!("cannot start rank {rank} as {}", program.display()))?;
            let input = child.stdin.take();
            children.children.push(child);
            if let Some(mut input) = input {
                // A child that ended at once is noticed below, with its exit code.
                let _ = input.write_all(secret.expose());
            }
        }
        Ok(children)
    }

    /// The first child that has ended, as a sentence.
    pub(crate) fn ended(&mut self) -> Option<String> {
        self.children.iter_mut().enumerate().find_map(|(rank, child)| match child.try_wait() {
            Ok(Some(status)) => Some(format!("rank {rank} ended with {status} before the group was complete")),
            _ => None,
        })
    }

    /// Runs `action` while watching the children; if one ends, calls `stop`, which must make `action` return.
    pub(crate) fn watch_during<T>(
        &mut self,
        stop: impl Fn() + Send,
        action: impl FnOnce() -> T,
    ) -> (T, Option<String>) {
        let done = Arc::new(AtomicBool::new(false));
        std::thread::scope(|scope| {
            let watcher = scope.spawn({
                let done = Arc::clone(&done);
                move || loop {
                    if done.load(Ordering::Relaxed) {
                        return None;
                    }
                    if let Some(ended) = self.ended() {
                        stop();
                        return Some(ended);
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let result = action();
            done.store(true, Ordering::Relaxed);
            (result, watcher.join().unwrap_or_default())
        })
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        let end = Instant::now() + PATIENCE;
        for child in &mut self.children {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            // Both fail only if the child has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
