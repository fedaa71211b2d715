//! What ranks do with each other: random collectives, whose results must be those of a single process, bit by bit.

use super::process::Handle;
use super::random::Random;
use crate::element::Operator;
use crate::error::FabricError;
use crate::fabric::Fabric;
use crate::team::Team;

/// Elements of most operations.
const ELEMENTS_MAX: usize = 600;

/// Does one operation. All ranks that draw from the same numbers do the same one; `dissents` makes this rank do something
/// else.
pub(super) async fn operate(
    handle: &Handle,
    fabric: &mut Fabric,
    random: &mut Random,
    dissents: bool,
) -> Result<(), FabricError> {
    let (kind, salt) = (random.below(6), random.below(1000));
    let count = random.below(ELEMENTS_MAX);
    let members = members(fabric.size(), random);
    let root = random.below(members.len());
    if dissents {
        let all = Team::of_range(0..fabric.size(), fabric.rank())?;
        // Of a size that nothing else has.
        return all_reduce(handle, fabric, &all, ELEMENTS_MAX + 1, salt).await;
    }
    if !members.contains(&fabric.rank()) {
        return Ok(());
    }
    let team = Team::new(members, fabric.rank())?;
    match kind {
        0 => {
            let operation = fabric.begin_barrier(&team)?;
            handle.complete(fabric, operation).await
        }
        1 => broadcast(handle, fabric, &team, root, count).await,
        2 => all_gather(handle, fabric, &team, count).await,
        3 => all_to_all(handle, fabric, &team, count / 4).await,
        _ => all_reduce(handle, fabric, &team, count, salt).await,
    }
}

/// Mostly all ranks, sometimes some of them in any order.
fn members(size: usize, random: &mut Random) -> Vec<usize> {
    let mut members: Vec<usize> = (0..size).collect();
    if random.is_one_in(4) {
        for index in (1..size).rev() {
            members.swap(index, random.below(index + 1));
        }
        members.truncate(1 + random.below(size));
    }
    members
}

fn value(rank: usize, index: usize, salt: usize) -> f32 {
    let bits = (rank as u32 * 977 + index as u32 + 31 * salt as u32).wrapping_mul(2_654_435_761);
    (bits as i32) as f32 * 1.0e-6
}

/// Sums or maxima of all members.
pub(super) async fn all_reduce(
    handle: &Handle,
    fabric: &mut Fabric,
    team: &Team,
    count: usize,
    salt: usize,
) -> Result<(), FabricError> {
    let rank = fabric.rank();
    let mut buffer: Vec<f32> = (0..count).map(|index| value(rank, index, salt)).collect();
    let operator = if salt.is_multiple_of(3) { Operator::Max } else { Operator::Sum };
    let operation = fabric.begin_all_reduce(team, operator, &mut buffer)?;
    handle.complete(fabric, operation).await?;
    for (index, result) in buffer.into_iter().enumerate() {
        let plain = team.members().iter().map(|&rank| value(rank, index, salt)).reduce(|a, b| match operator {
            Operator::Max => a.max(b),
            _ => a + b,
        });
        assert_eq!(Some(result.to_bits()), plain.map(f32::to_bits), "element {index} of {count} at rank {rank}");
    }
    Ok(())
}

async fn broadcast(
    handle: &Handle,
    fabric: &mut Fabric,
    team: &Team,
    root: usize,
    count: usize,
) -> Result<(), FabricError> {
    let expected: Vec<f32> = (0..count).map(|index| value(root, index, count)).collect();
    let mut buffer = if team.index() == root { expected.clone() } else { vec![0.0; count] };
    let operation = fabric.begin_broadcast(team, root, &mut buffer)?;
    handle.complete(fabric, operation).await?;
    assert_eq!(buffer, expected);
    Ok(())
}

async fn all_gather(handle: &Handle, fabric: &mut Fabric, team: &Team, count: usize) -> Result<(), FabricError> {
    let bound = |index: usize| index * index * count / (team.len() * team.len());
    let parts: Vec<_> = (0..team.len()).map(|index| bound(index)..bound(index + 1)).collect();
    let width = bound(team.len());
    let mut buffer = vec![-1.0; width];
    buffer[parts[team.index()].clone()].fill(team.index() as f32);
    let operation = fabric.begin_all_gather(team, 1, width, &parts, &mut buffer)?;
    handle.complete(fabric, operation).await?;
    for (index, part) in parts.into_iter().enumerate() {
        assert!(buffer[part].iter().all(|&element| element == index as f32));
    }
    Ok(())
}

async fn all_to_all(handle: &Handle, fabric: &mut Fabric, team: &Team, each: usize) -> Result<(), FabricError> {
    let (size, index) = (team.len(), team.index());
    let from: Vec<f32> = (0..size * each).map(|at| value(index, at, each)).collect();
    let mut to = vec![0.0; size * each];
    let operation = fabric.begin_all_to_all(team, &from, &mut to)?;
    handle.complete(fabric, operation).await?;
    for (at, element) in to.into_iter().enumerate() {
        assert_eq!(element, value(at / each, index * each + at % each, each));
    }
    Ok(())
}
