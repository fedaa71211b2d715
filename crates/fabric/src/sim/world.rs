//! The world of a simulation: a clock that jumps from event to event, processes, cables between them, and pipes of bytes
//! that delay, cut into portions, and end. Everything random follows from one seed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::random::Random;

/// Never arrives.
const NEVER: Duration = Duration::MAX;
/// A simulation that needs more steps than this has got stuck in a circle.
const STEPS_MAX: u64 = 3_000_000;

pub(super) type Shared = Arc<Mutex<World>>;

/// What a process is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Running,
    /// Does nothing, while its system keeps its connections.
    Stopped,
    Dead,
}

/// Which of the pipes between two processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Line {
    Data,
    Life,
}

/// Bytes from one process to another, in order.
struct Pipe {
    from: usize,
    to: usize,
    /// The processes that pass the bytes on.
    via: Vec<usize>,
    segments: VecDeque<Segment>,
    /// Bytes that have been sent and not been read.
    held: usize,
    capacity: usize,
    latest: Duration,
    /// When the reader finds the end.
    ends: Duration,
    /// When the writer finds that nobody reads any more.
    breaks: Duration,
}

struct Segment {
    arrives: Duration,
    bytes: VecDeque<u8>,
}

/// The number of a pipe.
pub(super) type PipeId = usize;

pub(super) struct World {
    pub(super) now: Duration,
    pub(super) random: Random,
    /// By process.
    states: Vec<State>,
    is_cut_off: Vec<bool>,
    /// By pair of processes.
    cables: Vec<Vec<bool>>,
    /// When each process has something to do.
    wakes: Vec<Duration>,
    pipes: Vec<Pipe>,
    connections: BTreeMap<(u64, Line, usize, usize), PipeId>,
    /// Grows whenever bytes move.
    pub(super) moves: u64,
    trace: u64,
    steps: u64,
}

impl World {
    /// Processes that have cables where `cables` says so.
    pub(super) fn new(seed: u64, cables: Vec<Vec<bool>>) -> Self {
        let size = cables.len();
        Self {
            now: Duration::ZERO,
            random: Random::new(seed),
            states: vec![State::Running; size],
            is_cut_off: vec![false; size],
            cables,
            wakes: vec![Duration::ZERO; size],
            pipes: Vec::new(),
            connections: BTreeMap::new(),
            moves: 0,
            trace: 0,
            steps: 0,
        }
    }

    /// Notes an event, so that two runs can be compared.
    pub(super) fn note(&mut self, what: u64) {
        let now = self.now.as_nanos() as u64;
        self.trace = (self.trace ^ what ^ now.rotate_left(17)).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    }

    /// Stands for all that has happened.
    pub(super) fn trace(&self) -> u64 {
        self.trace
    }

    /// The process that has something to do next; the clock goes there. `None` when the time is up.
    pub(super) fn next_process(&mut self, until: Duration) -> Option<usize> {
        self.steps += 1;
        assert!(self.steps < STEPS_MAX, "no end of events at {:?}", self.now);
        let earliest = (0..self.wakes.len()).filter(|&it| self.states[it] == State::Running).map(|it| self.wakes[it]);
        let earliest = earliest.min().filter(|&time| time < until)?;
        self.now = self.now.max(earliest);
        let due: Vec<usize> = (0..self.wakes.len())
            .filter(|&it| self.states[it] == State::Running && self.wakes[it] <= self.now)
            .collect();
        let process = due[self.random.below(due.len())];
        self.wakes[process] = NEVER;
        Some(process)
    }

    /// Wakes a process up at a time, if it is not awake before.
    pub(super) fn wake(&mut self, process: usize, at: Duration) {
        self.wakes[process] = self.wakes[process].min(at.max(self.now));
    }

    /// Wakes a process up when the next bytes or the end come to it.
    pub(super) fn wake_for_arrivals(&mut self, process: usize) {
        let now = self.now;
        let next = |pipe: &Pipe| {
            let times = pipe.segments.iter().map(|it| it.arrives).chain([pipe.ends]);
            times.filter(|&time| time > now).min()
        };
        let arrivals = self.pipes.iter().filter(|pipe| pipe.to == process).filter_map(next);
        let breaks = self.pipes.iter().filter(|pipe| pipe.from == process).map(|pipe| pipe.breaks);
        if let Some(at) = arrivals.chain(breaks.filter(|&time| time > now)).min() {
            self.wake(process, at);
        }
    }

    pub(super) fn state(&self, process: usize) -> State {
        self.states[process]
    }

    pub(super) fn has_cable(&self, a: usize, b: usize) -> bool {
        self.cables[a][b]
    }

    /// How long a message takes to the other side of a cable.
    pub(super) fn delay(&mut self) -> Duration {
        // Now and then the network, or whoever passes things on, is busy.
        let bound = if self.random.below(50) == 0 { 5_000 } else { 200 };
        Duration::from_micros(5 + self.random.below(bound) as u64)
    }

    /// Ends a process as the system does: its connections end.
    pub(super) fn kill(&mut self, process: usize) {
        self.states[process] = State::Dead;
        self.end_pipes(|pipe| pipe.from == process, |pipe| pipe.to == process, process);
        self.end_pipes(|pipe| pipe.via.contains(&process), |pipe| pipe.via.contains(&process), process);
    }

    fn end_pipes(&mut self, ending: impl Fn(&Pipe) -> bool, breaking: impl Fn(&Pipe) -> bool, at: usize) {
        for index in 0..self.pipes.len() {
            let Pipe { from, to, via, .. } = &self.pipes[index];
            let others: Vec<usize> = via.iter().copied().filter(|&it| it != at).collect();
            // The news does not get through where nothing does.
            if !self.reaches(*from, *to, &others) {
                continue;
            }
            let delay = self.delay();
            let pipe = &self.pipes[index];
            let (from, to, when) = (pipe.from, pipe.to, self.now + delay);
            if ending(pipe) && pipe.ends == NEVER {
                let ends = pipe.latest.max(when);
                self.pipes[index].ends = ends;
                self.wake(to, ends);
            }
            if breaking(&self.pipes[index]) && self.pipes[index].breaks == NEVER {
                self.pipes[index].breaks = when;
                self.wake(from, when);
            }
        }
    }

    pub(super) fn stop(&mut self, process: usize) {
        self.states[process] = State::Stopped;
        self.block(|pipe| pipe.via.contains(&process));
    }

    /// A stopped process goes on. What passed through it meanwhile is lost, as if whoever sent it had given up.
    pub(super) fn resume(&mut self, process: usize) {
        self.states[process] = State::Running;
        self.wakes[process] = self.now;
    }

    /// Takes all cables of a process out.
    pub(super) fn cut_off(&mut self, process: usize) {
        self.is_cut_off[process] = true;
        self.block(|pipe| pipe.from == process || pipe.to == process || pipe.via.contains(&process));
    }

    /// What is on its way will not arrive.
    fn block(&mut self, affected: impl Fn(&Pipe) -> bool) {
        let now = self.now;
        for pipe in self.pipes.iter_mut().filter(|pipe| affected(pipe)) {
            for segment in pipe.segments.iter_mut().filter(|segment| segment.arrives > now) {
                segment.arrives = NEVER;
            }
            if pipe.ends > now {
                pipe.ends = NEVER;
            }
        }
    }

    /// Whether what one process sends reaches another.
    pub(super) fn reaches(&self, from: usize, to: usize, via: &[usize]) -> bool {
        let passes = |&process: &usize| self.states[process] == State::Running && !self.is_cut_off[process];
        !self.is_cut_off[from] && !self.is_cut_off[to] && via.iter().all(passes)
    }

    /// The pipe of a session between two processes, through others.
    pub(super) fn pipe(&mut self, session: u64, line: Line, from: usize, to: usize, via: &[usize]) -> PipeId {
        if let Some(&id) = self.connections.get(&(session, line, from, to)) {
            return id;
        }
        let capacity = if line == Line::Life { 1 << 16 } else { 40 + self.random.below(3000) };
        let id = self.pipes.len();
        self.pipes.push(Pipe {
            from,
            to,
            via: via.to_vec(),
            segments: VecDeque::new(),
            held: 0,
            capacity,
            latest: self.now,
            ends: NEVER,
            breaks: NEVER,
        });
        self.connections.insert((session, line, from, to), id);
        // One end may be dead before the other has opened its own.
        let dead = [from, to].into_iter().chain(via.iter().copied()).find(|&it| self.states[it] == State::Dead);
        if let Some(dead) = dead
            && !self.is_cut_off[dead]
        {
            (self.pipes[id].ends, self.pipes[id].breaks) = (self.now, self.now);
        }
        id
    }

    /// Takes what there is room for. `None` when nobody reads any more.
    pub(super) fn write<'a>(&mut self, id: PipeId, bytes: impl Iterator<Item = &'a u8>) -> Option<usize> {
        let delay = self.delay();
        let portion = 1 + self.random.below(1500);
        let pipe = &self.pipes[id];
        if pipe.breaks <= self.now {
            return None;
        }
        let bytes: VecDeque<u8> = bytes.take(portion.min(pipe.capacity - pipe.held)).copied().collect();
        let count = bytes.len();
        if count == 0 {
            return Some(0);
        }
        let hops = 1 + pipe.via.len() as u32;
        let arrives = match self.reaches(pipe.from, pipe.to, &pipe.via) {
            true => pipe.latest.max(self.now + delay * hops),
            false => NEVER,
        };
        let (from, to) = (pipe.from, pipe.to);
        let pipe = &mut self.pipes[id];
        pipe.held += count;
        if arrives != NEVER {
            pipe.latest = arrives;
            self.wake(to, arrives);
        }
        self.pipes[id].segments.push_back(Segment { arrives, bytes });
        self.moves += 1;
        self.note((from as u64) << 40 | (to as u64) << 32 | count as u64);
        Some(count)
    }

    /// Gives what has come, at most `most` bytes. `None` at the end.
    pub(super) fn read(&mut self, id: PipeId, most: usize) -> Option<Vec<u8>> {
        let most = if most > 1 && self.random.below(3) == 0 { 1 + self.random.below(most) } else { most };
        let delay = self.delay();
        let now = self.now;
        let pipe = &mut self.pipes[id];
        let mut bytes = Vec::new();
        while let Some(segment) = pipe.segments.front_mut().filter(|segment| segment.arrives <= now) {
            let count = segment.bytes.len().min(most - bytes.len());
            bytes.extend(segment.bytes.drain(..count));
            if !segment.bytes.is_empty() {
                break;
            }
            pipe.segments.pop_front();
        }
        if bytes.is_empty() {
            return (pipe.ends > now || most == 0).then_some(bytes);
        }
        let was_full = pipe.held == pipe.capacity;
        pipe.held -= bytes.len();
        let from = pipe.from;
        self.moves += 1;
        if was_full {
            self.wake(from, now + delay);
        }
        Some(bytes)
    }

    /// Whether there is something to read, or the end has come.
    pub(super) fn is_readable(&self, id: PipeId) -> Option<bool> {
        let pipe = &self.pipes[id];
        match pipe.segments.front() {
            Some(segment) if segment.arrives <= self.now => Some(true),
            _ => (pipe.ends > self.now).then_some(false),
        }
    }

    /// A process lets go of a connection.
    pub(super) fn close(&mut self, outgoing: PipeId, incoming: PipeId) {
        let Pipe { from, to, via, .. } = &self.pipes[outgoing];
        if self.states[*from] == State::Dead || !self.reaches(*from, *to, via) {
            return;
        }
        let (delay, hops) = (self.delay(), 1 + self.pipes[outgoing].via.len() as u32);
        let when = self.now + delay * hops;
        let pipe = &mut self.pipes[outgoing];
        pipe.ends = pipe.ends.min(pipe.latest.max(when));
        let (to, ends) = (pipe.to, pipe.ends);
        self.wake(to, ends);
        let pipe = &mut self.pipes[incoming];
        pipe.breaks = pipe.breaks.min(when);
        let (from, breaks) = (pipe.from, pipe.breaks);
        self.wake(from, breaks);
    }
}

pub(super) fn lock(world: &Shared) -> MutexGuard<'_, World> {
    world.lock().unwrap()
}
