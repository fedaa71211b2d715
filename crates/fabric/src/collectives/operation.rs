//! Operations that go on while the caller does something else.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::error::FabricError;
use crate::executor::{Progress, Run};
use crate::fabric::Fabric;

/// Numbers the operations of this process, so that none is taken for one of another fabric.
static TICKETS: AtomicU64 = AtomicU64::new(0);

/// A collective that has begun. It borrows the caller's buffer until it is done.
///
/// It moves on in [`Fabric::poll`], [`Fabric::poll_at`] and [`Fabric::finish`] only: nothing happens behind the caller's
/// back. Operations are done in the order in which they began: as long as one is not done, those that began later
/// wait, and operations that block are refused. One that is dropped before it is done can never be, and the fabric is of
/// no use any more.
#[must_use = "an operation that is not finished keeps all later ones from being done"]
pub struct Operation<'a> {
    ticket: u64,
    /// `None` when it is done.
    run: Option<Run<'a>>,
    /// Since when nothing has moved, as [`Fabric::poll_at`] was told.
    idle_since: Option<Instant>,
    /// The link that broke, as long as the reason is not known.
    failed: Option<FabricError>,
}

impl Operation<'_> {
    /// Whether the buffer holds the result.
    pub fn is_done(&self) -> bool {
        self.run.is_none()
    }
}

impl Fabric {
    pub(super) fn begin<'a>(&mut self, run: Run<'a>) -> Result<Operation<'a>, FabricError> {
        let ticket = TICKETS.fetch_add(1, Ordering::Relaxed);
        self.begun.push_back(ticket);
        let mut operation = Operation { ticket, run: Some(run), idle_since: None, failed: None };
        self.poll(&mut operation)?;
        Ok(operation)
    }

    /// Moves on what can be moved on without waiting. True when the operation is done.
    ///
    /// # Errors
    /// [`FabricError::PeerLost`] or [`FabricError::Mismatch`], as for the operation when it blocks, but for a rank that is
    /// only slow: that is an error of [`Fabric::poll_at`] and [`Fabric::finish`].
    pub fn poll(&mut self, operation: &mut Operation<'_>) -> Result<bool, FabricError> {
        Ok(self.try_advance(operation)? == Progress::Done)
    }

    /// As [`Fabric::poll`], for callers that tell the time: when nothing has moved for longer than the fabric's deadline,
    /// that is an error.
    ///
    /// # Errors
    /// As for [`Fabric::poll`], and [`FabricError::PeerLost`] for a rank that is silent.
    pub fn poll_at(&mut self, operation: &mut Operation<'_>, now: Instant) -> Result<bool, FabricError> {
        let progress = self.try_advance(operation)?;
        if progress != Progress::Idle || !self.is_first(operation) {
            operation.idle_since = None;
            return Ok(progress == Progress::Done);
        }
        let idle = now.saturating_duration_since(*operation.idle_since.get_or_insert(now));
        if idle <= self.patience.deadline {
            return Ok(false);
        }
        let error = match operation.failed.take() {
            Some(error) => self.health.report(error),
            None => self.health.blame(self.open_peers().map(|(rank, _)| rank), idle),
        };
        self.broken = Some(error.clone());
        Err(error)
    }

    /// Waits until the operation is done.
    ///
    /// # Errors
    /// As for the operation when it blocks, and [`FabricError::Invalid`] when one that began earlier is not done.
    pub fn finish(&mut self, mut operation: Operation<'_>) -> Result<(), FabricError> {
        if self.poll(&mut operation)? {
            return Ok(());
        }
        if !self.is_first(&operation) {
            return Err(FabricError::Invalid(
                "an operation is to be finished before one that began earlier on the same fabric".to_owned(),
            ));
        }
        if let Some(error) = operation.failed {
            let error = self.health.explain(error);
            self.broken = Some(error.clone());
            return Err(error);
        }
        if let Some(run) = &mut operation.run {
            self.complete(run)?;
        }
        self.retire(&mut operation);
        Ok(())
    }

    fn try_advance(&mut self, operation: &mut Operation<'_>) -> Result<Progress, FabricError> {
        if operation.is_done() {
            return Ok(Progress::Done);
        }
        self.check_usable()?;
        let is_first = self.is_first(operation);
        let Some(run) = operation.run.as_mut().filter(|_| is_first && operation.failed.is_none()) else {
            return Ok(Progress::Idle);
        };
        match self.advance(run) {
            Ok(Progress::Done) => {
                self.retire(operation);
                Ok(Progress::Done)
            }
            Ok(Progress::Moved) => Ok(Progress::Moved),
            Ok(Progress::Idle) => {
                (0..self.size()).for_each(|rank| self.look_after(rank));
                Ok(Progress::Idle)
            }
            Err(error) => self.fail(operation, error),
        }
    }

    /// A link that broke is explained by the monitor, which takes a moment: until then, nothing moves.
    fn fail(&mut self, operation: &mut Operation<'_>, error: FabricError) -> Result<Progress, FabricError> {
        if let FabricError::PeerLost { rank, cause } = &error
            && self.health.suspect(*rank, cause)
        {
            operation.failed = Some(error);
            return Ok(Progress::Idle);
        }
        let error = self.health.report(error);
        self.broken = Some(error.clone());
        Err(error)
    }

    fn is_first(&self, operation: &Operation<'_>) -> bool {
        self.begun.front() == Some(&operation.ticket)
    }

    /// Makes room for the next operation.
    fn retire(&mut self, operation: &mut Operation<'_>) {
        self.begun.pop_front();
        if let Some(run) = operation.run.take() {
            self.scratch = run.into_scratch();
        }
    }
}
