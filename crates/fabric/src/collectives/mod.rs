//! The operations of a fabric: those that return when they are done. [`begin`] has those that return at once.

mod begin;
mod operation;
mod prepare;
mod tune;

use std::ops::Range;

pub use self::operation::Operation;
use crate::element::{Element, Number, Operator, Wire};
use crate::error::{Cause, FabricError};
use crate::executor::{Opening, Run};
use crate::fabric::Fabric;
use crate::message::MAX_MESSAGE;
use crate::team::Team;

impl Fabric {
    /// Sends a message to one rank, which must receive one of the same length.
    ///
    /// # Errors
    /// [`FabricError::PeerLost`]; that it has been received is not known when this returns.
    pub fn send(&mut self, to: usize, message: &[u8]) -> Result<(), FabricError> {
        self.check_idle()?;
        let run = self.prepare_send(to, message)?;
        self.run(run)
    }

    /// Receives a message from one rank.
    ///
    /// # Errors
    /// [`FabricError::PeerLost`], or [`FabricError::Mismatch`] when the message has another length.
    pub fn recv(&mut self, from: usize, message: &mut [u8]) -> Result<(), FabricError> {
        self.check_idle()?;
        let run = self.prepare_recv(from, message)?;
        self.run(run)
    }

    /// Gives the root's message to all of the team. `root` is a position in the team. The others' vectors are resized.
    ///
    /// # Errors
    /// [`FabricError::PeerLost`], [`FabricError::Mismatch`], or [`FabricError::Invalid`] for a message of more than
    /// [`MAX_MESSAGE`] bytes.
    pub fn broadcast(&mut self, team: &Team, root: usize, message: &mut Vec<u8>) -> Result<(), FabricError> {
        self.check_idle()?;
        if team.index() == root {
            if message.len() > MAX_MESSAGE {
                return Err(FabricError::Invalid(format!(
                    "a broadcast of {} bytes; {MAX_MESSAGE} are possible",
                    message.len()
                )));
            }
            let run = self.prepare_message(team, root, message)?;
            return self.run(run);
        }
        let (mut header, from) = self.prepare_announcement(team, root)?;
        self.complete(&mut header)?;
        let announced = self.peer(from)?.announced().total.unwrap_or(u64::MAX);
        let length = usize::try_from(announced).ok().filter(|&length| length <= MAX_MESSAGE).ok_or_else(|| {
            let cause = Cause::corrupt(format!("it announced {announced} bytes; {MAX_MESSAGE} are possible"));
            let error = self.health.explain(FabricError::PeerLost { rank: from, cause });
            self.broken = Some(error.clone());
            error
        })?;
        message.resize(length, 0);
        let run = self.prepare_message(team, root, message)?.opening(Opening::Announced);
        self.run(run)
    }

    /// Gives the root's elements to all of the team, which know how many there are. `root` is a position in the team.
    ///
    /// # Errors
    /// [`FabricError::PeerLost`] or [`FabricError::Mismatch`].
    pub fn broadcast_into<T: Element>(
        &mut self,
        team: &Team,
        root: usize,
        elements: &mut [T],
    ) -> Result<(), FabricError> {
        self.check_idle()?;
        let run = self.prepare_broadcast(team, root, elements)?;
        self.run(run)
    }

    /// Completes a matrix of which each member of the team has some columns.
    ///
    /// `buffer` is `[rows, width]`, row by row. Member `i` has filled the columns `parts[i]` of every row; afterwards
    /// every member has all parts. Columns in no part stay as they are.
    ///
    /// # Errors
    /// [`FabricError::PeerLost`], [`FabricError::Mismatch`], or [`FabricError::Invalid`] when parts and buffer do not
    /// fit.
    pub fn all_gather<T: Element>(
        &mut self,
        team: &Team,
        rows: usize,
        width: usize,
        parts: &[Range<usize>],
        buffer: &mut [T],
    ) -> Result<(), FabricError> {
        self.check_idle()?;
        let run = self.prepare_all_gather(team, rows, width, parts, buffer)?;
        self.run(run)
    }

    /// As [`Fabric::all_gather`] for one row of equal parts: of `n` members, member `i` has filled the `i`th `n`th of
    /// the buffer.
    ///
    /// # Errors
    /// As for [`Fabric::all_gather`].
    pub fn all_gather_equal<T: Element>(&mut self, team: &Team, buffer: &mut [T]) -> Result<(), FabricError> {
        self.check_idle()?;
        let run = self.prepare_all_gather_equal(team, buffer)?;
        self.run(run)
    }

    /// As [`Fabric::all_gather`] for one row, where only the root needs the others' parts. `root` is a position in the
    /// team. The others' buffers stay as they are.
    ///
    /// # Errors
    /// As for [`Fabric::all_gather`].
    pub fn gather<T: Element>(
        &mut self,
        team: &Team,
        root: usize,
        parts: &[Range<usize>],
        buffer: &mut [T],
    ) -> Result<(), FabricError> {
        self.check_idle()?;
        let run = self.prepare_gather(team, root, parts, buffer)?;
        self.run(run)
    }

    /// Replaces each element by what the operator makes of that element of all members, taken in the team's order, so
    /// that all members hold the same bits afterwards, and the same that a single process would compute.
    ///
    /// # Errors
    /// [`FabricError::PeerLost`] or [`FabricError::Mismatch`].
    pub fn all_reduce<T: Number>(
        &mut self,
        team: &Team,
        operator: Operator,
        buffer: &mut [T],
    ) -> Result<(), FabricError> {
        self.check_idle()?;
        let run = self.prepare_all_reduce(team, operator, Wire::Exact, buffer)?;
        self.run(run)
    }

    /// [`Fabric::all_reduce`] of a sum.
    ///
    /// # Errors
    /// As for [`Fabric::all_reduce`].
    pub fn all_reduce_sum<T: Number>(&mut self, team: &Team, buffer: &mut [T]) -> Result<(), FabricError> {
        self.all_reduce(team, Operator::Sum, buffer)
    }

    /// As [`Fabric::all_reduce`], with contributions and results compressed on their way. All members hold the same
    /// bits afterwards.
    ///
    /// # Errors
    /// As for [`Fabric::all_reduce`].
    pub fn all_reduce_compressed(
        &mut self,
        team: &Team,
        operator: Operator,
        wire: Wire,
        buffer: &mut [f32],
    ) -> Result<(), FabricError> {
        self.check_idle()?;
        let run = self.prepare_all_reduce(team, operator, wire, buffer)?;
        self.run(run)
    }

    /// Replaces the elements `parts[i]` of member `i`'s buffer by what the operator makes of those elements of all
    /// members, taken in the team's order. The rest of the buffer stays as it is.
    ///
    /// # Errors
    /// [`FabricError::PeerLost`], [`FabricError::Mismatch`], or [`FabricError::Invalid`] when parts and buffer do not
    /// fit.
    pub fn reduce_scatter<T: Number>(
        &mut self,
        team: &Team,
        operator: Operator,
        parts: &[Range<usize>],
        buffer: &mut [T],
    ) -> Result<(), FabricError> {
        self.check_idle()?;
        let run = self.prepare_reduce_scatter(team, operator, parts, buffer)?;
        self.run(run)
    }

    /// Gives each member something else: of `n` members, member `i` gets the `i`th `n`th of everyone's `from`, and puts
    /// them into `to` in the team's order.
    ///
    /// # Errors
    /// [`FabricError::PeerLost`], [`FabricError::Mismatch`], or [`FabricError::Invalid`] when the buffers differ in
    /// length or cannot be shared out equally.
    pub fn all_to_all<T: Element>(&mut self, team: &Team, from: &[T], to: &mut [T]) -> Result<(), FabricError> {
        self.check_idle()?;
        let run = self.prepare_all_to_all(team, from, to)?;
        self.run(run)
    }

    /// As [`Fabric::all_to_all`] with parts of any length: member `i` gets `from_parts[i]` of this member's `from`, and
    /// what comes from it goes to `to_parts[i]` of `to`.
    ///
    /// # Errors
    /// As for [`Fabric::all_to_all`]; a [`FabricError::Mismatch`] where one member expects another length than the
    /// other one sends.
    pub fn all_to_all_parts<T: Element>(
        &mut self,
        team: &Team,
        from: &[T],
        from_parts: &[Range<usize>],
        to: &mut [T],
        to_parts: &[Range<usize>],
    ) -> Result<(), FabricError> {
        self.check_idle()?;
        let run = self.prepare_all_to_all_parts(team, from, from_parts, to, to_parts)?;
        self.run(run)
    }

    /// Returns when all members have called it.
    ///
    /// # Errors
    /// [`FabricError::PeerLost`] or [`FabricError::Mismatch`].
    pub fn barrier(&mut self, team: &Team) -> Result<(), FabricError> {
        self.check_idle()?;
        let run = self.prepare_barrier(team)?;
        self.run(run)
    }

    #[inline]
    fn run(&mut self, mut run: Run<'_>) -> Result<(), FabricError> {
        let result = self.complete(&mut run);
        self.scratch = run.into_scratch();
        result
    }

    /// Refuses what a broken fabric cannot do.
    pub(crate) fn check_usable(&self) -> Result<(), FabricError> {
        self.broken.clone().map_or_else(|| self.health.check(), Err)
    }

    /// Refuses what cannot be done now.
    fn check_idle(&self) -> Result<(), FabricError> {
        if self.begun.is_empty() {
            return Ok(());
        }
        self.check_usable()?;
        Err(FabricError::Invalid(format!(
            "{} operations have begun and are not done; finish them first, in the order in which they began",
            self.begun.len()
        )))
    }
}
