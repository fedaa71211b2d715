//! Spans of requests, for a collector of [OpenTelemetry](https://opentelemetry.io) traces.
//!
//! Spans wait in a queue of bounded length for a thread that sends them in batches. Whatever the collector does, requests
//! neither wait nor fail for it; spans that find no room, or that it does not take, are dropped and counted.

mod exporter;
mod parent;
mod request;
mod span;

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

use self::exporter::Exporter;
pub use self::exporter::TracesError;
use self::parent::Parent;
pub(crate) use self::request::{Outcome, Traced};
use self::span::Span;

/// Most spans that wait; each takes about a kilobyte.
const QUEUE_MAX: usize = 2048;
/// Most spans that are sent at once.
const BATCH_MAX: usize = 512;
/// How long a span waits for others that are sent with it.
const INTERVAL: Duration = Duration::from_secs(1);

/// A way to a collector of traces. Clones share it.
#[derive(Clone)]
pub struct Traces {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    exported: Counter,
    dropped: Counter,
}

#[derive(Default)]
struct Queue {
    spans: Vec<Span>,
    /// No more spans come.
    finishing: bool,
    /// Nobody sends any more.
    finished: bool,
}

impl Traces {
    /// Begins to send spans to `endpoint`: a URL at which OTLP is taken over HTTP. Where it has no path, that is `/v1/traces`.
    ///
    /// # Errors
    /// When `endpoint` is no such URL, or there is no thread to be had. Whether anybody listens there shows only later.
    pub fn start(endpoint: &str) -> Result<Self, TracesError> {
        let exporter = Exporter::new(endpoint)?;
        let shared = Arc::new(Shared::default());
        let queue = Arc::clone(&shared);
        let sender = thread::Builder::new().name("traces".to_owned()).spawn(move || queue.send_all(&exporter));
        sender.map_err(TracesError::NoThread)?;
        Ok(Self { shared })
    }

    /// Sends what waits, for `patience` at most. To be called after the server has ended.
    pub fn finish(&self, patience: Duration) {
        let mut queue = self.shared.lock();
        queue.finishing = true;
        self.shared.changed.notify_all();
        // Whether it was in time makes no difference any more.
        drop(self.shared.changed.wait_timeout_while(queue, patience, |queue| !queue.finished));
    }

    /// Has a span sent, if there is room for it.
    pub(crate) fn push(&self, span: Span) {
        let mut queue = self.shared.lock();
        if queue.finishing || queue.spans.len() >= QUEUE_MAX {
            self.shared.dropped.inc();
            return;
        }
        queue.spans.push(span);
        if queue.spans.len() == 1 || queue.spans.len() == BATCH_MAX {
            self.shared.changed.notify_all();
        }
    }

    /// Shows what became of the spans among the metrics.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let Shared { exported, dropped, .. } = &*self.shared;
        registry.register("ropewalk:trace_spans_exported", "Spans that the collector has taken", exported.clone());
        registry.register("ropewalk:trace_spans_dropped", "Spans that were lost on the way to it", dropped.clone());
    }
}

impl fmt::Debug for Traces {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Traces").finish_non_exhaustive()
    }
}

impl Default for Shared {
    fn default() -> Self {
        let (exported, dropped) = (Counter::default(), Counter::default());
        Self { queue: Mutex::default(), changed: Condvar::new(), exported, dropped }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends spans until no more come.
    fn send_all(&self, exporter: &Exporter) {
        let mut reachable = true;
        loop {
            let (batch, last) = self.next_batch();
            let count = batch.len() as u64;
            match if batch.is_empty() { Ok(()) } else { exporter.send(&batch) } {
                Ok(()) => {
                    reachable = true;
                    self.exported.inc_by(count);
                }
                Err(error) => {
                    self.dropped.inc_by(count);
                    // Once is enough: metrics tell how it goes on.
                    if std::mem::replace(&mut reachable, false) {
                        tracing::warn!("traces are dropped until their collector takes them: {error}");
                    }
                }
            }
            if last {
                break;
            }
        }
        self.lock().finished = true;
        self.changed.notify_all();
    }

    /// The spans to be sent next, and whether they are the last.
    fn next_batch(&self) -> (Vec<Span>, bool) {
        let queue = self.lock();
        let nothing = |queue: &mut Queue| queue.spans.is_empty() && !queue.finishing;
        let queue = self.changed.wait_while(queue, nothing).unwrap_or_else(PoisonError::into_inner);
        let few = |queue: &mut Queue| queue.spans.len() < BATCH_MAX && !queue.finishing;
        let waited = self.changed.wait_timeout_while(queue, INTERVAL, few);
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let count = queue.spans.len().min(BATCH_MAX);
        let batch = queue.spans.drain(..count).collect();
        (batch, queue.finishing && queue.spans.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_beyond_the_queue_are_dropped_and_counted() {
        // Nobody sends.
        let traces = Traces { shared: Arc::new(Shared::default()) };
        for _ in 0..QUEUE_MAX + 3 {
            traces.push(Span::example());
        }
        assert_eq!((traces.shared.lock().spans.len(), traces.shared.dropped.get()), (QUEUE_MAX, 3));
        let (batch, last) = traces.shared.next_batch();
        assert_eq!((batch.len(), last), (BATCH_MAX, false));
        traces.finish(Duration::ZERO);
        for index in 1..QUEUE_MAX / BATCH_MAX {
            let last = index == QUEUE_MAX / BATCH_MAX - 1;
            assert_eq!(traces.shared.next_batch().1, last);
        }
        traces.push(Span::example());
        assert_eq!(traces.shared.dropped.get(), 4);
    }
}
