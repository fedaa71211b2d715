//! What is wrong with a group's links, told from their measurements. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::LinkMeasurement;

/// A link that reaches less than this share of the best link of the same kind is slow.
const SLOW_SHARE: f64 = 0.25;
/// A link whose latency is so many times that of the best link of the same kind, and by so many microseconds more, is
/// slow as well.
const LATENCY_FACTOR: f64 = 5.0;
const LATENCY_MARGIN_US: f64 = 500.0;
/// A direction that reaches less than this share of the other one makes a link asymmetric.
const ASYMMETRY_SHARE: f64 = 0.4;
/// A link that reaches less than this share of what its interfaces are rated for is worth a look.
const RATED_SHARE: f64 = 0.4;
/// More lost datagrams than this share are no accident.
const LOSS_SHARE: f64 = 0.005;

/// What is wrong with a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WarningKind {
    /// Much slower than the best link of its kind.
    Slow,
    /// Loses packets.
    Lossy,
    /// Much slower in one direction than in the other.
    Asymmetric,
    /// Slower than its interfaces are rated for.
    BelowRated,
    /// Frames were damaged, lost or sent again.
    Errors,
    /// The two have no cable of their own.
    NotDirect,
}

/// One fault of one link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Warning {
    /// What is wrong.
    pub kind: WarningKind,
    /// The two ranks, the lower one first.
    pub ranks: [usize; 2],
    /// A sentence for people, with figures and what to do.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The faults of all links, by pair of ranks. A link that loses packets is not called slow as well, since the loss is
/// why; neither is a link through other ranks, whose cables are looked at on their own.
pub fn diagnose(measurements: &[LinkMeasurement]) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for there in measurements.iter().filter(|it| it.from < it.to) {
        let Some(back) = measurements.iter().find(|it| it.from == there.to && it.to == there.from) else { continue };
        let pair = Pair { there, back };
        if there.hops > 1 {
            warnings.push(pair.warning(WarningKind::NotDirect, pair.not_direct()));
            continue;
        }
        let lossy = pair.lossy();
        let is_lossy = lossy.is_some();
        let mut add = |kind, message: Option<String>| {
            warnings.extend(message.map(|message| pair.warning(kind, message)));
        };
        add(WarningKind::Lossy, lossy);
        add(WarningKind::Errors, pair.erring().filter(|_| !is_lossy));
        if !is_lossy {
            let slow = pair.slow(measurements);
            let below_rated = pair.below_rated().filter(|_| slow.is_none());
            add(WarningKind::Slow, slow);
            add(WarningKind::BelowRated, below_rated);
            add(WarningKind::Asymmetric, pair.asymmetric());
        }
    }
    warnings
}

/// Both directions of a link.
struct Pair<'a> {
    there: &'a LinkMeasurement,
    back: &'a LinkMeasurement,
}

impl Pair<'_> {
    fn warning(&self, kind: WarningKind, message: String) -> Warning {
        Warning { kind, ranks: [self.there.from, self.there.to], message }
    }

    fn names(&self) -> String {
        format!("the link between ranks {} and {}", self.there.from, self.there.to)
    }

    fn directions(&self) -> [&LinkMeasurement; 2] {
        [self.there, self.back]
    }

    fn not_direct(&self) -> String {
        let (a, b, hops) = (self.there.from, self.there.to, self.there.hops);
        format!(
            "ranks {a} and {b} have no cable of their own: data between them takes {hops} cables, through other ranks"
        )
    }

    fn lossy(&self) -> Option<String> {
        let loss = self.directions().into_iter().filter_map(|it| it.loss).fold(0.0, f64::max);
        (loss > LOSS_SHARE).then(|| {
            let percent = loss * 100.0;
            format!("{} loses {percent:.1}% of its packets: check plugs and cable, and swap the cable", self.names())
        })
    }

    fn erring(&self) -> Option<String> {
        let errors: u64 = self.directions().into_iter().filter_map(|it| it.errors).sum();
        (errors > 0).then(|| format!("{} had {errors} errors: check plugs and cable", self.names()))
    }

    fn slow(&self, all: &[LinkMeasurement]) -> Option<String> {
        let same_kind = || all.iter().filter(|it| it.transport == self.there.transport && it.hops == 1);
        let best = same_kind().map(|it| it.bandwidth).fold(0.0, f64::max);
        let least = self.there.bandwidth.min(self.back.bandwidth);
        if least < best * SLOW_SHARE {
            let names = self.names();
            let (least, best) = (rate(least), rate(best));
            return Some(format!("{names} is slow: {least}, where the best one of its kind reaches {best}"));
        }
        let quickest = same_kind().map(|it| it.latency_us_median).fold(f64::INFINITY, f64::min);
        let latency = self.there.latency_us_median.max(self.back.latency_us_median);
        (latency > quickest * LATENCY_FACTOR && latency > quickest + LATENCY_MARGIN_US).then(|| {
            let names = self.names();
            format!("{names} is slow: {latency:.0} us one way, where the best one of its kind takes {quickest:.0} us")
        })
    }

    fn below_rated(&self) -> Option<String> {
        let rated = self.there.rated.into_iter().chain(self.back.rated).reduce(f64::min)?;
        let least = self.there.bandwidth.min(self.back.bandwidth);
        (least < rated * RATED_SHARE).then(|| {
            let (names, least, rated) = (self.names(), rate(least), rate(rated));
            format!("{names} reaches {least} of the {rated} that it is rated for: check cable, port and MTU")
        })
    }

    fn asymmetric(&self) -> Option<String> {
        let [a, b] = self.directions().map(|it| it.bandwidth);
        (a.min(b) < a.max(b) * ASYMMETRY_SHARE).then(|| {
            let (from, to) = (self.there.from, self.there.to);
            let (names, a, b) = (self.names(), rate(a), rate(b));
            format!("{names} is asymmetric: {a} from {from} to {to}, {b} back")
        })
    }
}

/// Bytes per second as people read it.
fn rate(bytes_per_second: f64) -> String {
    match bytes_per_second {
        rate if rate >= 1e9 => format!("{:.1} GB/s", rate / 1e9),
        rate if rate >= 1e6 => format!("{:.1} MB/s", rate / 1e6),
        rate => format!("{:.1} kB/s", rate / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Transport;

    /// A healthy chain of four.
    fn chain() -> Vec<LinkMeasurement> {
        let mut all = Vec::new();
        for from in 0..4usize {
            for to in (0..4).filter(|&to| to != from) {
                let hops = from.abs_diff(to);
                all.push(LinkMeasurement {
                    from,
                    to,
                    transport: Transport::Tcp,
                    encrypted: false,
                    hops,
                    cables: 1,
                    latency_us_median: 20.0 * hops as f64,
                    latency_us_p99: 50.0,
                    bandwidth: 1e9,
                    rated: Some(1.25e9),
                    loss: Some(0.0),
                    retries: Some(0),
                    errors: Some(0),
                });
            }
        }
        all
    }

    fn check(change: impl Fn(&mut LinkMeasurement), expected: &[(WarningKind, [usize; 2])]) {
        let mut all = chain();
        all.iter_mut().for_each(change);
        let found: Vec<_> = diagnose(&all).into_iter().map(|it| (it.kind, it.ranks)).collect();
        let not_direct = |it: &&(WarningKind, [usize; 2])| it.0 == WarningKind::NotDirect;
        assert_eq!(found.iter().filter(|it| !not_direct(it)).copied().collect::<Vec<_>>(), expected);
        assert_eq!(found.iter().filter(not_direct).count(), 3, "pairs without a cable of their own");
    }

    #[test]
    fn healthy_links_get_no_warning() {
        check(|_| {}, &[]);
    }

    #[test]
    fn the_slow_and_the_lossy_are_named() {
        let is = |it: &LinkMeasurement, a, b| (it.from, it.to) == (a, b) || (it.from, it.to) == (b, a);
        let change = |it: &mut LinkMeasurement| {
            if is(it, 1, 2) {
                it.bandwidth = 1e6;
            }
            if is(it, 2, 3) {
                (it.bandwidth, it.loss) = (2e6, Some(0.05));
            }
        };
        check(change, &[(WarningKind::Slow, [1, 2]), (WarningKind::Lossy, [2, 3])]);
    }

    #[test]
    fn delay_alone_makes_a_link_slow() {
        let change = |it: &mut LinkMeasurement| {
            if it.from + it.to == 1 {
                it.latency_us_median = 5000.0;
            }
        };
        check(change, &[(WarningKind::Slow, [0, 1])]);
    }

    #[test]
    fn one_direction_and_ratings_count() {
        let change = |it: &mut LinkMeasurement| {
            if (it.from, it.to) == (3, 2) {
                it.bandwidth = 0.3e9;
            }
            if it.from + it.to == 1 {
                it.rated = Some(10e9);
            }
        };
        let expected =
            [(WarningKind::BelowRated, [0, 1]), (WarningKind::BelowRated, [2, 3]), (WarningKind::Asymmetric, [2, 3])];
        check(change, &expected);
    }

    #[test]
    fn errors_are_told() {
        let change = |it: &mut LinkMeasurement| it.errors = Some(u64::from(it.from == 1 && it.to == 2));
        check(change, &[(WarningKind::Errors, [1, 2])]);
    }
}
