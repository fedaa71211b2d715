//! What a rank of the group does, in a process of its own.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use fabric::{Fabric, FabricError, JoinOptions, ReformOptions, Secret, Team, Transport, join};
use rustix::time::{ClockId, clock_gettime};

use crate::PATIENCE;
use crate::random::Random;

/// How long a survivor rests after an error: longer where RDMA is emulated, as what it still has to do takes longer then.
pub(crate) fn rest_of(transport: Transport) -> Duration {
    if transport == Transport::Rdma { Duration::from_secs(3) } else { Duration::from_millis(200) }
}

/// Starts each line that a rank says to the test.
pub(crate) const MARK: &str = "chaos: ";
const ORDERS: &str = "FABRIC_CHAOS_ORDERS";
const TRANSPORTS: [Transport; 3] = [Transport::SharedMemory, Transport::Tcp, Transport::Rdma];

/// What a rank is told.
pub(crate) struct Orders {
    pub(crate) rank: usize,
    pub(crate) rendezvous: String,
    pub(crate) secret_file: PathBuf,
    pub(crate) transport: Transport,
    /// The collectives follow from it.
    pub(crate) seed: u64,
    /// A rank that is silent for this long is lost.
    pub(crate) deadline: Duration,
}

impl Orders {
    pub(crate) fn give(&self, command: &mut Command) {
        let transport = TRANSPORTS.iter().position(|&it| it == self.transport).unwrap();
        let Self { rank, rendezvous, secret_file, seed, .. } = self;
        let (secret_file, deadline) = (secret_file.display(), self.deadline.as_millis());
        command.env(ORDERS, format!("{rank};{rendezvous};{secret_file};{transport};{seed};{deadline}"));
    }

    /// The orders of this process, if it is a rank.
    pub(crate) fn given() -> Option<Self> {
        let text = std::env::var(ORDERS).ok()?;
        let mut words = text.split(';');
        let mut next = || words.next().unwrap();
        Some(Self {
            rank: next().parse().unwrap(),
            rendezvous: next().to_owned(),
            secret_file: next().into(),
            transport: TRANSPORTS[next().parse::<usize>().unwrap()],
            seed: next().parse().unwrap(),
            deadline: Duration::from_millis(next().parse().unwrap()),
        })
    }
}

/// The time by a clock that all processes of this machine share.
pub(crate) fn now() -> Duration {
    time_of(ClockId::Monotonic)
}

fn time_of(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

fn say(words: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{MARK}{}", words.replace('\n', " ")).unwrap();
    out.flush().unwrap();
}

/// Takes part in collectives until one fails, rests, and forms a new group with the others.
pub(crate) fn run(orders: &Orders) {
    let secret = Secret::from_file(&orders.secret_file).unwrap();
    let options = JoinOptions {
        rank: Some(orders.rank),
        transport: orders.transport,
        deadline: PATIENCE,
        liveness_deadline: orders.deadline,
        ..JoinOptions::default()
    };
    let mut fabric = match join(orders.rendezvous.as_str(), &secret, &options) {
        Ok(joined) => joined.fabric,
        Err(error) => return say(&error.to_string()),
    };
    let size = fabric.size();
    let mut others = (0..size).filter(|&rank| rank != orders.rank);
    assert!(others.all(|rank| fabric.transport(rank) == Some(orders.transport)));
    let mut random = Random::new(orders.seed);
    let barrier = fabric.barrier(&everyone(&fabric));
    say("under way");
    let error = barrier.and_then(|()| forever(&mut fabric, &mut random)).unwrap_err();
    say(&format!("failed {} {error}", now().as_nanos()));
    let used = time_of(ClockId::ProcessCPUTime);
    std::thread::sleep(rest_of(orders.transport));
    say(&format!("rested {}", (time_of(ClockId::ProcessCPUTime) - used).as_nanos()));
    // Survivors may have come to different points.
    let mut random = Random::new(!orders.seed);
    let formed = fabric.reform(&ReformOptions { deadline: PATIENCE / 2, least: size - 1 }).and_then(|mut fabric| {
        for _ in 0..3 {
            all_reduce(&mut fabric, &mut random)?;
        }
        Ok(fabric)
    });
    match &formed {
        Ok(fabric) => {
            let (rank, size, generation) = (fabric.rank(), fabric.size(), fabric.generation());
            say(&format!("formed {rank} of {size} generation {generation}"));
        }
        Err(error) => say(&error.to_string()),
    }
    // The group stays until the test has heard all of it.
    let _ = std::io::stdin().read(&mut [0]);
}

fn everyone(fabric: &Fabric) -> Team {
    Team::of_range(0..fabric.size(), fabric.rank()).unwrap()
}

/// Collectives without end, all of which must give the right results.
fn forever(fabric: &mut Fabric, random: &mut Random) -> Result<(), FabricError> {
    loop {
        match random.below(5) {
            0 => fabric.barrier(&everyone(fabric))?,
            1 => broadcast(fabric, random)?,
            2 => all_gather(fabric, random)?,
            _ => all_reduce(fabric, random)?,
        }
    }
}

/// Mostly short, at times of a length that does not fit on the way.
fn length(random: &mut Random) -> usize {
    let bound = [10, 3000, 400_000][random.below(3)];
    random.below(bound)
}

fn value(rank: usize, index: usize, salt: usize) -> f32 {
    let bits = (rank as u32 * 977 + index as u32 + salt as u32).wrapping_mul(2_654_435_761);
    (bits as i32) as f32 * 1.0e-6
}

fn all_reduce(fabric: &mut Fabric, random: &mut Random) -> Result<(), FabricError> {
    let (count, salt) = (length(random), random.below(1000));
    let (rank, size, team) = (fabric.rank(), fabric.size(), everyone(fabric));
    let mut buffer: Vec<f32> = (0..count).map(|index| value(rank, index, salt)).collect();
    fabric.all_reduce_sum(&team, &mut buffer)?;
    for (index, sum) in buffer.into_iter().enumerate() {
        let plain = (1..size).fold(value(0, index, salt), |sum, rank| sum + value(rank, index, salt));
        assert_eq!(sum.to_bits(), plain.to_bits(), "element {index} of {count}");
    }
    Ok(())
}

fn all_gather(fabric: &mut Fabric, random: &mut Random) -> Result<(), FabricError> {
    let (rank, size, team) = (fabric.rank(), fabric.size(), everyone(fabric));
    let mut parts = Vec::new();
    let mut width = 0;
    for _ in 0..size {
        let count = length(random) / size;
        parts.push(width..width + count);
        width += count;
    }
    let mut buffer = vec![-1.0; width];
    buffer[parts[rank].clone()].fill(rank as f32);
    fabric.all_gather(&team, 1, width, &parts, &mut buffer)?;
    for (rank, part) in parts.into_iter().enumerate() {
        assert!(buffer[part].iter().all(|&element| element == rank as f32));
    }
    Ok(())
}

fn broadcast(fabric: &mut Fabric, random: &mut Random) -> Result<(), FabricError> {
    let (root, count) = (random.below(fabric.size()), length(random));
    let expected: Vec<u8> = (0..count).map(|index| (index * 31 + root) as u8).collect();
    let mut message = if fabric.rank() == root { expected.clone() } else { Vec::new() };
    fabric.broadcast(&everyone(fabric), root, &mut message)?;
    assert!(message == expected);
    Ok(())
}
