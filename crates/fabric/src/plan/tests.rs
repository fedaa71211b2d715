//! Plans of whole teams, run in memory on any topology, against a single process.

use std::ops::Range;

use half::{bf16, f16};
use proptest::prelude::*;

use super::choose::{Algorithm, all_reduce};
use super::interpreter::{run, small_tuning};
use super::reduce::Reduction;
use super::*;
use crate::element::{ElementType, Wire};
use crate::message::{Kind, Tags};
use crate::topology::Topology;
use crate::topology::tests::connected;

/// A team on a topology, and dice.
#[derive(Debug, Clone)]
struct Case {
    topology: Topology,
    members: Vec<usize>,
    dice: Vec<usize>,
}

impl Case {
    fn len(&self) -> usize {
        self.members.len()
    }

    /// Runs the request with every member's buffer, as the dice decide.
    fn run(&self, mains: Vec<Vec<u8>>, plan: impl Fn(&Seen<'_>) -> Plan) -> Vec<Vec<u8>> {
        let mut dice = self.dice.iter().cycle();
        let links_have_room = self.dice[0].is_multiple_of(2);
        run(&self.topology, &self.members, mains, plan, |sides| dice.next().unwrap() % sides, links_have_room)
    }

    fn run_request(&self, mains: Vec<Vec<u8>>, request: &Request<'_>) -> Vec<Vec<u8>> {
        self.run(mains, |seen| plan(seen, request, &small_tuning()))
    }

    /// Cuts a range into parts of any length, one a member.
    fn parts(&self, width: usize) -> Vec<Range<usize>> {
        let mut bounds: Vec<usize> = self.dice[..self.len() - 1].iter().map(|dice| dice % (width + 1)).collect();
        bounds.extend([0, width]);
        bounds.sort_unstable();
        bounds.windows(2).map(|pair| pair[0]..pair[1]).collect()
    }
}

fn cases() -> impl Strategy<Value = Case> {
    (connected(1usize..9), any::<u64>(), prop::collection::vec(any::<usize>(), 50)).prop_map(
        |(topology, pick, dice)| {
            // A team of some of the ranks in any order.
            let mut members: Vec<usize> = (0..topology.size()).collect();
            for index in (1..members.len()).rev() {
                members.swap(index, dice[index] % (index + 1));
            }
            members.truncate(1 + pick as usize % topology.size());
            Case { topology, members, dice }
        },
    )
}

/// The shapes that plans were made for, with all ranks in order.
fn shapes() -> Vec<Topology> {
    vec![
        Topology::full_mesh(2),
        Topology::chain(3),
        Topology::chain(4),
        Topology::ring(5),
        Topology::full_mesh(4),
        Topology::one_host(8),
        Topology::hosts(&[2, 2], &[(0, 1)]),
        Topology::hosts(&[3, 1, 2], &[(0, 1), (1, 2)]),
    ]
}

/// Any number, of any size, and now and then an odd one.
fn number(member: usize, index: usize, seed: usize) -> f32 {
    let hash = (member * 1_000_003 + index * 7919 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24;
    match hash % 97 {
        0 => f32::NAN,
        1 => f32::INFINITY,
        2 => f32::NEG_INFINITY,
        3 => -0.0,
        4 => 0.0,
        _ => (hash as u32 as f32 - 2e9) * 2f32.powi(hash as i32 % 7 - 31),
    }
}

fn contributions(case: &Case, element: ElementType, elements: usize) -> Vec<Vec<u8>> {
    let seed = case.dice[0];
    let encode = |number: f32| -> Vec<u8> {
        match element {
            ElementType::F16 => f16::from_f32(number).to_le_bytes().to_vec(),
            ElementType::Bf16 => bf16::from_f32(number).to_le_bytes().to_vec(),
            _ => number.to_le_bytes().to_vec(),
        }
    };
    let buffer = |member: usize| (0..elements).flat_map(|index| encode(number(member, index, seed))).collect();
    (0..case.len()).map(buffer).collect()
}

/// What one process computes: one element after the other, one member after the other.
fn reference(operator: Operator, element: ElementType, contributions: &[Vec<u8>]) -> Vec<u8> {
    let bytes = element.bytes();
    let decode = |bytes: &[u8]| match element {
        ElementType::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        ElementType::Bf16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        _ => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
    };
    let mut result = Vec::new();
    for start in (0..contributions[0].len()).step_by(bytes) {
        let numbers: Vec<f32> = contributions.iter().map(|buffer| decode(&buffer[start..start + bytes])).collect();
        if numbers.len() == 1 {
            result.extend_from_slice(&contributions[0][start..start + bytes]);
            continue;
        }
        let mut folded = numbers[0];
        for &number in &numbers[1..] {
            folded = match operator {
                Operator::Sum => folded + number,
                Operator::Max if folded >= number || folded.is_nan() => folded,
                Operator::Max => number,
            };
        }
        let folded = if folded.is_nan() { f32::NAN } else { folded };
        match element {
            ElementType::F16 => result.extend(f16::from_f32(folded).to_le_bytes()),
            ElementType::Bf16 => result.extend(bf16::from_f32(folded).to_le_bytes()),
            _ => result.extend(folded.to_le_bytes()),
        }
    }
    result
}

const ELEMENTS: [ElementType; 3] = [ElementType::F32, ElementType::F16, ElementType::Bf16];
const OPERATORS: [Operator; 2] = [Operator::Sum, Operator::Max];
const ALGORITHMS: [Algorithm; 4] = [Algorithm::Pair, Algorithm::OneShot, Algorithm::Parts, Algorithm::Chain];

fn check_all_reduce(case: &Case, tags: Tags, elements: usize) {
    let request = Request::flat(tags, elements);
    let reduction = Reduction::of(&request).unwrap();
    let buffers = contributions(case, tags.element, elements);
    let expected = reference(tags.operator.unwrap(), tags.element, &buffers);
    for algorithm in ALGORITHMS {
        if case.len() == 1 || (algorithm == Algorithm::Pair) && case.len() != 2 {
            continue;
        }
        let results = case.run(buffers.clone(), |seen| all_reduce(seen, &reduction, algorithm, &small_tuning()));
        for result in results {
            assert!(result == expected, "{algorithm:?} of {elements} elements, {case:?}");
        }
    }
    for result in case.run_request(buffers, &request) {
        assert!(result == expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_way_of_reducing_gives_the_same_bits(
        case in cases(),
        element in prop::sample::select(ELEMENTS.to_vec()),
        operator in prop::sample::select(OPERATORS.to_vec()),
        elements in prop_oneof![0usize..5, 0usize..2000],
    ) {
        let tags = Tags { operator: Some(operator), ..Tags::moving(Kind::AllReduce, element) };
        check_all_reduce(&case, tags, elements);
    }

    #[test]
    fn compressed_reductions_are_equal_everywhere(case in cases(), bf16: bool, elements in 0usize..1500) {
        let wire = if bf16 { Wire::Bf16 } else { Wire::Int8 };
        let tags = Tags { operator: Some(Operator::Sum), wire, ..Tags::moving(Kind::AllReduce, ElementType::F32) };
        let reduction = Reduction::of(&Request::flat(tags, elements)).unwrap();
        let buffers = contributions(&case, ElementType::F32, elements);
        if case.len() > 1 {
            let run = |algorithm| case.run(buffers.clone(), |seen| all_reduce(seen, &reduction, algorithm, &small_tuning()));
            let (one_shot, parts) = (run(Algorithm::OneShot), run(Algorithm::Parts));
            prop_assert!(one_shot.iter().chain(&parts).all(|result| *result == one_shot[0]));
        }
    }

    #[test]
    fn reduce_scatter_leaves_each_its_part(
        case in cases(),
        element in prop::sample::select(ELEMENTS.to_vec()),
        elements in 0usize..1500,
    ) {
        let tags = Tags { operator: Some(Operator::Sum), ..Tags::moving(Kind::ReduceScatter, element) };
        let parts = case.parts(elements);
        let request = Request { parts: &parts, ..Request::flat(tags, elements) };
        let buffers = contributions(&case, element, elements);
        let expected = reference(Operator::Sum, element, &buffers);
        let results = case.run_request(buffers.clone(), &request);
        for (member, result) in results.iter().enumerate() {
            let bytes = element.bytes();
            let own = parts[member].start * bytes..parts[member].end * bytes;
            prop_assert!(result[own.clone()] == expected[own.clone()]);
            prop_assert!(result[..own.start] == buffers[member][..own.start]);
            prop_assert!(result[own.end..] == buffers[member][own.end..]);
        }
    }

    #[test]
    fn gathers_fill_every_part(case in cases(), rows in 0usize..6, width in 0usize..300, root: usize, to_all: bool) {
        let parts = case.parts(width);
        let root = root % case.len();
        let rows = if to_all { rows } else { 1 };
        let kind = if to_all { Kind::AllGather } else { Kind::Gather };
        let tags = Tags::moving(kind, ElementType::F16);
        let request = Request { root, rows, parts: &parts, ..Request::flat(tags, width) };
        let owner = |column: usize| parts.iter().position(|part| part.contains(&column));
        let buffer = |member: Option<usize>| -> Vec<u8> {
            let value = |row: usize, column: usize| match (member, owner(column)) {
                (Some(member), Some(owner)) if member != owner => 0xffff,
                _ => (row * width + column) as u16,
            };
            let elements = (0..rows).flat_map(|row| (0..width).map(move |column| (row, column)));
            elements.flat_map(|(row, column)| value(row, column).to_le_bytes()).collect()
        };
        let buffers: Vec<_> = (0..case.len()).map(|member| buffer(Some(member))).collect();
        let results = case.run_request(buffers.clone(), &request);
        for (member, result) in results.iter().enumerate() {
            let full = to_all || member == root;
            let expected = if full { buffer(None) } else { buffers[member].clone() };
            prop_assert!(*result == expected);
        }
    }

    #[test]
    fn broadcasts_reach_all(case in cases(), root: usize, bytes in 0usize..3000) {
        let root = root % case.len();
        let request = Request { root, ..Request::flat(Tags::moving(Kind::Broadcast, ElementType::Bytes), bytes) };
        let message: Vec<u8> = (0..bytes).map(|index| (index * 7 + root) as u8).collect();
        let buffers = (0..case.len()).map(|member| if member == root { message.clone() } else { vec![9; bytes] });
        for result in case.run_request(buffers.collect(), &request) {
            prop_assert!(result == message);
        }
    }

    #[test]
    fn everyone_meets_at_a_barrier(case in cases()) {
        let request = Request::flat(Tags::moving(Kind::Barrier, ElementType::Bytes), 0);
        case.run_request(vec![Vec::new(); case.len()], &request);
    }
}

#[test]
fn plans_suit_the_shapes_that_they_were_made_for() {
    for (topology, first) in shapes().into_iter().flat_map(|it| [(it.clone(), 0), (it, 1)]) {
        let members: Vec<usize> = (0..topology.size()).collect();
        let case = Case { topology, members, dice: (first..50).map(|index| index * 31 % 17).collect() };
        for element in ELEMENTS {
            for operator in OPERATORS {
                let tags = Tags { operator: Some(operator), ..Tags::moving(Kind::AllReduce, element) };
                for elements in [0, 1, 63, 64, 65, 1000, 40_001] {
                    check_all_reduce(&case, tags, elements);
                }
            }
        }
    }
}

#[test]
fn neighbours_of_a_chain_speak_to_neighbours_only() {
    let topology = Topology::chain(5);
    let members = [0, 1, 2, 3, 4];
    let tags = Tags { operator: Some(Operator::Sum), ..Tags::moving(Kind::AllReduce, ElementType::F32) };
    let parts: Vec<_> = (0..5).map(|index| index * 1000..(index + 1) * 1000).collect();
    let requests = [
        Request::flat(tags, 100_000),
        Request { parts: &parts, ..Request::flat(Tags::moving(Kind::AllGather, ElementType::F32), 5000) },
        Request { root: 2, ..Request::flat(Tags::moving(Kind::Broadcast, ElementType::Bytes), 100_000) },
    ];
    for (request, index) in requests.iter().flat_map(|request| members.map(|index| (request, index))) {
        let plan = plan(&Seen { topology: &topology, members: &members, index }, request, &Tuning::default());
        let messages = plan.rounds.iter().flat_map(|round| round.sends.iter().chain(&round.receives));
        for message in messages {
            assert!(topology.is_direct(index, message.rank), "{request:?}");
        }
    }
}

#[test]
fn large_groups_meet_in_few_rounds() {
    let topology = Topology::full_mesh(37);
    let members: Vec<usize> = (0..37).collect();
    let request = Request::flat(Tags::moving(Kind::Barrier, ElementType::Bytes), 0);
    let case = Case { topology: topology.clone(), members: members.clone(), dice: vec![3, 1, 4, 1, 5] };
    case.run_request(vec![Vec::new(); 37], &request);
    let plan = plan(&Seen { topology: &topology, members: &members, index: 5 }, &request, &Tuning::default());
    assert_eq!(plan.rounds.len(), 6);
}
