//! What this machine can do at best, and how long a piece of work takes.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use kernels::{Pool, probe};
use memmap2::MmapMut;
use serde::Serialize;

use super::work::Work;

/// Bytes that fit the second-level cache of every usual core, but not the first-level one.
const CACHED: usize = 256 << 10;
/// Reads of [`CACHED`] bytes by each thread in one measurement.
const CACHED_READS: usize = 64;
/// Steps of multiplications in one measurement, which takes less than a millisecond.
const STEPS: u64 = 50_000;

/// The limits of this machine for a number of threads: the best of several measurements.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Limits {
    pub(crate) threads: usize,
    /// Reading what no cache holds, in 10^9 bytes per second.
    pub(crate) memory_gb_s: f64,
    /// Reading what the second-level cache holds.
    pub(crate) cache_gb_s: f64,
    /// Multiplications and additions of 8-bit integers, in 10^9 per second.
    pub(crate) integer_gop_s: f64,
    /// The same of 32-bit floats.
    pub(crate) float_gop_s: f64,
}

/// Which of the limits a piece of work meets first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    Memory,
    Cache,
    Integers,
    Floats,
}

impl Bound {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cache => "cache",
            Self::Integers => "integers",
            Self::Floats => "floats",
        }
    }
}

impl Limits {
    /// Measures for `budget`, reading `memory`, which must be larger than all caches.
    pub(crate) fn measure(pool: &Pool, memory: &[u8], budget: Duration) -> Self {
        let cached = &memory[..(CACHED * pool.threads()).min(memory.len())];
        let mut limits =
            Self { threads: pool.threads(), memory_gb_s: 0.0, cache_gb_s: 0.0, integer_gop_s: 0.0, float_gop_s: 0.0 };
        let started = Instant::now();
        // The first round wakes processor and pages, and is too slow to be the best.
        for round in 0.. {
            let memory_gb_s = rate(|| {
                black_box(probe::read(pool, memory, 1));
                memory.len() as u64
            });
            let cache_gb_s = rate(|| {
                black_box(probe::read(pool, cached, CACHED_READS));
                (CACHED_READS * cached.len()) as u64
            });
            limits.raise(&Self {
                threads: pool.threads(),
                memory_gb_s,
                cache_gb_s,
                integer_gop_s: rate(|| probe::integer_products(pool, STEPS)),
                float_gop_s: rate(|| probe::float_products(pool, STEPS)),
            });
            if round > 0 && started.elapsed() >= budget {
                break;
            }
        }
        limits
    }

    /// Takes over what was better in another measurement.
    pub(crate) fn raise(&mut self, other: &Self) {
        self.memory_gb_s = self.memory_gb_s.max(other.memory_gb_s);
        self.cache_gb_s = self.cache_gb_s.max(other.cache_gb_s);
        self.integer_gop_s = self.integer_gop_s.max(other.integer_gop_s);
        self.float_gop_s = self.float_gop_s.max(other.float_gop_s);
    }

    /// The shortest time in seconds in which this machine could do something, and which limit that is.
    pub(crate) fn least_seconds(&self, work: &Work) -> (f64, Bound) {
        let reading = work.bytes / (self.memory_gb_s * 1e9);
        let copying = work.cached_bytes / (self.cache_gb_s * 1e9);
        let integers = work.integer_operations / (self.integer_gop_s * 1e9);
        let floats = work.float_operations / (self.float_gop_s * 1e9);
        // The same units do both kinds of operations, while memory and caches work beside them.
        let (computing, kind) = (integers + floats, if integers >= floats { Bound::Integers } else { Bound::Floats });
        let bounds = [(reading, Bound::Memory), (copying, Bound::Cache), (computing, kind)];
        bounds.into_iter().fold((0.0, Bound::Memory), |most, it| if it.0 > most.0 { it } else { most })
    }
}

/// 10^9 units per second of work that tells how many it did.
fn rate(work: impl FnOnce() -> u64) -> f64 {
    let started = Instant::now();
    let units = work();
    units as f64 / started.elapsed().as_secs_f64().max(1e-9) / 1e9
}

/// Zeroed memory in large pages, where the system has such.
pub(crate) fn large_pages(bytes: usize) -> anyhow::Result<MmapMut> {
    let map = MmapMut::map_anon(bytes).with_context(|| format!("no memory for {bytes} bytes"))?;
    #[cfg(target_os = "linux")]
    if let Err(error) = map.advise(memmap2::Advice::HugePage) {
        tracing::debug!("no large pages: {error}");
    }
    Ok(map)
}

/// Bytes in large pages that, taken as weights of any format, make scales of a usual size.
pub(crate) fn any_weights(bytes: usize) -> anyhow::Result<Bytes> {
    let mut map = large_pages(bytes)?;
    let pattern: Vec<u8> = (0..1_usize << 16).map(|i| (0x20 + i * i % 27) as u8).collect();
    map.chunks_mut(pattern.len()).for_each(|part| part.copy_from_slice(&pattern[..part.len()]));
    Ok(Bytes::from_owner(map.make_read_only()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_part_is_the_limit() {
        let limits =
            Limits { threads: 1, memory_gb_s: 10.0, cache_gb_s: 100.0, integer_gop_s: 400.0, float_gop_s: 100.0 };
        let work = Work { bytes: 1e9, cached_bytes: 2e9, integer_operations: 4e9, float_operations: 1e9 };
        assert_eq!(limits.least_seconds(&work), (0.1, Bound::Memory));
        assert_eq!(limits.least_seconds(&Work { cached_bytes: 2e10, ..work }), (0.2, Bound::Cache));
        assert_eq!(limits.least_seconds(&Work { integer_operations: 4e11, ..work }), (1.01, Bound::Integers));
        assert_eq!(limits.least_seconds(&Work { float_operations: 2e11, ..work }), (2.01, Bound::Floats));
    }

    #[test]
    fn everything_is_measured() {
        let pool = Pool::new(1).unwrap();
        let limits = Limits::measure(&pool, &any_weights(1 << 20).unwrap(), Duration::ZERO);
        let all = [limits.memory_gb_s, limits.cache_gb_s, limits.integer_gop_s, limits.float_gop_s];
        assert!(all.iter().all(|&limit| limit > 0.0), "{limits:?}");
    }
}
