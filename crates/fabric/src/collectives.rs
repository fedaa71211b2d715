//! The operations of a fabric.

use std::ops::Range;

use crate::error::{Cause, FabricError};
use crate::exchange::Memory;
use crate::fabric::Fabric;
use crate::layout::Layout;
use crate::message::{Kind, MAX_MESSAGE};
use crate::team::Team;

/// Bytes of an `f32`.
const F32_BYTES: usize = 4;

impl Fabric {
    /// Sends a message to one rank, which must receive one of the same length.
    ///
    /// # Errors
    /// [`FabricError::PeerLost`]; that it has been received is not known when this returns.
    pub fn send(&mut self, to: usize, message: &[u8]) -> Result<(), FabricError> {
        self.check_usable()?;
        self.post_send(to, Kind::Send, Layout::contiguous(0..message.len()))?;
        self.drive(Memory::Apart { from: message, to: &mut [] })
    }

    /// Receives a message from one rank.
    ///
    /// # Errors
    /// [`FabricError::PeerLost`], or [`FabricError::Mismatch`] when the message has another length.
    pub fn recv(&mut self, from: usize, message: &mut [u8]) -> Result<(), FabricError> {
        self.check_usable()?;
        self.post_recv(from, Kind::Send, Layout::contiguous(0..message.len()))?;
        self.drive(Memory::Shared(message))
    }

    /// Gives the root's message to all of the team. `root` is a position in the team. The others' vectors are resized.
    ///
    /// # Errors
    /// [`FabricError::PeerLost`], [`FabricError::Mismatch`], or [`FabricError::Invalid`] for a message of more than
    /// [`MAX_MESSAGE`] bytes.
    pub fn broadcast(&mut self, team: &Team, root: usize, message: &mut Vec<u8>) -> Result<(), FabricError> {
        self.check_team(team)?;
        let root_rank = member(team, root)?;
        if team.index() == root {
            if message.len() > MAX_MESSAGE {
                return Err(FabricError::Invalid(format!(
                    "a broadcast of {} bytes; {MAX_MESSAGE} are possible",
                    message.len()
                )));
            }
            for (_, rank) in others(team) {
                self.post_send(rank, Kind::Broadcast, Layout::contiguous(0..message.len()))?;
            }
            return self.drive(Memory::Apart { from: message, to: &mut [] });
        }
        self.post_recv_header(root_rank, Kind::Broadcast)?;
        self.drive(Memory::Shared(&mut []))?;
        let announced = self.announced(root_rank)?;
        let length = usize::try_from(announced).ok().filter(|&length| length <= MAX_MESSAGE).ok_or_else(|| {
            let cause = Cause::corrupt(format!("it announced {announced} bytes; {MAX_MESSAGE} are possible"));
            let error = FabricError::PeerLost { rank: root_rank, cause };
            self.broken = Some(error.clone());
            error
        })?;
        message.resize(length, 0);
        self.post_recv_body(root_rank, Layout::contiguous(0..length))?;
        self.drive(Memory::Shared(message))
    }

    /// Completes a matrix of which each member of the team has some columns.
    ///
    /// `buffer` is `[rows, width]`, row by row. Member `i` has filled the columns `parts[i]` of every row; afterwards
    /// every member has all parts. Columns in no part stay as they are.
    ///
    /// # Errors
    /// [`FabricError::PeerLost`], [`FabricError::Mismatch`], or [`FabricError::Invalid`] when parts and buffer do not
    /// fit.
    pub fn all_gather(
        &mut self,
        team: &Team,
        rows: usize,
        width: usize,
        parts: &[Range<usize>],
        buffer: &mut [f32],
    ) -> Result<(), FabricError> {
        self.check_team(team)?;
        check_parts(team, rows, width, parts, buffer)?;
        let layout = |index: usize| columns(rows, width, &parts[index]);
        for (index, rank) in others(team) {
            self.post_send(rank, Kind::AllGather, layout(team.index()))?;
            self.post_recv(rank, Kind::AllGather, layout(index))?;
        }
        self.drive(Memory::Shared(bytemuck::cast_slice_mut(buffer)))
    }

    /// As [`Fabric::all_gather`] for one row, where only the root needs the others' parts. `root` is a position in the
    /// team. The others' buffers stay as they are.
    ///
    /// # Errors
    /// As for [`Fabric::all_gather`].
    pub fn gather(
        &mut self,
        team: &Team,
        root: usize,
        parts: &[Range<usize>],
        buffer: &mut [f32],
    ) -> Result<(), FabricError> {
        self.check_team(team)?;
        let width = buffer.len();
        check_parts(team, 1, width, parts, buffer)?;
        let root_rank = member(team, root)?;
        if team.index() == root {
            for (index, rank) in others(team) {
                self.post_recv(rank, Kind::Gather, columns(1, width, &parts[index]))?;
            }
        } else {
            self.post_send(root_rank, Kind::Gather, columns(1, width, &parts[team.index()]))?;
        }
        self.drive(Memory::Shared(bytemuck::cast_slice_mut(buffer)))
    }

    /// Replaces each element by the sum of that element over all members, added in the team's order, so that all
    /// members hold the same bits afterwards.
    ///
    /// Each member sums one part of the buffer, and then the parts are gathered.
    ///
    /// # Errors
    /// [`FabricError::PeerLost`] or [`FabricError::Mismatch`].
    pub fn all_reduce_sum(&mut self, team: &Team, buffer: &mut [f32]) -> Result<(), FabricError> {
        self.check_team(team)?;
        let (size, index) = (team.len(), team.index());
        let part = |index: usize| buffer_part(buffer.len(), size, index);
        let own = part(index);
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(own.len() * size, 0.0);
        for (index, rank) in others(team) {
            self.post_send(rank, Kind::AllReduce, columns(1, buffer.len(), &part(index)))?;
            let place = index * own.len()..(index + 1) * own.len();
            self.post_recv(rank, Kind::AllReduce, columns(1, scratch.len(), &place))?;
        }
        let (from, to) = (bytemuck::cast_slice(buffer), bytemuck::cast_slice_mut(&mut scratch));
        self.drive(Memory::Apart { from, to })?;
        scratch[index * own.len()..(index + 1) * own.len()].copy_from_slice(&buffer[own.clone()]);
        for (offset, sum) in buffer[own.clone()].iter_mut().enumerate() {
            // The first addend is taken as it is, so that a negative zero survives.
            let addends = (1..size).map(|index| scratch[index * own.len() + offset]);
            *sum = addends.fold(scratch[offset], |sum, addend| sum + addend);
        }
        self.scratch = scratch;
        for (index, rank) in others(team) {
            let layout = |part: &Range<usize>| columns(1, buffer.len(), part);
            self.post_send(rank, Kind::AllReduce, layout(&own))?;
            self.post_recv(rank, Kind::AllReduce, layout(&buffer_part(buffer.len(), size, index)))?;
        }
        self.drive(Memory::Shared(bytemuck::cast_slice_mut(buffer)))
    }

    /// Returns when all members have called it.
    ///
    /// # Errors
    /// [`FabricError::PeerLost`] or [`FabricError::Mismatch`].
    pub fn barrier(&mut self, team: &Team) -> Result<(), FabricError> {
        self.check_team(team)?;
        for (_, rank) in others(team) {
            self.post_send(rank, Kind::Barrier, Layout::EMPTY)?;
            self.post_recv(rank, Kind::Barrier, Layout::EMPTY)?;
        }
        self.drive(Memory::Shared(&mut []))
    }

    pub(crate) fn check_usable(&self) -> Result<(), FabricError> {
        self.broken.clone().map_or_else(|| self.health.check(), Err)
    }

    fn check_team(&self, team: &Team) -> Result<(), FabricError> {
        self.check_usable()?;
        let fits = team.members()[team.index()] == self.rank && team.members().iter().all(|&rank| rank < self.size());
        if fits {
            return Ok(());
        }
        let (members, index) = (team.members(), team.index());
        Err(FabricError::Invalid(format!(
            "team {members:?} seen by its member {index} does not fit rank {} of {}",
            self.rank,
            self.size()
        )))
    }
}

/// Position and rank of all members but this one.
fn others(team: &Team) -> impl Iterator<Item = (usize, usize)> {
    team.members().iter().copied().enumerate().filter(|(index, _)| *index != team.index())
}

fn member(team: &Team, index: usize) -> Result<usize, FabricError> {
    team.members()
        .get(index)
        .copied()
        .ok_or_else(|| FabricError::Invalid(format!("there is no member {index} in a team of {}", team.len())))
}

fn columns(rows: usize, width: usize, part: &Range<usize>) -> Layout {
    Layout::columns(rows, width * F32_BYTES, part.start * F32_BYTES..part.end * F32_BYTES)
}

/// The part of a buffer that a member sums up.
fn buffer_part(length: usize, size: usize, index: usize) -> Range<usize> {
    let bound = |index: usize| length / size * index + (length % size).min(index);
    bound(index)..bound(index + 1)
}

fn check_parts(
    team: &Team,
    rows: usize,
    width: usize,
    parts: &[Range<usize>],
    buffer: &[f32],
) -> Result<(), FabricError> {
    let fits = parts.len() == team.len()
        && rows.checked_mul(width) == Some(buffer.len())
        && parts.iter().all(|part| part.start <= part.end && part.end <= width);
    if fits {
        return Ok(());
    }
    Err(FabricError::Invalid(format!(
        "parts {parts:?} of {rows} rows of {width} do not fit a team of {} and a buffer of {}",
        team.len(),
        buffer.len()
    )))
}
