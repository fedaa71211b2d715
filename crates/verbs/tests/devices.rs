//! Two real devices with a wire between them, named by `VERBS_TEST_DEVICES=first,second`. Without, only what holds on
//! a machine without devices is tested. `scripts/check-rdma` runs this where there are some.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use verbs::{
    Completion, CompletionQueue, Device, Error, Gid, Limit, MemoryRegion, Mtu, PAGE_BYTES, PORT, PortState, Profile,
    ProtectionDomain, QueuePair, QueuePairOptions, Reliability, Remote, Retired, Slot,
};

const DEVICES: &str = "VERBS_TEST_DEVICES";
/// Emulated machines are slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// The devices to test with, if there are any.
fn devices() -> Option<[Device; 2]> {
    let names = std::env::var(DEVICES).ok()?;
    let (first, second) = names.split_once(',').expect("two names with a comma between them");
    let all = Device::all().unwrap();
    Some([first, second].map(|name| all.iter().find(|it| it.name() == name).expect("the named device").clone()))
}

/// One side of a connection.
struct Side {
    domain: ProtectionDomain,
    queue: CompletionQueue,
    pair: QueuePair,
    gid: (u8, Gid),
    slots: Vec<Slot>,
    completions: Vec<Completion>,
}

fn options(reliability: Reliability) -> QueuePairOptions {
    let inline_bytes = if reliability == Reliability::Reliable { 64 } else { 0 };
    QueuePairOptions { reliability, sends: 4, receives: 4, message_bytes: PAGE_BYTES, inline_bytes }
}

impl Side {
    fn new(device: &Device, profile: Profile, reliability: Reliability) -> Self {
        let domain = ProtectionDomain::of(device, profile).unwrap();
        let port = domain.context().port(PORT).unwrap();
        assert_eq!(port.state, PortState::Active);
        let gids = domain.context().gids(&port).unwrap();
        let gid = *gids.iter().find(|(_, gid)| gid.ipv4().is_some()).expect("an IPv4 address");
        let queue = CompletionQueue::new(&domain, 16).unwrap();
        let pair = QueuePair::new(&domain, &queue, options(reliability)).unwrap();
        let [slots] = MemoryRegion::register(&domain, 8 * PAGE_BYTES).unwrap().into_slots([(8, PAGE_BYTES)]).unwrap();
        Self { domain, queue, pair, gid, slots, completions: Vec::new() }
    }

    fn remote(&self, mtu: Mtu) -> Remote {
        Remote { gid: self.gid.1, lid: 0, number: self.pair.number(), first_packet: 77, mtu }
    }

    /// Waits for the next request to end.
    fn next(&mut self) -> Result<Retired, Error> {
        let started = Instant::now();
        loop {
            if !self.completions.is_empty() {
                return self.pair.retire(self.completions.remove(0));
            }
            assert!(started.elapsed() < PATIENCE, "nothing ends");
            if self.queue.poll(&mut self.completions).unwrap() == 0 {
                std::thread::yield_now();
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        let mut slot = self.slots.pop().unwrap();
        slot[..bytes.len()].copy_from_slice(bytes);
        self.pair.post_send(slot, bytes.len()).unwrap();
        let Retired::Sent(slot) = self.next().unwrap() else { panic!("not a send") };
        self.slots.push(slot);
    }

    fn post(&mut self) {
        let slot = self.slots.pop().unwrap();
        self.pair.post_receive(slot).unwrap();
    }

    fn receive(&mut self) -> Vec<u8> {
        let Retired::Received(slot, length) = self.next().unwrap() else { panic!("not a receive") };
        let bytes = slot[..length].to_vec();
        self.slots.push(slot);
        bytes
    }
}

fn connect(a: &mut Side, b: &mut Side) {
    let mtu = Mtu::B1024;
    let remotes = [b.remote(mtu), a.remote(mtu)];
    for (side, remote) in [&mut *a, b].into_iter().zip(remotes) {
        side.pair.connect(&remote, side.gid.0).unwrap();
        side.pair.start(77).unwrap();
    }
}

fn limit<T: std::fmt::Debug>(result: Result<T, Error>) -> Limit {
    match result.unwrap_err() {
        Error::Limit(limit) => limit,
        other => panic!("{other}"),
    }
}

#[test]
fn a_machine_without_devices_says_so() {
    if std::env::var(DEVICES).is_ok() {
        return;
    }
    if let Err(error) = Device::all() {
        assert!(error.is_absence(), "{error}");
        assert!(error.to_string().starts_with("no RDMA here"), "{error}");
    }
}

#[test]
fn messages_arrive_over_both_kinds_of_connections() {
    let Some([first, second]) = devices() else { return };
    for (profile, reliability) in [
        (Profile::Standard, Reliability::Reliable),
        (Profile::Standard, Reliability::Unreliable),
        (Profile::Apple, Reliability::Unreliable),
    ] {
        let mut a = Side::new(&first, profile, reliability);
        let mut b = Side::new(&second, profile, reliability);
        connect(&mut a, &mut b);
        for round in 0..20u8 {
            // Under Apple's limits, sender and receiver must post the same number of frames.
            let length = if profile == Profile::Apple { PAGE_BYTES - 100 } else { 1 + usize::from(round) * 800 };
            let message = vec![round; length];
            b.post();
            a.post();
            a.send(&message);
            assert_eq!(b.receive(), message);
            b.send(&message);
            assert_eq!(a.receive(), message);
        }
        assert_eq!((a.pair.sends_posted(), a.pair.receives_posted()), (0, 0));
    }
}

#[test]
fn memory_outlives_the_queue_pair_in_any_order_of_drops() {
    let Some([first, second]) = devices() else { return };
    let mut a = Side::new(&first, Profile::Standard, Reliability::Reliable);
    let mut b = Side::new(&second, Profile::Standard, Reliability::Reliable);
    connect(&mut a, &mut b);
    b.post();
    let Side { domain, queue, pair, slots, .. } = b;
    drop((slots, domain, queue));
    // The receive that was posted still holds its memory, and a message still lands there.
    a.send(b"late");
    drop(pair);
}

#[test]
fn a_dead_peer_ends_in_a_classified_error() {
    let Some([first, second]) = devices() else { return };
    let mut a = Side::new(&first, Profile::Standard, Reliability::Reliable);
    let mut b = Side::new(&second, Profile::Standard, Reliability::Reliable);
    connect(&mut a, &mut b);
    drop(b);
    let slot = a.slots.pop().unwrap();
    a.pair.post_send(slot, 10).unwrap();
    let error = a.next().unwrap_err();
    assert!(matches!(error, Error::Completion { .. }), "{error}");
    // Whatever is posted now is cancelled, and says that something failed before.
    let slot = a.slots.pop().unwrap();
    let later = a.pair.post_send(slot, 10).and_then(|()| a.next().map(drop)).unwrap_err();
    assert!(later.to_string().contains("the connection had failed before"), "{later}");
}

#[test]
fn what_apple_would_not_do_is_refused() {
    let Some([first, second]) = devices() else { return };
    let domain = ProtectionDomain::of(&first, Profile::Apple).unwrap();
    let queue = CompletionQueue::new(&domain, 16).unwrap();
    let reliable = options(Reliability::Reliable);
    let unreliable = options(Reliability::Unreliable);
    let try_new = |options| limit(QueuePair::new(&domain, &queue, options));
    assert_eq!(try_new(reliable), Limit::Reliable);
    assert_eq!(try_new(QueuePairOptions { inline_bytes: 1, ..unreliable }), Limit::Inline);
    let message_bytes = Profile::MESSAGE_BYTES_MAX + 1;
    assert_eq!(try_new(QueuePairOptions { message_bytes, ..unreliable }), Limit::Message { bytes: message_bytes });
    assert_eq!(try_new(QueuePairOptions { receives: 1024, ..unreliable }), Limit::QueueFrames { frames: 4096 });

    let mut a = Side::new(&first, Profile::Apple, Reliability::Unreliable);
    let mut b = Side::new(&second, Profile::Apple, Reliability::Unreliable);
    let slot = a.slots.pop().unwrap();
    assert_eq!(limit(a.pair.post_receive(slot)), Limit::EarlyReceive);
    connect(&mut a, &mut b);
    let [mut late] = MemoryRegion::register(&domain, PAGE_BYTES).unwrap().into_slots([(1, PAGE_BYTES)]).unwrap();
    assert_eq!(limit(a.pair.post_receive(late.pop().unwrap())), Limit::LateRegion);
    // One frame meets a receive of four.
    b.post();
    a.send(&[1; 4096]);
    assert_eq!(limit(b.next()), Limit::FrameMismatch { sent: 1, posted: 4 });

    // With `a` that makes ten.
    let pairs: Vec<_> = (0..9).map(|_| QueuePair::new(&domain, &queue, unreliable).unwrap()).collect();
    assert_eq!(try_new(unreliable), Limit::QueuePairs);
    drop(pairs);
    QueuePair::new(&domain, &queue, unreliable).unwrap();
}

#[test]
fn what_does_not_fit_is_refused() {
    let Some([first, second]) = devices() else { return };
    let mut a = Side::new(&first, Profile::Standard, Reliability::Reliable);
    let mut b = Side::new(&second, Profile::Standard, Reliability::Reliable);
    let misuse = |result: Result<(), Error>| assert!(matches!(result, Err(Error::Misuse(_))), "{result:?}");
    misuse(a.pair.start(0));
    let slot = a.slots.pop().unwrap();
    misuse(a.pair.post_send(slot, 10));
    misuse(a.pair.connect(&Remote { number: 1 << 24, ..b.remote(Mtu::B1024) }, 0));
    let slot = b.slots.pop().unwrap();
    misuse(a.pair.post_receive(slot));
    connect(&mut a, &mut b);
    for length in [0, PAGE_BYTES + 1] {
        let slot = a.slots.pop().unwrap();
        misuse(a.pair.post_send(slot, length));
    }
    misuse(MemoryRegion::register(&a.domain, 100).map(drop));
    let region = MemoryRegion::register(&a.domain, PAGE_BYTES).unwrap();
    misuse(region.into_slots([(2, PAGE_BYTES)]).map(drop));
    // A completion of one queue pair is none of another.
    b.post();
    let slot = a.slots.pop().unwrap();
    a.pair.post_send(slot, 8).unwrap();
    let started = Instant::now();
    while a.completions.is_empty() {
        assert!(started.elapsed() < PATIENCE);
        a.queue.poll(&mut a.completions).unwrap();
    }
    misuse(b.pair.retire(a.completions.remove(0)).map(drop));
}
