//! The front's end of a group: hands requests to rank 0 and hears from all ranks.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use fabric::{Control, ControlReceiver, ControlSender, FabricError};

use crate::backend::{Backend, Flow, Observer, Outcome};
use crate::ranks::protocol::{FromRank, ToRank};
use crate::request::{EngineError, Request};

/// How often the observer is asked whether to go on while nothing is heard.
const POLL: Duration = Duration::from_millis(50);

/// Rank 0 reports after every prefill chunk and every token. A chunk of a large model may take minutes on a slow
/// machine; a rank whose process or machine is gone is noticed much sooner, by its connection.
const SILENCE: Duration = Duration::from_secs(600);

/// How long ranks may take to end by themselves once told to stop.
const FAREWELL: Duration = Duration::from_secs(2);

/// A group that could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A rank failed while it loaded its shard.
    #[error("rank {rank} could not start: {message}")]
    Rank {
        /// Its number.
        rank: usize,
        /// Its words.
        message: String,
    },
    /// Not all ranks were ready in time.
    #[error("the ranks {missing:?} were not ready within {after:?}")]
    Slow {
        /// The ranks that were waited for.
        missing: Vec<usize>,
        /// How long.
        after: Duration,
    },
}

/// What a rank told when it was ready.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Readiness {
    /// Milliseconds that it took to load its shard.
    pub load_ms: f64,
    /// Bytes of weights it reads per token.
    pub weight_bytes: u64,
}

/// A started group, as the engine's backend.
pub struct Front {
    ranks: Vec<ControlSender>,
    heard: Receiver<(usize, Heard)>,
    next_id: u64,
    failure: Option<EngineError>,
}

/// What comes from a rank.
enum Heard {
    Message(FromRank),
    Nonsense(String),
    Gone(String),
}

impl Front {
    /// Waits until all ranks have loaded their shards, and lets them go. `controls` are in the order of the ranks.
    ///
    /// # Errors
    /// When a rank fails or is not ready in time.
    pub fn start(controls: Vec<Control>, deadline: Duration) -> Result<(Self, Vec<Readiness>), StartError> {
        let (sender, heard) = mpsc::sync_channel(1024);
        let mut ranks = Vec::new();
        for (rank, control) in controls.into_iter().enumerate() {
            let (to, from) = control.split();
            ranks.push(to);
            let sender = sender.clone();
            std::thread::spawn(move || listen(rank, from, &sender));
        }
        let mut front = Self { ranks, heard, next_id: 1, failure: None };
        let ready = front.wait_until_ready(deadline)?;
        for rank in 0..front.ranks.len() {
            let started = front.send(rank, &ToRank::Start);
            started.map_err(|error| StartError::Rank { rank, message: error.to_string() })?;
        }
        Ok((front, ready))
    }

    fn wait_until_ready(&mut self, deadline: Duration) -> Result<Vec<Readiness>, StartError> {
        let end = Instant::now() + deadline;
        let mut ready: Vec<Option<Readiness>> = vec![None; self.ranks.len()];
        while ready.contains(&None) {
            let left = end.saturating_duration_since(Instant::now());
            let Ok((rank, heard)) = self.heard.recv_timeout(left) else {
                let missing = (0..ready.len()).filter(|&rank| ready[rank].is_none()).collect();
                return Err(StartError::Slow { missing, after: deadline });
            };
            match heard {
                Heard::Message(FromRank::Ready { load_ms, weight_bytes }) => {
                    ready[rank] = Some(Readiness { load_ms, weight_bytes });
                }
                Heard::Message(FromRank::Failed { message, .. }) | Heard::Gone(message) | Heard::Nonsense(message) => {
                    return Err(StartError::Rank { rank, message });
                }
                Heard::Message(other) => {
                    let message = format!("it said {other:?} before it was ready");
                    return Err(StartError::Rank { rank, message });
                }
            }
        }
        Ok(ready.into_iter().flatten().collect())
    }

    fn send(&mut self, rank: usize, message: &ToRank) -> Result<(), EngineError> {
        let lost = |cause: String| EngineError::RankLost { rank, cause };
        let bytes = serde_json::to_vec(message).map_err(|error| lost(error.to_string()))?;
        self.ranks[rank].send(&bytes).map_err(|error| lost(error.to_string()))
    }

    /// Turns word from a rank that ends the group into an error; other words come back.
    fn sort(&mut self, rank: usize, heard: Heard) -> Result<FromRank, EngineError> {
        let error = match heard {
            Heard::Message(FromRank::Failed { lost: Some(lost), message }) => {
                EngineError::RankLost { rank: lost, cause: message }
            }
            Heard::Message(FromRank::Failed { message, .. }) => EngineError::RankFailed { rank, message },
            Heard::Message(message) => return Ok(message),
            Heard::Nonsense(message) => EngineError::RankFailed { rank, message },
            Heard::Gone(cause) => EngineError::RankLost { rank, cause },
        };
        self.failure = Some(error.clone());
        Err(error)
    }

    /// Follows request `id` to its end.
    fn follow(&mut self, id: u64, observer: &mut dyn Observer) -> Result<Outcome, EngineError> {
        let mut last_heard = Instant::now();
        let mut cancelled = false;
        loop {
            let flow = match self.heard.recv_timeout(POLL) {
                Ok((rank, heard)) => {
                    last_heard = Instant::now();
                    match self.sort(rank, heard)? {
                        FromRank::Prompt { id: of, tokens, cached } if of == id => observer.prompt(tokens, cached),
                        FromRank::Token { id: of, token } if of == id && !cancelled => observer.token(token),
                        FromRank::Done { id: of, finish, prefill_ms, decode_ms, ranks } if of == id => {
                            return Ok(Outcome { finish, prefill_ms, decode_ms, ranks });
                        }
                        _ => Flow::Continue,
                    }
                }
                Err(RecvTimeoutError::Timeout) if last_heard.elapsed() > SILENCE => {
                    let cause = format!("nothing was heard of it for {SILENCE:?}");
                    return self.sort(0, Heard::Gone(cause)).and(Err(EngineError::ShutDown));
                }
                Err(RecvTimeoutError::Timeout) => observer.flow(),
                Err(RecvTimeoutError::Disconnected) => {
                    return self
                        .sort(0, Heard::Gone("all ranks have ended".to_owned()))
                        .and(Err(EngineError::ShutDown));
                }
            };
            if flow == Flow::Stop && !cancelled {
                cancelled = true;
                self.send(0, &ToRank::Cancel { id })?;
            }
        }
    }
}

impl Backend for Front {
    fn generate(&mut self, request: &Request, observer: &mut dyn Observer) -> Result<Outcome, EngineError> {
        self.check()?;
        let id = self.next_id;
        self.next_id += 1;
        let generate = ToRank::Generate { id, request: Box::new(request.clone()) };
        let result = self.send(0, &generate).and_then(|()| self.follow(id, observer));
        if let Err(error) = &result {
            self.failure.get_or_insert_with(|| error.clone());
        }
        result
    }

    fn check(&mut self) -> Result<(), EngineError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        while let Ok((rank, heard)) = self.heard.try_recv() {
            self.sort(rank, heard)?;
        }
        Ok(())
    }
}

impl Drop for Front {
    /// Lets the ranks end by themselves, in which case their links end in good order; then cuts the connections, upon
    /// which those that are left end too.
    fn drop(&mut self) {
        if self.failure.is_none() && self.send(0, &ToRank::Stop).is_ok() {
            let end = Instant::now() + FAREWELL;
            let mut left = self.ranks.len();
            while left > 0 {
                match self.heard.recv_timeout(end.saturating_duration_since(Instant::now())) {
                    Ok((_, Heard::Gone(_))) => left -= 1,
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
        }
        self.ranks.iter().for_each(ControlSender::close);
    }
}

/// Passes on what one rank says until its connection ends.
fn listen(rank: usize, mut receiver: ControlReceiver, heard: &SyncSender<(usize, Heard)>) {
    loop {
        let word = match receiver.recv(SILENCE) {
            Ok(Some(message)) => match serde_json::from_slice(&message) {
                Ok(message) => Heard::Message(message),
                Err(error) => Heard::Nonsense(format!("it said something that makes no sense: {error}")),
            },
            Ok(None) => continue,
            Err(FabricError::PeerLost { cause, .. }) => Heard::Gone(cause.to_string()),
            Err(error) => Heard::Gone(error.to_string()),
        };
        let gone = matches!(word, Heard::Gone(_));
        if heard.send((rank, word)).is_err() || gone {
            return;
        }
    }
}
