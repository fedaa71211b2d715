//! The tests that a link of any kind must pass.

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::thread;
use std::time::{Duration, Instant};

use super::{Interest, Link, TcpLink, Transport};
use crate::channel::Channel;
use crate::error::{Cause, FabricError, View};
use crate::fabric::Fabric;
use crate::link::rdma::{RailShape, local_rdma_pair, real_ports, simulated};
use crate::liveness::LIVENESS_DEADLINE;
use crate::local::{local_lifelines, local_pair, local_sockets};
use crate::message::Kind;
use crate::rendezvous::encrypt_for_tests;
use crate::topology::Topology;

/// How a link is made.
#[derive(Clone, Copy)]
enum Make {
    SharedMemory,
    Tcp,
    StripedTcp,
    EncryptedTcp,
    /// Over ports that only exist in memory, as if reliable, and under Apple's limits.
    SimulatedRdma,
    SimulatedAppleRdma,
    /// Over the ports of this machine.
    Rdma,
}

impl Make {
    const ALL: [Self; 6] = [
        Self::SharedMemory,
        Self::Tcp,
        Self::StripedTcp,
        Self::EncryptedTcp,
        Self::SimulatedRdma,
        Self::SimulatedAppleRdma,
    ];

    /// Both ends of one.
    fn ends(self) -> (Box<dyn Link>, Box<dyn Link>) {
        let (connections, encrypted) = match self {
            Self::SharedMemory => return local_pair(Transport::SharedMemory, 2).unwrap(),
            Self::Tcp => return local_pair(Transport::Tcp, 2).unwrap(),
            Self::StripedTcp => (3, false),
            Self::EncryptedTcp => (2, true),
            Self::SimulatedRdma => return simulated_rdma(RailShape::RELIABLE),
            Self::SimulatedAppleRdma => return simulated_rdma(RailShape::UNRELIABLE),
            Self::Rdma => return local_rdma_pair([0, 1], local_lifelines().unwrap()).unwrap(),
        };
        let channels =
            (0..connections).map(|_| if encrypted { encrypted_channels() } else { local_lifelines().unwrap() });
        let (ours, theirs): (Vec<_>, Vec<_>) = channels.unzip();
        (Box::new(TcpLink::new(ours)), Box::new(TcpLink::new(theirs)))
    }

    fn transport(self) -> Transport {
        match self {
            Self::SharedMemory => Transport::SharedMemory,
            Self::Tcp | Self::StripedTcp | Self::EncryptedTcp => Transport::Tcp,
            Self::SimulatedRdma | Self::SimulatedAppleRdma | Self::Rdma => Transport::Rdma,
        }
    }
}

impl fmt::Display for Make {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SharedMemory => "shared memory",
            Self::Tcp => "TCP",
            Self::StripedTcp => "striped TCP",
            Self::EncryptedTcp => "encrypted TCP",
            Self::SimulatedRdma => "simulated RDMA",
            Self::SimulatedAppleRdma => "simulated RDMA under Apple's limits",
            Self::Rdma => "RDMA",
        })
    }
}

/// Both ends of an encrypted connection.
fn encrypted_channels() -> (Channel, Channel) {
    let (acceptor, dialer) = local_sockets().unwrap();
    let by = Instant::now() + Duration::from_secs(10);
    encrypt_for_tests(acceptor, dialer, by)
}

fn simulated_rdma(shape: RailShape) -> (Box<dyn Link>, Box<dyn Link>) {
    let [a, b] = simulated::pair(shape, 2, &simulated::kind());
    (Box::new(a), Box::new(b))
}

/// Runs a test on every kind of link; or, where `FABRIC_TEST_RDMA` is set, over this machine's RDMA ports only.
fn for_each_kind(test: impl Fn(Make)) {
    if real_ports() {
        return test(Make::Rdma);
    }
    Make::ALL.into_iter().for_each(test);
}

/// Fails where a test took too long; except over RDMA ports, which a test only ever meets emulated.
fn check_time(make: Make, started: Instant, most: Duration) {
    let elapsed = started.elapsed();
    assert!(matches!(make, Make::Rdma) || elapsed < most, "{make}: {elapsed:?}");
}

/// Two ranks that are linked.
fn pair(make: Make) -> (Fabric, Fabric) {
    pair_of_generations(make, 1, 1)
}

fn pair_of_generations(make: Make, first: u32, second: u32) -> (Fabric, Fabric) {
    let (a, b) = make.ends();
    let (for_a, for_b) = local_lifelines().unwrap();
    let topology = Topology::one_host(2);
    let fabric = |rank, links, lifelines| {
        Fabric::from_links(rank, 1, links, lifelines, topology.clone(), LIVENESS_DEADLINE).unwrap()
    };
    let mut fabrics = (
        fabric(0, vec![None, Some(a)], vec![None, Some(for_a)]),
        fabric(1, vec![Some(b), None], vec![Some(for_b), None]),
    );
    // The lifelines stay those of one generation: what is tested is what data does.
    fabrics.0.peers.iter_mut().flatten().for_each(|peer| peer.begin_anew(first));
    fabrics.1.peers.iter_mut().flatten().for_each(|peer| peer.begin_anew(second));
    fabrics
}

/// Bytes that differ from place to place.
fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 + index / 251 + seed) as u8).collect()
}

#[test]
fn bytes_keep_their_order() {
    for_each_kind(|make| {
        let (mut a, mut b) = make.ends();
        let sent = pattern(3 << 20, 7);
        let expected = sent.clone();
        let writer = thread::spawn(move || {
            let mut at = 0;
            let mut step = 1;
            while at < sent.len() {
                // Portions of ever other sizes, in two parts.
                let portion = &sent[at..sent.len().min(at + step)];
                let (left, right) = portion.split_at(portion.len() / 3);
                let count = a.try_send(&[IoSlice::new(left), IoSlice::new(right)]).unwrap();
                if count == 0 {
                    a.rest(Interest { receive: false, send: true }, Duration::from_secs(5)).unwrap();
                }
                at += count;
                step = step * 7 % 100_003 + 1;
            }
            a
        });
        let mut received = vec![0; expected.len()];
        let mut at = 0;
        let mut step = 1;
        while at < received.len() {
            let end = received.len().min(at + step);
            let (left, right) = received[at..end].split_at_mut((end - at) / 2);
            let count = b.try_recv(&mut [IoSliceMut::new(left), IoSliceMut::new(right)]).unwrap();
            if count == 0 {
                b.rest(Interest { receive: true, send: false }, Duration::from_secs(5)).unwrap();
            }
            at += count;
            step = step * 5 % 70_001 + 1;
        }
        assert!(received == expected, "{make}");
        assert!(!b.is_readable().unwrap());
        drop(writer.join().unwrap());
    });
}

#[test]
fn messages_of_all_sizes_arrive() {
    for_each_kind(|make| {
        let (mut a, mut b) = pair(make);
        let sizes = [0, 1, 23, 24, 25, 4095, 4096, 65_536, 65_537, 1_048_575, 1_048_576, 1_048_577, 5 << 20];
        let echo = thread::spawn(move || {
            for size in sizes {
                let mut message = vec![0; size];
                b.recv(0, &mut message).unwrap();
                b.send(0, &message).unwrap();
            }
        });
        for size in sizes {
            let message = pattern(size, size);
            a.send(1, &message).unwrap();
            let mut back = vec![0; size];
            a.recv(1, &mut back).unwrap();
            assert!(back == message, "{size} bytes over {make}");
        }
        echo.join().unwrap();
    });
}

#[test]
fn small_messages_do_not_wait_for_their_receipt() {
    for_each_kind(|make| {
        let (mut a, mut b) = pair(make);
        for round in 0..20u8 {
            for index in 0..50u8 {
                a.send(1, &[round, index]).unwrap();
            }
            for index in 0..50u8 {
                assert!(b.wait_for(0, Duration::MAX).unwrap());
                let mut message = [0; 2];
                b.recv(0, &mut message).unwrap();
                assert_eq!(message, [round, index]);
            }
            assert!(!b.wait_for(0, Duration::ZERO).unwrap());
        }
    });
}

#[test]
fn a_sleeper_is_woken_up() {
    for_each_kind(|make| {
        let (mut a, mut b) = pair(make);
        a.set_spin(Duration::ZERO);
        b.set_spin(Duration::ZERO);
        let started = Instant::now();
        let rounds = 500;
        let echo = thread::spawn(move || {
            for _ in 0..rounds {
                let mut message = [0; 8];
                b.recv(0, &mut message).unwrap();
                b.send(0, &message).unwrap();
            }
        });
        for round in 0u64..rounds {
            a.send(1, &round.to_le_bytes()).unwrap();
            let mut message = [0; 8];
            a.recv(1, &mut message).unwrap();
            assert_eq!(u64::from_le_bytes(message), round);
        }
        echo.join().unwrap();
        // A lost wake-up costs 20 ms each time; some may be due to a busy machine.
        check_time(make, started, Duration::from_secs(4));
        assert!(a.waited() > Duration::ZERO && a.take_waited() > Duration::ZERO && a.waited() == Duration::ZERO);
    });
}

#[test]
fn a_lost_peer_is_noticed() {
    for_each_kind(|make| {
        // Asleep for lack of data, asleep for lack of room, and before the wait has begun.
        let waits: [fn(&mut Fabric) -> FabricError; 3] = [
            |fabric| fabric.recv(1, &mut [0; 8]).unwrap_err(),
            |fabric| fabric.send(1, &pattern(64 << 20, 1)).unwrap_err(),
            |fabric| fabric.wait_for(1, Duration::from_secs(20)).unwrap_err(),
        ];
        for wait in waits {
            for asleep in [true, false] {
                let (mut a, b) = pair(make);
                let (tell, told) = std::sync::mpsc::channel();
                let killer = thread::spawn(move || {
                    told.recv().unwrap();
                    if asleep {
                        thread::sleep(Duration::from_millis(30));
                    }
                    drop(b);
                });
                tell.send(()).unwrap();
                if !asleep {
                    killer.join().unwrap();
                }
                let started = Instant::now();
                let error = wait(&mut a);
                assert!(matches!(error, FabricError::PeerLost { rank: 1, .. }), "{make}: {error}");
                check_time(make, started, Duration::from_secs(3));
                let again = a.send(1, &[]).unwrap_err();
                assert_eq!(again.to_string(), error.to_string(), "a broken fabric stays broken");
            }
        }
    });
}

#[test]
fn last_words_are_heard() {
    for_each_kind(|make| {
        let (mut a, mut b) = pair(make);
        let words = pattern(10_000, 3);
        b.send(0, &words).unwrap();
        drop(b);
        let mut heard = vec![0; words.len()];
        a.recv(1, &mut heard).unwrap();
        assert_eq!(heard, words);
        assert!(matches!(a.recv(1, &mut heard), Err(FabricError::PeerLost { rank: 1, cause: Cause::Left })));
    });
}

#[test]
fn silence_ends_at_the_deadline() {
    for_each_kind(|make| {
        let (mut a, _b) = pair(make);
        let deadline = Duration::from_millis(100);
        a.set_deadline(deadline);
        let started = Instant::now();
        assert!(!a.wait_for(1, Duration::from_millis(30)).unwrap());
        let error = a.recv(1, &mut [0; 8]).unwrap_err();
        let FabricError::PeerLost { rank: 1, cause: Cause::Stalled(after) } = error else { panic!("{error}") };
        assert!(after >= deadline);
        check_time(make, started, Duration::from_secs(3));
    });
}

#[test]
fn large_exchanges_do_not_block_each_other() {
    for_each_kind(|make| {
        let (a, b) = pair(make);
        let length = (5 << 20) / 4;
        let run = |mut fabric: Fabric| {
            let rank = fabric.rank();
            let team = crate::Team::of_range(0..2, rank).unwrap();
            let parts = [0..length, length..2 * length];
            let mut buffer = vec![0f32; 2 * length];
            buffer[parts[rank].clone()].fill(rank as f32 + 1.0);
            for _ in 0..3 {
                buffer[parts[1 - rank].clone()].fill(0.0);
                fabric.all_gather(&team, 1, 2 * length, &parts, &mut buffer).unwrap();
                assert!(buffer[..length].iter().all(|&value| value == 1.0));
                assert!(buffer[length..].iter().all(|&value| value == 2.0));
            }
            // Nobody leaves before the others have all they need.
            fabric.barrier(&team).unwrap();
        };
        thread::scope(|scope| {
            scope.spawn(|| run(a));
            scope.spawn(|| run(b));
        });
    });
}

/// The view of this side and of rank 0.
fn mismatch(error: FabricError) -> (View, View) {
    let FabricError::Mismatch { rank: 0, ours, theirs, .. } = error else { panic!("{error}") };
    (ours, theirs)
}

#[test]
fn newer_generations_are_refused() {
    for_each_kind(|make| {
        let (mut a, mut b) = pair_of_generations(make, 6, 5);
        a.send(1, &[1, 2, 3]).unwrap();
        let (ours, theirs) = mismatch(b.recv(0, &mut [0; 3]).unwrap_err());
        assert_eq!((ours.generation, theirs.generation), (5, 6));
        assert_eq!((ours.length, theirs.length), (Some(3), Some(3)));
    });
}

/// Whatever is left over from before the group was formed anew, and however much of it comes at a time.
#[test]
fn older_generations_are_skipped() {
    for_each_kind(|make| {
        for length in [0, 3, 5000, 100_000] {
            let (mut a, mut b) = pair_of_generations(make, 4, 5);
            a.send(1, &pattern(length, 1)).unwrap();
            a.send(1, &[7; 3]).unwrap();
            a.peers.iter_mut().flatten().for_each(|peer| peer.begin_anew(5));
            a.send(1, &[1, 2, 3]).unwrap();
            a.send(1, &[4, 5]).unwrap();
            let (mut first, mut second) = ([0; 3], [0; 2]);
            b.recv(0, &mut first).unwrap();
            b.recv(0, &mut second).unwrap();
            assert_eq!((first, second), ([1, 2, 3], [4, 5]), "{length} bytes over {make}");
        }
    });
}

/// A sum is combined with what comes as it comes, which must not be remains of something else.
#[test]
fn older_generations_are_not_added_up() {
    for_each_kind(|make| {
        let (mut a, mut b) = pair_of_generations(make, 4, 5);
        a.send(1, &pattern(10_000, 1)).unwrap();
        a.peers.iter_mut().flatten().for_each(|peer| peer.begin_anew(5));
        thread::scope(|scope| {
            for fabric in [&mut a, &mut b] {
                scope.spawn(move || {
                    let team = crate::Team::of_range(0..2, fabric.rank()).unwrap();
                    let mut buffer = vec![fabric.rank() as f32 + 1.0; 9999];
                    fabric.all_reduce_sum(&team, &mut buffer).unwrap();
                    assert!(buffer.iter().all(|&number| number == 3.0));
                });
            }
        });
    });
}

#[test]
fn other_lengths_and_operations_are_refused() {
    for_each_kind(|make| {
        for length in [0, 2, 4, 100_000] {
            let (mut a, mut b) = pair(make);
            a.send(1, &[1, 2, 3]).unwrap();
            let (ours, theirs) = mismatch(b.recv(0, &mut vec![0; length]).unwrap_err());
            assert_eq!((ours.length, theirs.length), (Some(length as u64), Some(3)));
        }
        let (mut a, mut b) = pair(make);
        a.send(1, &[1, 2, 3]).unwrap();
        let team = crate::Team::of_range(0..2, 1).unwrap();
        let error = b.broadcast(&team, 0, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("broadcast of any length"), "{error}");
        assert!(error.to_string().contains("send of 3 bytes"), "{error}");
        let (ours, theirs) = mismatch(error);
        assert_eq!((ours.kind, theirs.kind), (Some(Kind::Broadcast), Some(Kind::Send)));
    });
}

#[test]
fn links_say_what_they_are() {
    for_each_kind(|make| {
        let (a, _b) = pair(make);
        assert_eq!(a.transport(1), Some(make.transport()));
        assert_eq!((a.transport(0), a.transport(2)), (None, None));
    });
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(if real_ports() { 4 } else { 32 }))]
    #[test]
    fn any_bytes_instead_of_a_message_are_an_error(bytes in proptest::collection::vec(proptest::num::u8::ANY, 32..200)) {
        for_each_kind(|make| {
            let (mut stranger, link) = make.ends();
            let (_stranger, lifeline) = local_lifelines().unwrap();
            let topology = Topology::one_host(2);
            let (links, lifelines) = (vec![Some(link), None], vec![Some(lifeline), None]);
            let mut fabric = Fabric::from_links(1, 1, links, lifelines, topology, LIVENESS_DEADLINE).unwrap();
            stranger.try_send(&[IoSlice::new(&bytes)]).unwrap();
            let team = crate::Team::of_range(0..2, 1).unwrap();
            let error = fabric.broadcast(&team, 0, &mut Vec::new()).unwrap_err();
            assert!(matches!(error, FabricError::Mismatch { rank: 0, .. }), "{error}");
        });
    }
}
