//! Times of collectives between threads of this process:
//! `cargo bench -p fabric [-- [all_reduce|all_gather] [shm|tcp] [--ranks N] [--seconds S] [--json] [BYTES...]]`.
//!
//! Each rank is pinned to a core of its own where there are enough. A row is one size of the whole buffer of float32;
//! `--seconds` is what each row takes. Rows in JSON have the fields of `ropewalk bench collectives`.

use std::time::{Duration, Instant};

use fabric::{Fabric, FabricError, Team, Transport, local_group};

#[derive(Clone, Copy)]
struct Collective {
    name: &'static str,
    /// What leaves each rank, as a multiple of the buffer's bytes, for `ranks` ranks.
    share: fn(f64) -> f64,
    run: fn(&mut Fabric, &Team, &mut [f32]) -> Result<(), FabricError>,
}

const COLLECTIVES: [Collective; 2] = [
    Collective { name: "all_reduce", share: |ranks| 2.0 * (ranks - 1.0) / ranks, run: all_reduce },
    Collective { name: "all_gather", share: |ranks| (ranks - 1.0) / ranks, run: all_gather },
];

struct Options {
    collectives: Vec<Collective>,
    transports: Vec<(&'static str, Transport)>,
    ranks: usize,
    budget: Duration,
    json: bool,
    sizes: Vec<usize>,
}

fn main() {
    let options = Options::parse(std::env::args().skip(1));
    let mut rows = Vec::new();
    for &collective in &options.collectives {
        for &bytes in &options.sizes {
            for &(transport_name, transport) in &options.transports {
                let [median, p99] = measure(options.ranks, transport, collective, bytes, options.budget);
                let bus = (collective.share)(options.ranks as f64) * bytes as f64 / (median * 1e3);
                if !options.json {
                    let name = collective.name;
                    println!("{name:<11} {bytes:>9} bytes {transport_name:>4} {median:>10.2} us, p99 {p99:>10.2} us");
                }
                rows.push(format!(
                    "{{\"collective\": \"{}\", \"bytes\": {bytes}, \"ranks\": {}, \"transport\": \"{transport_name}\", \
                     \"median_us\": {median:.3}, \"p99_us\": {p99:.3}, \"bus_gb_s\": {bus:.3}}}",
                    collective.name, options.ranks
                ));
            }
        }
    }
    if options.json {
        println!("[{}]", rows.join(",\n"));
    }
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> Self {
        let sizes = [1, 8, 16, 64, 1024, 16384].map(|kib| kib << 10).to_vec();
        let transports = vec![("shm", Transport::SharedMemory), ("tcp", Transport::Tcp)];
        let budget = Duration::from_millis(300);
        let mut options = Self { collectives: COLLECTIVES.to_vec(), transports, ranks: 2, budget, json: false, sizes };
        let mut sizes = Vec::new();
        let mut arguments = arguments.peekable();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--json" => options.json = true,
                "--ranks" => options.ranks = number(arguments.next()) as usize,
                "--seconds" => options.budget = Duration::from_secs_f64(number(arguments.next())),
                // Cargo's own.
                "--bench" => {}
                word if word.starts_with("all_") => options.collectives.retain(|it| it.name == word),
                word if ["shm", "tcp"].contains(&word) => options.transports.retain(|it| it.0 == word),
                word => sizes.push(number(Some(word.to_owned())) as usize),
            }
        }
        if !sizes.is_empty() {
            options.sizes = sizes;
        }
        options
    }
}

fn number(argument: Option<String>) -> f64 {
    argument.and_then(|argument| argument.parse().ok()).expect("a number")
}

fn all_reduce(fabric: &mut Fabric, team: &Team, buffer: &mut [f32]) -> Result<(), FabricError> {
    fabric.all_reduce_sum(team, buffer)
}

fn all_gather(fabric: &mut Fabric, team: &Team, buffer: &mut [f32]) -> Result<(), FabricError> {
    let bound = |index: usize| buffer.len() * index / team.len();
    let parts: Vec<_> = (0..team.len()).map(|index| bound(index)..bound(index + 1)).collect();
    fabric.all_gather(team, 1, buffer.len(), &parts, buffer)
}

/// Microseconds: median and 99th percentile of rank 0.
fn measure(ranks: usize, transport: Transport, collective: Collective, bytes: usize, budget: Duration) -> [f64; 2] {
    let fabrics = local_group(ranks, transport).expect("a local group");
    let mut times = std::thread::scope(|scope| {
        let run = |fabric| scope.spawn(move || run_rank(fabric, collective, bytes, budget));
        let threads: Vec<_> = fabrics.into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).next().expect("rank 0")
    });
    times.sort_unstable();
    [times[times.len() / 2], times[times.len() * 99 / 100]].map(|time| time.as_nanos() as f64 / 1e3)
}

fn run_rank(mut fabric: Fabric, collective: Collective, bytes: usize, budget: Duration) -> Vec<Duration> {
    pin(fabric.rank(), fabric.size());
    let team = Team::of_range(0..fabric.size(), fabric.rank()).expect("a team");
    // Zeros stay zeros, however often they are summed up.
    let mut buffer = vec![0.0; bytes / size_of::<f32>()];
    let mut times = Vec::new();
    // Enough to warm up, and then as many in a row as there is time for, which rank 0 announces.
    let mut count = 20;
    for _ in 0..2 {
        times = (0..count).map(|_| timed(|| (collective.run)(&mut fabric, &team, &mut buffer))).collect();
        let each = times.iter().sum::<Duration>() / count;
        let wanted = (budget.as_nanos() / each.as_nanos().max(1)).clamp(20, 200_000) as u32;
        let mut message = wanted.to_le_bytes().to_vec();
        fabric.broadcast(&team, 0, &mut message).expect("a broadcast");
        count = u32::from_le_bytes(message.try_into().expect("four bytes"));
    }
    times
}

fn timed(run: impl FnOnce() -> Result<(), FabricError>) -> Duration {
    let start = Instant::now();
    run().expect("a collective");
    start.elapsed()
}

#[cfg(target_os = "linux")]
fn pin(rank: usize, size: usize) {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if size <= cores {
        let mut set = CpuSet::new();
        set.set(rank);
        sched_setaffinity(None, &set).expect("a core of its own");
    }
}

#[cfg(not(target_os = "linux"))]
fn pin(_rank: usize, _size: usize) {}
