//! Median latency of `all_gather` between threads of this process: `cargo bench -p fabric [-- RANKS [SECONDS]]`.
//!
//! Each rank is pinned to a core of its own where there are enough. A row is one size of the whole gathered buffer.

use std::time::{Duration, Instant};

use fabric::{Fabric, Team, Transport, local_group};

fn main() {
    // Cargo passes `--bench`.
    let numbers: Vec<u64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let ranks = numbers.first().map_or(2, |&ranks| ranks as usize);
    let seconds = numbers.get(1).copied().unwrap_or(4);
    let sizes = [1, 2, 8, 16, 64, 256, 1024].map(|kib| kib << 10);
    let budget = Duration::from_secs(seconds) / (sizes.len() * 2) as u32;
    println!(
        "all_gather, {ranks} ranks, microseconds\n{:>9} {:>14} {:>9} {:>9}",
        "bytes", "transport", "median", "p99"
    );
    for bytes in sizes {
        for transport in [Transport::SharedMemory, Transport::Tcp] {
            let [median, p99] = measure(ranks, transport, bytes, budget);
            println!("{bytes:>9} {:>14} {median:>9.2} {p99:>9.2}", transport.to_string());
        }
    }
}

/// Microseconds: median and 99th percentile of rank 0.
fn measure(ranks: usize, transport: Transport, bytes: usize, budget: Duration) -> [f64; 2] {
    let fabrics = local_group(ranks, transport).expect("a local group");
    let mut times = std::thread::scope(|scope| {
        let threads: Vec<_> =
            fabrics.into_iter().map(|fabric| scope.spawn(move || run_rank(fabric, bytes, budget))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).next().expect("rank 0")
    });
    times.sort_unstable();
    [times[times.len() / 2], times[times.len() * 99 / 100]].map(|time| time.as_nanos() as f64 / 1e3)
}

fn run_rank(mut fabric: Fabric, bytes: usize, budget: Duration) -> Vec<Duration> {
    pin(fabric.rank(), fabric.size());
    let team = Team::of_range(0..fabric.size(), fabric.rank()).expect("a team");
    let width = bytes / size_of::<f32>();
    let bound = |index: usize| width * index / fabric.size();
    let parts: Vec<_> = (0..fabric.size()).map(|index| bound(index)..bound(index + 1)).collect();
    let mut buffer = vec![fabric.rank() as f32; width];
    let mut times = Vec::new();
    let started = Instant::now();
    // All ranks must stop in the same round, which rank 0 announces once in a while.
    let mut go_on = vec![1];
    while go_on[0] == 1 {
        for _ in 0..100 {
            let start = Instant::now();
            fabric.all_gather(&team, 1, width, &parts, &mut buffer).expect("an exchange");
            times.push(start.elapsed());
        }
        go_on[0] = u8::from(started.elapsed() < budget);
        fabric.broadcast(&team, 0, &mut go_on).expect("a broadcast");
    }
    times
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
