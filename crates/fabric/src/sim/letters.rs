//! What processes say to each other while groups form, over connections that are simulated as letters: they take time,
//! and those from a process that is dead are followed by the news of its death.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use super::world::{State, World};
use crate::rendezvous::{Report, Shape};

#[derive(Debug)]
pub(super) enum Body {
    /// To the coordinator: the wish for a number.
    Introduction(Option<usize>),
    Refusal(String),
    Welcome(Place),
    Report(u64, Report),
    /// From the one who conducts the forming of a session.
    Shape(u64, Shape),
    Go(u64),
    /// The forming of a session has failed.
    Abandoned(u64),
    /// From one member of a session to another, to be linked, and its answer.
    Call(u64),
    Answer(u64),
    /// To the one who gathers the survivors of a session: a number in the old group.
    Survivor(u64, usize),
    /// The sender is dead.
    Gone,
}

/// A rank's place in a group.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) rank: usize,
    pub(super) generation: u32,
    pub(super) session: u64,
    /// By rank.
    pub(super) processes: Vec<usize>,
}

#[derive(Debug)]
pub(super) struct Letter {
    pub(super) from: usize,
    pub(super) body: Body,
    arrives: Duration,
}

/// Everyone's letters.
#[derive(Clone, Default)]
pub(super) struct Post {
    boxes: Rc<RefCell<Vec<VecDeque<Letter>>>>,
    /// By sender and receiver: letters do not overtake each other.
    latest: Rc<RefCell<BTreeMap<(usize, usize), Duration>>>,
}

impl Post {
    pub(super) fn new(processes: usize) -> Self {
        let post = Self::default();
        post.boxes.borrow_mut().resize_with(processes, VecDeque::new);
        post
    }

    pub(super) fn send(&self, world: &mut World, from: usize, to: usize, body: Body) {
        let delay = world.delay();
        if !world.reaches(from, to, &[]) {
            return;
        }
        let mut latest = self.latest.borrow_mut();
        let latest = latest.entry((from, to)).or_default();
        *latest = (*latest).max(world.now + delay);
        world.wake(to, *latest);
        self.boxes.borrow_mut()[to].push_back(Letter { from, body, arrives: *latest });
    }

    /// Tells everyone that a process is dead.
    pub(super) fn announce_death(&self, world: &mut World, of: usize) {
        let processes = self.boxes.borrow().len();
        for to in (0..processes).filter(|&to| to != of) {
            self.send(world, of, to, Body::Gone);
        }
    }

    pub(super) fn take(&self, world: &mut World, process: usize, wanted: impl Fn(&Letter) -> bool) -> Option<Letter> {
        let letters = &mut self.boxes.borrow_mut()[process];
        let now = world.now;
        let index = letters.iter().position(|letter| letter.arrives <= now && wanted(letter))?;
        let letter = letters.remove(index)?;
        world.note(u64::MAX ^ ((letter.from as u64) << 8 | process as u64));
        Some(letter)
    }

    pub(super) fn wake_for_letters(&self, world: &mut World, process: usize) {
        if world.state(process) != State::Running {
            return;
        }
        let now = world.now;
        let times = self.boxes.borrow()[process].iter().map(|letter| letter.arrives).filter(|&at| at > now).min();
        if let Some(at) = times {
            world.wake(process, at);
        }
    }
}
