//! What the data path and the liveness monitor of one rank tell each other.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Standing;
use crate::error::{Cause, FabricError};

/// How long the data path waits for the monitor's verdict on a peer whose link broke. The monitor takes much less.
const VERDICT_PATIENCE: Duration = Duration::from_secs(2);
/// The data path ends with the first thing that it notes, so that more than a few notes cannot be of interest.
const NOTES_MAX: usize = 16;
/// In place of a rank: nobody.
const NOBODY: u32 = u32::MAX;

/// The state of the group, as far as this rank knows it.
///
/// The monitor writes it, the data path looks at it whenever it has to wait. Without a monitor, as in a group of one,
/// what the data path finds counts at once.
#[derive(Debug)]
pub(crate) struct Health {
    rank: usize,
    troubled: AtomicBool,
    /// Whom the data path waits for.
    waiting_for: AtomicU32,
    /// By rank.
    others: Box<[Other]>,
    state: Mutex<State>,
    changed: Condvar,
}

/// What is known of one rank.
#[derive(Debug)]
struct Other {
    waiting_for: AtomicU32,
    standing: AtomicU8,
    departed: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    trouble: Option<FabricError>,
    notes: VecDeque<Note>,
    /// Whether there is a monitor that comes to verdicts.
    monitored: bool,
    /// Wakes the monitor up, if it sleeps by itself.
    bell: Option<UnixStream>,
    /// Whether the monitor is to say goodbye and end.
    closing: bool,
}

/// What the data path has to say to the monitor.
#[derive(Debug, Clone)]
pub(crate) enum Note {
    /// All ranks should hear of this, which is certain.
    Found(FabricError),
    /// The link to a rank broke. There may be a better explanation than that rank's loss.
    Suspect(usize, Cause),
}

impl Health {
    /// The health of a group of `size` ranks in which nothing has happened yet.
    pub(crate) fn new(rank: usize, size: usize) -> Self {
        let other = || Other {
            waiting_for: AtomicU32::new(NOBODY),
            standing: AtomicU8::new(Standing::Here as u8),
            departed: AtomicBool::new(false),
        };
        Self {
            rank,
            troubled: AtomicBool::new(false),
            waiting_for: AtomicU32::new(NOBODY),
            others: (0..size).map(|_| other()).collect(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// The rank whose view this is.
    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// Whether the group cannot go on. Costs next to nothing.
    pub(crate) fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Acquire)
    }

    /// Why the group cannot go on.
    pub(crate) fn trouble(&self) -> Option<FabricError> {
        if self.is_troubled() { self.lock().trouble.clone() } else { None }
    }

    /// As [`Health::trouble`], as a result.
    pub(crate) fn check(&self) -> Result<(), FabricError> {
        self.trouble().map_or(Ok(()), Err)
    }

    /// Turns an error of the data path into the one that all ranks agree on. That may take a moment when a link broke:
    /// a rank that left because of another one's loss must not be blamed for it.
    pub(crate) fn explain(&self, error: FabricError) -> FabricError {
        match error {
            FabricError::PeerLost { rank, cause } => {
                if !self.suspect(rank, &cause) {
                    return self.declare(FabricError::PeerLost { rank, cause });
                }
                self.await_verdict().unwrap_or_else(|| self.declare(FabricError::PeerLost { rank, cause }))
            }
            FabricError::Mismatch { .. } => self.report(error),
            // About this rank alone.
            other => other,
        }
    }

    /// Hands a broken link to the monitor, which comes to a verdict soon. False when there is no monitor.
    pub(crate) fn suspect(&self, rank: usize, cause: &Cause) -> bool {
        let mut state = self.lock();
        if !state.monitored {
            return false;
        }
        state.note(Note::Suspect(rank, cause.clone()));
        true
    }

    /// Declares what this rank has found, and lets all ranks know. Returns what counts: the first thing declared.
    pub(crate) fn report(&self, error: FabricError) -> FabricError {
        self.lock().note(Note::Found(error.clone()));
        self.declare(error)
    }

    /// Blames a rank that has kept this one waiting for too long, out of `candidates`, those directly waited for. Of
    /// these, one that waits itself is not to blame, but the one at the end of the chain.
    pub(crate) fn blame(&self, candidates: impl Iterator<Item = usize>, after: Duration) -> FabricError {
        let mut first = None;
        for candidate in candidates {
            first = first.or(Some(candidate));
            if let Some(rank) = self.end_of_chain(candidate) {
                return self.report(FabricError::PeerLost { rank, cause: Cause::Stalled(after) });
            }
        }
        // Ranks that wait for each other in a circle are all as guilty.
        match first {
            Some(rank) => self.report(FabricError::PeerLost { rank, cause: Cause::Stalled(after) }),
            None => FabricError::Timeout { what: "an operation without a peer".to_owned(), after },
        }
    }

    /// The rank that `rank` waits for in the end, or nothing when that is a circle.
    fn end_of_chain(&self, mut rank: usize) -> Option<usize> {
        for _ in 0..self.others.len() {
            let next = self.others.get(rank)?.waiting_for.load(Ordering::Relaxed);
            if next == NOBODY {
                return Some(rank);
            }
            rank = next as usize;
            if rank == self.rank {
                return None;
            }
        }
        None
    }

    /// Tells the monitor whom the data path waits for.
    pub(crate) fn set_waiting_for(&self, rank: Option<usize>) {
        self.waiting_for.store(encode(rank), Ordering::Relaxed);
    }

    /// Whether a rank has said goodbye, and nothing is on its way any more that it sent before.
    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.others.get(rank).is_some_and(|other| other.departed.load(Ordering::Acquire))
    }

    /// What is known of a rank, this one included; nothing of ranks that do not exist.
    pub(crate) fn standing(&self, rank: usize) -> Option<Standing> {
        let standing = self.others.get(rank)?.standing.load(Ordering::Acquire);
        [Standing::Here, Standing::Left, Standing::Lost, Standing::Hidden]
            .into_iter()
            .find(|known| *known as u8 == standing)
    }

    /// Declares why the group cannot go on, unless that is known already. Returns what counts.
    pub(crate) fn declare(&self, error: FabricError) -> FabricError {
        let mut state = self.lock();
        let error = state.trouble.get_or_insert(error).clone();
        self.troubled.store(true, Ordering::Release);
        drop(state);
        self.changed.notify_all();
        error
    }

    /// Enters a monitor into service. Returns what is readable when there is something for it.
    pub(super) fn install_bell(&self) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        theirs.set_nonblocking(true)?;
        let mut state = self.lock();
        (state.monitored, state.bell) = (true, Some(ours));
        Ok(theirs)
    }

    /// Enters a monitor into service that looks for itself whether there is something for it.
    #[cfg(test)]
    pub(crate) fn expect_monitor(&self) {
        self.lock().monitored = true;
    }

    /// What the data path has noted since the last call, and whether the monitor is to end.
    pub(super) fn take_notes(&self) -> (VecDeque<Note>, bool) {
        let mut state = self.lock();
        (std::mem::take(&mut state.notes), state.closing)
    }

    /// Lets the monitor end, and what the data path finds after it count at once.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        (state.closing, state.monitored) = (true, false);
        // The other end becomes readable.
        state.bell = None;
    }

    /// Whom the data path waits for.
    pub(super) fn waiting_for(&self) -> Option<usize> {
        let rank = self.waiting_for.load(Ordering::Relaxed);
        (rank != NOBODY).then_some(rank as usize)
    }

    /// What the monitor knows of a rank.
    pub(super) fn publish(&self, rank: usize, waiting_for: Option<usize>, standing: Standing, departed: bool) {
        self.others[rank].waiting_for.store(encode(waiting_for), Ordering::Relaxed);
        self.others[rank].standing.store(standing as u8, Ordering::Release);
        self.others[rank].departed.store(departed, Ordering::Release);
    }

    fn await_verdict(&self) -> Option<FabricError> {
        let state = self.lock();
        let waited = self.changed.wait_timeout_while(state, VERDICT_PATIENCE, |state| state.trouble.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.trouble.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No holder panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn note(&mut self, note: Note) {
        if self.monitored && self.notes.len() < NOTES_MAX {
            self.notes.push_back(note);
            // A bell that cannot be rung has been rung often enough.
            let _ = self.bell.as_mut().map(|bell| bell.write(&[1]));
        }
    }
}

fn encode(rank: Option<usize>) -> u32 {
    rank.and_then(|rank| u32::try_from(rank).ok()).unwrap_or(NOBODY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(rank: usize) -> FabricError {
        FabricError::PeerLost { rank, cause: Cause::Closed }
    }

    #[test]
    fn the_first_trouble_counts() {
        let health = Health::new(0, 3);
        assert!(!health.is_troubled() && health.check().is_ok());
        assert!(matches!(health.explain(lost(2)), FabricError::PeerLost { rank: 2, .. }));
        assert!(matches!(health.explain(lost(1)), FabricError::PeerLost { rank: 2, .. }));
        assert!(matches!(health.check(), Err(FabricError::PeerLost { rank: 2, .. })));
    }

    #[test]
    fn blame_follows_those_who_wait() {
        let health = Health::new(0, 5);
        let waits =
            |rank: usize, of: Option<usize>| health.others[rank].waiting_for.store(encode(of), Ordering::Relaxed);
        waits(1, Some(2));
        waits(2, Some(3));
        waits(4, Some(0));
        assert_eq!(health.end_of_chain(1), Some(3));
        assert_eq!(health.end_of_chain(4), None);
        waits(3, Some(1));
        assert_eq!(health.end_of_chain(1), None, "a circle has no end");
        let error = health.blame([1, 4].into_iter(), Duration::from_secs(1));
        assert!(matches!(error, FabricError::PeerLost { rank: 1, cause: Cause::Stalled(_) }), "{error}");
    }
}
