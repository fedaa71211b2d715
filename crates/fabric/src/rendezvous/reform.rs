//! Survivors form a new group among themselves, without the coordinator: they meet at the listeners that they have kept.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::addresses::Network;
use super::authentication::{Purpose, Terms, authenticate_acceptor, authenticate_dialer};
use super::conduct::{ANSWER_PATIENCE, conduct};
use super::formation::{Formed, form};
use super::frame::{FrameReader, read_json, write_json};
use super::muster::{Aim, Muster};
use super::party::{Party, Wishes, host_numbers};
use super::reaching;
use super::reception::Reception;
use super::wire::{Answer, RankAddress, Survivor, Welcome};
use crate::channel::Channel;
use crate::error::{Cause, FabricError};
use crate::fabric::Fabric;
use crate::liveness::{Health, Standing};
use crate::local::local_sockets;
use crate::relay::Relay;
use crate::secret::{Secret, hex, random_bytes};
use crate::timed::end_of;
use crate::topology::Topology;

/// How often a survivor that waits looks whether things have changed.
const GLANCE: Duration = Duration::from_millis(20);
/// How long a survivor tries to get through to the one that gathers before it looks at things anew.
const CALL_PATIENCE: Duration = Duration::from_secs(1);

/// How survivors form a new group.
#[derive(Debug, Clone)]
pub struct ReformOptions {
    /// How long it may take. Survivors that have not come after half of it are left out.
    pub deadline: Duration,
    /// With fewer ranks there shall be no group. If it is more than half of the old group, no two groups can form.
    pub least: usize,
}

impl Default for ReformOptions {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(30), least: 1 }
    }
}

/// What a rank keeps for the case that its group has to form anew.
pub(crate) struct Kept {
    pub(crate) secret: Secret,
    pub(crate) session: Vec<u8>,
    /// Where the ranks of the group are found.
    pub(crate) ranks: Vec<RankAddress>,
    /// This rank's own addresses.
    pub(crate) own: Vec<Network>,
    pub(crate) listeners: Vec<TcpListener>,
    /// Where survivors meet. No others, so that nothing else gets lost at them.
    pub(crate) doors: Vec<TcpListener>,
    pub(crate) wishes: Wishes,
    pub(crate) wait_deadline: Duration,
    pub(crate) liveness_deadline: Duration,
}

impl Fabric {
    /// Forms a new group of the ranks that are left, after an error: ranks that were lost or have left are not in it, the
    /// others keep their order and are numbered anew from 0. All of them have to call this. The generation of the new
    /// group is the next one, its settings are those with which this rank joined the first one.
    ///
    /// The lowest of the ranks that are left gathers the others. Ranks that are lost while the group forms are left out
    /// as well.
    ///
    /// # Errors
    /// [`FabricError::TooFew`]; [`FabricError::Excluded`] when it is this rank that was lost;
    /// [`FabricError::Timeout`]; [`FabricError::Invalid`] for a group that did not form at a rendezvous.
    pub fn reform(mut self, options: &ReformOptions) -> Result<Self, FabricError> {
        let kept = self.kept.take().ok_or_else(|| {
            FabricError::Invalid("a group that did not form at a rendezvous cannot form anew".to_owned())
        })?;
        self.let_go();
        let reform = Reform {
            rank: self.rank(),
            size: self.size(),
            generation: self.generation() + 1,
            health: Arc::clone(&self.health),
            topology: self.topology().clone(),
            kept,
            started: Instant::now(),
            options,
        };
        let by = end_of(options.deadline);
        loop {
            match reform.attempt(by) {
                Err(error) if is_momentary(&error) && end_of(GLANCE) < by => {
                    tracing::debug!("rank {} tries again to form a group: {error}", self.rank());
                    std::thread::sleep(GLANCE);
                }
                outcome => return outcome,
            }
        }
    }
}

/// Whether another attempt may end in another way.
fn is_momentary(error: &FabricError) -> bool {
    !matches!(
        error,
        FabricError::TooFew { .. }
            | FabricError::Excluded { .. }
            | FabricError::Invalid(_)
            | FabricError::Timeout { .. }
            | FabricError::Refused { .. }
    )
}

struct Reform<'a> {
    /// In the old group.
    rank: usize,
    size: usize,
    /// Of the new group. Attempts to form it differ in their sessions.
    generation: u32,
    /// The old group's lifelines go on telling who is left.
    health: Arc<Health>,
    /// Of the old group.
    topology: Topology,
    kept: Box<Kept>,
    started: Instant,
    options: &'a ReformOptions,
}

/// A survivor that has come to the one that gathers.
struct Arrival {
    rank: usize,
    channel: Channel,
}

impl Reform<'_> {
    fn standing(&self, rank: usize) -> Standing {
        self.health.standing(rank).unwrap_or(Standing::Lost)
    }

    fn aim(&self, muster: &Muster) -> Aim {
        muster.aim(|rank| self.standing(rank), self.started.elapsed())
    }

    /// One attempt to form a group, which fails when one of its ranks fails.
    fn attempt(&self, by: Instant) -> Result<Fabric, FabricError> {
        let (rank, size) = (self.rank, self.size);
        let mut muster = Muster::new(rank, size, self.options.least, self.options.deadline / 2);
        let mut reception: Option<Reception<Arrival>> = None;
        let mut arrivals: Vec<Arrival> = Vec::new();
        loop {
            if Instant::now() >= by {
                let what = format!("the gathering of a new group by rank {rank}");
                return Err(FabricError::Timeout { what, after: self.options.deadline });
            }
            match self.aim(&muster) {
                Aim::Stay => return Err(self.excluded()),
                Aim::GiveUp(left) => return Err(FabricError::TooFew { left, least: self.options.least }),
                Aim::Call(gatherer) => return self.follow(&muster, gatherer, by),
                Aim::Form(members) => {
                    drop(reception);
                    arrivals.retain(|it| members.contains(&it.rank));
                    arrivals.sort_by_key(|it| it.rank);
                    return self.lead(&members, arrivals, by);
                }
                Aim::Await => {
                    let reception = match &mut reception {
                        Some(reception) => reception,
                        none => none.insert(self.open_reception()?),
                    };
                    self.receive(reception, &mut muster, &mut arrivals, by)?;
                }
            }
        }
    }

    fn excluded(&self) -> FabricError {
        let trouble = self.health.trouble().filter(|trouble| matches!(trouble, FabricError::Excluded { .. }));
        trouble.unwrap_or(FabricError::Excluded { rank: self.rank, cause: Cause::Closed })
    }

    /// The group that is left proves itself by the secret and the session.
    fn open_reception(&self) -> Result<Reception<Arrival>, FabricError> {
        let (secret, session) = (self.kept.secret.clone(), self.kept.session.clone());
        Reception::new(clone_listeners(&self.kept.doors)?, move |stream, until| {
            let channel = authenticate_acceptor(stream, &terms(&secret, &session), until)?;
            let read = read_json(&channel, until);
            let Survivor { rank } = read.map_err(|cause| FabricError::Handshake { whom: channel.whom(), cause })?;
            Ok(Arrival { rank, channel })
        })
    }

    /// Lets others come for a moment.
    fn receive(
        &self,
        reception: &mut Reception<Arrival>,
        muster: &mut Muster,
        arrivals: &mut Vec<Arrival>,
        by: Instant,
    ) -> Result<(), FabricError> {
        let visit = reception.next(by.min(end_of(GLANCE)), None)?;
        arrivals.retain(|it| {
            // Nobody says anything before the welcome.
            let stays = matches!(it.channel.has_spoken(), Ok(false));
            if !stays {
                muster.dismiss(it.rank);
            }
            stays
        });
        let Some(visit) = visit else { return Ok(()) };
        match visit.outcome {
            Ok(arrival) => match muster.admit(arrival.rank, |rank| self.standing(rank)) {
                Ok(()) => {
                    arrivals.retain(|it| it.rank != arrival.rank);
                    arrivals.push(arrival);
                }
                Err(why) => {
                    // One that cannot be told will find the connection closed.
                    let _ = write_json(&arrival.channel, &Answer::Refused { why }, by.min(end_of(CALL_PATIENCE)));
                }
            },
            Err(error) => tracing::warn!("dropped a connection from {}: {error}", visit.from),
        }
        Ok(())
    }

    /// Connects to the one that gathers, or to a survivor on the way there, which passes on what comes to its door.
    fn reach(&self, gatherer: usize, by: Instant) -> Result<TcpStream, FabricError> {
        let failed = |why| FabricError::JoinFailed { rank: self.rank, why };
        let is_left = |rank| self.standing(rank) == Standing::Here;
        let next = self.topology.next_hop_among(self.rank, gatherer, is_left);
        let next = next.ok_or_else(|| failed(format!("no way to rank {gatherer} is left")))?;
        let address = &self.kept.ranks[next];
        let same_host = address.host == self.kept.ranks[self.rank].host;
        let reached = reaching::reach(&self.kept.own, &address.doors, same_host, by);
        reached.map(|(_, stream)| stream).map_err(failed)
    }

    /// Passes on to the one that gathers what those say that do not reach it, by the way that this rank has found.
    fn pass_on(&self, stream: &TcpStream) -> Result<Vec<Relay>, FabricError> {
        if self.topology.is_full_mesh() {
            return Ok(Vec::new());
        }
        let target = stream.peer_addr().map_err(|error| FabricError::io("the next rank vanished", error))?;
        let doors = clone_listeners(&self.kept.doors)?;
        doors.into_iter().map(|door| Relay::forward(door, vec![target])).collect()
    }

    /// Joins the group that another rank gathers.
    fn follow(&self, muster: &Muster, gatherer: usize, by: Instant) -> Result<Fabric, FabricError> {
        let stream = self.reach(gatherer, by.min(end_of(CALL_PATIENCE)))?;
        let relays = self.pass_on(&stream)?;
        let followed = self.follow_by(stream, muster, gatherer, by);
        relays.iter().for_each(Relay::close_door);
        match followed {
            Ok(mut fabric) => {
                fabric.keep(relays);
                Ok(fabric)
            }
            Err(error) => {
                relays.into_iter().for_each(Relay::close_at_once);
                Err(error)
            }
        }
    }

    /// As [`Reform::follow`], over a connection to the one that gathers.
    fn follow_by(
        &self,
        stream: TcpStream,
        muster: &Muster,
        gatherer: usize,
        by: Instant,
    ) -> Result<Fabric, FabricError> {
        let lost = |cause| FabricError::PeerLost { rank: gatherer, cause };
        let soon = by.min(end_of(CALL_PATIENCE));
        let same_host = self.kept.ranks[gatherer].host == self.kept.ranks[self.rank].host;
        let encrypt = self.kept.wishes.encrypt && !same_host;
        let channel = authenticate_dialer(stream, &terms(&self.kept.secret, &self.kept.session), encrypt, soon)?;
        write_json(&channel, &Survivor { rank: self.rank }, soon).map_err(lost)?;
        let mut words = FrameReader::default();
        let answer = loop {
            if let Some(words) = words.read(&channel, by.min(end_of(GLANCE))).map_err(lost)? {
                break words;
            }
            if Instant::now() >= by || self.aim(muster) != Aim::Call(gatherer) {
                return Err(lost(Cause::Silent(self.started.elapsed())));
            }
        };
        match serde_json::from_slice(&answer) {
            Ok(Answer::Welcome(welcome)) if welcome.rank < welcome.ranks.len() => {
                // One that is done earlier leaves the old group earlier, and its connection tells if it gives up.
                self.join(welcome, &channel, by, |reform| reform.standing(gatherer) != Standing::Lost)
            }
            Ok(Answer::Refused { why }) => Err(FabricError::Refused { whom: format!("rank {gatherer}"), why }),
            _ => Err(lost(Cause::corrupt("its welcome cannot be read"))),
        }
    }

    /// Gathers a group of `members`, this rank and those of `arrivals`.
    fn lead(&self, members: &[usize], arrivals: Vec<Arrival>, by: Instant) -> Result<Fabric, FabricError> {
        let ranks: Vec<RankAddress> = members.iter().map(|&rank| self.kept.ranks[rank].clone()).collect();
        let hosts = host_numbers(&ranks);
        let session = hex(&random_bytes::<16>()?);
        let mut welcome = Welcome { rank: 0, generation: self.generation, session, ranks };
        for (index, arrival) in arrivals.iter().enumerate() {
            welcome.rank = index + 1;
            let answered = write_json(&arrival.channel, &Answer::Welcome(welcome.clone()), end_of(ANSWER_PATIENCE));
            answered.map_err(|cause| FabricError::PeerLost { rank: arrival.rank, cause })?;
        }
        welcome.rank = 0;
        // This rank takes part like any other.
        let (to_self, own) = local_sockets()?;
        let own = Channel::plain(own);
        std::thread::scope(|scope| {
            let joining = scope.spawn(|| self.join(welcome, &own, by, |_| true));
            let to_self = Channel::plain(to_self);
            let others = arrivals.iter().map(|it| &it.channel);
            let channels: Vec<&Channel> = std::iter::once(&to_self).chain(others).collect();
            let patience = by.saturating_duration_since(Instant::now());
            let conducted = conduct(&channels, hosts, patience, || {
                match members.iter().find(|&&rank| self.standing(rank) == Standing::Lost) {
                    Some(&rank) => Err(FabricError::PeerLost { rank, cause: Cause::Closed }),
                    None => Ok(()),
                }
            });
            // Without a conductor, joining ends.
            drop((to_self, arrivals));
            let joined = joining.join();
            conducted?;
            joined.unwrap_or_else(|_| Err(FabricError::Invalid("a thread that forms links panicked".to_owned())))
        })
    }

    /// Forms links as the one that gathers says, as long as `goes_on`.
    fn join(
        &self,
        welcome: Welcome,
        conductor: &Channel,
        by: Instant,
        goes_on: impl Fn(&Self) -> bool,
    ) -> Result<Fabric, FabricError> {
        let kept = Kept {
            secret: self.kept.secret.clone(),
            session: welcome.session.clone().into_bytes(),
            ranks: welcome.ranks.clone(),
            own: self.kept.own.clone(),
            listeners: self.listeners()?,
            doors: clone_listeners(&self.kept.doors)?,
            ..*self.kept
        };
        let (rank, generation) = (welcome.rank, welcome.generation);
        let party = Party::new(kept.secret.clone(), welcome, kept.wishes, kept.own.clone());
        let listeners = self.listeners()?;
        let formed = std::thread::scope(|scope| {
            let waiting = std::thread::current();
            let forming = scope.spawn(move || {
                let formed = form(party, conductor, listeners, by);
                waiting.unpark();
                formed
            });
            while !forming.is_finished() {
                if !goes_on(self) {
                    // Ends the forming.
                    conductor.shut();
                }
                std::thread::park_timeout(GLANCE);
            }
            let panicked = |_| Err(FabricError::Invalid("a thread that forms links panicked".to_owned()));
            forming.join().unwrap_or_else(panicked)
        })?;
        finish(formed, rank, generation, kept)
    }

    fn listeners(&self) -> Result<Vec<TcpListener>, FabricError> {
        clone_listeners(&self.kept.listeners)
    }
}

fn terms<'a>(secret: &'a Secret, session: &'a [u8]) -> Terms<'a> {
    Terms { secret, purpose: Purpose::Reform, context: session }
}

/// More handles to the same listeners.
pub(crate) fn clone_listeners(listeners: &[TcpListener]) -> Result<Vec<TcpListener>, FabricError> {
    let cloned = listeners.iter().map(TcpListener::try_clone).collect::<std::io::Result<_>>();
    cloned.map_err(|error| FabricError::io("cannot keep the listeners", error))
}

/// A fabric of links that have formed.
pub(crate) fn finish(formed: Formed, rank: usize, generation: u32, kept: Kept) -> Result<Fabric, FabricError> {
    let Formed { links, lifelines, topology, relay } = formed;
    let mut fabric = Fabric::from_links(rank, generation, links, lifelines, topology, kept.liveness_deadline)?;
    fabric.keep(relay.into_iter().collect());
    fabric.set_deadline(kept.wait_deadline);
    fabric.kept = Some(Box::new(kept));
    Ok(fabric)
}
