//! The portions of a job: each share begins with a run of its own, and goes on with what is left of the others'.

use std::sync::atomic::{AtomicU64, Ordering};

use super::CacheLine;

/// The low bits of [`Taken`] count portions; the rest is the end of the job's number.
const COUNT_BITS: u32 = 24;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// How many portions of a share's run are taken, in the job of that number; in any other job, none.
///
/// So nobody has to reset it before a job begins, which would cost a transfer between cores. A number comes again after
/// 2^40 jobs, between which every share's run was taken at least once.
#[derive(Default)]
pub(super) struct Taken(AtomicU64);

impl Taken {
    /// Takes the next of `length` portions in `job`.
    fn take(&self, job: u64, length: usize) -> Option<usize> {
        let mut current = self.0.load(Ordering::Relaxed);
        loop {
            let count = if current >> COUNT_BITS == job { current & COUNT_MASK } else { 0 };
            if count >= length as u64 {
                return None;
            }
            let next = job << COUNT_BITS | (count + 1);
            // What portions hold is guarded by the beginning and the end of the job, not by this count.
            match self.0.compare_exchange_weak(current, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(count as usize),
                Err(changed) => current = changed,
            }
        }
    }
}

/// Hands out the numbers of portions to one share of a job.
pub(crate) struct Portions<'a> {
    /// For each share of the job; none if one thread runs all of it.
    taken: &'a [CacheLine<Taken>],
    job: u64,
    /// Portions in the job.
    count: usize,
    /// The share from whose run this one takes at present; without shares, the next portion.
    at: usize,
    /// How many shares' runs may have something left.
    left: usize,
}

impl<'a> Portions<'a> {
    /// All of `count` portions.
    pub(super) fn all(count: usize) -> Portions<'a> {
        Portions { taken: &[], job: 0, count, at: 0, left: 0 }
    }

    /// What `share` gets of `count` portions.
    pub(super) fn of_share(taken: &'a [CacheLine<Taken>], job: u64, share: usize, count: usize) -> Portions<'a> {
        assert!(count as u64 <= COUNT_MASK, "{count} portions are too many to count");
        Portions { taken, job: job & (u64::MAX >> COUNT_BITS), count, at: share, left: taken.len() }
    }
}

impl Iterator for Portions<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let shares = self.taken.len();
        if shares == 0 {
            let next = self.at;
            self.at += 1;
            return (next < self.count).then_some(next);
        }
        while self.left > 0 {
            let (first, end) = (self.count * self.at / shares, self.count * (self.at + 1) / shares);
            if let Some(index) = self.taken[self.at].0.take(self.job, end - first) {
                return Some(first + index);
            }
            self.at = (self.at + 1) % shares;
            self.left -= 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_takes_its_own_run_first_and_then_helps() {
        let taken: Vec<_> = (0..3).map(|_| CacheLine(Taken::default())).collect();
        for job in 1..4 {
            let mut second = Portions::of_share(&taken, job, 1, 8);
            assert_eq!([second.next(), second.next()], [Some(2), Some(3)]);
            let mut first = Portions::of_share(&taken, job, 0, 8);
            assert_eq!(first.next(), Some(0));
            assert_eq!(second.collect::<Vec<_>>(), [4, 5, 6, 7, 1]);
            assert_eq!(first.next(), None);
        }
        assert_eq!(Portions::all(3).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(Portions::of_share(&taken, 9, 2, 0).next(), None);
    }
}
