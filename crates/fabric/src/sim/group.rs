//! How simulated groups form: what the sockets' side of the rendezvous does, with letters in place of connections. What
//! decides is the same code.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::letters::{Body, Letter, Place};
use super::process::{Handle, WAIT_DEADLINE};
use super::wires::End;
use super::world::{Line, lock};
use crate::error::{Cause, FabricError};
use crate::fabric::Fabric;
use crate::link::Link;
use crate::liveness::{Health, Standing, Timing, Tracker, Watch};
use crate::rendezvous::{Aim, Conductor, Muster, Report, Shape, Word, admit, numbers, topology_of};
use crate::topology::Topology;

/// How long forming may take, in all.
pub(super) const FORMING: Duration = Duration::from_secs(10);
/// How long a rank tries to reach another one.
const DIALLING: Duration = Duration::from_secs(3);
const GLANCE: Duration = Duration::from_millis(20);
pub(super) const LIVENESS_DEADLINE: Duration = Duration::from_millis(400);

/// A group as one of its ranks has it.
pub(super) struct Group {
    pub(super) fabric: Fabric,
    pub(super) place: Place,
    health: Arc<Health>,
}

impl Drop for Group {
    fn drop(&mut self) {
        // As the monitor of a fabric does it, before the links go.
        self.health.close();
    }
}

/// The coordinator: gathers `size` ranks and brings them up.
pub(super) async fn gather(handle: &Handle, size: usize, generation: u32) -> Result<(), FabricError> {
    let started = handle.now();
    let mut present: Vec<(usize, Option<usize>)> = Vec::new();
    while present.len() < size {
        let by = started + FORMING;
        let wanted = |letter: &Letter| matches!(letter.body, Body::Introduction(_) | Body::Gone);
        let Some(letter) = handle.letter(by, wanted).await else {
            return Err(FabricError::Timeout { what: "arrival".to_owned(), after: FORMING });
        };
        let Body::Introduction(wish) = letter.body else {
            present.retain(|(process, _)| *process != letter.from);
            continue;
        };
        let wishes: Vec<_> = present.iter().map(|(_, wish)| *wish).collect();
        match admit(wish, &wishes, size) {
            Ok(()) => present.push((letter.from, wish)),
            Err(why) => handle.send(letter.from, Body::Refusal(why)),
        }
    }
    let wishes: Vec<_> = present.iter().map(|(_, wish)| *wish).collect();
    let mut processes = vec![0; size];
    for (rank, (process, _)) in numbers(&wishes).into_iter().zip(&present) {
        processes[rank] = *process;
    }
    let session = lock(&handle.world).random.next();
    let mut place = Place { rank: 0, generation, session, processes };
    for rank in 0..size {
        place.rank = rank;
        handle.send(place.processes[rank], Body::Welcome(place.clone()));
    }
    conduct(handle, &place, || Ok(())).await
}

/// Brings a group up whose ranks have been welcomed.
async fn conduct(
    handle: &Handle,
    place: &Place,
    check: impl Fn() -> Result<(), FabricError>,
) -> Result<(), FabricError> {
    let result = conduct_all(handle, place, check).await;
    if result.is_err() {
        place.processes.iter().for_each(|&process| handle.send(process, Body::Abandoned(place.session)));
    }
    result
}

async fn conduct_all(
    handle: &Handle,
    place: &Place,
    check: impl Fn() -> Result<(), FabricError>,
) -> Result<(), FabricError> {
    let hosts: Vec<usize> = place.processes.clone();
    let mut conductor = Conductor::new(hosts, FORMING, handle.now());
    let session = place.session;
    while !conductor.is_done() {
        check()?;
        conductor.on_tick(handle.now())?;
        let wanted = |letter: &Letter| match &letter.body {
            Body::Report(of, _) => *of == session,
            Body::Gone => place.processes.contains(&letter.from),
            _ => false,
        };
        let Some(letter) = handle.letter(handle.now() + GLANCE, wanted).await else { continue };
        let Some(rank) = place.processes.iter().position(|&it| it == letter.from) else { continue };
        let Body::Report(_, report) = letter.body else { return Err(conductor.on_gone(rank, Cause::Closed)) };
        let word = conductor.on_report(rank, report, handle.now())?;
        for &process in &place.processes {
            match &word {
                None => {}
                Some(Word::Go) => handle.send(process, Body::Go(session)),
                Some(Word::Shape(Shape::Known { edges })) => {
                    handle.send(process, Body::Shape(session, Shape::Known { edges: edges.clone() }));
                }
                Some(Word::Shape(Shape::Impossible { why })) => return Err(FabricError::Invalid(why.clone())),
            }
        }
    }
    Ok(())
}

/// A rank: asks the coordinator for a place and takes it.
pub(super) async fn join(handle: &Handle, coordinator: usize, wish: Option<usize>) -> Result<Group, FabricError> {
    handle.send(coordinator, Body::Introduction(wish));
    let wanted = |letter: &Letter| {
        letter.from == coordinator && matches!(letter.body, Body::Welcome(_) | Body::Refusal(_) | Body::Gone)
    };
    match handle.letter(handle.now() + FORMING, wanted).await.map(|letter| letter.body) {
        Some(Body::Welcome(place)) => form(handle, place, coordinator, |_| true).await,
        Some(Body::Refusal(why)) => Err(FabricError::Refused { whom: "the coordinator".to_owned(), why }),
        _ => Err(FabricError::CoordinatorLost { cause: Cause::Closed }),
    }
}

/// Forms links as the conductor says.
async fn form(
    handle: &Handle,
    place: Place,
    conductor: usize,
    goes_on: impl Fn(usize) -> bool,
) -> Result<Group, FabricError> {
    let (by, session) = (handle.now() + FORMING, place.session);
    let cables = reach_directly(handle, &place).await;
    let unreached = cables.iter().filter(|&&cables| cables == 0).map(|_| "no cable".to_owned()).collect();
    handle.send(conductor, Body::Report(session, Report::Reached { cables, unreached }));
    let lost = || FabricError::CoordinatorLost { cause: Cause::Closed };
    let mut shape = None;
    loop {
        // Those who dial late are let in all the same.
        let wanted = |letter: &Letter| match letter.body {
            Body::Call(of) | Body::Shape(of, _) | Body::Go(of) | Body::Abandoned(of) => of == session,
            Body::Gone => letter.from == conductor,
            _ => false,
        };
        let letter = handle.letter((handle.now() + GLANCE).min(by), wanted).await;
        if handle.now() >= by || !goes_on(conductor) {
            return Err(lost());
        }
        let Some(letter) = letter else { continue };
        match letter.body {
            Body::Call(_) => handle.send(letter.from, Body::Answer(session)),
            Body::Shape(_, Shape::Known { edges }) => {
                shape = Some(topology_of(&place.processes, &edges)?);
                handle.send(conductor, Body::Report(session, Report::Up));
            }
            Body::Go(_) => return open(handle, place, shape.ok_or_else(lost)?),
            _ => return Err(lost()),
        }
    }
}

/// Dials all lower ranks, and lets the higher ones in meanwhile. Returns the number of cables to each lower rank.
async fn reach_directly(handle: &Handle, place: &Place) -> Vec<u32> {
    let lower = &place.processes[..place.rank];
    let mut cables = vec![0; place.rank];
    let mut open: Vec<usize> = Vec::new();
    for (rank, &process) in lower.iter().enumerate() {
        if lock(&handle.world).has_cable(handle.id, process) {
            handle.send(process, Body::Call(place.session));
            open.push(rank);
        }
    }
    let by = handle.now() + DIALLING;
    while !open.is_empty() {
        let wanted = |letter: &Letter| match letter.body {
            Body::Call(of) | Body::Answer(of) => of == place.session,
            Body::Gone => lower.contains(&letter.from),
            _ => false,
        };
        let Some(letter) = handle.letter(by, wanted).await else { break };
        if let Body::Call(_) = letter.body {
            handle.send(letter.from, Body::Answer(place.session));
            continue;
        }
        if let Some(rank) = lower.iter().position(|&process| process == letter.from) {
            open.retain(|&it| it != rank);
            cables[rank] = u32::from(matches!(letter.body, Body::Answer(_)));
        }
    }
    cables
}

/// A fabric over simulated links, with lifelines.
fn open(handle: &Handle, place: Place, topology: Topology) -> Result<Group, FabricError> {
    let (rank, size) = (place.rank, place.processes.len());
    let end = |line: Line, other: usize| {
        // The way back is the same, whoever opens it.
        let mut via = between(&topology, rank.min(other), rank.max(other));
        if rank > other {
            via.reverse();
        }
        let via: Vec<usize> = via.into_iter().map(|rank| place.processes[rank]).collect();
        End::open(&handle.world, place.session, line, handle.id, place.processes[other], &via)
    };
    let others = |line: Line| (0..size).map(move |other| (other != rank).then_some((line, other)));
    let links: Vec<Option<Box<dyn Link>>> =
        others(Line::Data).map(|it| it.map(|(line, other)| Box::new(end(line, other)) as Box<dyn Link>)).collect();
    let wires: Vec<Option<End>> = others(Line::Life).map(|it| it.map(|(line, other)| end(line, other))).collect();
    let health = Arc::new(Health::new(rank, size));
    health.expect_monitor();
    let hops: Vec<usize> = (0..size).map(|other| topology.hops(rank, other)).collect();
    let tracker = Tracker::new(rank, &hops, Timing::new(LIVENESS_DEADLINE), handle.now());
    handle.watch_over(Watch::new(Arc::clone(&health), tracker, place.generation, wires));
    let mut fabric = Fabric::with_health(rank, place.generation, links, Arc::clone(&health), None, topology);
    fabric.set_deadline(WAIT_DEADLINE);
    Ok(Group { fabric, place, health })
}

/// The ranks on the way from one to another.
fn between(topology: &Topology, from: usize, to: usize) -> Vec<usize> {
    let next = |at: &usize| (*at != to).then(|| topology.next_hop(*at, to));
    std::iter::successors(Some(from), next).filter(|&rank| rank != from && rank != to).collect()
}

/// Survivors of a group form a new one.
pub(super) async fn reform(handle: &Handle, old: &mut Group, least: usize) -> Result<Group, FabricError> {
    old.fabric.let_go();
    let started = handle.now();
    loop {
        match attempt(handle, old, least, started).await {
            Err(error @ (FabricError::TooFew { .. } | FabricError::Excluded { .. } | FabricError::Timeout { .. })) => {
                return Err(error);
            }
            Err(_) => handle.sleep(GLANCE).await,
            Ok(group) => return Ok(group),
        }
    }
}

async fn attempt(handle: &Handle, old: &Group, least: usize, started: Duration) -> Result<Group, FabricError> {
    let (rank, size, session) = (old.place.rank, old.place.processes.len(), old.place.session);
    let mut muster = Muster::new(rank, size, least, FORMING / 2);
    let standing = |rank: usize| old.health.standing(rank).unwrap_or(Standing::Lost);
    let mut called = None;
    loop {
        let elapsed = handle.now() - started;
        if elapsed >= FORMING {
            return Err(FabricError::Timeout { what: "gathering".to_owned(), after: FORMING });
        }
        match muster.aim(standing, elapsed) {
            Aim::Stay => return Err(FabricError::Excluded { rank, cause: Cause::Closed }),
            Aim::GiveUp(left) => return Err(FabricError::TooFew { left, least }),
            Aim::Form(members) => return lead(handle, old, &members, standing).await,
            Aim::Await => {
                let wanted = |letter: &Letter| matches!(letter.body, Body::Survivor(of, _) if of == session);
                let Some(letter) = handle.letter(handle.now() + GLANCE, wanted).await else { continue };
                let Body::Survivor(_, other) = letter.body else { continue };
                if let Err(why) = muster.admit(other, standing) {
                    handle.send(letter.from, Body::Refusal(why));
                }
            }
            Aim::Call(gatherer) => {
                let process = old.place.processes[gatherer];
                if called != Some(gatherer) {
                    handle.send(process, Body::Survivor(session, rank));
                    called = Some(gatherer);
                }
                let wanted = |letter: &Letter| {
                    letter.from == process && matches!(letter.body, Body::Welcome(_) | Body::Refusal(_))
                };
                match handle.letter(handle.now() + GLANCE, wanted).await.map(|letter| letter.body) {
                    None => {}
                    Some(Body::Welcome(place)) => {
                        return form(handle, place, process, |_| standing(gatherer) != Standing::Lost).await;
                    }
                    Some(other) => {
                        return Err(FabricError::Refused { whom: "gatherer".to_owned(), why: format!("{other:?}") });
                    }
                }
            }
        }
    }
}

async fn lead(
    handle: &Handle,
    old: &Group,
    members: &[usize],
    standing: impl Fn(usize) -> Standing,
) -> Result<Group, FabricError> {
    let session = lock(&handle.world).random.next();
    let processes: Vec<usize> = members.iter().map(|&rank| old.place.processes[rank]).collect();
    let mut place = Place { rank: 0, generation: old.place.generation + 1, session, processes };
    for rank in 1..members.len() {
        place.rank = rank;
        handle.send(place.processes[rank], Body::Welcome(place.clone()));
    }
    place.rank = 0;
    let check = || match members.iter().find(|&&rank| standing(rank) == Standing::Lost) {
        Some(&rank) => Err(FabricError::PeerLost { rank, cause: Cause::Closed }),
        None => Ok(()),
    };
    let (conducted, joined) =
        both(conduct(handle, &place, check), form(handle, place.clone(), handle.id, |_| true)).await;
    conducted?;
    joined
}

/// Waits for both.
async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut first, mut second) = (None, None);
    poll_fn(|context| {
        for _ in 0..2 {
            if first.is_none()
                && let Poll::Ready(value) = a.as_mut().poll(context)
            {
                first = Some(value);
            }
            if second.is_none()
                && let Poll::Ready(value) = b.as_mut().poll(context)
            {
                second = Some(value);
            }
        }
        if first.is_some() && second.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    // Both are there, as was just found.
    (first.unwrap(), second.unwrap())
}
