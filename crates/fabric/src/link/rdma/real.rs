//! Bringing up links on the ports of this machine, where `FABRIC_TEST_RDMA` says that there are some: two machines' worth
//! of them, joined by two cables, as `scripts/check-rdma` makes them. Without, these tests do nothing.

use std::io::{IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use verbs::{Profile, ProtectionDomain};

use super::bring_up::{Place, RdmaOptions, Role, bring_up};
use super::cards::{Card, local_cards};
use super::link::RdmaLink;
use super::port::PortWire;
use super::real_ports;
use crate::error::Cause;
use crate::link::{Cable, Interest, Link};
use crate::local::local_lifelines;

type Outcome = Result<Result<RdmaLink<PortWire>, String>, Cause>;

const BOTH_MODES: RdmaOptions = RdmaOptions { reliable: true, unreliable: true, same_host: true, rails: 1 };
const RELIABLE: RdmaOptions = RdmaOptions { unreliable: false, ..BOTH_MODES };
const UNRELIABLE: RdmaOptions = RdmaOptions { reliable: false, ..BOTH_MODES };

/// Both sides of a bring-up between the ports with the lowest addresses.
fn both(options: [RdmaOptions; 2]) -> [Outcome; 2] {
    let (cards, _) = local_cards().unwrap();
    let talk = local_lifelines().unwrap();
    let by = Instant::now() + Duration::from_secs(120);
    let [local, peer] = [0, 1].map(|index| IpAddr::V4(cards[index].card.address));
    std::thread::scope(|scope| {
        let place = Place { role: Role::Dialer, generation: 3, local: peer, peer: local };
        let dialer = scope.spawn(move || bring_up(&talk.1, place, options[1], by));
        let place = Place { role: Role::Acceptor, generation: 3, local, peer };
        let acceptor = bring_up(&talk.0, place, options[0], by);
        [acceptor, dialer.join().unwrap()]
    })
}

fn links(options: RdmaOptions) -> [RdmaLink<PortWire>; 2] {
    both([options; 2]).map(|outcome| outcome.unwrap().unwrap())
}

/// Sends `bytes` from one to the other.
fn transfer(a: &mut RdmaLink<PortWire>, b: &mut RdmaLink<PortWire>, bytes: &[u8]) {
    let mut received = vec![0; bytes.len()];
    let (mut sent, mut at) = (0, 0);
    let started = Instant::now();
    while at < bytes.len() {
        let moved = a.try_send(&[IoSlice::new(&bytes[sent..])]).unwrap();
        sent += moved;
        let came = b.try_recv(&mut [IoSliceMut::new(&mut received[at..])]).unwrap();
        at += came;
        if moved + came == 0 {
            b.rest(Interest { receive: true, send: false }, Duration::from_millis(1)).unwrap();
        }
        assert!(started.elapsed() < Duration::from_secs(120), "{at} of {} bytes came", bytes.len());
    }
    assert!(received == bytes);
}

#[test]
fn a_machine_without_ports_says_why_there_is_no_link() {
    if real_ports() || local_cards().is_ok() {
        return;
    }
    let talk = local_lifelines().unwrap();
    let by = Instant::now() + Duration::from_secs(20);
    let address = IpAddr::from([127, 0, 0, 1]);
    let [acceptor, dialer] = std::thread::scope(|scope| {
        let side = |role| Place { role, generation: 1, local: address, peer: address };
        let dialer = scope.spawn(move || bring_up(&talk.1, side(Role::Dialer), BOTH_MODES, by));
        [bring_up(&talk.0, side(Role::Acceptor), BOTH_MODES, by), dialer.join().unwrap()]
    });
    for outcome in [acceptor, dialer] {
        let why = outcome.unwrap().err().unwrap();
        assert!(why.contains("no RDMA here"), "{why}");
    }
}

#[test]
fn the_mode_that_is_asked_for_is_used_and_reliable_is_tried_first() {
    if !real_ports() {
        return;
    }
    for (options, unreliable) in [(BOTH_MODES, false), (RELIABLE, false), (UNRELIABLE, true)] {
        let [mut a, mut b] = links(options);
        assert!(a.is_unreliable() == unreliable && b.is_unreliable() == unreliable);
        let bytes: Vec<u8> = (0..300_000).map(|index| (index * 31 + index / 251) as u8).collect();
        transfer(&mut a, &mut b, &bytes);
        transfer(&mut b, &mut a, &bytes);
    }
}

#[test]
fn all_cables_between_two_machines_are_used() {
    if !real_ports() {
        return;
    }
    for options in [RELIABLE, UNRELIABLE] {
        let [mut a, mut b] = links(RdmaOptions { rails: 2, ..options });
        assert_eq!((a.cables().len(), b.cables().len()), (2, 2));
        for (ours, theirs) in a.cables().into_iter().zip(b.cables()) {
            assert_eq!(ours, Cable { local: theirs.remote, remote: theirs.local });
        }
        let bytes: Vec<u8> = (0..1_000_000).map(|index| (index * 17 + index / 253) as u8).collect();
        transfer(&mut a, &mut b, &bytes);
    }
}

/// A link with messages on the way leaves none behind when it ends, as Apple's driver wants it.
#[test]
fn links_are_drained_before_they_end() {
    if !real_ports() {
        return;
    }
    let undrained = || -> u32 {
        let (cards, _) = local_cards().unwrap();
        let domains = cards.iter().map(|card| ProtectionDomain::of(&card.device, Profile::Apple).unwrap());
        domains.map(|domain| domain.context().undrained()).sum()
    };
    let before = undrained();
    for _ in 0..5 {
        let [mut a, b] = links(UNRELIABLE);
        a.try_send(&[IoSlice::new(&[1; 200_000])]).unwrap();
        drop(a);
        drop(b);
    }
    assert_eq!(undrained(), before);
}

#[test]
fn both_sides_come_to_the_same_verdict() {
    if !real_ports() {
        return;
    }
    for options in [[RELIABLE, UNRELIABLE], [UNRELIABLE, RELIABLE]] {
        let verdicts = both(options).map(|outcome| outcome.unwrap().err().unwrap());
        assert_eq!(verdicts[0], verdicts[1]);
        assert!(verdicts[0].contains("reliable connections"), "{}", verdicts[0]);
    }
}

/// Makes the first cable, whose interface `FABRIC_TEST_CABLE` names, lose packets, until it is dropped.
struct Losses(String);

impl Losses {
    fn begin(cable: &str, share: &str) -> Self {
        let losses = Self(cable.to_owned());
        assert!(losses.tc(&["add", "dev", cable, "root", "netem", "loss", share]));
        losses
    }

    fn tc(&self, words: &[&str]) -> bool {
        Command::new("tc").arg("qdisc").args(words).status().unwrap().success()
    }
}

impl Drop for Losses {
    fn drop(&mut self) {
        self.tc(&["delete", "dev", &self.0, "root"]);
    }
}

#[test]
fn losses_are_got_over_or_noticed() {
    let Ok(cable) = std::env::var("FABRIC_TEST_CABLE") else { return };
    // The emulated reliable connection starts a message of 16 packets again when one of them is lost.
    for (options, share) in [(RELIABLE, "2%"), (UNRELIABLE, "20%")] {
        let [mut a, mut b] = links(options);
        let losses = Losses::begin(&cable, share);
        let bytes: Vec<u8> = (0..400_000).map(|index| (index * 13 + index / 257) as u8).collect();
        if options == RELIABLE {
            transfer(&mut a, &mut b, &bytes);
        } else {
            let (received, cause) = transfer_until_lost(&mut a, &mut b, &bytes);
            assert!(received == bytes[..received.len()]);
            assert!(matches!(cause, Cause::Damaged(_)), "{cause}");
        }
        drop(losses);
    }
}

/// Sends `bytes` until one side notices that some got lost. Returns what had come, and what was noticed.
fn transfer_until_lost(a: &mut RdmaLink<PortWire>, b: &mut RdmaLink<PortWire>, bytes: &[u8]) -> (Vec<u8>, Cause) {
    let (mut sent, mut received) = (0, Vec::new());
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < Duration::from_secs(120), "nothing is noticed");
        let mut target = [0; 10_000];
        match (a.try_send(&[IoSlice::new(&bytes[sent..])]), b.try_recv(&mut [IoSliceMut::new(&mut target)])) {
            (Ok(more), Ok(came)) => {
                sent += more;
                received.extend_from_slice(&target[..came]);
            }
            (Err(cause), _) | (_, Err(cause)) => return (received, cause),
        }
        a.rest(Interest { receive: true, send: false }, Duration::from_millis(1)).unwrap();
    }
}

#[test]
fn a_peer_that_describes_what_cannot_be_is_refused() {
    let address = IpAddr::from([127, 0, 0, 1]);
    let card = Card { name: "no".to_owned(), address: [10, 0, 0, 1].into(), prefix: 99, mtu: 1024, reliable: true };
    let many = vec![Card { prefix: 24, ..card.clone() }; 100];
    for cards in [vec![card], many] {
        let (ours, theirs) = local_lifelines().unwrap();
        let by = Instant::now() + Duration::from_secs(20);
        let hello = serde_json::json!({
            "version": 1, "cards": cards, "problems": [], "reliable": true, "unreliable": true, "rails": 1, "seed": 1,
        });
        crate::rendezvous::write_json(&theirs, &hello, by).unwrap();
        let place = Place { role: Role::Acceptor, generation: 1, local: address, peer: address };
        assert!(matches!(bring_up(&ours, place, BOTH_MODES, by), Err(Cause::Corrupt(_))));
    }
}
