//! Collectives give every rank what a single process would compute.
#![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]

mod common;

use std::ops::Range;
use std::time::{Duration, Instant};

use fabric::{Fabric, FabricError, Kind, Operator, Team, Topology, Transport};
use half::f16;
use proptest::prelude::*;

use self::common::{check_collectives, run, run_on};

const TRANSPORTS: [Transport; 2] = [Transport::SharedMemory, Transport::Tcp];
/// Elements: none, few, odd numbers, more than a message.
const LENGTHS: [usize; 8] = [0, 1, 2, 7, 64, 1000, 4097, 40_009];

#[test]
fn collectives_over_shared_memory() {
    for size in 1..=8 {
        run(size, Transport::SharedMemory, |mut fabric, _| check_collectives(&mut fabric, &LENGTHS));
    }
}

#[test]
fn collectives_over_tcp() {
    for size in 1..=8 {
        run(size, Transport::Tcp, |mut fabric, _| check_collectives(&mut fabric, &LENGTHS));
    }
}

#[test]
fn collectives_on_other_topologies() {
    let topologies = [
        Topology::chain(3),
        Topology::chain(4),
        Topology::ring(5),
        Topology::hosts(&[2, 2], &[(0, 1)]),
        Topology::hosts(&[3, 1, 2], &[(0, 1), (1, 2)]),
    ];
    for (topology, transport) in topologies.iter().zip(TRANSPORTS.into_iter().cycle()) {
        run_on(topology, transport, |mut fabric, _| check_collectives(&mut fabric, &[0, 5, 3000, 40_009]));
    }
}

/// 64 MiB and one element: much more than any link carries at a time.
#[test]
fn large_buffers_are_reduced() {
    let length = (64 << 20) / size_of::<f32>() + 1;
    for (size, transport) in [(2, Transport::SharedMemory), (3, Transport::SharedMemory), (2, Transport::Tcp)] {
        let values = |rank: usize, index: usize| (index % 1000 + rank * 7) as f32 * 0.37;
        run(size, transport, |mut fabric, team| {
            let mut buffer: Vec<f32> = (0..length).map(|index| values(fabric.rank(), index)).collect();
            fabric.all_reduce(&team, Operator::Sum, &mut buffer).unwrap();
            let sum = |index: usize| (1..size).fold(values(0, index), |sum, rank| sum + values(rank, index));
            let expected: Vec<f32> = (0..1000).map(sum).collect();
            assert!(
                buffer.iter().enumerate().all(|(index, value)| value.to_bits() == expected[index % 1000].to_bits())
            );
        });
    }
}

#[test]
fn thresholds_are_found_and_the_same_on_all_ranks() {
    let topologies = [Topology::one_host(1), Topology::one_host(2), Topology::one_host(3), Topology::chain(3)];
    for (topology, transport) in topologies.iter().flat_map(|it| TRANSPORTS.map(|transport| (it, transport))) {
        let tunings = run_on(topology, transport, |mut fabric, team| {
            let tuning = fabric.tune(Duration::from_millis(20)).unwrap();
            assert_eq!(tuning, fabric.tuning());
            for length in [1, 3000, 300_000] {
                let mut buffer = vec![fabric.rank() as f32 + 1.0; length];
                fabric.all_reduce_sum(&team, &mut buffer).unwrap();
                let sum = (1..=fabric.size()).sum::<usize>() as f32;
                assert!(buffer.iter().all(|&value| value == sum));
            }
            tuning
        });
        assert!(tunings.iter().all(|tuning| *tuning == tunings[0]), "{tunings:?}");
    }
}

/// A value for each element of each rank, of which no two are equal by accident.
fn value(rank: usize, index: usize) -> f32 {
    (rank * 1_000_003 + index * 7919) as f32 * 0.37 - 11.0
}

/// Cuts `0..width` at the given places.
fn parts_of(width: usize, size: usize, cuts: &[usize]) -> Vec<Range<usize>> {
    let mut bounds: Vec<usize> = cuts[..size - 1].iter().map(|cut| cut % (width + 1)).collect();
    bounds.extend([0, width]);
    bounds.sort_unstable();
    bounds.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

fn check_all_gather(size: usize, transport: Transport, rows: usize, width: usize, parts: &[Range<usize>]) {
    let mut expected = vec![f32::NAN; rows * width];
    for (rank, part) in parts.iter().enumerate() {
        for row in 0..rows {
            for column in part.clone() {
                expected[row * width + column] = value(rank, row * width + column);
            }
        }
    }
    let results = run(size, transport, |mut fabric, team| {
        let mut buffer = vec![f32::NAN; rows * width];
        for row in 0..rows {
            for column in parts[team.index()].clone() {
                buffer[row * width + column] = value(team.index(), row * width + column);
            }
        }
        fabric.all_gather(&team, rows, width, parts, &mut buffer).unwrap();
        fabric.barrier(&team).unwrap();
        buffer
    });
    for result in results {
        assert!(result.iter().map(|value| value.to_bits()).eq(expected.iter().map(|value| value.to_bits())));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn all_gather_fills_every_part(
        size in prop::sample::select(vec![1usize, 2, 3, 5]),
        tcp: bool,
        rows in 0usize..40,
        width in 0usize..200,
        cuts in prop::collection::vec(any::<usize>(), 4),
    ) {
        check_all_gather(size, TRANSPORTS[usize::from(tcp)], rows, width, &parts_of(width, size, &cuts));
    }

    #[test]
    fn all_reduce_adds_in_order_of_rank(
        size in prop::sample::select(vec![1usize, 2, 3, 5]),
        tcp: bool,
        length in 0usize..5000,
    ) {
        let expected: Vec<f32> = (0..length)
            .map(|index| (1..size).fold(value(0, index), |sum, rank| sum + value(rank, index)))
            .collect();
        let results = run(size, TRANSPORTS[usize::from(tcp)], |mut fabric, team| {
            let mut buffer: Vec<f32> = (0..length).map(|index| value(team.index(), index)).collect();
            fabric.all_reduce_sum(&team, &mut buffer).unwrap();
            fabric.barrier(&team).unwrap();
            buffer
        });
        for result in results {
            prop_assert_eq!(&result, &expected);
        }
    }

    #[test]
    fn gather_fills_the_root(
        size in prop::sample::select(vec![1usize, 2, 3, 5]),
        tcp: bool,
        width in 0usize..3000,
        root: usize,
        cuts in prop::collection::vec(any::<usize>(), 4),
    ) {
        let (root, parts) = (root % size, parts_of(width, size, &cuts));
        let results = run(size, TRANSPORTS[usize::from(tcp)], |mut fabric, team| {
            let mut buffer = vec![0.0; width];
            buffer[parts[team.index()].clone()].fill(team.index() as f32 + 1.0);
            fabric.gather(&team, root, &parts, &mut buffer).unwrap();
            fabric.barrier(&team).unwrap();
            buffer
        });
        for (rank, result) in results.iter().enumerate() {
            for (member, part) in parts.iter().enumerate() {
                let expected = if rank == root || member == rank { member as f32 + 1.0 } else { 0.0 };
                prop_assert!(result[part.clone()].iter().all(|&value| value == expected));
            }
        }
    }
}

#[test]
fn large_gathers_do_not_block() {
    for transport in TRANSPORTS {
        for size in [2, 3, 5] {
            let width = 700_001;
            check_all_gather(size, transport, 2, width, &parts_of(width, size, &[100_000, 123_456, 500_000, 500_001]));
        }
    }
}

#[test]
fn broadcasts_carry_any_length() {
    for transport in TRANSPORTS {
        for size in [1, 2, 3, 5] {
            run(size, transport, |mut fabric, team| {
                for root in 0..size {
                    for length in [0, 1, 300, 70_000, 3 << 20] {
                        let original: Vec<u8> = (0..length).map(|index| (index * 7 + root) as u8).collect();
                        let mut message = if team.index() == root { original.clone() } else { vec![9; 77] };
                        fabric.broadcast(&team, root, &mut message).unwrap();
                        assert!(message == original);
                    }
                }
                fabric.barrier(&team).unwrap();
            });
        }
    }
}

#[test]
fn teams_work_side_by_side() {
    for transport in TRANSPORTS {
        run(5, transport, |mut fabric, all| {
            let rank = fabric.rank();
            // The second team counts its members backwards.
            let members = if rank < 2 { vec![0, 1] } else { vec![4, 3, 2] };
            let team = Team::new(members, rank).unwrap();
            for round in 0..50 {
                let mut sum = [rank as f32];
                fabric.all_reduce_sum(&team, &mut sum).unwrap();
                assert_eq!(sum[0], if rank < 2 { 1.0 } else { 9.0 });
                let parts: Vec<_> = (0..team.len()).map(|index| index..index + 1).collect();
                let mut buffer = vec![0.0; team.len()];
                buffer[team.index()] = rank as f32;
                fabric.all_gather(&team, 1, team.len(), &parts, &mut buffer).unwrap();
                assert!(buffer.iter().zip(team.members()).all(|(&value, &member)| value == member as f32));
                if round % 10 == 0 {
                    let mut total = [1.0];
                    fabric.all_reduce_sum(&all, &mut total).unwrap();
                    assert_eq!(total[0], 5.0);
                }
            }
            fabric.barrier(&all).unwrap();
        });
    }
}

#[test]
fn stages_pass_on_what_they_have() {
    for transport in TRANSPORTS {
        run(3, transport, |mut fabric, all| {
            let rank = fabric.rank();
            for step in 0..20u8 {
                let mut message = vec![step; 10_000];
                if rank > 0 {
                    message.fill(0);
                    fabric.recv(rank - 1, &mut message).unwrap();
                }
                assert!(message.iter().all(|&byte| byte == step));
                if rank < 2 {
                    fabric.send(rank + 1, &message).unwrap();
                }
            }
            fabric.barrier(&all).unwrap();
        });
    }
}

#[test]
fn a_rank_that_leaves_is_named() {
    for transport in TRANSPORTS {
        run(3, transport, |mut fabric, all| {
            fabric.barrier(&all).unwrap();
            if fabric.rank() == 1 {
                return;
            }
            let error = fabric.barrier(&all).unwrap_err();
            // The other survivor may have seen the loss first, and have left in turn.
            assert!(matches!(error, FabricError::PeerLost { rank, .. } if rank != fabric.rank()), "{error}");
        });
    }
}

/// Who polls tells the time, too.
#[test]
fn a_rank_that_does_not_move_is_given_up_by_the_callers_clock() {
    for transport in TRANSPORTS {
        run(2, transport, |mut fabric, all| {
            if fabric.rank() == 1 {
                // Alive, and it hears of what the other one thinks of it.
                while fabric.wait_for(0, Duration::from_millis(5)).is_ok() {}
                return;
            }
            let mut buffer = [1f32; 4];
            let mut operation = fabric.begin_all_reduce(&all, Operator::Sum, &mut buffer).unwrap();
            let start = Instant::now();
            assert!(!fabric.poll_at(&mut operation, start).unwrap());
            assert!(!fabric.poll_at(&mut operation, start + Duration::from_secs(20)).unwrap());
            let error = fabric.poll_at(&mut operation, start + Duration::from_secs(21)).unwrap_err();
            assert!(matches!(error, FabricError::PeerLost { rank: 1, .. }), "{error}");
            assert!(fabric.poll(&mut operation).is_err() && !operation.is_done());
            assert!(fabric.finish(operation).is_err() && fabric.barrier(&all).is_err());
        });
    }
}

#[test]
fn a_rank_that_leaves_ends_what_has_begun() {
    for transport in TRANSPORTS {
        run(3, transport, |mut fabric, all| {
            fabric.barrier(&all).unwrap();
            if fabric.rank() == 1 {
                return;
            }
            let mut buffer = [1f32; 4];
            let started = Instant::now();
            let mut operation = fabric.begin_all_reduce(&all, Operator::Sum, &mut buffer);
            let error = loop {
                match operation.as_mut().map_err(|error| error.clone()).and_then(|it| fabric.poll(it)) {
                    Ok(done) => assert!(!done && started.elapsed() < Duration::from_secs(10)),
                    Err(error) => break error,
                }
                std::thread::yield_now();
            };
            // The other survivor may have seen the loss first, and have left in turn.
            assert!(matches!(error, FabricError::PeerLost { rank, .. } if rank != fabric.rank()), "{error}");
        });
    }
}

/// One rank of a team calls something else.
type Call = fn(&mut Fabric, &Team) -> Result<(), FabricError>;

#[test]
fn ranks_that_do_not_agree_are_all_told() {
    let sum: Call = |fabric, team| fabric.all_reduce(team, Operator::Sum, &mut [0f32; 8]);
    let others: [(Call, Kind); 6] = [
        (|fabric, team| fabric.all_reduce(team, Operator::Max, &mut [0f32; 8]), Kind::AllReduce),
        (|fabric, team| fabric.all_reduce(team, Operator::Sum, &mut [0f32; 9]), Kind::AllReduce),
        (|fabric, team| fabric.all_reduce(team, Operator::Sum, &mut [f16::ZERO; 16]), Kind::AllReduce),
        (|fabric, team| fabric.all_reduce(team, Operator::Sum, &mut [0f32; 0]), Kind::AllReduce),
        (|fabric, team| fabric.barrier(team), Kind::Barrier),
        (|fabric, team| fabric.all_to_all(team, &[0f32; 12], &mut [0f32; 12]), Kind::AllToAll),
    ];
    for (transport, size) in [(Transport::SharedMemory, 2), (Transport::Tcp, 3), (Transport::SharedMemory, 4)] {
        for (other, kind) in others {
            let errors = run(size, transport, |mut fabric, team| {
                let started = Instant::now();
                let odd = fabric.rank() == size - 1;
                let mut result = if odd { other(&mut fabric, &team) } else { sum(&mut fabric, &team) };
                // Who needs nothing of the one that differs may only learn of it by and by.
                while result.is_ok() && started.elapsed() < Duration::from_secs(10) {
                    result = fabric.barrier(&team);
                }
                result.unwrap_err()
            });
            for error in errors {
                let FabricError::Mismatch { rank, seen_by, ours, theirs } = error else { panic!("{error}") };
                assert!(rank == size - 1 || seen_by == size - 1, "rank {rank} as seen by {seen_by}");
                assert!([ours.kind, theirs.kind].contains(&Some(kind)), "{ours} and {theirs}");
                assert_ne!(ours, theirs);
            }
        }
    }
}

#[test]
fn unusable_requests_are_refused_without_harm() {
    run(2, Transport::Auto, |mut fabric, all| {
        let other = 1 - fabric.rank();
        let invalid = |result: Result<(), FabricError>| assert!(matches!(result, Err(FabricError::Invalid(_))));
        invalid(fabric.send(fabric.rank(), &[1]));
        invalid(fabric.send(2, &[1]));
        invalid(fabric.broadcast(&all, 2, &mut Vec::new()));
        invalid(fabric.barrier(&Team::of_range(0..2, other).unwrap()));
        invalid(fabric.barrier(&Team::of_range(0..3, fabric.rank()).unwrap()));
        for parts in [vec![0..4], vec![0..4, 4..9], vec![0..4, Range { start: 8, end: 4 }]] {
            invalid(fabric.all_gather(&all, 1, 8, &parts, &mut [0.0; 8]));
        }
        invalid(fabric.all_gather(&all, 2, 8, &[0..4, 4..8], &mut [0.0; 8]));
        invalid(fabric.all_gather(&all, usize::MAX, 8, &[0..4, 4..8], &mut [0.0; 8]));
        fabric.barrier(&all).unwrap();
    });
    assert!(Team::new(vec![0, 1, 0], 1).is_err());
    assert!(Team::new(vec![0, 1], 2).is_err());
}

#[test]
fn a_rank_alone_needs_nobody() {
    let mut fabric = Fabric::solo();
    let team = Team::of_range(0..1, 0).unwrap();
    let mut buffer = [1.0, 2.0];
    fabric.all_gather(&team, 1, 2, &[0..2], &mut buffer).unwrap();
    fabric.all_reduce_sum(&team, &mut buffer).unwrap();
    fabric.gather(&team, 0, &[0..2], &mut buffer).unwrap();
    fabric.broadcast(&team, 0, &mut vec![1]).unwrap();
    fabric.barrier(&team).unwrap();
    assert_eq!(buffer, [1.0, 2.0]);
    assert_eq!((fabric.rank(), fabric.size(), fabric.waited()), (0, 1, Duration::ZERO));
}

/// Messages around a ring of ranks, each longer than links take in: more of them under way than the ring has room for, before
/// the first rank receives one. It would wait for ever for room if it did not read ahead.
#[test]
fn a_rank_that_reads_ahead_lets_a_full_ring_go_on() {
    const BYTES: usize = 12 << 20;
    const COUNT: usize = 4;
    for (size, transport) in [(2, Transport::SharedMemory), (3, Transport::SharedMemory), (4, Transport::Tcp)] {
        run(size, transport, |mut fabric, team| {
            fabric.set_deadline(Duration::from_secs(20));
            let (rank, last) = (fabric.rank(), size - 1);
            let mut message = vec![0; BYTES];
            if rank == 0 {
                fabric.set_read_ahead(last, COUNT * BYTES).unwrap();
                for number in 0..COUNT {
                    message.fill(number as u8 + 1);
                    fabric.send(1, &message).unwrap();
                }
            }
            for number in 0..COUNT {
                fabric.recv((rank + last) % size, &mut message).unwrap();
                assert!(message.iter().all(|&byte| byte == number as u8 + 1));
                if rank > 0 {
                    fabric.send((rank + 1) % size, &message).unwrap();
                }
            }
            fabric.barrier(&team).unwrap();
        });
    }
}
