//! The operations of a fabric that return at once: each begins what the operation without `begin` does, and hands back
//! an [`Operation`] to move it on. They fail as that one does.

use std::ops::Range;

use super::Operation;
use crate::element::{Element, Number, Operator, Wire};
use crate::error::FabricError;
use crate::fabric::Fabric;
use crate::team::Team;

impl Fabric {
    /// Begins what [`Fabric::send`] does.
    ///
    /// # Errors
    /// See there.
    pub fn begin_send<'a>(&mut self, to: usize, message: &'a [u8]) -> Result<Operation<'a>, FabricError> {
        let run = self.prepare_send(to, message)?;
        self.begin(run)
    }

    /// Begins what [`Fabric::recv`] does.
    ///
    /// # Errors
    /// See there.
    pub fn begin_recv<'a>(&mut self, from: usize, message: &'a mut [u8]) -> Result<Operation<'a>, FabricError> {
        let run = self.prepare_recv(from, message)?;
        self.begin(run)
    }

    /// Begins what [`Fabric::broadcast_into`] does.
    ///
    /// # Errors
    /// See there.
    pub fn begin_broadcast<'a, T: Element>(
        &mut self,
        team: &Team,
        root: usize,
        elements: &'a mut [T],
    ) -> Result<Operation<'a>, FabricError> {
        let run = self.prepare_broadcast(team, root, elements)?;
        self.begin(run)
    }

    /// Begins what [`Fabric::all_gather`] does.
    ///
    /// # Errors
    /// See there.
    pub fn begin_all_gather<'a, T: Element>(
        &mut self,
        team: &Team,
        rows: usize,
        width: usize,
        parts: &[Range<usize>],
        buffer: &'a mut [T],
    ) -> Result<Operation<'a>, FabricError> {
        let run = self.prepare_all_gather(team, rows, width, parts, buffer)?;
        self.begin(run)
    }

    /// Begins what [`Fabric::all_gather_equal`] does.
    ///
    /// # Errors
    /// See there.
    pub fn begin_all_gather_equal<'a, T: Element>(
        &mut self,
        team: &Team,
        buffer: &'a mut [T],
    ) -> Result<Operation<'a>, FabricError> {
        let run = self.prepare_all_gather_equal(team, buffer)?;
        self.begin(run)
    }

    /// Begins what [`Fabric::gather`] does.
    ///
    /// # Errors
    /// See there.
    pub fn begin_gather<'a, T: Element>(
        &mut self,
        team: &Team,
        root: usize,
        parts: &[Range<usize>],
        buffer: &'a mut [T],
    ) -> Result<Operation<'a>, FabricError> {
        let run = self.prepare_gather(team, root, parts, buffer)?;
        self.begin(run)
    }

    /// Begins what [`Fabric::all_reduce`] does.
    ///
    /// # Errors
    /// See there.
    pub fn begin_all_reduce<'a, T: Number>(
        &mut self,
        team: &Team,
        operator: Operator,
        buffer: &'a mut [T],
    ) -> Result<Operation<'a>, FabricError> {
        let run = self.prepare_all_reduce(team, operator, Wire::Exact, buffer)?;
        self.begin(run)
    }

    /// Begins what [`Fabric::all_reduce_compressed`] does.
    ///
    /// # Errors
    /// See there.
    pub fn begin_all_reduce_compressed<'a>(
        &mut self,
        team: &Team,
        operator: Operator,
        wire: Wire,
        buffer: &'a mut [f32],
    ) -> Result<Operation<'a>, FabricError> {
        let run = self.prepare_all_reduce(team, operator, wire, buffer)?;
        self.begin(run)
    }

    /// Begins what [`Fabric::reduce_scatter`] does.
    ///
    /// # Errors
    /// See there.
    pub fn begin_reduce_scatter<'a, T: Number>(
        &mut self,
        team: &Team,
        operator: Operator,
        parts: &[Range<usize>],
        buffer: &'a mut [T],
    ) -> Result<Operation<'a>, FabricError> {
        let run = self.prepare_reduce_scatter(team, operator, parts, buffer)?;
        self.begin(run)
    }

    /// Begins what [`Fabric::all_to_all`] does.
    ///
    /// # Errors
    /// See there.
    pub fn begin_all_to_all<'a, T: Element>(
        &mut self,
        team: &Team,
        from: &'a [T],
        to: &'a mut [T],
    ) -> Result<Operation<'a>, FabricError> {
        let run = self.prepare_all_to_all(team, from, to)?;
        self.begin(run)
    }

    /// Begins what [`Fabric::all_to_all_parts`] does.
    ///
    /// # Errors
    /// See there.
    pub fn begin_all_to_all_parts<'a, T: Element>(
        &mut self,
        team: &Team,
        from: &'a [T],
        from_parts: &[Range<usize>],
        to: &'a mut [T],
        to_parts: &[Range<usize>],
    ) -> Result<Operation<'a>, FabricError> {
        let run = self.prepare_all_to_all_parts(team, from, from_parts, to, to_parts)?;
        self.begin(run)
    }

    /// Begins what [`Fabric::barrier`] does.
    ///
    /// # Errors
    /// See there.
    pub fn begin_barrier(&mut self, team: &Team) -> Result<Operation<'static>, FabricError> {
        let run = self.prepare_barrier(team)?;
        self.begin(run)
    }
}
