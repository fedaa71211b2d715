//! The tests that the collectives must pass over links of any kind.
//!
//! Each rank runs [`check_collectives`] on its own fabric, in a thread or a process of its own: what the others
//! contribute is known to it, so that it can tell by itself whether its results are what a single process would have
//! computed.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(dead_code, reason = "each test program uses some of these")]

use std::ops::Range;
use std::thread;
use std::time::Duration;

use fabric::{Fabric, Number, Operator, Team, Topology, Transport, Tuning, Wire, local_group_on};
use half::{bf16, f16};

/// Runs `rank` on each rank of a group of threads, and returns what it returns, by rank.
pub(crate) fn run<T: Send>(size: usize, transport: Transport, rank: impl Fn(Fabric, Team) -> T + Sync) -> Vec<T> {
    run_on(&Topology::one_host(size), transport, rank)
}

/// As [`run`], for ranks that believe to be on some topology.
pub(crate) fn run_on<T: Send>(
    topology: &Topology,
    transport: Transport,
    rank: impl Fn(Fabric, Team) -> T + Sync,
) -> Vec<T> {
    let size = topology.size();
    let fabrics = local_group_on(topology, transport).unwrap();
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

/// Cuts `0..width` into parts of different length, one of them empty where there are more than two.
pub(crate) fn uneven_parts(width: usize, members: usize) -> Vec<Range<usize>> {
    let bound = |member: usize| match member {
        0 => 0,
        _ if member == members => width,
        // The second part is empty.
        1 | 2 if members > 2 => width / 3,
        _ => width * member / members,
    };
    (0..members).map(|member| bound(member)..bound(member + 1)).collect()
}

/// A number for each element of each rank, whose sums depend on the order in which they are added.
pub(crate) fn number(rank: usize, index: usize) -> f32 {
    let hash = ((rank + 1) * 1_000_003 + index).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    (hash as f32 - 8e6) * [1.0, 1e-3, 37.0][index % 3]
}

/// What can be reduced, with its plain arithmetic.
pub(crate) trait Kind: Number + PartialEq + std::fmt::Debug + Send {
    /// Rounded from single precision.
    fn rounded(number: f32) -> Self;
    /// In single precision.
    fn single(self) -> f32;
}

impl Kind for f32 {
    fn rounded(number: f32) -> Self {
        number
    }
    fn single(self) -> f32 {
        self
    }
}

impl Kind for f16 {
    fn rounded(number: f32) -> Self {
        f16::from_f32(number / 16384.0)
    }
    fn single(self) -> f32 {
        self.to_f32()
    }
}

impl Kind for bf16 {
    fn rounded(number: f32) -> Self {
        bf16::from_f32(number)
    }
    fn single(self) -> f32 {
        self.to_f32()
    }
}

fn contribution<T: Kind>(rank: usize, length: usize) -> Vec<T> {
    (0..length).map(|index| T::rounded(number(rank, index))).collect()
}

/// What a single process computes. Half precision is not scaled a second time.
fn reference<T: Kind>(team: &Team, operator: Operator, length: usize, round: fn(f32) -> T) -> Vec<T> {
    let element = |index: usize| {
        let numbers = team.members().iter().map(|&rank| T::rounded(number(rank, index)).single());
        let folded = numbers.reduce(|folded, number| match operator {
            Operator::Max if folded >= number => folded,
            Operator::Max => number,
            _ => folded + number,
        });
        round(folded.unwrap())
    };
    (0..length).map(element).collect()
}

/// Bit for bit, which is more than equality of numbers.
fn assert_same<T: Kind>(found: &[T], expected: &[T], what: &str) {
    let same = bytemuck::cast_slice::<T, u8>(found) == bytemuck::cast_slice::<T, u8>(expected);
    if !same {
        let index = found.iter().zip(expected).position(|(a, b)| bytemuck::bytes_of(a) != bytemuck::bytes_of(b));
        let at = index.unwrap_or(usize::MAX);
        panic!("{what} of {}: element {at} is {:?} instead of {:?}", found.len(), found.get(at), expected.get(at));
    }
}

/// All collectives of the fabric's ranks, with all thresholds, for buffers of so many elements.
pub(crate) fn check_collectives(fabric: &mut Fabric, lengths: &[usize]) {
    let (size, rank) = (fabric.size(), fabric.rank());
    let usual = fabric.tuning();
    let everyone = Team::of_range(0..size, rank).unwrap();
    for tuning in tunings(usual) {
        fabric.set_tuning(tuning);
        for &length in lengths {
            check_team(fabric, &everyone, length);
        }
    }
    fabric.set_tuning(usual);
    check_teams_side_by_side(fabric, lengths);
    if size > 1 {
        check_messages(fabric, lengths);
    }
    check_begun_operations(fabric, &everyone, lengths);
    fabric.barrier(&everyone).unwrap();
}

/// Such that collectives go every way that they can.
pub(crate) fn tunings(usual: Tuning) -> Vec<Tuning> {
    let with = |change: fn(&mut Tuning)| {
        let mut tuning = usual;
        change(&mut tuning);
        tuning
    };
    vec![
        usual,
        with(|tuning| (tuning.pair_bytes_max, tuning.one_shot_bytes_max) = (0, 0)),
        with(|tuning| (tuning.chain_bytes_min, tuning.chunk_bytes) = (0, 1000)),
        with(|tuning| {
            (tuning.pair_bytes_max, tuning.one_shot_bytes_max, tuning.part_bytes) = (0, 0, 1500);
            (tuning.chain_bytes_min, tuning.star_bytes_max, tuning.chunk_bytes) = (usize::MAX, 100, 5000);
        }),
        with(|tuning| tuning.one_shot_bytes_max = usize::MAX),
    ]
}

pub(crate) fn check_team(fabric: &mut Fabric, team: &Team, length: usize) {
    check_reductions::<f32>(fabric, team, length, |number| number);
    check_reductions::<f16>(fabric, team, length, f16::from_f32);
    check_reductions::<bf16>(fabric, team, length, bf16::from_f32);
    check_compressed_reductions(fabric, team, length);
    check_gathers(fabric, team, length);
    check_all_to_all(fabric, team, length);
    for root in 0..team.len() {
        let message: Vec<u8> = (0..length).map(|index| (index * 7 + root) as u8).collect();
        let mut announced = if team.index() == root { message.clone() } else { vec![1; 3] };
        fabric.broadcast(team, root, &mut announced).unwrap();
        assert!(announced == message, "a broadcast of {length} bytes");
        let mut known = if team.index() == root { message.clone() } else { vec![1; length] };
        fabric.broadcast_into(team, root, &mut known).unwrap();
        assert!(known == message, "a broadcast of {length} bytes");
    }
    fabric.barrier(team).unwrap();
}

fn check_reductions<T: Kind>(fabric: &mut Fabric, team: &Team, length: usize, round: fn(f32) -> T) {
    for operator in [Operator::Sum, Operator::Max] {
        let expected = reference::<T>(team, operator, length, round);
        let own = contribution::<T>(fabric.rank(), length);
        let mut buffer = own.clone();
        fabric.all_reduce(team, operator, &mut buffer).unwrap();
        assert_same(&buffer, &expected, "an all_reduce");
        let parts = uneven_parts(length, team.len());
        let mut scattered = own.clone();
        fabric.reduce_scatter(team, operator, &parts, &mut scattered).unwrap();
        let mut wanted = own;
        let part = parts[team.index()].clone();
        wanted[part.clone()].copy_from_slice(&expected[part]);
        assert_same(&scattered, &wanted, "a reduce_scatter");
    }
}

fn check_compressed_reductions(fabric: &mut Fabric, team: &Team, length: usize) {
    let exact = reference::<f32>(team, Operator::Sum, length, |number| number);
    for (wire, precision) in [(Wire::Bf16, 2f32.powi(-7)), (Wire::Int8, 2f32.powi(-6))] {
        let mut buffer = contribution::<f32>(fabric.rank(), length);
        fabric.all_reduce_compressed(team, Operator::Sum, wire, &mut buffer).unwrap();
        let mut first = buffer.clone();
        fabric.broadcast_into(team, 0, &mut first).unwrap();
        assert_same(&buffer, &first, "a compressed all_reduce");
        // The largest numbers of a block decide how much its others lose.
        let tolerance = precision * 37.0 * 8e6 * team.len() as f32;
        assert!(buffer.iter().zip(&exact).all(|(found, exact)| (found - exact).abs() <= tolerance));
    }
}

fn check_gathers(fabric: &mut Fabric, team: &Team, length: usize) {
    let (rows, index) = (3, team.index());
    let parts = uneven_parts(length, team.len());
    let whole: Vec<f32> = (0..rows * length).map(|index| number(99, index)).collect();
    let only_own = |rows: usize| -> Vec<f32> {
        let is_own = |position: usize| parts[index].contains(&(position % length));
        (0..rows * length).map(|position| if is_own(position) { whole[position] } else { -1.0 }).collect()
    };
    let mut buffer = only_own(rows);
    fabric.all_gather(team, rows, length, &parts, &mut buffer).unwrap();
    assert_same(&buffer, &whole, "an all_gather");
    for root in 0..team.len() {
        let mut buffer = only_own(1);
        fabric.gather(team, root, &parts, &mut buffer).unwrap();
        let expected = if root == index { whole[..length].to_vec() } else { only_own(1) };
        assert_same(&buffer, &expected, "a gather");
    }
    let share = length / team.len();
    let mut buffer = vec![-1.0; share * team.len()];
    buffer[index * share..(index + 1) * share].copy_from_slice(&whole[index * share..(index + 1) * share]);
    fabric.all_gather_equal(team, &mut buffer).unwrap();
    assert_same(&buffer, &whole[..share * team.len()], "an all_gather of equal parts");
}

fn check_all_to_all(fabric: &mut Fabric, team: &Team, length: usize) {
    // What one member has for another.
    let message = |from: usize, to: usize, length: usize| -> Vec<f32> {
        (0..length).map(|index| number(from * 100 + to, index)).collect()
    };
    let (members, own) = (team.len(), team.index());
    let share = length / members;
    let from: Vec<f32> = (0..members).flat_map(|to| message(own, to, share)).collect();
    let mut to = vec![0.0; from.len()];
    fabric.all_to_all(team, &from, &mut to).unwrap();
    let expected: Vec<f32> = (0..members).flat_map(|from| message(from, own, share)).collect();
    assert_same(&to, &expected, "an all_to_all");

    let length_of = |from: usize, to: usize| (length * (from + 2 * to) / 7) % (length + 1);
    let in_a_row = |lengths: Vec<usize>| -> Vec<Range<usize>> {
        let ends = lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end)
        });
        ends.zip(&lengths).map(|(end, length)| end - length..end).collect()
    };
    let outgoing = in_a_row((0..members).map(|to| length_of(own, to)).collect());
    let incoming = in_a_row((0..members).map(|from| length_of(from, own)).collect());
    let from: Vec<f32> = (0..members).flat_map(|to| message(own, to, length_of(own, to))).collect();
    let mut to = vec![0.0; incoming.last().map_or(0, |last| last.end)];
    fabric.all_to_all_parts(team, &from, &outgoing, &mut to, &incoming).unwrap();
    let expected: Vec<f32> = (0..members).flat_map(|from| message(from, own, length_of(from, own))).collect();
    assert_same(&to, &expected, "an all_to_all of parts");
}

/// Two teams that know nothing of each other, the second of which counts its members backwards.
fn check_teams_side_by_side(fabric: &mut Fabric, lengths: &[usize]) {
    let (size, rank) = (fabric.size(), fabric.rank());
    let (first, second): (Vec<usize>, Vec<usize>) = (0..size).partition(|rank| rank % 3 != 1);
    let members = if first.contains(&rank) { first } else { second.into_iter().rev().collect() };
    let team = Team::new(members, rank).unwrap();
    for &length in lengths {
        check_team(fabric, &team, length);
    }
}

/// Around a ring, so that everyone sends before anyone receives.
fn check_messages(fabric: &mut Fabric, lengths: &[usize]) {
    let (size, rank) = (fabric.size(), fabric.rank());
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    for &length in lengths {
        let text = |rank: usize| -> Vec<u8> { (0..length).map(|index| (index * 13 + rank) as u8).collect() };
        let mut came = vec![0; length];
        if rank == 0 {
            fabric.send(next, &text(rank)).unwrap();
            fabric.recv(before, &mut came).unwrap();
        } else {
            fabric.recv(before, &mut came).unwrap();
            fabric.send(next, &text(rank)).unwrap();
        }
        assert!(came == text(before), "a message of {length} bytes");
    }
}

/// Operations that have begun are done in their order, in which others cannot interfere.
fn check_begun_operations(fabric: &mut Fabric, team: &Team, lengths: &[usize]) {
    for &length in lengths {
        let mut sums = contribution::<f32>(fabric.rank(), length);
        let mut largest = contribution::<bf16>(fabric.rank(), length);
        let mut message: Vec<u8> = if team.index() == 0 { vec![7; length] } else { vec![0; length] };
        let mut first = fabric.begin_all_reduce(team, Operator::Sum, &mut sums).unwrap();
        let second = fabric.begin_all_reduce(team, Operator::Max, &mut largest).unwrap();
        let mut third = fabric.begin_broadcast(team, 0, &mut message).unwrap();
        while !fabric.poll(&mut first).unwrap() {
            assert!(!fabric.poll(&mut third).unwrap(), "a later operation is done before an earlier one");
            assert!(fabric.barrier(team).is_err(), "another operation is done in between");
            thread::yield_now();
        }
        fabric.finish(second).unwrap();
        fabric.finish(third).unwrap();
        fabric.finish(first).unwrap();
        assert_same(&sums, &reference(team, Operator::Sum, length, |number| number), "an all_reduce that had begun");
        assert_same(&largest, &reference(team, Operator::Max, length, bf16::from_f32), "an all_reduce that had begun");
        assert!(message.iter().all(|&byte| byte == 7));
    }
}
