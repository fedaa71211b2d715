//! Connections that belong to a link whose two ranks are still agreeing on it, on their way from the threads that greet
//! them to the one that waits for them.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::channel::Channel;
use crate::error::{Cause, FabricError};
use crate::secret::{hex, random_bytes};

/// Where expected connections are handed over.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stripes(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// By ticket: one place per connection.
    expected: Mutex<BTreeMap<String, Vec<Option<Channel>>>>,
    arrived: Condvar,
}

/// A number of connections that are expected. Nobody else can know the ticket.
pub(crate) struct Expectation<'a> {
    stripes: &'a Stripes,
    pub(crate) ticket: String,
}

impl Stripes {
    /// Makes places for `count` connections.
    pub(crate) fn expect(&self, count: usize) -> Result<Expectation<'_>, FabricError> {
        let ticket = hex(&random_bytes::<16>()?);
        let places = (0..count).map(|_| None).collect();
        self.expected().insert(ticket.clone(), places);
        Ok(Expectation { stripes: self, ticket })
    }

    /// Hands over a connection that has come with a ticket.
    pub(crate) fn deliver(&self, ticket: &str, index: usize, stream: Channel) -> Result<(), Cause> {
        let mut expected = self.expected();
        let place = expected.get_mut(ticket).and_then(|places| places.get_mut(index));
        let place = place.filter(|place| place.is_none());
        *place.ok_or_else(|| Cause::corrupt("it brought a connection that nobody waits for"))? = Some(stream);
        self.0.arrived.notify_all();
        Ok(())
    }

    fn expected(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Option<Channel>>>> {
        // No panic can leave the map in disorder.
        self.0.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Expectation<'_> {
    /// Waits until all connections are there.
    pub(crate) fn wait(self, by: Instant) -> Result<Vec<Channel>, Cause> {
        let started = Instant::now();
        let mut expected = self.stripes.expected();
        loop {
            let places = expected.get_mut(&self.ticket).map(std::mem::take).unwrap_or_default();
            if places.iter().all(Option::is_some) {
                return Ok(places.into_iter().flatten().collect());
            }
            expected.insert(self.ticket.clone(), places);
            let left = by.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Cause::Silent(started.elapsed()));
            }
            let waited = self.stripes.0.arrived.wait_timeout(expected, left);
            expected = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Expectation<'_> {
    fn drop(&mut self) {
        self.stripes.expected().remove(&self.ticket);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::local::local_lifelines;

    #[test]
    fn connections_come_in_any_order_and_only_once() {
        let stripes = Stripes::default();
        let expectation = stripes.expect(2).unwrap();
        let ticket = expectation.ticket.clone();
        let (first, second) = local_lifelines().unwrap();
        let address = first.local_addr().unwrap();
        stripes.deliver(&ticket, 1, second).unwrap();
        let stranger = || local_lifelines().unwrap().0;
        assert!(stripes.deliver(&ticket, 1, stranger()).is_err());
        assert!(stripes.deliver(&ticket, 2, stranger()).is_err());
        assert!(stripes.deliver("another ticket", 0, stranger()).is_err());
        let waiting = stripes.clone();
        let deliverer = std::thread::spawn(move || waiting.deliver(&ticket, 0, first));
        let streams = expectation.wait(Instant::now() + Duration::from_secs(10)).unwrap();
        deliverer.join().unwrap().unwrap();
        assert_eq!((streams.len(), streams[0].local_addr().unwrap()), (2, address));
        let late = stripes.expect(1).unwrap();
        assert!(late.wait(Instant::now()).is_err());
        assert!(stripes.expected().is_empty());
    }
}
