//! Collectives give every rank what a single process would compute.
#![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]

use std::ops::Range;
use std::thread;
use std::time::Duration;

use fabric::{Fabric, FabricError, Team, Transport, local_group};
use proptest::prelude::*;

const TRANSPORTS: [Transport; 2] = [Transport::SharedMemory, Transport::Tcp];

/// Runs `rank` on each rank of a group, and returns what it returns, by rank.
fn run<T: Send>(size: usize, transport: Transport, rank: impl Fn(Fabric, Team) -> T + Sync) -> Vec<T> {
    let fabrics = local_group(size, transport).unwrap();
    thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> = fabrics
            .into_iter()
            .map(|mut fabric| {
                fabric.set_deadline(Duration::from_secs(20));
                let team = Team::of_range(0..size, fabric.rank()).unwrap();
                scope.spawn(move || rank(fabric, team))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
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

#[test]
fn different_collectives_are_a_mismatch() {
    for transport in TRANSPORTS {
        let errors = run(2, transport, |mut fabric, all| {
            if fabric.rank() == 0 {
                fabric.all_reduce_sum(&all, &mut [0.0; 8]).err()
            } else {
                fabric.all_gather(&all, 1, 8, &[0..4, 4..8], &mut [0.0; 8]).err()
            }
        });
        // One side may see the other leave before it sees its message.
        assert!(errors.iter().any(|error| matches!(error, Some(FabricError::Mismatch { .. }))), "{errors:?}");
        assert!(errors.iter().all(Option::is_some));
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
