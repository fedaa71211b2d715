//! Queue, schedule and pace together, on a simulated machine: random arrivals, lengths, clients, priorities and
//! cancellations, with time that only passes when steps take it.

use std::time::Duration;

use proptest::prelude::*;

use crate::queue::{Queue, Terms};
use crate::ranks::pace::Pace;
use crate::ranks::schedule::Schedule;

const LATENCY: Duration = Duration::from_millis(200);
const STEP_TOKENS: usize = 256;

#[derive(Debug, Clone)]
struct Arrival {
    /// Milliseconds after the one before it.
    gap: u64,
    client: usize,
    priority: i32,
    prompt: usize,
    answer: usize,
    /// After so many tokens of its answer the client leaves.
    leaves: Option<usize>,
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let prompt = prop_oneof![4 => 1_usize..60, 1 => 500_usize..4000];
    let leaves = prop_oneof![4 => Just(None), 1 => (0_usize..20).prop_map(Some)];
    (0_u64..400, 0_usize..3, -1_i32..2, prompt, 1_usize..40, leaves).prop_map(
        |(gap, client, priority, prompt, answer, leaves)| Arrival { gap, client, priority, prompt, answer, leaves },
    )
}

/// What a step costs.
#[derive(Debug, Clone, Copy)]
struct Machine {
    base: f64,
    prompt_token: f64,
    answering: f64,
}

impl Machine {
    fn step(&self, prompt_tokens: usize, answering: usize) -> Duration {
        let seconds = self.base + self.prompt_token * prompt_tokens as f64 + self.answering * answering as f64;
        Duration::from_secs_f64(seconds)
    }
}

/// A request in a slot.
struct Running {
    arrival: Arrival,
    prompt_left: usize,
    answered: usize,
    /// When it got its slot, and its latest token.
    began: Duration,
    latest: Option<Duration>,
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
    /// Longest step, and how many prompt tokens it took.
    step: Duration,
}

struct Simulation {
    machine: Machine,
    now: Duration,
    queue: Queue<Arrival>,
    slots: Vec<Option<Running>>,
    schedule: Schedule,
    pace: Pace,
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
            found: Found::default(),
        }
    }

    fn arrive(&mut self, arrival: &Arrival) {
        let client: std::sync::Arc<str> = ["a", "b", "c"][arrival.client].into();
        if self.queue.has_place(&client, 16) {
            let terms = Terms { client, priority: arrival.priority, cost: arrival.prompt + arrival.answer };
            self.queue.push(terms, self.now, arrival.clone());
        } else {
            self.found.refused += 1;
        }
        self.found.longest_queue = self.found.longest_queue.max(self.queue.len());
    }

    fn admit(&mut self) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].is_none()
                && let Some(arrival) = self.queue.pop(self.now)
            {
                self.schedule.add(slot, arrival.prompt);
                let prompt_left = arrival.prompt;
                self.slots[slot] = Some(Running { arrival, prompt_left, answered: 0, began: self.now, latest: None });
            }
        }
    }

    /// One step; false when there is nothing to do.
    fn step(&mut self) -> bool {
        self.admit();
        let mut shares = Vec::new();
        self.schedule.next(1, self.pace.room(STEP_TOKENS), &mut shares);
        if shares.is_empty() {
            return false;
        }
        let of_prompts = |slots: &[Option<Running>], slot: usize| {
            slots[slot].as_ref().is_some_and(|running| running.prompt_left > 0)
        };
        let prompts = shares.iter().filter(|share| of_prompts(&self.slots, share.slot));
        let prompt_tokens: usize = prompts.map(|share| share.tokens).sum();
        let answering = shares.iter().filter(|share| !of_prompts(&self.slots, share.slot)).count();
        let took = self.machine.step(prompt_tokens, answering);
        self.now += took;
        self.pace.learn(prompt_tokens, took);
        self.found.step = self.found.step.max(took);
        for share in shares {
            self.hear(share.slot, share.tokens);
        }
        true
    }

    fn hear(&mut self, slot: usize, tokens: usize) {
        let Some(running) = &mut self.slots[slot] else { panic!("a share of an empty slot") };
        if running.prompt_left > 0 {
            running.prompt_left -= tokens;
            if running.prompt_left > 0 {
                return;
            }
        }
        running.answered += 1;
        match running.latest.replace(self.now) {
            Some(before) => self.found.gap = self.found.gap.max(self.now - before),
            None if running.arrival.prompt < 20 => self.found.first = self.found.first.max(self.now - running.began),
            None => {}
        }
        let left = running.arrival.leaves == Some(running.answered);
        if left || running.answered == running.arrival.answer {
            *(if left { &mut self.found.left } else { &mut self.found.done }) += 1;
            self.schedule.remove(slot);
            self.slots[slot] = None;
        } else {
            self.schedule.wake(slot);
        }
    }

    fn run(mut self, arrivals: &[Arrival]) -> Found {
        let mut due = Duration::ZERO;
        for arrival in arrivals {
            due += Duration::from_millis(arrival.gap);
            while self.now < due {
                if !self.step() {
                    self.now = due;
                }
            }
            self.arrive(arrival);
        }
        while self.step() {}
        assert!(self.slots.iter().all(Option::is_none) && self.queue.len() == 0, "somebody is left");
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
    ) {
        let machine = Machine { base, prompt_token, answering };
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
        let mut simulation = Simulation::new(Machine { base: 0.01, prompt_token: 0.0005, answering: 0.001 }, 1);
        (0..flood).for_each(|_| simulation.arrive(&request(0, 0)));
        simulation.step();
        simulation.arrive(&request(1, 0));
        let mut turns = 0;
        while simulation.slots[0].as_ref().is_none_or(|running| running.arrival.client != 1) {
            prop_assert!(simulation.step());
            turns += 1;
        }
        prop_assert!(turns <= 12, "{turns} steps");
    }
}
