//! Who is next: no clock, no thread, only the times that it is told.
//!
//! Requests of a smaller priority number go first, but those that wait become more urgent with time, so that nobody starves.
//! Among equals, clients take turns by the tokens that they have been served (start-time fair queueing, Goyal and others
//! 1996): one that sends a hundred requests holds up no one that sends one. A client's own requests keep their order.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// A request that waits so long is as urgent as one that has just come with a priority of one less.
const AGING: Duration = Duration::from_secs(10);
/// Queues shorter than this are open to a single client as a whole. Of longer ones a quarter is kept for the others.
const SHARED: usize = 8;

/// On whose behalf a request comes, and how urgent it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Who asks.
    pub(crate) client: Arc<str>,
    /// Smaller numbers go first.
    pub(crate) priority: i32,
    /// Tokens that it is likely to take.
    pub(crate) cost: usize,
}

/// What waits.
pub(crate) struct Queue<T> {
    waiting: Vec<Entry<T>>,
    /// Tokens that clients have been served, counted from where the least served one was when they came. Those who are
    /// behind that have no claim left and are forgotten.
    served: HashMap<Arc<str>, u64>,
    /// Where the client stood that had the latest turn.
    level: u64,
    arrivals: u64,
}

struct Entry<T> {
    terms: Terms,
    since: Duration,
    arrival: u64,
    item: T,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { waiting: Vec::new(), served: HashMap::new(), level: 0, arrivals: 0 }
    }
}

impl<T> Queue<T> {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether there is a place for a request of `client`, of `most` that there are.
    pub(crate) fn has_place(&self, client: &str, most: usize) -> bool {
        let own = self.waiting.iter().filter(|entry| *entry.terms.client == *client).count();
        let most_own = if most < SHARED { most } else { most - most / 4 };
        self.waiting.len() < most && own < most_own
    }

    /// Adds a request that comes at the time `now`.
    pub(crate) fn push(&mut self, terms: Terms, now: Duration, item: T) {
        self.arrivals += 1;
        self.waiting.push(Entry { terms, since: now, arrival: self.arrivals, item });
    }

    /// Takes out the request that is next.
    pub(crate) fn pop(&mut self, now: Duration) -> Option<T> {
        let key = |entry: &Entry<T>| {
            let age = now.saturating_sub(entry.since).as_secs() / AGING.as_secs();
            let urgency = i64::from(entry.terms.priority).saturating_sub_unsigned(age);
            (urgency, self.standing(&entry.terms.client), entry.arrival)
        };
        let (next, _) = self.waiting.iter().enumerate().min_by_key(|(_, entry)| key(entry))?;
        let Entry { terms, item, .. } = self.waiting.remove(next);
        self.level = self.level.max(self.standing(&terms.client));
        let served = self.standing(&terms.client) + terms.cost as u64;
        self.served.insert(terms.client, served);
        let level = self.level;
        self.served.retain(|_, served| *served > level);
        Some(item)
    }

    /// Takes out those requests that are no longer wanted. They cost their clients nothing.
    pub(crate) fn withdraw(&mut self, unwanted: impl Fn(&T) -> bool) -> Vec<T> {
        self.waiting.extract_if(.., |entry| unwanted(&entry.item)).map(|entry| entry.item).collect()
    }

    /// Takes out all.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.waiting.drain(..).map(|entry| entry.item)
    }

    /// Tokens that count as served to a client: one that comes back has saved up nothing.
    fn standing(&self, client: &str) -> u64 {
        self.served.get(client).copied().unwrap_or(0).max(self.level)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn terms(client: &str, priority: i32, cost: usize) -> Terms {
        Terms { client: client.into(), priority, cost }
    }

    fn all(queue: &mut Queue<&'static str>, now: Duration) -> Vec<&'static str> {
        std::iter::from_fn(|| queue.pop(now)).collect()
    }

    #[test]
    fn equals_go_in_order_of_arrival() {
        let mut queue = Queue::default();
        for item in ["a", "b", "c"] {
            queue.push(terms("x", 0, 10), SECOND, item);
        }
        assert_eq!(all(&mut queue, SECOND), ["a", "b", "c"]);
    }

    #[test]
    fn clients_take_turns() {
        let mut queue = Queue::default();
        for item in ["a1", "a2", "a3", "a4"] {
            queue.push(terms("a", 0, 100), SECOND, item);
        }
        for item in ["b1", "b2"] {
            queue.push(terms("b", 0, 200), SECOND, item);
        }
        assert_eq!(all(&mut queue, SECOND), ["a1", "b1", "a2", "a3", "b2", "a4"]);
        // Who was away has saved up nothing against those who were there.
        queue.push(terms("a", 0, 100), SECOND, "a5");
        queue.push(terms("a", 0, 100), SECOND, "a6");
        queue.push(terms("c", 0, 100), SECOND, "c1");
        queue.push(terms("c", 0, 100), SECOND, "c2");
        let order = all(&mut queue, SECOND);
        assert_eq!(order.iter().take(3).filter(|item| item.starts_with('c')).count(), 2, "{order:?}");
    }

    #[test]
    fn the_urgent_go_first_but_not_for_ever() {
        let mut queue = Queue::default();
        queue.push(terms("a", 2, 1), SECOND, "patient");
        queue.push(terms("a", 0, 1), SECOND, "usual");
        queue.push(terms("a", -1, 1), SECOND, "urgent");
        assert_eq!(queue.pop(SECOND), Some("urgent"));
        queue.push(terms("a", 0, 1), 31 * SECOND, "late");
        assert_eq!(all(&mut queue, 31 * SECOND), ["usual", "patient", "late"]);
    }

    #[test]
    fn one_client_cannot_take_all_places() {
        let mut queue = Queue::default();
        while queue.has_place("a", 16) {
            queue.push(terms("a", 0, 1), SECOND, ());
        }
        assert_eq!(queue.len(), 12);
        while queue.has_place("b", 16) {
            queue.push(terms("b", 0, 1), SECOND, ());
        }
        assert_eq!(queue.len(), 16);
        assert_eq!(queue.withdraw(|()| true).len(), 16);
        assert!(queue.has_place("a", 1) && !queue.has_place("a", 0));
    }

    proptest! {
        /// With requests coming as fast as they are served, every one is served within a bounded number of turns, and no
        /// client gets more than its share by sending more, as long as others have something to send.
        #[test]
        fn nobody_starves_and_shares_are_even(
            arrivals in prop::collection::vec((0_usize..4, -2_i32..3, 1_usize..50), 1..120),
        ) {
            let mut queue = Queue::default();
            let names = ["a", "b", "c", "d"];
            let mut now = Duration::ZERO;
            let mut waiting = Vec::new();
            let mut arrivals = arrivals.into_iter().enumerate();
            loop {
                now += SECOND;
                let arrived: Vec<_> = arrivals.by_ref().take(2).collect();
                for &(id, (client, priority, cost)) in &arrived {
                    queue.push(terms(names[client], priority, cost), now, id);
                    waiting.push((id, now));
                }
                let Some(served) = queue.pop(now) else { break };
                let before = waiting.len();
                waiting.retain(|&(id, _)| id != served);
                prop_assert_eq!(waiting.len() + 1, before, "served once");
                // Everyone older than the spread of priorities goes before all that come later.
                let oldest = waiting.iter().map(|&(_, since)| now - since).max().unwrap_or_default();
                prop_assert!(oldest < 5 * AGING + 130 * SECOND, "{oldest:?}");
            }
            prop_assert!(waiting.is_empty() && queue.served.len() <= names.len());
        }

        #[test]
        fn clients_with_work_are_served_alike(costs in prop::collection::vec(1_usize..50, 200)) {
            let mut queue = Queue::default();
            let mut costs = costs.into_iter().cycle();
            let mut served = HashMap::new();
            for (client, count) in [("a", 20), ("b", 3), ("c", 1)] {
                for _ in 0..count {
                    let cost = costs.next().unwrap_or(1);
                    queue.push(terms(client, 0, cost), SECOND, (client, cost));
                }
            }
            for _ in 0..100 {
                let (client, cost) = queue.pop(SECOND).unwrap_or(("none", 0));
                *served.entry(client).or_insert(0) += cost;
                let cost = costs.next().unwrap_or(1);
                queue.push(terms(client, 0, cost), SECOND, (client, cost));
            }
            let (most, least) = (served.values().max().copied(), served.values().min().copied());
            prop_assert!(served.len() == 3 && most.unwrap_or(0) <= least.unwrap_or(0) + 150, "{served:?}");
        }
    }
}
