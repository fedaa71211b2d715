//! Checks what callers ask for and gets the plan for it.

use std::ops::Range;
use std::sync::Arc;

use crate::element::{Element, ElementType, Number, Operator, Wire};
use crate::error::FabricError;
use crate::executor::{Opening, Run};
use crate::fabric::Fabric;
use crate::layout::Layout;
use crate::memory::{Main, Scratch};
use crate::message::{Kind, Tags};
use crate::plan::{Buffer, Message, Plan, Request, Round, Seen};
use crate::team::Team;

impl Fabric {
    pub(super) fn prepare_send<'a>(&mut self, to: usize, message: &'a [u8]) -> Result<Run<'a>, FabricError> {
        let plan = self.single_message(to, message.len(), |round| &mut round.sends)?;
        let main = Main::Apart { from: message, to: &mut [] };
        Ok(self.single_run(plan, message.len(), main))
    }

    pub(super) fn prepare_recv<'a>(&mut self, from: usize, message: &'a mut [u8]) -> Result<Run<'a>, FabricError> {
        let plan = self.single_message(from, message.len(), |round| &mut round.receives)?;
        Ok(self.single_run(plan, message.len(), Main::Shared(message)))
    }

    /// A plan of one message. Its memory is that of the one before, which is done as a rule.
    fn single_message(
        &mut self,
        rank: usize,
        length: usize,
        messages: fn(&mut Round) -> &mut Vec<Message>,
    ) -> Result<Arc<Plan>, FabricError> {
        self.check_usable()?;
        self.peer(rank)?;
        let mut plan = self.single.take().unwrap_or_default();
        if Arc::get_mut(&mut plan).is_none() {
            plan = Arc::default();
        }
        if let Some(plan) = Arc::get_mut(&mut plan) {
            plan.rounds.resize_with(1, Round::default);
            let round = &mut plan.rounds[0];
            round.sends.clear();
            round.receives.clear();
            messages(round).push(Message::new(rank, Buffer::Main, Layout::contiguous(0..length)));
        }
        self.single = Some(Arc::clone(&plan));
        Ok(plan)
    }

    fn single_run<'a>(&mut self, plan: Arc<Plan>, length: usize, main: Main<'a>) -> Run<'a> {
        let tags = Tags::moving(Kind::Send, ElementType::Bytes);
        Run::new(plan, tags, length, main, std::mem::take(&mut self.scratch))
    }

    /// Receives the header of a broadcast's first message, and nothing else. Returns the rank that it comes from, too.
    pub(super) fn prepare_announcement(
        &mut self,
        team: &Team,
        root: usize,
    ) -> Result<(Run<'static>, usize), FabricError> {
        self.check_team(team)?;
        check_root(team, root)?;
        let parent = self.seen(team).parent(root, team.index()).unwrap_or(root);
        let from = team.members()[parent];
        let plan = self.single_message(from, 0, |round| &mut round.receives)?;
        let tags = Tags::moving(Kind::Broadcast, ElementType::Bytes);
        let run = Run::new(plan, tags, 0, Main::Shared(&mut []), Scratch::default());
        Ok((run.opening(Opening::Announcement), from))
    }

    /// A broadcast of a length that only the root knew.
    pub(super) fn prepare_message<'a>(
        &mut self,
        team: &Team,
        root: usize,
        message: &'a mut [u8],
    ) -> Result<Run<'a>, FabricError> {
        check_root(team, root)?;
        let tags = Tags::moving(Kind::Broadcast, ElementType::Bytes);
        let request = Request { root, rows: 0, ..Request::flat(tags, message.len()) };
        self.prepare(team, &request, Main::Shared(message))
    }

    pub(super) fn prepare_broadcast<'a, T: Element>(
        &mut self,
        team: &Team,
        root: usize,
        elements: &'a mut [T],
    ) -> Result<Run<'a>, FabricError> {
        check_root(team, root)?;
        let request = Request { root, ..Request::flat(Tags::moving(Kind::Broadcast, T::TYPE), elements.len()) };
        self.prepare(team, &request, shared(elements))
    }

    pub(super) fn prepare_all_gather<'a, T: Element>(
        &mut self,
        team: &Team,
        rows: usize,
        width: usize,
        parts: &[Range<usize>],
        buffer: &'a mut [T],
    ) -> Result<Run<'a>, FabricError> {
        check_parts(team, rows, width, parts, buffer.len())?;
        let request = Request { rows, parts, ..Request::flat(Tags::moving(Kind::AllGather, T::TYPE), width) };
        self.prepare(team, &request, shared(buffer))
    }

    pub(super) fn prepare_all_gather_equal<'a, T: Element>(
        &mut self,
        team: &Team,
        buffer: &'a mut [T],
    ) -> Result<Run<'a>, FabricError> {
        check_equal(team, buffer.len())?;
        let request = Request::flat(Tags::moving(Kind::AllGather, T::TYPE), buffer.len());
        self.prepare(team, &request, shared(buffer))
    }

    pub(super) fn prepare_gather<'a, T: Element>(
        &mut self,
        team: &Team,
        root: usize,
        parts: &[Range<usize>],
        buffer: &'a mut [T],
    ) -> Result<Run<'a>, FabricError> {
        check_parts(team, 1, buffer.len(), parts, buffer.len())?;
        check_root(team, root)?;
        let request = Request { root, parts, ..Request::flat(Tags::moving(Kind::Gather, T::TYPE), buffer.len()) };
        self.prepare(team, &request, shared(buffer))
    }

    #[inline]
    pub(super) fn prepare_all_reduce<'a, T: Number>(
        &mut self,
        team: &Team,
        operator: Operator,
        wire: Wire,
        buffer: &'a mut [T],
    ) -> Result<Run<'a>, FabricError> {
        let tags = Tags { kind: Kind::AllReduce, element: T::TYPE, operator: Some(operator), wire };
        self.prepare(team, &Request::flat(tags, buffer.len()), shared(buffer))
    }

    pub(super) fn prepare_reduce_scatter<'a, T: Number>(
        &mut self,
        team: &Team,
        operator: Operator,
        parts: &[Range<usize>],
        buffer: &'a mut [T],
    ) -> Result<Run<'a>, FabricError> {
        check_parts(team, 1, buffer.len(), parts, buffer.len())?;
        let tags = Tags { operator: Some(operator), ..Tags::moving(Kind::ReduceScatter, T::TYPE) };
        self.prepare(team, &Request { parts, ..Request::flat(tags, buffer.len()) }, shared(buffer))
    }

    pub(super) fn prepare_all_to_all<'a, T: Element>(
        &mut self,
        team: &Team,
        from: &'a [T],
        to: &'a mut [T],
    ) -> Result<Run<'a>, FabricError> {
        check_equal(team, from.len())?;
        if from.len() != to.len() {
            return Err(FabricError::Invalid(format!("{} elements out and {} in", from.len(), to.len())));
        }
        let share = from.len() / team.len();
        let own = team.index() * share..(team.index() + 1) * share;
        to[own.clone()].copy_from_slice(&from[own]);
        let request = Request::flat(Tags::moving(Kind::AllToAll, T::TYPE), from.len());
        self.prepare(team, &request, apart(from, to))
    }

    pub(super) fn prepare_all_to_all_parts<'a, T: Element>(
        &mut self,
        team: &Team,
        from: &'a [T],
        from_parts: &[Range<usize>],
        to: &'a mut [T],
        to_parts: &[Range<usize>],
    ) -> Result<Run<'a>, FabricError> {
        check_parts(team, 1, from.len(), from_parts, from.len())?;
        check_parts(team, 1, to.len(), to_parts, to.len())?;
        let (source, target) = (from_parts[team.index()].clone(), to_parts[team.index()].clone());
        if source.len() != target.len() {
            return Err(FabricError::Invalid(format!("{source:?} of this rank itself is to become {target:?}")));
        }
        to[target].copy_from_slice(&from[source]);
        // Members may send and receive as much as they like in all: only messages have to fit.
        let tags = Tags::moving(Kind::AllToAll, T::TYPE);
        let request = Request { parts: from_parts, arrivals: to_parts, ..Request::flat(tags, 0) };
        self.prepare(team, &request, apart(from, to))
    }

    pub(super) fn prepare_barrier(&mut self, team: &Team) -> Result<Run<'static>, FabricError> {
        let request = Request::flat(Tags::moving(Kind::Barrier, ElementType::Bytes), 0);
        self.prepare(team, &request, Main::Shared(&mut []))
    }

    #[inline]
    fn prepare<'a>(&mut self, team: &Team, request: &Request<'_>, main: Main<'a>) -> Result<Run<'a>, FabricError> {
        self.check_team(team)?;
        let Self { plans, topology, tuning, scratch, .. } = self;
        let seen = Seen { topology, members: team.members(), index: team.index() };
        let plan = plans.get(&seen, request, tuning);
        Ok(Run::new(plan, request.tags, request.total_bytes(), main, std::mem::take(scratch)))
    }

    pub(super) fn seen<'a>(&'a self, team: &'a Team) -> Seen<'a> {
        Seen { topology: &self.topology, members: team.members(), index: team.index() }
    }

    #[inline]
    fn check_team(&self, team: &Team) -> Result<(), FabricError> {
        self.check_usable()?;
        let fits = team.members()[team.index()] == self.rank && team.rank_max() < self.size();
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

#[inline]
fn shared<T: Element>(buffer: &mut [T]) -> Main<'_> {
    Main::Shared(bytemuck::cast_slice_mut(buffer))
}

fn apart<'a, T: Element>(from: &'a [T], to: &'a mut [T]) -> Main<'a> {
    Main::Apart { from: bytemuck::cast_slice(from), to: bytemuck::cast_slice_mut(to) }
}

fn check_root(team: &Team, root: usize) -> Result<(), FabricError> {
    if root < team.len() {
        return Ok(());
    }
    Err(FabricError::Invalid(format!("there is no member {root} in a team of {}", team.len())))
}

fn check_equal(team: &Team, elements: usize) -> Result<(), FabricError> {
    if elements.is_multiple_of(team.len()) {
        return Ok(());
    }
    Err(FabricError::Invalid(format!("{elements} elements cannot be shared out equally to {}", team.len())))
}

fn check_parts(
    team: &Team,
    rows: usize,
    width: usize,
    parts: &[Range<usize>],
    elements: usize,
) -> Result<(), FabricError> {
    let fits = parts.len() == team.len()
        && rows.checked_mul(width) == Some(elements)
        && parts.iter().all(|part| part.start <= part.end && part.end <= width);
    if fits {
        return Ok(());
    }
    Err(FabricError::Invalid(format!(
        "parts {parts:?} of {rows} rows of {width} do not fit a team of {} and a buffer of {elements}",
        team.len(),
    )))
}
