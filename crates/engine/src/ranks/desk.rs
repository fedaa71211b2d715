//! Where the front's threads meet: those that listen to ranks leave what they hear, those that run requests pick it up.

use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::backend::{CacheUse, Outcome};
use crate::ranks::front::Readiness;
use crate::ranks::loading::Loading;
use crate::ranks::protocol::FromRank;
use crate::request::{EngineError, TokenInfo};

/// What comes from a rank.
pub(crate) enum Heard {
    Message(FromRank),
    Nonsense(String),
    Gone(String),
}

/// What comes from rank 0 about one request.
pub(crate) enum Word {
    Prompt(Vec<TokenInfo>, usize),
    Embedding(Vec<f32>),
    Token(TokenInfo),
    Done(Outcome),
}

/// Why the group has ended.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    /// The rank that said so, or was not heard any more.
    pub(crate) rank: usize,
    pub(crate) words: String,
    pub(crate) error: EngineError,
}

/// What is known of the ranks.
pub(crate) struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    ready: Vec<Option<Readiness>>,
    /// How far each rank is.
    loading: Vec<Loading>,
    /// Ranks whose connections have ended.
    gone: usize,
    failure: Option<Failure>,
    /// Who waits for words about which request.
    runs: HashMap<u64, Sender<Word>>,
    /// When something was last heard of rank 0.
    last_heard: Instant,
    cache: CacheUse,
}

impl Desk {
    pub(crate) fn new(ranks: usize) -> Self {
        let state = State {
            ready: vec![None; ranks],
            loading: vec![Loading::default(); ranks],
            gone: 0,
            failure: None,
            runs: HashMap::new(),
            last_heard: Instant::now(),
            cache: CacheUse::default(),
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The state is plain data that no panic can leave half-changed, so a poisoned lock is as good as a clean one.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `done` gives something, or until the time is up.
    fn wait<T>(&self, deadline: Duration, done: impl Fn(&State) -> Option<T>) -> Option<T> {
        let end = Instant::now() + deadline;
        let mut state = self.lock();
        loop {
            let result = done(&state);
            let left = end.saturating_duration_since(Instant::now());
            if result.is_some() || left.is_zero() {
                return result;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until all ranks are ready or one has failed; `progress` hears meanwhile how far they are. What comes back after
    /// the deadline is what is known then.
    pub(crate) fn wait_until_ready(
        &self,
        deadline: Duration,
        progress: &mut dyn FnMut(Loading),
    ) -> Result<Vec<Option<Readiness>>, Failure> {
        let end = Instant::now() + deadline;
        let mut known = Loading::default();
        // Ends when there is nothing new up to the deadline, or nothing to wait for any more.
        while let Some(Some(loading)) =
            self.wait(end.saturating_duration_since(Instant::now()), |state| state.news_of_loading(known))
        {
            known = loading;
            progress(loading);
        }
        let state = self.lock();
        state.failure.clone().map_or_else(|| Ok(state.ready.clone()), Err)
    }

    /// Waits until the connections of all ranks have ended, or until the time is up.
    pub(crate) fn wait_until_gone(&self, deadline: Duration) {
        let _ = self.wait(deadline, |state| (state.gone == state.ready.len()).then_some(()));
    }

    pub(crate) fn failure(&self) -> Option<EngineError> {
        self.lock().failure.as_ref().map(|failure| failure.error.clone())
    }

    /// How much of the KV cache rank 0 has said to be in use.
    pub(crate) fn cache(&self) -> CacheUse {
        self.lock().cache
    }

    /// How long nothing has been heard of rank 0.
    pub(crate) fn silence(&self) -> Duration {
        self.lock().last_heard.elapsed()
    }

    /// Opens a way for words about request `id`. It ends when the group fails.
    pub(crate) fn open(&self, id: u64) -> Result<Receiver<Word>, EngineError> {
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.error.clone());
        }
        let (sender, words) = mpsc::channel();
        if state.runs.is_empty() {
            state.last_heard = Instant::now();
        }
        state.runs.insert(id, sender);
        Ok(words)
    }

    /// Nobody waits for words about request `id` any more.
    pub(crate) fn close(&self, id: u64) {
        self.lock().runs.remove(&id);
    }

    /// Notes that the group has ended, unless that is known already. Returns the first reason.
    pub(crate) fn fail(&self, rank: usize, words: String, error: EngineError) -> EngineError {
        let mut state = self.lock();
        state.fail(Failure { rank, words, error: error.clone() });
        let first = state.failure.as_ref().map_or(error, |failure| failure.error.clone());
        drop(state);
        self.changed.notify_all();
        first
    }

    /// Takes what was heard of a rank.
    pub(crate) fn hear(&self, rank: usize, heard: Heard) {
        let mut state = self.lock();
        match heard {
            Heard::Message(message) => state.take(rank, message),
            Heard::Nonsense(words) => state.fail_by(rank, words),
            Heard::Gone(cause) => {
                state.gone += 1;
                let error = EngineError::RankLost { rank, cause: cause.clone() };
                state.fail(Failure { rank, words: cause, error });
            }
        }
        drop(state);
        self.changed.notify_all();
    }
}

impl State {
    /// How far all ranks are together, if that is not what is known. Nothing is news once all are ready or one has failed.
    fn news_of_loading(&self, known: Loading) -> Option<Option<Loading>> {
        if self.failure.is_some() || !self.ready.contains(&None) {
            return Some(None);
        }
        let loading = Loading::sum(&self.loading);
        (loading != known).then_some(Some(loading))
    }

    fn take(&mut self, rank: usize, message: FromRank) {
        if rank == 0 {
            self.last_heard = Instant::now();
        }
        match message {
            FromRank::Loading { done, total } if self.ready[rank].is_none() => {
                self.loading[rank] = Loading::told(done, total);
            }
            FromRank::Ready { load_ms, weight_bytes, restored } => {
                self.loading[rank] = self.loading[rank].completed();
                self.ready[rank] = Some(Readiness { load_ms, weight_bytes, restored });
            }
            FromRank::Failed { lost: Some(lost), message } => {
                let error = EngineError::RankLost { rank: lost, cause: message.clone() };
                self.fail(Failure { rank, words: message, error });
            }
            FromRank::Failed { message, lost: None } => self.fail_by(rank, message),
            other if self.ready[rank].is_none() => self.fail_by(rank, format!("it said {other:?} before it was ready")),
            FromRank::Loading { .. } => self.fail_by(rank, "it said how far it is after it was ready".to_owned()),
            FromRank::Progress {} => {}
            FromRank::Prompt { id, tokens, cached } => self.pass_on(id, Word::Prompt(tokens, cached)),
            FromRank::Cache { cache } => self.cache = cache,
            FromRank::Embedding { id, values } => self.pass_on(id, Word::Embedding(values)),
            FromRank::Tokens { tokens } => {
                tokens.into_iter().for_each(|(id, token)| self.pass_on(id, Word::Token(token)));
            }
            FromRank::Done { id, finish, prefill_ms, decode_ms, drafts, ranks } => {
                self.pass_on(id, Word::Done(Outcome { finish, prefill_ms, decode_ms, drafts, ranks }));
            }
        }
    }

    fn pass_on(&self, id: u64, word: Word) {
        if let Some(run) = self.runs.get(&id) {
            // Who does not listen any more does not want to know.
            let _ = run.send(word);
        }
    }

    fn fail_by(&mut self, rank: usize, words: String) {
        let error = EngineError::RankFailed { rank, message: words.clone() };
        self.fail(Failure { rank, words, error });
    }

    /// The first reason counts: others follow from it.
    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        self.runs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> Heard {
        Heard::Message(FromRank::Ready { load_ms: 1.0, weight_bytes: 2, restored: None })
    }

    fn loading(done: u64, total: u64) -> Heard {
        Heard::Message(FromRank::Loading { done, total })
    }

    #[test]
    fn progress_is_that_of_all_ranks_and_ends_when_they_are_ready() {
        let desk = Desk::new(2);
        desk.hear(0, loading(10, 100));
        desk.hear(1, loading(70, 60));
        let mut told = Vec::new();
        // A rank that had told all of its bytes is done when it is ready: that alone is nothing new.
        let mut later = [vec![(1, ready()), (0, loading(90, 100))], vec![(0, ready())]].into_iter();
        let known = desk.wait_until_ready(Duration::from_secs(60), &mut |loading| {
            told.push((loading.done, loading.total));
            later.next().into_iter().flatten().for_each(|(rank, heard)| desk.hear(rank, heard));
        });
        assert_eq!(told, [(70, 160), (150, 160)]);
        assert!(known.unwrap().iter().all(Option::is_some));
    }

    #[test]
    fn a_rank_that_is_ready_loads_no_more() {
        let desk = Desk::new(1);
        desk.hear(0, ready());
        desk.hear(0, loading(1, 2));
        let failure =
            desk.wait_until_ready(Duration::from_secs(60), &mut |_| panic!("nothing is loading")).unwrap_err();
        assert!(failure.words.contains("after it was ready"), "{}", failure.words);
    }

    #[test]
    fn without_news_waiting_ends_at_the_deadline() {
        let desk = Desk::new(1);
        desk.hear(0, loading(1, 2));
        let mut told = 0;
        assert_eq!(desk.wait_until_ready(Duration::ZERO, &mut |_| told += 1).unwrap(), [None]);
        assert_eq!(told, 1);
    }
}
