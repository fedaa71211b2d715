//! The front's end of a group: hands requests to rank 0 and hears from all ranks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fabric::{Control, ControlReceiver, ControlSender, FabricError};

use crate::backend::{Backend, CacheUse, Flow, Observer, Outcome};
use crate::ranks::desk::{Desk, Failure, Heard, Word};
use crate::ranks::loading::Loading;
use crate::ranks::protocol::ToRank;
use crate::request::{EngineError, Request};

/// How often the observer is asked whether to go on while nothing is heard.
const POLL: Duration = Duration::from_millis(50);

/// Rank 0 reports after every prefill chunk and every token. A chunk of a large model may take minutes on a slow
/// machine; a rank whose process or machine is gone is noticed much sooner, by its connection.
const SILENCE: Duration = Duration::from_secs(600);

/// How long ranks may take to end by themselves once told to stop.
const FAREWELL: Duration = Duration::from_secs(2);

/// The same where they have a KV cache to write.
const LONG_FAREWELL: Duration = Duration::from_secs(600);

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
    /// The run whose KV cache it has restored, if any.
    pub restored: Option<u64>,
}

/// A started group, as the engine's backend.
pub struct Front {
    ranks: Mutex<Vec<ControlSender>>,
    desk: Arc<Desk>,
    next_id: AtomicU64,
    /// How long ranks may take to end by themselves once told to stop.
    farewell: Duration,
}

impl Front {
    /// Waits until all ranks have loaded their shards, and lets them go. `controls` are in the order of the ranks. `progress`
    /// hears a few times a second how far they are, if they take long enough.
    ///
    /// # Errors
    /// When a rank fails or is not ready in time.
    pub fn start(
        controls: Vec<Control>,
        deadline: Duration,
        progress: &mut dyn FnMut(Loading),
    ) -> Result<(Self, Vec<Readiness>), StartError> {
        let desk = Arc::new(Desk::new(controls.len()));
        let mut ranks = Vec::new();
        for (rank, control) in controls.into_iter().enumerate() {
            let (to, from) = control.split();
            ranks.push(to);
            let desk = Arc::clone(&desk);
            std::thread::spawn(move || listen(rank, from, &desk));
        }
        let size = ranks.len();
        let front = Self { ranks: Mutex::new(ranks), desk, next_id: AtomicU64::new(1), farewell: FAREWELL };
        let ready = front.wait_until_ready(deadline, progress)?;
        let restored = ready.iter().all(|rank| rank.restored.is_some() && rank.restored == ready[0].restored);
        for rank in 0..size {
            let started = front.send(rank, &ToRank::Start { restored });
            started.map_err(|error| StartError::Rank { rank, message: error.to_string() })?;
        }
        Ok((front, ready))
    }

    /// Gives the ranks time to write their KV cache when they are told to stop.
    #[must_use]
    pub fn keeping_cache(self) -> Self {
        // No fields can be moved out of what has work to do when it is dropped.
        let mut front = self;
        front.farewell = LONG_FAREWELL;
        front
    }

    fn wait_until_ready(
        &self,
        deadline: Duration,
        progress: &mut dyn FnMut(Loading),
    ) -> Result<Vec<Readiness>, StartError> {
        let failed = |Failure { rank, words, .. }| StartError::Rank { rank, message: words };
        let ready = self.desk.wait_until_ready(deadline, progress).map_err(failed)?;
        let missing: Vec<usize> = (0..ready.len()).filter(|&rank| ready[rank].is_none()).collect();
        if missing.is_empty() {
            return Ok(ready.into_iter().flatten().collect());
        }
        Err(StartError::Slow { missing, after: deadline })
    }

    fn send(&self, rank: usize, message: &ToRank) -> Result<(), EngineError> {
        let lost = |cause: String| {
            let error = EngineError::RankLost { rank, cause: cause.clone() };
            self.desk.fail(rank, cause, error)
        };
        let bytes = serde_json::to_vec(message).map_err(|error| lost(error.to_string()))?;
        let mut ranks = self.ranks.lock().unwrap_or_else(PoisonError::into_inner);
        ranks[rank].send(&bytes).map_err(|error| lost(error.to_string()))
    }

    /// Follows request `id` to its end.
    fn follow(&self, id: u64, words: &Receiver<Word>, observer: &mut dyn Observer) -> Result<Outcome, EngineError> {
        let mut cancelled = false;
        loop {
            let flow = match words.recv_timeout(POLL) {
                Ok(Word::Prompt(tokens, cached)) => observer.prompt(tokens, cached),
                Ok(Word::Embedding(values)) => observer.embedding(values),
                Ok(Word::Token(token)) if !cancelled => observer.token(token),
                Ok(Word::Token(_)) => Flow::Continue,
                Ok(Word::Done(outcome)) => return Ok(outcome),
                Err(RecvTimeoutError::Timeout) if self.desk.silence() > SILENCE => {
                    let cause = format!("nothing was heard of it for {SILENCE:?}");
                    let error = EngineError::RankLost { rank: 0, cause: cause.clone() };
                    return Err(self.desk.fail(0, cause, error));
                }
                Err(RecvTimeoutError::Timeout) => observer.flow(),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.desk.failure().unwrap_or(EngineError::ShutDown));
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
    fn generate(&self, request: &Request, observer: &mut dyn Observer) -> Result<Outcome, EngineError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let words = self.desk.open(id)?;
        let generate = ToRank::Generate { id, request: Box::new(request.clone()) };
        let result = self.send(0, &generate).and_then(|()| self.follow(id, &words, observer));
        self.desk.close(id);
        result
    }

    fn check(&self) -> Result<(), EngineError> {
        self.desk.failure().map_or(Ok(()), Err)
    }

    fn cache(&self) -> CacheUse {
        self.desk.cache()
    }
}

impl Drop for Front {
    /// Lets the ranks end by themselves, in which case their links end in good order; then cuts the connections, upon
    /// which those that are left end too.
    fn drop(&mut self) {
        if self.desk.failure().is_none() && self.send(0, &ToRank::Stop).is_ok() {
            self.desk.wait_until_gone(self.farewell);
        }
        let ranks = self.ranks.get_mut().unwrap_or_else(PoisonError::into_inner);
        ranks.iter().for_each(ControlSender::close);
    }
}

/// Passes on what one rank says until its connection ends.
fn listen(rank: usize, mut receiver: ControlReceiver, desk: &Desk) {
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
        desk.hear(rank, word);
        if gone {
            return;
        }
    }
}
