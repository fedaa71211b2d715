//! Queue, schedule and pace together, on a simulated machine: random arrivals, lengths, clients, priorities, cancellations
//! and stages, with time that only passes when steps take it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use crate::queue::{Queue, Terms};
use crate::ranks::pace::Pace;
use crate::ranks::schedule::{Schedule, Share};

const LATENCY: Duration = Duration::from_millis(200);
const STEP_TOKENS: usize = 256;
const MILLISECOND: Duration = Duration::from_millis(1);

#[derive(Debug, Clone)]
struct Arrival {
    /// Milliseconds after the one before it.
    gap: u64,
    client: usize,
    priority: i32,
    prompt: usize,
    answer: usize,
    /// The client leaves so many milliseconds after it came, whatever has become of its request.
    leaves: Option<u64>,
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let prompt = prop_oneof![4 => 1_usize..60, 1 => 500_usize..4000];
    let leaves = prop_oneof![4 => Just(None), 1 => (0_u64..4000).prop_map(Some)];
    (0_u64..400, 0_usize..3, -1_i32..2, prompt, 1_usize..40, leaves).prop_map(
        |(gap, client, priority, prompt, answer, leaves)| Arrival { gap, client, priority, prompt, answer, leaves },
    )
}

/// What a step costs, shared out evenly over stages that work at the same time, each on a step of its own.
#[derive(Debug, Clone, Copy)]
struct Machine {
    base: f64,
    prompt_token: f64,
    answering: f64,
    stages: usize,
}

impl Machine {
    fn step(&self, prompt_tokens: usize, answering: usize) -> Duration {
        let seconds = self.base + self.prompt_token * prompt_tokens as f64 + self.answering * answering as f64;
        Duration::from_secs_f64(seconds)
    }
}

/// A request that waits.
struct Waiting {
    id: usize,
    arrival: Arrival,
    came: Duration,
}

impl Waiting {
    fn has_left(&self, now: Duration) -> bool {
        self.arrival.leaves.is_some_and(|leaves| now >= self.came + leaves as u32 * MILLISECOND)
    }
}

/// A request in a slot.
struct Running {
    request: Waiting,
    prompt_left: usize,
    answered: usize,
    /// When it got its slot, and its latest token.
    began: Duration,
    latest: Option<Duration>,
}

/// A step under way.
struct Flight {
    /// Who hears of it.
    answers: Vec<(usize, usize)>,
    prompt_tokens: usize,
    begun: Duration,
    alone: bool,
    first_stage: Duration,
    /// When the last stage is done with it.
    done: Duration,
}

/// What is found out about a run.
#[derive(Default)]
struct Found {
    refused: usize,
    done: usize,
    left: usize,
    /// Longest time between two tokens, and from slot to first token of short prompts.
    gap: Duration,
    first: Duration,
    longest_queue: usize,
    /// Longest step.
    step: Duration,
    /// When all was over.
    end: Duration,
}

struct Simulation {
    machine: Machine,
    now: Duration,
    queue: Queue<Waiting>,
    slots: Vec<Option<Running>>,
    schedule: Schedule,
    pace: Pace,
    flights: VecDeque<Flight>,
    /// Until when each stage is busy.
    busy: Vec<Duration>,
    arrivals: usize,
    found: Found,
}

impl Simulation {
    fn new(machine: Machine, slots: usize) -> Self {
        Self {
            machine,
            now: Duration::ZERO,
            queue: Queue::default(),
            slots: (0..slots).map(|_| None).collect(),
            schedule: Schedule::default(),
            pace: Pace::new(Some(LATENCY)),
            flights: VecDeque::new(),
            busy: vec![Duration::ZERO; machine.stages],
            arrivals: 0,
            found: Found::default(),
        }
    }

    fn arrive(&mut self, arrival: &Arrival) {
        self.withdraw();
        let client: Arc<str> = ["a", "b", "c"][arrival.client].into();
        if self.queue.has_place(&client, 16) {
            let terms = Terms { client, priority: arrival.priority, cost: arrival.prompt + arrival.answer };
            self.arrivals += 1;
            let request = Waiting { id: self.arrivals, arrival: arrival.clone(), came: self.now };
            self.queue.push(terms, self.now, request);
        } else {
            self.found.refused += 1;
        }
        self.found.longest_queue = self.found.longest_queue.max(self.queue.len());
    }

    /// Ends the requests of clients that have left.
    fn withdraw(&mut self) {
        self.found.left += self.queue.withdraw(|request| request.has_left(self.now)).len();
        for slot in 0..self.slots.len() {
            if self.slots[slot].as_ref().is_some_and(|running| running.request.has_left(self.now)) {
                self.found.left += 1;
                self.end(slot);
            }
        }
    }

    fn end(&mut self, slot: usize) {
        self.schedule.remove(slot);
        self.slots[slot] = None;
    }

    fn admit(&mut self) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].is_none()
                && let Some(request) = self.queue.pop(self.now)
            {
                let prompt_left = request.arrival.prompt;
                self.schedule.add(slot, prompt_left);
                self.slots[slot] = Some(Running { request, prompt_left, answered: 0, began: self.now, latest: None });
            }
        }
    }

    /// What rank 0 does next; false when there is nothing to do.
    fn step(&mut self) -> bool {
        self.withdraw();
        self.admit();
        self.launch() || self.settle()
    }

    fn launch(&mut self) -> bool {
        let free = self.machine.stages - self.flights.len();
        if free == 0 {
            return false;
        }
        let mut shares = Vec::new();
        self.schedule.next(free, self.pace.room(STEP_TOKENS), &mut shares);
        if shares.is_empty() {
            return false;
        }
        let (mut answers, mut prompt_tokens, mut answering) = (Vec::new(), 0, 0);
        for Share { slot, tokens } in shares {
            let Some(running) = &mut self.slots[slot] else { panic!("a share of an empty slot") };
            let of_prompt = running.prompt_left > 0;
            *(if of_prompt { &mut prompt_tokens } else { &mut answering }) += tokens;
            running.prompt_left -= if of_prompt { tokens } else { 0 };
            if running.prompt_left == 0 {
                answers.push((slot, running.request.id));
            }
        }
        let cost = self.machine.step(prompt_tokens, answering);
        self.found.step = self.found.step.max(cost);
        let (begun, first_stage, alone) = (self.now, cost / self.machine.stages as u32, self.flights.is_empty());
        let mut done = begun;
        for busy in &mut self.busy {
            done = done.max(*busy) + first_stage;
            *busy = done;
        }
        self.now += first_stage;
        self.flights.push_back(Flight { answers, prompt_tokens, begun, alone, first_stage, done });
        true
    }

    fn settle(&mut self) -> bool {
        let Some(flight) = self.flights.pop_front() else { return false };
        if !flight.answers.is_empty() {
            self.now = self.now.max(flight.done);
        }
        let known = flight.alone && !flight.answers.is_empty();
        let stages = self.machine.stages as u32;
        let took = if known { self.now - flight.begun } else { flight.first_stage * stages };
        self.pace.learn(flight.prompt_tokens, took);
        for (slot, id) in flight.answers {
            if self.slots[slot].as_ref().is_some_and(|running| running.request.id == id) {
                self.hear(slot);
            }
        }
        true
    }

    fn hear(&mut self, slot: usize) {
        let Some(running) = &mut self.slots[slot] else { return };
        running.answered += 1;
        match running.latest.replace(self.now) {
            Some(before) => self.found.gap = self.found.gap.max(self.now - before),
            None if running.request.arrival.prompt < 20 => {
                self.found.first = self.found.first.max(self.now - running.began);
            }
            None => {}
        }
        if running.answered == running.request.arrival.answer {
            self.found.done += 1;
            self.end(slot);
        } else {
            self.schedule.wake(slot);
        }
    }

    fn run(mut self, arrivals: &[Arrival]) -> Found {
        let mut due = Duration::ZERO;
        for arrival in arrivals {
            due += arrival.gap as u32 * MILLISECOND;
            while self.now < due {
                if !self.step() {
                    self.now = due;
                }
            }
            self.arrive(arrival);
        }
        while self.step() {}
        assert!(self.slots.iter().all(Option::is_none) && self.queue.len() == 0, "somebody is left");
        assert_eq!(self.schedule.len(), 0, "somebody is left in the schedule");
        self.found.end = self.now;
        self.found
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Whatever comes: everyone that is let in is served or leaves, the queue is bounded, and tokens come as often as
    /// promised, also the first ones of short requests, on machines that can keep the promise at all.
    #[test]
    fn everyone_is_served_in_time(
        arrivals in prop::collection::vec(arrival(), 1..60),
        slots in 1_usize..6,
        base in 0.001_f64..0.02,
        prompt_token in 0.0001_f64..0.0012,
        answering in 0.0_f64..0.003,
        stages in 1_usize..5,
    ) {
        let machine = Machine { base, prompt_token, answering, stages };
        let found = Simulation::new(machine, slots).run(&arrivals);
        prop_assert_eq!(found.done + found.left + found.refused, arrivals.len());
        prop_assert!(found.longest_queue <= 16);
        // Steps with prompts aim at half of the latency. The first ones, about which nothing is known, are small.
        prop_assert!(found.step <= LATENCY * 13 / 20, "{:?}", found.step);
        prop_assert!(found.gap <= LATENCY, "{:?}", found.gap);
        // A prompt of less than 20 tokens shares the room with at most as many others as there are slots.
        prop_assert!(slots > 3 || found.first <= LATENCY * 3 / 2, "{:?}", found.first);
    }

    /// With one client in a flood of another's requests, the one that asks seldom waits for but a few of them.
    #[test]
    fn a_flood_drowns_nobody(flood in 20_usize..60, prompt in 1_usize..40) {
        let request = |client, gap| Arrival { gap, client, priority: 0, prompt, answer: 5, leaves: None };
        let machine = Machine { base: 0.01, prompt_token: 0.0005, answering: 0.001, stages: 1 };
        let mut simulation = Simulation::new(machine, 1);
        (0..flood).for_each(|_| simulation.arrive(&request(0, 0)));
        simulation.step();
        simulation.arrive(&request(1, 0));
        let mut turns = 0;
        while simulation.slots[0].as_ref().is_none_or(|running| running.request.arrival.client != 1) {
            prop_assert!(simulation.step());
            turns += 1;
        }
        // Each step is begun and heard of.
        prop_assert!(turns <= 24, "{turns} turns");
    }

    /// To keep others' tokens coming costs a long prompt little: its steps are as large as the promise allows.
    #[test]
    fn a_long_prompt_is_not_held_up_for_nothing(stages in 1_usize..5, others in 0_usize..3) {
        let machine = Machine { base: 0.01, prompt_token: 0.001, answering: 0.001, stages };
        let request = |prompt, answer| Arrival { gap: 0, client: 0, priority: 0, prompt, answer, leaves: None };
        let mut arrivals: Vec<_> = (0..others).map(|_| request(10, 40)).collect();
        arrivals.push(request(3000, 1));
        let found = Simulation::new(machine, 4).run(&arrivals);
        let alone = machine.step(3000, 0) / stages as u32;
        prop_assert!(found.end <= alone * 3 / 2 + LATENCY, "{:?} instead of {alone:?}", found.end);
    }
}
