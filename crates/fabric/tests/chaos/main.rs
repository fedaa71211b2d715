//! One rank of a group is killed, stopped or cut off at a random moment of a random collective, again and again: every
//! survivor must name it in time, rest afterwards, and form a new group with the others that works.
//!
//! Ranks are processes: this test binary again, told by its environment to run [`rank`]. Ranks that are cut off live in
//! network namespaces, joined by a switch whose port goes down; that needs Linux, root and iproute2, and where they
//! lack, ranks are killed and stopped only.
//!
//! `ROPEWALK_CHAOS_RUNS` sets the number of runs per transport, `ROPEWALK_SEED` makes it a single run with that seed.
//! `ROPEWALK_CHAOS_STRICT` makes deadlines short and holds survivors to them. `scripts/check-failures` does many runs.
#![allow(clippy::unwrap_used)]
#![cfg(target_os = "linux")]

mod process;
mod random;
mod rank;
mod switch;

use std::time::Duration;

use fabric::{Rendezvous, RendezvousOptions, Secret, Transport};
use process::Process;
use random::Random;
use rank::{Orders, now};
use rustix::process::Signal;
use switch::Switch;

/// A rank that is silent for this long is lost, and what a survivor may take longer than that.
const DEADLINE: (Duration, Duration) = (Duration::from_millis(400), Duration::from_millis(100));
/// The same where others use the machine, too, and may stop all ranks for a while: what is found counts, not when.
const DEADLINE_DISTURBED: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(8));
/// The same where RDMA is emulated, which says nothing about time.
const DEADLINE_EMULATED: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));
/// The share of [`rank::rest_of`] after an error that a rank may use as processor time, and the same where RDMA is emulated:
/// there, time in which the emulator itself had no processor counts as the rank's. Who spins uses all of it.
const BUSY_SHARE: u32 = 10;
const BUSY_SHARE_EMULATED: u32 = 2;
const PATIENCE: Duration = Duration::from_secs(60);
const RUNS: u64 = 4;
const HOSTS: usize = 4;

/// What happens to the victim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    Stop,
    Cut,
}

/// What a seed stands for.
#[derive(Debug)]
struct Scenario {
    seed: u64,
    transport: Transport,
    size: usize,
    victim: usize,
    fault: Fault,
    /// After all ranks are under way.
    moment: Duration,
    /// Whether a stopped rank wakes up again, when the others have gone on without it.
    wakes: bool,
}

impl Scenario {
    fn new(seed: u64, transport: Transport, can_cut: bool) -> Self {
        let mut random = Random::new(seed);
        let size = 3 + random.below(HOSTS - 2);
        let faults = if can_cut { &[Fault::Kill, Fault::Stop, Fault::Cut][..] } else { &[Fault::Kill, Fault::Stop] };
        Self {
            seed,
            transport,
            size,
            victim: random.below(size),
            // Taking turns, so that a few runs know each kind.
            fault: faults[seed as usize % faults.len()],
            moment: Duration::from_micros(random.below(40_000) as u64),
            wakes: random.below(2) == 0,
        }
    }

    /// Runs it. Returns how long the slowest survivor took.
    fn run(&self, switch: Option<&Switch>) -> Result<Duration, String> {
        let switch = switch.filter(|_| self.fault == Fault::Cut);
        let mut ranks = self.start(switch)?;
        for (rank, process) in ranks.iter_mut().enumerate() {
            process.expect("under way").map_err(|why| format!("rank {rank} did not begin: {why}"))?;
        }
        std::thread::sleep(self.moment);
        let since = now();
        match self.fault {
            Fault::Kill => ranks[self.victim].signal(Signal::KILL),
            Fault::Stop => ranks[self.victim].signal(Signal::STOP),
            Fault::Cut => switch.unwrap().set_port(self.victim, false),
        }
        let outcome = self.watch_survivors(&mut ranks, since);
        if outcome.is_ok() && self.fault == Fault::Stop && self.wakes {
            ranks[self.victim].signal(Signal::CONT);
            let heard = ranks[self.victim].expect("failed");
            if !heard.as_ref().is_ok_and(|heard| heard.contains("given up")) {
                return Err(format!("the victim woke up and said {heard:?}"));
            }
        }
        if let Some(switch) = switch {
            drop(ranks);
            switch.set_port(self.victim, true);
        }
        outcome
    }

    fn deadline(&self) -> (Duration, Duration) {
        match self.transport {
            Transport::Rdma => DEADLINE_EMULATED,
            _ if std::env::var_os("ROPEWALK_CHAOS_STRICT").is_some() => DEADLINE,
            _ => DEADLINE_DISTURBED,
        }
    }

    fn start(&self, switch: Option<&Switch>) -> Result<Vec<Process>, String> {
        let secret = Secret::random().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let secret_file = folder.path().join("secret");
        secret.write_to_file(&secret_file).unwrap();
        let options = RendezvousOptions { deadline: PATIENCE, ..RendezvousOptions::default() };
        let listen =
            || Rendezvous::listen((switch.map_or("127.0.0.1", Switch::address), 0), &secret, self.size, options);
        let mut meeting = match switch {
            Some(switch) => switch.inside(listen),
            None => listen(),
        }
        .map_err(|error| error.to_string())?;
        let orders = |rank| Orders {
            rank,
            rendezvous: meeting.address().to_string(),
            secret_file: secret_file.clone(),
            transport: self.transport,
            seed: self.seed,
            deadline: self.deadline().0,
        };
        let ranks = (0..self.size).map(|rank| Process::start(&orders(rank), switch.map(|it| it.host(rank))));
        let ranks: Vec<Process> = ranks.collect();
        // Ranks report by their output: a control would be cut off along with the rank.
        meeting.gather(|_, _| Vec::new()).map_err(|error| error.to_string())?;
        Ok(ranks)
    }

    fn watch_survivors(&self, ranks: &mut [Process], since: Duration) -> Result<Duration, String> {
        let (deadline, grace) = self.deadline();
        let mut slowest = Duration::ZERO;
        let survivors: Vec<usize> = (0..self.size).filter(|&rank| rank != self.victim).collect();
        for &rank in &survivors {
            let failed = ranks[rank].expect("failed").map_err(|why| format!("rank {rank}: {why}"))?;
            let (at, error) = failed.split_once(' ').unwrap();
            let took = Duration::from_nanos(at.parse().unwrap()).saturating_sub(since);
            if !error.starts_with(&format!("lost rank {}: ", self.victim)) {
                return Err(format!("rank {rank} says after {took:?}: {error}"));
            }
            if took > deadline + grace {
                return Err(format!("rank {rank} noticed only after {took:?}"));
            }
            slowest = slowest.max(took);
        }
        for &rank in &survivors {
            let used = ranks[rank].expect("rested").map_err(|why| format!("rank {rank}: {why}"))?;
            let used = Duration::from_nanos(used.parse().unwrap());
            let rest = rank::rest_of(self.transport);
            let share = if self.transport == Transport::Rdma { BUSY_SHARE_EMULATED } else { BUSY_SHARE };
            if used > rest / share {
                return Err(format!("rank {rank} used {used:?} of processor time in {rest:?} of rest"));
            }
        }
        for (index, &rank) in survivors.iter().enumerate() {
            let formed = ranks[rank].expect("formed").map_err(|why| format!("rank {rank} after the loss: {why}"))?;
            if formed != format!("{index} of {} generation 2", survivors.len()) {
                return Err(format!("rank {rank} became {formed}"));
            }
        }
        Ok(slowest)
    }
}

/// Runs as many scenarios as asked for, all of which must end well.
fn check(transport: Transport) {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let switch = Switch::build(HOSTS, transport == Transport::Rdma)
        .inspect_err(|why| eprintln!("\nSKIPPED: cutting ranks off: {why}\n"))
        .ok();
    let seeds = match number("ROPEWALK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ROPEWALK_CHAOS_RUNS").unwrap_or(RUNS),
    };
    let (mut counts, mut slowest, mut failures) = ([0; 3], [Duration::ZERO; 3], Vec::new());
    for seed in seeds.clone() {
        let scenario = Scenario::new(seed, transport, switch.is_some());
        let fault = scenario.fault as usize;
        counts[fault] += 1;
        match scenario.run(switch.as_ref()) {
            Ok(took) => slowest[fault] = slowest[fault].max(took),
            Err(why) => {
                eprintln!("FAILED: {scenario:?}: {why}; again with ROPEWALK_SEED={seed}");
                failures.push(seed);
            }
        }
    }
    eprintln!(
        "{transport}: {} runs, {} failed; slowest of {} killed {:?}, of {} stopped {:?}, of {} cut off {:?}",
        seeds.end - seeds.start,
        failures.len(),
        counts[0],
        slowest[0],
        counts[1],
        slowest[1],
        counts[2],
        slowest[2],
    );
    assert!(failures.is_empty(), "{transport}: failed with seeds {failures:?}");
}

#[test]
fn losses_over_shared_memory() {
    check(Transport::SharedMemory);
}

#[test]
fn losses_over_tcp() {
    check(Transport::Tcp);
}

/// Where `FABRIC_TEST_RDMA` says that there are ports; see `scripts/check-rdma`.
#[test]
fn losses_over_rdma() {
    if std::env::var_os("FABRIC_TEST_RDMA").is_some() {
        check(Transport::Rdma);
    }
}

/// What a child does; nothing when this is the test run itself.
#[test]
fn child() {
    if let Some(orders) = Orders::given() {
        rank::run(&orders);
    }
}
