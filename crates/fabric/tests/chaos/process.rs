//! A rank's process, and what it says.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rustix::process::{Pid, Signal, kill_process};

use crate::PATIENCE;
use crate::rank::{MARK, Orders};
use crate::switch::Switch;

/// It does not outlive a failing test.
pub(crate) struct Process {
    child: Child,
    words: Receiver<String>,
}

impl Process {
    /// Starts a rank, on a host of its own if one is given.
    pub(crate) fn start(orders: &Orders, host: Option<String>) -> Self {
        let binary = std::env::current_exe().unwrap();
        let mut command = match host {
            Some(host) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &host]).arg(binary);
                command.env("ROPEWALK_RDMA_DEVICES", Switch::device(orders.rank));
                command
            }
            None => Command::new(binary),
        };
        command.args(["child", "--exact", "--nocapture"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        orders.give(&mut command);
        let mut child = command.spawn().unwrap();
        let (sender, words) = channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(words) = line.strip_prefix(MARK) {
                    let _ = sender.send(words.to_owned());
                }
            }
        });
        Self { child, words }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// What the process says next, if it begins with these words; the rest of it.
    pub(crate) fn expect(&mut self, begin: &str) -> Result<String, String> {
        let said = self.words.recv_timeout(PATIENCE).map_err(|error| format!("said nothing: {error}"))?;
        match said.strip_prefix(begin) {
            Some(rest) => Ok(rest.trim().to_owned()),
            None => Err(format!("said: {said}")),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
