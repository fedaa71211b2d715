//! Measures the links of a group, one pair after the other, so that no two measurements disturb each other.

mod datagrams;
mod diagnosis;
mod interface;

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use self::diagnosis::{Warning, WarningKind, diagnose};
use crate::error::FabricError;
use crate::fabric::Fabric;
use crate::link::Transport;
use crate::team::Team;

/// The largest message that a bandwidth is measured with, in bytes.
const BULK_BYTES_MAX: u64 = 64 << 20;
/// The smallest one.
const BULK_BYTES_MIN: u64 = 64 << 10;
/// How often the final size is sent; the best counts, as everything that disturbs only slows down.
const BULK_REPETITIONS: usize = 3;
/// The fewest and the most round trips that a latency is measured with.
const ROUND_TRIPS: [usize; 2] = [20, 2000];

/// Bytes of a datagram with all headers.
const DATAGRAM_ON_THE_WIRE: f64 = 200.0;

/// How thoroughly links are measured.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct ProbeOptions {
    /// About how long each of latency, bandwidth and loss may take in each direction of each link.
    pub budget: Duration,
}

impl Default for ProbeOptions {
    fn default() -> Self {
        Self { budget: Duration::from_millis(200) }
    }
}

/// One direction of one link, as measured by the rank that sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkMeasurement {
    /// The rank that sends.
    pub from: usize,
    /// The rank that receives.
    pub to: usize,
    /// What the link is made of.
    pub transport: Transport,
    /// Whether nobody on the way can read or change what it carries.
    pub encrypted: bool,
    /// Cables on the way: 1 for a direct link, more through other ranks.
    pub hops: usize,
    /// Cables side by side between the two.
    pub cables: usize,
    /// Half of a round trip of 8 bytes, in microseconds: median.
    pub latency_us_median: f64,
    /// The same: 99th percentile.
    pub latency_us_p99: f64,
    /// Bytes per second of large messages.
    pub bandwidth: f64,
    /// What the interfaces of the cables are rated for together, in bytes per second, where known.
    pub rated: Option<f64>,
    /// The share of small datagrams that were lost on the cables, of 0 to 1, where that can be measured.
    pub loss: Option<f64>,
    /// Frames that had to be sent again meanwhile, where known.
    pub retries: Option<u64>,
    /// Frames that came damaged or not at all meanwhile, where known.
    pub errors: Option<u64>,
}

/// How datagrams are sent.
struct Pace {
    budget: Duration,
    /// Time between two of them.
    gap: Duration,
}

/// Datagrams so far apart take about a tenth of a cable, so that none is lost for lack of room.
fn gap(bandwidth: f64) -> Duration {
    Duration::from_secs_f64((10.0 * DATAGRAM_ON_THE_WIRE / bandwidth.max(1.0)).min(0.01))
}

impl Fabric {
    /// Measures all links of the group. All ranks call it; each returns the directions in which it sends.
    ///
    /// # Errors
    /// As for any operation: [`FabricError::PeerLost`] or [`FabricError::Mismatch`].
    pub fn probe(&mut self, options: &ProbeOptions) -> Result<Vec<LinkMeasurement>, FabricError> {
        let everyone = Team::of_range(0..self.size(), self.rank())?;
        let mut measurements = Vec::new();
        for from in 0..self.size() {
            for to in (0..self.size()).filter(|&to| to != from) {
                self.barrier(&everyone)?;
                if self.rank() == from {
                    measurements.push(self.measure_towards(to, options)?);
                } else if self.rank() == to {
                    self.serve_measurement(from)?;
                    self.serve_loss(from)?;
                }
            }
        }
        self.barrier(&everyone)?;
        Ok(measurements)
    }

    fn measure_towards(&mut self, to: usize, options: &ProbeOptions) -> Result<LinkMeasurement, FabricError> {
        let hops = self.topology().hops(self.rank(), to);
        let before = (self.counters(to).unwrap_or_default(), interface::segments_sent_again());
        let round_trips = self.measure_round_trips(to, options.budget)?;
        let bandwidth = self.measure_bandwidth(to, options.budget)?;
        let cables = self.cables(to);
        let pace = Pace { budget: options.budget, gap: gap(bandwidth) };
        let loss = self.measure_loss(to, &pace)?.filter(|_| hops == 1);
        let after = self.counters(to).unwrap_or_default();
        let transport = self.transport(to).unwrap_or_default();
        let retries = match transport {
            // The system counts for all connections, of which only this one is in use now.
            Transport::Tcp => interface::segments_sent_again().zip(before.1).map(|(after, before)| after - before),
            _ => Some(after.retries - before.0.retries),
        };
        let half_us = |share: usize| round_trips[(round_trips.len() - 1) * share / 100].as_secs_f64() * 1e6 / 2.0;
        Ok(LinkMeasurement {
            from: self.rank(),
            to,
            transport,
            encrypted: self.is_encrypted(to).unwrap_or(false),
            hops,
            cables: self.topology().cables(self.rank(), to),
            latency_us_median: half_us(50),
            latency_us_p99: half_us(99),
            bandwidth,
            rated: interface::rated(&cables).filter(|_| hops == 1),
            loss,
            retries,
            errors: Some(after.errors - before.0.errors),
        })
    }

    /// Sorted times of round trips.
    fn measure_round_trips(&mut self, to: usize, budget: Duration) -> Result<Vec<Duration>, FabricError> {
        let [fewest, most] = ROUND_TRIPS;
        let mut times = Vec::with_capacity(most);
        let started = Instant::now();
        let mut go_on = true;
        while go_on {
            let before = Instant::now();
            go_on = times.len() + 1 < fewest || times.len() + 1 < most && started.elapsed() < budget;
            self.send(to, &u64::from(go_on).to_le_bytes())?;
            self.recv(to, &mut [0; 8])?;
            times.push(before.elapsed());
        }
        // The first ones find caches cold and the other side asleep.
        times.drain(..times.len() / 10);
        times.sort_unstable();
        Ok(times)
    }

    /// Bytes per second.
    ///
    /// Messages grow until one takes a good part of the budget, so that fast links get messages long enough and slow ones
    /// do not take minutes.
    fn measure_bandwidth(&mut self, to: usize, budget: Duration) -> Result<f64, FabricError> {
        let mut length = BULK_BYTES_MIN;
        let mut repetitions = 0;
        let mut best: f64 = 0.0;
        let bytes = vec![0x5a; BULK_BYTES_MAX as usize];
        let started = Instant::now();
        while repetitions < BULK_REPETITIONS {
            let before = Instant::now();
            self.send(to, &length.to_le_bytes())?;
            self.send(to, &bytes[..length as usize])?;
            self.recv(to, &mut [0; 8])?;
            let took = before.elapsed();
            best = best.max(length as f64 / took.as_secs_f64().max(1e-9));
            let is_long = took * 8 > budget || length == BULK_BYTES_MAX;
            if is_long {
                repetitions += 1;
            } else {
                length *= 2;
            }
            if started.elapsed() > budget * 4 {
                break;
            }
        }
        self.send(to, &0u64.to_le_bytes())?;
        Ok(best)
    }

    /// The other side of a measurement.
    fn serve_measurement(&mut self, from: usize) -> Result<(), FabricError> {
        let mut number = [0; 8];
        loop {
            self.recv(from, &mut number)?;
            self.send(from, &number)?;
            if number == [0; 8] {
                break;
            }
        }
        let mut bytes = Vec::new();
        loop {
            self.recv(from, &mut number)?;
            let length = u64::from_le_bytes(number).min(BULK_BYTES_MAX) as usize;
            if length == 0 {
                return Ok(());
            }
            bytes.resize(length.max(bytes.len()), 0);
            self.recv(from, &mut bytes[..length])?;
            self.send(from, &number)?;
        }
    }
}
