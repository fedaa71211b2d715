//! Decides who is lost. Pure: time comes in as a number, statements go in and out as values.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::Duration;

use super::rank_set::RankSet;
use super::{Statement, Trouble};
use crate::error::Cause;

/// How long things take in a group with a given deadline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// A rank that is silent for this long is lost.
    deadline: Duration,
    /// Between signs of life.
    interval: Duration,
    /// How long ranks collect accusations before they judge. Part of the deadline.
    settling: Duration,
    /// How long a broken data link waits for a better explanation than the other side's loss.
    patience: Duration,
}

/// Signs of life within the deadline, so that some may come late.
const INTERVALS_PER_DEADLINE: u32 = 8;
/// No rank is so slow on purpose.
const INTERVAL_MAX: Duration = Duration::from_secs(60);

impl Timing {
    pub(crate) fn new(deadline: Duration) -> Self {
        let settling = (deadline / 16).clamp(Duration::from_millis(1), Duration::from_millis(50));
        Self {
            deadline,
            interval: (deadline / INTERVALS_PER_DEADLINE).max(Duration::from_millis(1)),
            settling,
            patience: Duration::from_millis(50).min(deadline / 4),
        }
    }
}

/// What is known of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Here,
    /// It said goodbye.
    Left,
    Lost,
    /// It was not found lost, but is beyond one that was: neither this rank nor any that it hears still hears it.
    Hidden,
}

#[derive(Debug)]
struct Peer {
    /// Cables between this rank and that one; what passes through others says less about the rank itself.
    hops: usize,
    standing: Standing,
    heard: Duration,
    waiting_for: Option<usize>,
    hears: RankSet,
    /// Why its lifeline ended, if it did and that is no proof of the rank's own end.
    ended: Option<Cause>,
    /// Its own interval between signs of life, if that is longer than this rank's.
    interval: Duration,
    /// Why and until when the data link to it waits for an explanation.
    broken: Option<(Cause, Duration)>,
    /// When it said goodbye.
    left: Option<Duration>,
    outbox: Vec<Statement>,
}

/// One rank's view of its group.
#[derive(Debug)]
pub(crate) struct Tracker {
    rank: usize,
    timing: Timing,
    /// By rank. The own place is never looked at for signs of life.
    peers: Vec<Peer>,
    /// By culprit and accuser: how far apart they are, and what is held against the culprit.
    accusations: BTreeMap<(usize, usize), (usize, Cause)>,
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
            hears: RankSet::default(),
            ended: None,
            interval: timing.interval,
            broken: None,
            left: None,
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

    /// What is known of each rank.
    pub(crate) fn standings(&self, now: Duration) -> Vec<Standing> {
        let hears = self.hears(now);
        let mut heard = hears;
        for (_, peer) in self.others_here().filter(|(rank, _)| hears.contains(*rank)) {
            (0..self.peers.len()).filter(|&rank| peer.hears.contains(rank)).for_each(|rank| heard.insert(rank));
        }
        let known = |(rank, peer): (usize, &Peer)| {
            // Before anything is certain, silence means nothing.
            let hidden = !self.verdicts.is_empty() && rank != self.rank && !heard.contains(rank);
            if peer.standing == Standing::Here && hidden { Standing::Hidden } else { peer.standing }
        };
        self.peers.iter().enumerate().map(known).collect()
    }

    /// The ranks whose signs of life reach this one.
    fn hears(&self, now: Duration) -> RankSet {
        let mut hears = RankSet::default();
        let heard = |peer: &Peer| peer.ended.is_none() && now < self.suspicious_at(peer);
        self.others_here().filter(|(_, peer)| heard(peer)).for_each(|(rank, _)| hears.insert(rank));
        hears
    }

    /// Whether a rank left so long ago that nothing can be on its way any more which it sent before. A goodbye may
    /// overtake data, as it takes another connection.
    pub(crate) fn has_departed(&self, rank: usize, now: Duration) -> bool {
        self.peers[rank].left.is_some_and(|left| now >= left + self.timing.interval)
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
            Statement::Alive { waiting_for, interval, hears } => {
                self.peers[from].waiting_for = waiting_for;
                self.peers[from].hears = hears;
                self.peers[from].interval = interval.clamp(self.timing.interval, INTERVAL_MAX);
            }
            // A rank that was given up may have woken up and know nothing of it yet.
            _ if self.peers[from].standing != Standing::Here => {}
            Statement::Accusation { accuser, culprit, hops, verdicts, cause } => {
                if verdicts >= self.verdicts.len() {
                    self.accuse(accuser, culprit, hops, cause, now);
                }
                // Whoever has reason to join in does it now, while accusations are being collected.
                self.accuse_silent(now);
            }
            Statement::Verdict(trouble) => self.conclude(trouble),
            Statement::Goodbye => {
                self.peers[from].standing = Standing::Left;
                self.peers[from].left = Some(now);
                self.accusations.retain(|(culprit, _), _| *culprit != from);
                if self.peers[from].broken.is_some() {
                    self.conclude(Trouble::Lost { rank: from, cause: Cause::Left });
                }
            }
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
            Cause::Io(error) if error.kind() == ErrorKind::ConnectionReset => self.peers[of].hops <= 1,
            Cause::Corrupt(_) => true,
            _ => false,
        };
        if proof {
            self.conclude(Trouble::Lost { rank: of, cause });
        } else {
            self.peers[of].ended = Some(cause);
            self.accuse_silent(now);
        }
    }

    /// The data path has found something certain.
    pub(crate) fn on_found(&mut self, trouble: Trouble) {
        self.conclude(trouble);
    }

    /// The data link to a rank broke. Once the group cannot go on, that says nothing any more.
    pub(crate) fn on_broken(&mut self, rank: usize, cause: Cause, now: Duration) {
        if !self.verdicts.is_empty() {
            return;
        }
        match self.peers[rank].standing {
            Standing::Here => {
                let until = now + self.timing.patience;
                self.peers[rank].broken.get_or_insert((cause, until));
            }
            Standing::Left => self.conclude(Trouble::Lost { rank, cause: Cause::Left }),
            Standing::Lost | Standing::Hidden => {}
        }
    }

    /// Time has passed. To be called after all that was heard has been passed on, at [`Tracker::next_tick`] or before;
    /// `waiting_for` is whom this rank waits for.
    pub(crate) fn on_tick(&mut self, waiting_for: Option<usize>, now: Duration) {
        self.forgive_own_absence(now);
        if now >= self.next_heartbeat {
            self.next_heartbeat = now + self.timing.interval;
            let (interval, hears) = (self.timing.interval, self.hears(now));
            self.tell_all(None, &Statement::Alive { waiting_for, interval, hears });
        }
        for rank in 0..self.peers.len() {
            let overdue = |(_, until): &mut (Cause, Duration)| now >= *until;
            if let Some((cause, _)) = self.peers[rank].broken.take_if(overdue) {
                self.conclude(Trouble::Lost { rank, cause });
            }
        }
        if self.others_here().any(|(_, peer)| peer.ended.is_some() || now >= self.suspicious_at(peer)) {
            self.accuse_silent(now);
        }
        if self.judgement.is_some_and(|at| now >= at) {
            self.judge();
        }
    }

    /// When [`Tracker::on_tick`] has something to do if nothing is heard.
    pub(crate) fn next_tick(&self, now: Duration) -> Duration {
        // Those that were silent for too long at the last tick have been dealt with.
        let silent = self.others_here().map(|(_, peer)| self.suspicious_at(peer)).filter(|at| *at > now);
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
        if absence > self.timing.deadline / 2 {
            for peer in &mut self.peers {
                peer.heard = (peer.heard + absence).min(now);
            }
        }
    }

    fn others_here(&self) -> impl Iterator<Item = (usize, &Peer)> {
        let own = self.rank;
        self.peers.iter().enumerate().filter(move |(rank, peer)| *rank != own && peer.standing == Standing::Here)
    }

    /// The nearest other rank of a kind, and its distance.
    fn nearest(&self, is: impl Fn(&Peer) -> bool) -> Option<(usize, usize)> {
        let others = self.peers.iter().enumerate().filter(|(rank, peer)| *rank != self.rank && is(peer));
        others.map(|(rank, peer)| (rank, peer.hops)).min_by_key(|(_, hops)| *hops)
    }

    /// When a rank will have been silent for so long that it is accused.
    fn suspicious_at(&self, peer: &Peer) -> Duration {
        let deadline = self.timing.deadline.max(peer.interval * INTERVALS_PER_DEADLINE);
        peer.heard + deadline.saturating_sub(self.timing.settling)
    }

    /// Whether a rank has fallen silent, or nearly so: ranks that are silenced by the same event may have been heard at
    /// different times before.
    fn is_silent(&self, peer: &Peer, now: Duration) -> bool {
        peer.ended.is_some() || now + peer.interval * 2 >= self.suspicious_at(peer)
    }

    /// Accuses the nearest of those that are silent.
    ///
    /// A rank beyond one that is gone may be silent only because of that, and its own neighbours know better. If the one
    /// in between went in good order, it went too early, unless there was a reason to go.
    fn accuse_silent(&mut self, now: Duration) {
        let horizon = self.nearest(|peer| peer.standing == Standing::Lost).map_or(usize::MAX, |(_, hops)| hops);
        let silent = || self.others_here().filter(|(_, peer)| peer.hops <= horizon && self.is_silent(peer, now));
        let hops = silent().map(|(_, peer)| peer.hops).min();
        if let (Some(hops), Some((rank, left))) = (hops, self.nearest(|peer| peer.standing == Standing::Left))
            && left < hops
            && self.verdicts.is_empty()
        {
            return self.conclude(Trouble::Lost { rank, cause: Cause::Left });
        }
        let nearest = silent().filter(|(_, peer)| Some(peer.hops) == hops);
        let cause = |peer: &Peer| peer.ended.clone().unwrap_or(Cause::Silent(self.timing.deadline));
        for (rank, cause) in nearest.map(|(rank, peer)| (rank, cause(peer))).collect::<Vec<_>>() {
            self.accuse(self.rank, rank, self.peers[rank].hops, cause, now);
        }
    }

    fn accuse(&mut self, accuser: usize, culprit: usize, hops: usize, cause: Cause, now: Duration) {
        let heeded = |rank: usize| self.peers[rank].standing == Standing::Here;
        if !heeded(accuser) || !heeded(culprit) || self.accusations.contains_key(&(culprit, accuser)) {
            return;
        }
        // Of those whom one rank accuses only the nearest count.
        let by_same = |(&(_, by), (far, _)): (&(usize, usize), &(usize, Cause))| (by == accuser).then_some(*far);
        if self.accusations.iter().filter_map(by_same).any(|far| far < hops) {
            return;
        }
        self.accusations.retain(|(_, by), (far, _)| *by != accuser || *far <= hops);
        self.accusations.insert((culprit, accuser), (hops, cause.clone()));
        self.judgement.get_or_insert(now + self.timing.settling);
        let verdicts = self.verdicts.len();
        self.tell_all(None, &Statement::Accusation { accuser, culprit, hops, verdicts, cause });
    }

    /// Finds the rank that most others accuse.
    fn judge(&mut self) {
        self.judgement = None;
        let accusers = |rank: usize| self.accusations.range((rank, 0)..(rank + 1, 0)).count();
        let worst = self.accusations.iter().max_by_key(|((rank, _), _)| (accusers(*rank), *rank));
        if let Some((&(rank, _), (_, cause))) = worst {
            let cause = cause.clone();
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
                // Whoever is still accused in the light of this will be accused again.
                self.accusations.clear();
                self.judgement = None;
            }
            Trouble::Mismatch { .. } => {
                if self.verdicts.iter().any(|known| matches!(known, Trouble::Mismatch { .. })) {
                    return;
                }
                self.tell_all(None, &Statement::Verdict(trouble.clone()));
            }
        }
        self.verdicts.push(trouble);
        // Whoever has let go of its data links may have done so because of this.
        self.peers.iter_mut().for_each(|peer| peer.broken = None);
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

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_millis(400);

    /// Trackers of a group, between which everything arrives at once, unless someone is cut off.
    struct Group {
        trackers: Vec<Tracker>,
        now: Duration,
        /// By pair of ranks: whether what one says reaches the other.
        reaches: Vec<Vec<bool>>,
    }

    impl Group {
        fn new(hops: &[&[usize]]) -> Self {
            let tracker = |rank: usize| Tracker::new(rank, hops[rank], Timing::new(DEADLINE), Duration::ZERO);
            let size = hops.len();
            Self {
                trackers: (0..size).map(tracker).collect(),
                now: Duration::ZERO,
                reaches: vec![vec![true; size]; size],
            }
        }

        fn mesh(size: usize) -> Self {
            Self::new(&vec![vec![1; size]; size].iter().map(Vec::as_slice).collect::<Vec<_>>())
        }

        fn chain(size: usize) -> Self {
            let hops: Vec<Vec<usize>> = (0..size).map(|a| (0..size).map(|b| a.abs_diff(b)).collect()).collect();
            Self::new(&hops.iter().map(Vec::as_slice).collect::<Vec<_>>())
        }

        fn cut(&mut self, a: usize, b: usize) {
            (self.reaches[a][b], self.reaches[b][a]) = (false, false);
        }

        /// Cuts a rank off, and those beyond it in a chain from each other.
        fn stop(&mut self, rank: usize, is_chain: bool) {
            for a in 0..self.trackers.len() {
                self.cut(a, rank);
                for b in 0..self.trackers.len() {
                    if is_chain && a < rank && b > rank {
                        self.cut(a, b);
                    }
                }
            }
        }

        fn run(&mut self, time: Duration) {
            let end = self.now + time;
            while self.now < end {
                self.now += Duration::from_millis(1);
                for rank in 0..self.trackers.len() {
                    self.trackers[rank].on_tick(None, self.now);
                }
                self.settle();
            }
        }

        /// Delivers until nobody has anything to say.
        fn settle(&mut self) {
            let size = self.trackers.len();
            let mut said = true;
            while said {
                said = false;
                for (from, to) in (0..size).flat_map(|from| (0..size).map(move |to| (from, to))) {
                    for statement in self.trackers[from].take_outbox(to) {
                        said = true;
                        if self.reaches[from][to] {
                            self.trackers[to].on_statement(from, statement, self.now);
                        }
                    }
                }
            }
        }

        fn first_lost(&self, by: usize) -> Option<usize> {
            match self.trackers[by].verdicts().first() {
                Some(Trouble::Lost { rank, .. }) => Some(*rank),
                _ => None,
            }
        }
    }

    #[test]
    fn nobody_is_lost_while_all_live() {
        let mut group = Group::mesh(4);
        group.run(DEADLINE * 10);
        assert!((0..4).all(|rank| group.trackers[rank].verdicts().is_empty()));
    }

    #[test]
    fn a_silent_rank_is_named_by_all_within_the_deadline() {
        for (mut group, is_chain, lost) in
            [(Group::mesh(4), false, 2), (Group::chain(4), true, 1), (Group::chain(4), true, 2)]
        {
            group.run(DEADLINE);
            group.stop(lost, is_chain);
            group.run(DEADLINE + Duration::from_millis(2));
            for rank in (0..4).filter(|rank| *rank != lost) {
                assert_eq!(group.first_lost(rank), Some(lost), "rank {rank}");
            }
        }
    }

    #[test]
    fn several_silent_ranks_are_all_lost() {
        let mut group = Group::mesh(5);
        group.run(DEADLINE);
        group.stop(1, false);
        group.stop(3, false);
        group.run(DEADLINE + Duration::from_millis(2));
        for rank in [0, 2, 4] {
            let standings = group.trackers[rank].standings(group.now);
            let lost = standings.iter().enumerate().filter(|(_, it)| **it == Standing::Lost).map(|(rank, _)| rank);
            assert_eq!(lost.collect::<Vec<_>>(), [1, 3]);
        }
    }

    #[test]
    fn a_cut_cable_costs_one_rank_on_which_all_agree() {
        let mut group = Group::mesh(4);
        group.run(DEADLINE);
        group.cut(1, 3);
        group.run(DEADLINE * 2);
        assert!((0..4).all(|rank| group.first_lost(rank) == Some(3)));
    }

    #[test]
    fn a_dead_relay_is_not_confused_with_those_behind_it() {
        let mut group = Group::chain(3);
        group.run(DEADLINE);
        group.stop(1, true);
        // The lifeline to the far rank ends first.
        group.trackers[0].on_end(2, Cause::Closed, group.now);
        group.settle();
        group.trackers[0].on_end(1, Cause::Closed, group.now);
        group.run(DEADLINE * 3);
        assert_eq!(group.first_lost(0), Some(1));
        assert_eq!(group.trackers[0].standings(group.now)[2], Standing::Hidden, "nobody knows");
    }

    #[test]
    fn a_goodbye_is_no_loss_unless_the_rank_is_needed() {
        let mut group = Group::mesh(3);
        group.trackers[2].say_goodbye();
        group.settle();
        for rank in 0..2 {
            group.trackers[rank].on_end(2, Cause::Closed, group.now);
        }
        group.stop(2, false);
        group.run(DEADLINE * 3);
        assert!((0..2).all(|rank| group.first_lost(rank).is_none()));
        let now = group.now;
        group.trackers[0].on_broken(2, Cause::Closed, now);
        group.settle();
        for rank in 0..2 {
            assert!(matches!(group.trackers[rank].verdicts(), [Trouble::Lost { rank: 2, cause: Cause::Left }]));
        }
    }

    #[test]
    fn a_survivor_that_leaves_is_not_blamed() {
        let mut group = Group::mesh(3);
        group.trackers[0].on_end(1, Cause::Closed, Duration::ZERO);
        // Rank 2 finds its data link to rank 0 broken before it hears why.
        group.trackers[0].say_goodbye();
        group.trackers[2].on_broken(0, Cause::Closed, Duration::ZERO);
        group.settle();
        group.run(DEADLINE);
        assert_eq!(group.first_lost(2), Some(1));
        assert_eq!(group.trackers[2].verdicts().len(), 1, "what is explained is not held against anyone later");
    }

    #[test]
    fn a_rank_that_was_stopped_blames_nobody_and_learns_that_it_is_out() {
        let mut group = Group::mesh(3);
        group.run(DEADLINE);
        let now = group.now + DEADLINE * 20;
        group.trackers[1].on_tick(None, now);
        assert!(group.trackers[1].verdicts().is_empty() && group.trackers[1].accusations.is_empty());
        let verdict = Trouble::Lost { rank: 1, cause: Cause::Silent(DEADLINE) };
        group.trackers[1].on_statement(0, Statement::Verdict(verdict), now);
        let error = group.trackers[1].verdicts()[0].clone().error_at(1);
        assert!(matches!(error, crate::error::FabricError::Excluded { rank: 1, .. }));
        // Whatever it says now is of no interest.
        let wild = Statement::Verdict(Trouble::Lost { rank: 0, cause: Cause::Stalled(DEADLINE) });
        group.trackers[2].conclude(Trouble::Lost { rank: 1, cause: Cause::Silent(DEADLINE) });
        group.trackers[2].on_statement(1, wild, now);
        assert_eq!(group.trackers[2].verdicts().len(), 1);
    }
}
