//! Figures for Prometheus, named as vLLM names them where the meaning is the same.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use engine::{Completion, FinishReason, Status};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::app::App;
use crate::error::{ApiError, Code};
use crate::exposition;
use crate::keys::Account;
use crate::tally::Tally;
use crate::traces::Traces;

/// Upper ends of the buckets for waiting and prompt times, in seconds.
const LATENCY_S: [f64; 20] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0,
];
/// The same for the time between two tokens.
const TOKEN_S: [f64; 17] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0];
/// The same for whole requests.
const REQUEST_S: [f64; 18] =
    [0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0];

/// A counter of seconds.
type Seconds = Counter<f64, AtomicU64>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Finish {
    finished_reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Rank {
    rank: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Http {
    route: String,
    status: u64,
}

/// The figures of a server that no model has a part in. Clones of a metric share its value, so the registry and the fields
/// see the same.
pub(crate) struct Metrics {
    registry: Registry,
    http: Family<Http, Counter>,
}

/// The figures of one model, which go on when it is unloaded and loaded again.
pub(crate) struct ModelMetrics {
    registry: Registry,
    up: Gauge,
    running: Gauge,
    waiting: Gauge,
    cache: Gauge<f64, AtomicU64>,
    preemptions: Gauge,
    generations: Arc<GenerationMetrics>,
}

/// The figures that a generation changes.
struct GenerationMetrics {
    prompt_tokens: Counter,
    cache_queries: Counter,
    cache_hits: Counter,
    generated_tokens: Counter,
    drafted_tokens: Counter,
    accepted_tokens: Counter,
    finished: Family<Finish, Counter>,
    first_token: Histogram,
    between_tokens: Histogram,
    end_to_end: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    compute: Family<Rank, Seconds>,
    wait: Family<Rank, Seconds>,
    memory: Family<Rank, Gauge>,
}

impl Metrics {
    /// All zero, with what becomes of `traces` among them.
    pub(crate) fn new(traces: Option<&Traces>) -> Self {
        let mut registry = Registry::default();
        let http = Family::default();
        registry.register("ropewalk:http_requests", "HTTP requests by route and status", http.clone());
        traces.iter().for_each(|traces| traces.register(&mut registry));
        Self { registry, http }
    }

    /// Counts one HTTP request.
    pub(crate) fn count_http(&self, route: &str, status: u16) {
        self.http.get_or_create(&Http { route: route.to_owned(), status: u64::from(status) }).inc();
    }
}

impl ModelMetrics {
    /// Figures about the model `model`, all zero.
    pub(crate) fn new(model: &str) -> Self {
        let labels = [(Cow::Borrowed("model_name"), Cow::Owned(model.to_owned()))];
        let mut registry = Registry::with_labels(labels.into_iter());
        let up = Gauge::default();
        registry.register("ropewalk:engine_up", "1 while the engine runs, 0 once it has failed", up.clone());
        let running = Gauge::default();
        registry.register("ropewalk:num_requests_running", "Requests that run", running.clone());
        let waiting = Gauge::default();
        registry.register("ropewalk:num_requests_waiting", "Requests that wait", waiting.clone());
        let cache = Gauge::default();
        registry.register("ropewalk:kv_cache_usage_perc", "Share of the KV cache that requests use", cache.clone());
        let preemptions = Gauge::default();
        registry.register("ropewalk:num_preemptions", "Times that a request made room for others", preemptions.clone());
        let generations = Arc::new(GenerationMetrics::register(&mut registry));
        Self { registry, up, running, waiting, cache, preemptions, generations }
    }

    /// A meter for a generation that was just submitted, whose tokens `account` pays and `tally` counts.
    pub(crate) fn meter(&self, account: Option<Arc<Account>>, tally: Tally) -> Meter {
        Meter {
            metrics: Arc::clone(&self.generations),
            account,
            tally,
            submitted: Instant::now(),
            latest: None,
            counted: 0,
            ended: false,
        }
    }

    /// Takes over what an engine does; a model that is not loaded does nothing.
    fn note(&self, status: Option<&Status>) {
        self.up.set(i64::from(status.is_some_and(|status| status.failure.is_none())));
        self.running.set(gauge(status.map_or(0, |status| status.running)));
        self.waiting.set(gauge(status.map_or(0, |status| status.waiting)));
        let cache = status.map(|status| status.cache).unwrap_or_default();
        self.cache.set(cache.used as f64 / cache.blocks.max(1) as f64);
        self.preemptions.set(i64::try_from(cache.preemptions).unwrap_or(i64::MAX));
    }
}

impl GenerationMetrics {
    fn register(registry: &mut Registry) -> Self {
        let mut counter = |name: &str, help: &str| {
            let counter = Counter::default();
            registry.register(format!("ropewalk:{name}"), help, counter.clone());
            counter
        };
        let prompt_tokens = counter("prompt_tokens", "Prompt tokens of evaluated prompts");
        let cache_queries = counter("prefix_cache_queries", "Prompt tokens looked up in the KV cache");
        let cache_hits = counter("prefix_cache_hits", "Prompt tokens found in the KV cache");
        let generated_tokens = counter("generation_tokens", "Tokens generated");
        let drafted_tokens = counter("spec_decode_num_draft_tokens", "Tokens drafted");
        let accepted_tokens = counter("spec_decode_num_accepted_tokens", "Drafted tokens that were right");
        let mut histogram = |name: &str, help: &str, buckets: &[f64]| {
            let histogram = Histogram::new(buckets.iter().copied());
            registry.register(format!("ropewalk:{name}_seconds"), help, histogram.clone());
            histogram
        };
        let first_token = histogram("time_to_first_token", "From submission to the first token", &LATENCY_S);
        let between_tokens = histogram("inter_token_latency", "Between two tokens of one request", &TOKEN_S);
        let end_to_end = histogram("e2e_request_latency", "From submission to the end", &REQUEST_S);
        let queue = histogram("request_queue_time", "Waiting for earlier requests", &LATENCY_S);
        let prefill = histogram("request_prefill_time", "Evaluating the prompt", &LATENCY_S);
        let decode = histogram("request_decode_time", "From the first token to the last", &REQUEST_S);
        let finished = Family::default();
        registry.register("ropewalk:request_success", "Requests that ended, by reason", finished.clone());
        let compute = Family::default();
        registry.register("ropewalk:rank_compute_seconds", "Time each rank spent computing", compute.clone());
        let wait = Family::default();
        registry.register("ropewalk:rank_wait_seconds", "Time each rank spent waiting for others", wait.clone());
        let memory = Family::default();
        registry.register("ropewalk:rank_peak_resident_bytes", "Largest resident memory of each rank", memory.clone());
        Self {
            prompt_tokens,
            cache_queries,
            cache_hits,
            generated_tokens,
            drafted_tokens,
            accepted_tokens,
            finished,
            first_token,
            between_tokens,
            end_to_end,
            queue,
            prefill,
            decode,
            compute,
            wait,
            memory,
        }
    }
}

/// Watches one generation; one that is dropped before its end counts as aborted.
pub(crate) struct Meter {
    metrics: Arc<GenerationMetrics>,
    /// Where its tokens are counted as well.
    account: Option<Arc<Account>>,
    tally: Tally,
    submitted: Instant,
    /// When the latest token came.
    latest: Option<Instant>,
    /// Generated tokens counted so far.
    counted: usize,
    ended: bool,
}

impl Meter {
    /// The prompt of `tokens` tokens was evaluated.
    pub(crate) fn prompt(&mut self, tokens: usize) {
        self.metrics.prompt_tokens.inc_by(tokens as u64);
        self.charge(tokens);
    }

    /// `count` more tokens came.
    pub(crate) fn tokens(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        let now = Instant::now();
        match self.latest.replace(now) {
            None => self.metrics.first_token.observe((now - self.submitted).as_secs_f64()),
            Some(before) => {
                let each = (now - before).as_secs_f64() / count as f64;
                (0..count).for_each(|_| self.metrics.between_tokens.observe(each));
            }
        }
        self.counted += count;
        self.metrics.generated_tokens.inc_by(count as u64);
        self.tally.generated(count, now);
        self.charge(count);
    }

    /// The generation ended well.
    pub(crate) fn done(&mut self, completion: &Completion) {
        let metrics = Arc::clone(&self.metrics);
        metrics.cache_queries.inc_by(completion.prompt_tokens as u64);
        metrics.cache_hits.inc_by(completion.cached_tokens as u64);
        // Tokens that never became text, such as the end-of-text token, are only known now.
        let silent = completion.completion_tokens.saturating_sub(self.counted);
        metrics.generated_tokens.inc_by(silent as u64);
        if silent > 0 {
            self.tally.generated(silent, Instant::now());
        }
        self.charge(silent);
        metrics.drafted_tokens.inc_by(completion.drafts.drafted as u64);
        metrics.accepted_tokens.inc_by(completion.drafts.accepted as u64);
        metrics.end_to_end.observe(self.submitted.elapsed().as_secs_f64());
        metrics.queue.observe(completion.timings.queue_ms / 1000.0);
        metrics.prefill.observe(completion.timings.prefill_ms / 1000.0);
        metrics.decode.observe(completion.timings.decode_ms / 1000.0);
        for (rank, statistics) in (0..).zip(&completion.ranks) {
            let rank = Rank { rank };
            metrics.compute.get_or_create(&rank).inc_by(statistics.compute_ms / 1000.0);
            metrics.wait.get_or_create(&rank).inc_by(statistics.wait_ms / 1000.0);
            let peak = i64::try_from(statistics.peak_rss_bytes).unwrap_or(i64::MAX);
            metrics.memory.get_or_create(&rank).set(peak);
        }
        self.end(match completion.finish {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "abort",
            FinishReason::ConstraintFailed => "error",
        });
    }

    /// The generation failed.
    pub(crate) fn failed(&mut self) {
        self.end("error");
    }

    fn charge(&self, tokens: usize) {
        self.account.iter().for_each(|account| account.charge(tokens));
    }

    fn end(&mut self, finished_reason: &'static str) {
        self.ended = true;
        self.tally.finished(finished_reason);
        self.metrics.finished.get_or_create(&Finish { finished_reason }).inc();
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if !self.ended {
            self.end("abort");
        }
    }
}

/// `GET /metrics`
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Result<impl IntoResponse, ApiError> {
    let mut texts = Vec::new();
    let mut encode = |registry| {
        let mut text = String::new();
        let encoded = text::encode(&mut text, registry);
        texts.push(text);
        encoded.map_err(|_| ApiError::new(Code::Internal, "the metrics could not be written"))
    };
    encode(&app.metrics.registry)?;
    for (metrics, status) in app.models.status() {
        metrics.note(status.as_ref());
        encode(&metrics.registry)?;
    }
    let text = exposition::merge(&texts);
    Ok(([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text))
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
