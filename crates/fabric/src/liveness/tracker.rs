//! Decides who is lost. Pure: time comes in as a number, statements go in and out as values.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Statement, Trouble};
use crate::error::Cause;

/// How long things take in a group with a given deadline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// A rank that is silent for this long is lost.
    pub(crate) deadline: Duration,
    /// Between signs of life.
    pub(crate) interval: Duration,
    /// How long ranks collect accusations before they judge. Part of the deadline.
    settling: Duration,
    /// How long a broken data link waits for a better explanation than the other side's loss.
    patience: Duration,
}

impl Timing {
    pub(crate) fn new(deadline: Duration) -> Self {
        let settling = (deadline / 16).clamp(Duration::from_millis(1), Duration::from_millis(50));
        Self {
            deadline,
            interval: (deadline / 8).clamp(Duration::from_millis(2), Duration::from_secs(1)),
            settling,
            patience: Duration::from_millis(50).min(deadline / 4),
        }
    }

    /// A rank that has been silent for this long is accused.
    fn suspicious(&self) -> Duration {
        self.deadline.saturating_sub(self.settling)
    }

    /// Ranks that fall silent at the same moment may differ by so much in when they were last heard.
    fn margin(&self) -> Duration {
        self.interval * 2
    }
}

/// What is known of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Here,
    /// It said goodbye.
    Left,
    Lost,
}

#[derive(Debug)]
struct Peer {
    /// Cables between this rank and that one; what passes through others says less about the rank itself.
    hops: usize,
    standing: Standing,
    heard: Duration,
    waiting_for: Option<usize>,
    /// Why its lifeline ended, if it did and that is no proof of the rank's own end.
    ended: Option<Cause>,
    /// Why and until when the data link to it waits for an explanation.
    broken: Option<(Cause, Duration)>,
    outbox: Vec<Statement>,
}

/// One rank's view of its group.
#[derive(Debug)]
pub(crate) struct Tracker {
    rank: usize,
    timing: Timing,
    /// By rank. The own place is never looked at for signs of life.
    peers: Vec<Peer>,
    /// By culprit and accuser.
    accusations: BTreeMap<(usize, usize), Cause>,
    judgement: Option<Duration>,
    verdicts: Vec<Trouble>,
    next_heartbeat: Duration,
    last_tick: Duration,
}

impl Tracker {
    /// The view of `rank`, from which rank `r` is `hops[r]` cables away.
    pub(crate) fn new(rank: usize, hops: &[usize], timing: Timing, now: Duration) -> Self {
        let peer = |&hops: &usize| Peer {
            hops,
            standing: Standing::Here,
            heard: now,
            waiting_for: None,
            ended: None,
            broken: None,
            outbox: Vec::new(),
        };
        Self {
            rank,
            timing,
            peers: hops.iter().map(peer).collect(),
            accusations: BTreeMap::new(),
            judgement: None,
            verdicts: Vec::new(),
            next_heartbeat: now,
            last_tick: now,
        }
    }

    /// All that is certain, in the order found. The first is why the group cannot go on.
    pub(crate) fn verdicts(&self) -> &[Trouble] {
        &self.verdicts
    }

    pub(crate) fn standing(&self, rank: usize) -> Standing {
        self.peers[rank].standing
    }

    pub(crate) fn waiting_for(&self, rank: usize) -> Option<usize> {
        self.peers[rank].waiting_for
    }

    /// What is to be said to a rank.
    pub(crate) fn take_outbox(&mut self, rank: usize) -> Vec<Statement> {
        std::mem::take(&mut self.peers[rank].outbox)
    }

    /// Something was heard from a rank.
    pub(crate) fn on_statement(&mut self, from: usize, statement: Statement, now: Duration) {
        self.peers[from].heard = now;
        match statement {
            Statement::Alive { waiting_for } => self.peers[from].waiting_for = waiting_for,
            Statement::Accusation { accuser, culprit, cause } => {
                self.accuse(accuser, culprit, cause, now);
                // Whoever has reason to join in does it now, while accusations are being collected.
                self.accuse_silent(self.timing.suspicious().saturating_sub(self.timing.margin()), now);
            }
            Statement::Verdict(trouble) => self.conclude(trouble),
            Statement::Goodbye if self.peers[from].standing == Standing::Here => {
                self.peers[from].standing = Standing::Left;
                self.drop_accusations(from);
            }
            Statement::Goodbye => {}
        }
    }

    /// The lifeline to a rank has ended.
    pub(crate) fn on_end(&mut self, of: usize, cause: Cause, now: Duration) {
        if self.peers[of].standing != Standing::Here {
            return;
        }
        let proof = match &cause {
            // The system closes what a process had open. What passes through other ranks may have ended with these.
            Cause::Closed => self.peers[of].hops <= 1,
            Cause::Corrupt(_) => true,
            _ => false,
        };
        if proof {
            self.conclude(Trouble::Lost { rank: of, cause });
        } else {
            self.peers[of].ended = Some(cause);
            self.accuse_silent(self.timing.suspicious(), now);
        }
    }

    /// The data path has found something certain.
    pub(crate) fn on_found(&mut self, trouble: Trouble) {
        self.conclude(trouble);
    }

    /// The data link to a rank broke.
    pub(crate) fn on_broken(&mut self, rank: usize, cause: Cause, now: Duration) {
        match self.peers[rank].standing {
            Standing::Here => {
                let until = now + self.timing.patience;
                self.peers[rank].broken.get_or_insert((cause, until));
            }
            Standing::Left => self.conclude(Trouble::Lost { rank, cause: Cause::Left }),
            Standing::Lost => {}
        }
    }

    /// Time has passed. To be called after all that was heard has been passed on, at [`Tracker::next_tick`] or before;
    /// `waiting_for` is whom this rank waits for.
    pub(crate) fn on_tick(&mut self, waiting_for: Option<usize>, now: Duration) {
        self.forgive_own_absence(now);
        if now >= self.next_heartbeat {
            self.next_heartbeat = now + self.timing.interval;
            self.tell_all(None, &Statement::Alive { waiting_for });
        }
        for rank in 0..self.peers.len() {
            if let Some((cause, until)) = &self.peers[rank].broken
                && now >= *until
            {
                let cause = cause.clone();
                self.peers[rank].broken = None;
                self.conclude(Trouble::Lost { rank, cause });
            }
        }
        let suspicious = self.timing.suspicious();
        if self.others_here().any(|(_, peer)| peer.silence(now) >= suspicious) {
            self.accuse_silent(suspicious, now);
        }
        if self.judgement.is_some_and(|at| now >= at) {
            self.judge();
        }
    }

    /// When [`Tracker::on_tick`] has something to do if nothing is heard.
    pub(crate) fn next_tick(&self) -> Duration {
        let suspicious = self.timing.suspicious();
        let unaccused = |rank: usize| !self.accusations.contains_key(&(rank, self.rank));
        let silent = self.others_here().filter(|(rank, _)| unaccused(*rank)).map(|(_, peer)| peer.heard + suspicious);
        let broken = self.peers.iter().filter_map(|peer| peer.broken.as_ref().map(|(_, until)| *until));
        silent.chain(broken).chain(self.judgement).fold(self.next_heartbeat, Duration::min)
    }

    /// This rank ends.
    pub(crate) fn say_goodbye(&mut self) {
        self.tell_all(None, &Statement::Goodbye);
    }

    /// A rank that was itself stopped, with its whole machine maybe, has no right to call others silent meanwhile.
    fn forgive_own_absence(&mut self, now: Duration) {
        let absence = now.saturating_sub(self.last_tick);
        self.last_tick = now;
        if absence > self.timing.interval * 3 {
            for peer in &mut self.peers {
                peer.heard = (peer.heard + absence).min(now);
            }
        }
    }

    fn others_here(&self) -> impl Iterator<Item = (usize, &Peer)> {
        let own = self.rank;
        self.peers.iter().enumerate().filter(move |(rank, peer)| *rank != own && peer.standing == Standing::Here)
    }

    /// Accuses the nearest of those that have been silent for `least` or whose lifelines have ended.
    fn accuse_silent(&mut self, least: Duration, now: Duration) {
        // Those that are nearly as silent as one that is too silent may have been silenced by the same event.
        let least = least.min(self.timing.suspicious().saturating_sub(self.timing.margin()));
        let silent = |peer: &Peer| peer.ended.is_some() || peer.silence(now) >= least;
        let hops = self.others_here().filter(|(_, peer)| silent(peer)).map(|(_, peer)| peer.hops).min();
        let nearest = self.others_here().filter(|(_, peer)| silent(peer) && Some(peer.hops) == hops);
        let nearest = nearest.map(|(rank, peer)| {
            (rank, peer.ended.clone().unwrap_or_else(|| Cause::Silent(peer.silence(now).max(self.timing.deadline))))
        });
        for (rank, cause) in nearest.collect::<Vec<_>>() {
            self.accuse(self.rank, rank, cause, now);
        }
    }

    fn accuse(&mut self, accuser: usize, culprit: usize, cause: Cause, now: Duration) {
        let heeded = |rank: usize| rank == self.rank || self.peers[rank].standing == Standing::Here;
        if !heeded(accuser) || !heeded(culprit) || self.accusations.contains_key(&(culprit, accuser)) {
            return;
        }
        self.accusations.insert((culprit, accuser), cause.clone());
        self.judgement.get_or_insert(now + self.timing.settling);
        self.tell_all(None, &Statement::Accusation { accuser, culprit, cause });
    }

    /// Finds the rank that most others accuse, and then, as a lost rank's accusations do not count, the next, until none
    /// is accused any more.
    fn judge(&mut self) {
        self.judgement = None;
        while let Some(((rank, _), cause)) = self.accusations.iter().max_by_key(|((rank, _), _)| {
            let accusers = self.accusations.range((*rank, 0)..(*rank + 1, 0)).count();
            (accusers, *rank)
        }) {
            let (rank, cause) = (*rank, cause.clone());
            self.conclude(Trouble::Lost { rank, cause });
        }
    }

    /// Takes something as certain and tells everyone.
    fn conclude(&mut self, trouble: Trouble) {
        match &trouble {
            Trouble::Lost { rank, .. } => {
                if self.peers[*rank].standing == Standing::Lost {
                    return;
                }
                // Whom a rank is lost to hears so, too: it may only have been stopped.
                self.tell_all(Some(*rank), &Statement::Verdict(trouble.clone()));
                self.peers[*rank].standing = Standing::Lost;
                self.peers[*rank].broken = None;
                self.drop_accusations(*rank);
            }
            Trouble::Mismatch { .. } => {
                if self.verdicts.iter().any(|known| matches!(known, Trouble::Mismatch { .. })) {
                    return;
                }
                self.tell_all(None, &Statement::Verdict(trouble.clone()));
            }
        }
        self.verdicts.push(trouble);
    }

    /// What a lost rank says of others is of no interest any more, and what others say of it is settled.
    fn drop_accusations(&mut self, of: usize) {
        self.accusations.retain(|(culprit, accuser), _| *culprit != of && *accuser != of);
        if self.accusations.is_empty() {
            self.judgement = None;
        }
    }

    /// Puts a statement into the outboxes of all that are there, and of `also`.
    fn tell_all(&mut self, also: Option<usize>, statement: &Statement) {
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            if rank != self.rank && (peer.standing == Standing::Here || also == Some(rank)) {
                peer.outbox.push(statement.clone());
            }
        }
    }
}

impl Peer {
    fn silence(&self, now: Duration) -> Duration {
        now.saturating_sub(self.heard)
    }
}
