//! What a key may still do: allowances that refill as time passes. Pure; time is what the caller says.

use std::time::Duration;

use super::KeyLimits;

/// What a key has left of its limits.
#[derive(Debug)]
pub(super) struct Quota {
    limits: KeyLimits,
    requests: Bucket,
    tokens: Bucket,
    /// Requests under way.
    running: u32,
}

/// An allowance that refills within a minute. It can be overdrawn, and refills from there.
#[derive(Debug, Default)]
struct Bucket {
    level: f64,
    /// When the level was that.
    at: Duration,
}

/// Why a request has to wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Excess {
    /// Too many requests, or tokens, in the last minute; the time after which there is room again.
    PerMinute { what: &'static str, limit: u32, wait: Duration },
    /// Too many requests at the same time.
    Concurrent { limit: u32 },
}

/// How far a limit is used, for headers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Figures {
    /// `requests` or `tokens`.
    pub(super) what: &'static str,
    /// What a minute allows.
    pub(super) limit: u32,
    /// What is left of it.
    pub(super) remaining: u32,
    /// Time until all of it is there again.
    pub(super) reset: Duration,
}

impl Bucket {
    /// Brings the level up to date.
    fn refill(&mut self, limit: u32, now: Duration) -> &mut f64 {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.level = (self.level + passed * rate(limit)).min(f64::from(limit));
        self.at = now;
        &mut self.level
    }

    fn figures(&mut self, what: &'static str, limit: Option<u32>, now: Duration) -> Option<Figures> {
        let limit = limit?;
        let level = *self.refill(limit, now);
        let reset = Duration::from_secs_f64((f64::from(limit) - level) / rate(limit));
        Some(Figures { what, limit, remaining: level.max(0.0) as u32, reset })
    }

    /// Whether there is at least one.
    fn check(&mut self, what: &'static str, limit: Option<u32>, now: Duration) -> Result<(), Excess> {
        let Some(limit) = limit else { return Ok(()) };
        let missing = 1.0 - *self.refill(limit, now);
        // Levels are sums of floats, so that one which has just become full may be short of it by a hair.
        if missing <= 1e-6 {
            return Ok(());
        }
        Err(Excess::PerMinute { what, limit, wait: Duration::from_secs_f64(missing / rate(limit)) })
    }

    fn take(&mut self, count: f64, limit: Option<u32>, now: Duration) {
        if let Some(limit) = limit {
            *self.refill(limit, now) -= count;
        }
    }
}

/// What refills a second.
fn rate(limit: u32) -> f64 {
    f64::from(limit.max(1)) / 60.0
}

impl Quota {
    /// All that `limits` allow.
    pub(super) fn new(limits: KeyLimits, now: Duration) -> Self {
        let full = |limit: Option<u32>| Bucket { level: limit.map_or(0.0, f64::from), at: now };
        let (requests, tokens) = (full(limits.requests_per_minute), full(limits.tokens_per_minute));
        Self { limits, requests, tokens, running: 0 }
    }

    /// Other limits from now on. What was used stays used.
    pub(super) fn change(&mut self, limits: KeyLimits, now: Duration) {
        let change = |bucket: &mut Bucket, old: Option<u32>, new: Option<u32>| {
            let used = old.map_or(0.0, |limit| f64::from(limit) - *bucket.refill(limit, now));
            *bucket = Bucket { level: new.map_or(0.0, |limit| f64::from(limit) - used), at: now };
        };
        change(&mut self.requests, self.limits.requests_per_minute, limits.requests_per_minute);
        change(&mut self.tokens, self.limits.tokens_per_minute, limits.tokens_per_minute);
        self.limits = limits;
    }

    /// Counts a request that begins, or says why it may not. One that may not costs nothing.
    pub(super) fn begin(&mut self, now: Duration) -> Result<(), Excess> {
        let limits = self.limits;
        if let Some(limit) = limits.concurrent.filter(|&limit| self.running >= limit) {
            return Err(Excess::Concurrent { limit });
        }
        self.tokens.check("tokens", limits.tokens_per_minute, now)?;
        self.requests.check("requests", limits.requests_per_minute, now)?;
        self.requests.take(1.0, limits.requests_per_minute, now);
        self.running += 1;
        Ok(())
    }

    /// A request that had begun has ended.
    pub(super) fn end(&mut self) {
        self.running = self.running.saturating_sub(1);
    }

    /// Counts tokens. They are known only when they come, so that a request can take more than was left; the next one waits
    /// the longer.
    pub(super) fn charge(&mut self, tokens: usize, now: Duration) {
        self.tokens.take(tokens as f64, self.limits.tokens_per_minute, now);
    }

    /// How far the limits that there are have been used.
    pub(super) fn figures(&mut self, now: Duration) -> impl Iterator<Item = Figures> + use<> {
        let limits = self.limits;
        let requests = self.requests.figures("requests", limits.requests_per_minute, now);
        requests.into_iter().chain(self.tokens.figures("tokens", limits.tokens_per_minute, now))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits(requests: u32, tokens: u32, concurrent: u32) -> KeyLimits {
        let some = |limit| Some(limit).filter(|&limit| limit > 0);
        KeyLimits { requests_per_minute: some(requests), tokens_per_minute: some(tokens), concurrent: some(concurrent) }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn requests_refill_evenly_over_a_minute() {
        let mut quota = Quota::new(limits(2, 0, 0), at(0));
        assert_eq!((quota.begin(at(0)), quota.begin(at(0))), (Ok(()), Ok(())));
        let excess = Excess::PerMinute { what: "requests", limit: 2, wait: at(30) };
        assert_eq!(quota.begin(at(0)), Err(excess));
        assert_eq!(quota.begin(at(30)), Ok(()));
        assert!(quota.begin(at(59)).is_err());
        let figures: Vec<_> = quota.figures(at(60)).collect();
        assert_eq!(figures, [Figures { what: "requests", limit: 2, remaining: 1, reset: at(30) }]);
    }

    #[test]
    fn tokens_beyond_the_limit_make_the_next_request_wait_longer() {
        let mut quota = Quota::new(limits(0, 60, 0), at(0));
        quota.begin(at(0)).unwrap();
        quota.charge(100, at(0));
        let excess = Excess::PerMinute { what: "tokens", limit: 60, wait: at(41) };
        assert_eq!(quota.begin(at(0)), Err(excess));
        assert!(quota.begin(at(41)).is_ok());
    }

    #[test]
    fn requests_at_the_same_time_are_bounded() {
        let mut quota = Quota::new(limits(0, 0, 1), at(0));
        quota.begin(at(0)).unwrap();
        assert_eq!(quota.begin(at(100)), Err(Excess::Concurrent { limit: 1 }));
        quota.end();
        assert!(quota.begin(at(100)).is_ok());
    }

    #[test]
    fn other_limits_keep_what_was_used() {
        let mut quota = Quota::new(limits(3, 0, 0), at(0));
        quota.begin(at(0)).unwrap();
        quota.begin(at(0)).unwrap();
        quota.change(limits(2, 0, 0), at(0));
        assert!(quota.begin(at(0)).is_err());
        quota.change(limits(0, 0, 0), at(0));
        assert!(quota.begin(at(0)).is_ok());
    }

    proptest! {
        /// Whenever requests come, those of any minute are at most twice what a minute allows (a full bucket and what
        /// refills), and one that is told to wait so long does get its turn then.
        #[test]
        fn a_minute_never_sees_more_than_twice_the_limit(limit in 1_u32..50, gaps in prop::collection::vec(0_u64..20_000, 1..200)) {
            let mut quota = Quota::new(limits(limit, 0, 0), at(0));
            let (mut now, mut admitted) = (at(0), Vec::new());
            for gap in gaps {
                now += Duration::from_millis(gap);
                match quota.begin(now) {
                    Ok(()) => admitted.push(now),
                    Err(Excess::PerMinute { wait, .. }) => {
                        now += wait;
                        prop_assert_eq!(quota.begin(now), Ok(()));
                        admitted.push(now);
                    }
                    Err(other) => prop_assert!(false, "{:?}", other),
                }
                let minute = admitted.iter().filter(|&&time| time + at(60) > now).count();
                prop_assert!(minute <= 2 * limit as usize);
            }
        }
    }
}
