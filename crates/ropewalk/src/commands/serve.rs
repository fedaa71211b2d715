//! `ropewalk serve`: models behind the APIs that clients speak.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use server::{Keys, Models, Room, SharedTimeouts, Timeouts, Traces, parse_keep_alive};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::Loaded;
use crate::http::HttpOptions;
use crate::interrupt;
use crate::keys::KeyOptions;
use crate::logging::LogOptions;
use crate::offers::Offers;
use crate::options::{LayoutOptions, MODEL_HELP};
use crate::reload::{self, Live};
use crate::session::Sharing;
use crate::tls::TlsOptions;

/// How long one of several models stays unless said otherwise.
const KEEP_ALIVE: Duration = Duration::from_secs(5 * 60);

/// How long the last traces may take to be sent at the end.
const TRACES_PATIENCE: Duration = Duration::from_secs(5);

/// Serve models to clients of the APIs of OpenAI, Anthropic and Ollama
#[derive(Args)]
#[command(after_help = "Examples:
  ropewalk serve smollm2
  ropewalk serve smollm2 --listen 127.0.0.1:8080 --ranks 2
  ropewalk serve smollm2 --listen 0.0.0.0:8080 --api-key-file keys.txt
  ropewalk serve smollm2 --models-dir ~/models --models-max 2 --keep-alive 10m
Then, for example:
  curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"model\": \"smollm2\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'")]
pub(crate) struct Arguments {
    #[arg(value_name = "MODEL", help = MODEL_HELP, long_help = models_help(), required_unless_present = "models_dir")]
    models: Vec<String>,
    /// Never download; fail if a model is not on this machine
    #[arg(long)]
    offline: bool,
    /// Folder whose models are offered as well: GGUF files, and folders with a config.json
    #[arg(long, value_name = "FOLDER")]
    models_dir: Option<PathBuf>,
    /// Models in memory at once; the one that has not been used for longest makes room
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    models_max: u16,
    /// Memory in GiB that the weights of all models in memory may take together [default: no limit but --models-max]
    #[arg(long, value_name = "GIB", value_parser = parse_gibibytes)]
    models_memory: Option<u64>,
    /// How long a model stays in memory without being used, such as 30s, 10m or -1 for ever [default: 5m if there are
    /// several models, else for ever]
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, value_parser = parse_duration)]
    keep_alive: Option<KeepAlive>,
    /// Address to listen on; only this machine reaches the default
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    listen: String,
    /// Requests to a model that are answered at once, each with a context of its own; those beyond wait
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: u16,
    /// Requests to a model that may wait; those beyond are refused with status 429
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_queued_requests: u16,
    /// How long a request may wait for its turn before it fails with status 503, in seconds [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    queue_timeout: Option<u32>,
    /// How long a request may take, waiting included, before it fails with status 504, in seconds; the header
    /// X-Request-Timeout sets less for one [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    request_timeout: Option<u32>,
    /// Longest time between two tokens of an answer while prompts of others are evaluated, and until the first token of a
    /// short request, in milliseconds: prompts are evaluated in pieces that fit it; 0 sets no limit
    #[arg(long, value_name = "MS", default_value_t = 500)]
    token_latency: u32,
    #[command(flatten)]
    pub(crate) keys: KeyOptions,
    #[command(flatten)]
    http: HttpOptions,
    #[command(flatten)]
    tls: TlsOptions,
    #[command(flatten)]
    pub(crate) log: LogOptions,
    /// Collector of OpenTelemetry traces to which a span of each request is sent, never its text (OTLP over HTTP), such as
    /// http://localhost:4318
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", help_heading = "Log")]
    otlp_traces_endpoint: Option<String>,
    #[command(flatten)]
    pub(crate) layout: LayoutOptions,
}

/// For ever if `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KeepAlive(Option<Duration>);

fn models_help() -> String {
    format!("{MODEL_HELP}. Of several, the first one is loaded at once, the others when they are asked for")
}

fn parse_duration(text: &str) -> Result<KeepAlive, String> {
    let expected = || "must be a duration such as 30s, 10m or 1h30m, or -1 for ever".to_owned();
    parse_keep_alive(text).map(KeepAlive).ok_or_else(expected)
}

fn parse_gibibytes(text: &str) -> Result<u64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number < 1e9 => Ok((number * f64::from(1 << 30)) as u64),
        _ => Err("must be a positive number of GiB".to_owned()),
    }
}

pub(crate) fn run(arguments: &Arguments, loaded: Loaded) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.context("cannot start the server's threads")?;
    // The port is taken before the model is loaded, so that a mistake in it shows at once.
    let listener = runtime.block_on(server::bind(&arguments.listen))?;
    let keys = Keys::new(arguments.keys.read()?);
    let tls = arguments.tls.load()?;
    let traces = arguments.otlp_traces_endpoint.as_deref().map(Traces::start).transpose()?;
    let (models, what) = arguments.models()?;
    interrupt::leave_to_others();
    let stop = runtime.block_on(async { StopSignals::listen() })?;
    let hangups = runtime.block_on(async { hear(SignalKind::hangup()) })?;
    let timeouts = SharedTimeouts::from(arguments.timeouts());
    let live = Live { keys: keys.clone(), tls: tls.clone(), timeouts: timeouts.clone(), models: models.clone() };
    runtime.spawn(reload::listen(hangups, live, loaded));
    let scheme = if tls.is_some() { "https" } else { "http" };
    let options = server::Options { tls, traces: traces.clone(), timeouts, ..arguments.http.options(keys) };
    eprintln!("{what} served at {scheme}://{}", listener.address());
    let drained = runtime.block_on(server::serve(listener, models.clone(), options, shutdown(stop)));
    if drained.cancelled > 0 {
        eprintln!("{} requests were cancelled", drained.cancelled);
    }
    traces.iter().for_each(|traces| traces.finish(TRACES_PATIENCE));
    let failure = models.failure();
    models.shutdown();
    match failure {
        Some(failure) => bail!("the engine had stopped: {failure}"),
        None => Ok(()),
    }
}

impl Arguments {
    /// How long requests may take.
    pub(crate) fn timeouts(&self) -> Timeouts {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        Timeouts {
            request: self.request_timeout.map(seconds),
            queue: self.queue_timeout.map(seconds),
            drain: Duration::from_secs(self.http.drain_timeout),
        }
    }

    /// How long one of `several` models, or the only one, stays in memory without being used.
    pub(crate) fn keep_alive(&self, several: bool) -> Option<Duration> {
        self.keep_alive.map_or(several.then_some(KEEP_ALIVE), |KeepAlive(keep)| keep)
    }

    /// The models to serve, of which the first one is loaded, and the beginning of a sentence that says what they are.
    fn models(&self) -> anyhow::Result<(Models, String)> {
        interrupt::install()?;
        let folder = self.models_dir.as_deref();
        let sharing = Sharing {
            parallel: self.parallel.into(),
            waiting: self.max_queued_requests.into(),
            // Without others nobody waits.
            token_latency_ms: Some(self.token_latency).filter(|&latency| latency > 0 && self.parallel > 1),
        };
        let offers = Offers::find(&self.models, folder, self.offline, &self.layout, sharing)?;
        let names: Vec<_> = offers.offers().into_iter().map(|offer| offer.id).collect();
        let several = names.len() > 1;
        if several && self.layout.remote.remote_ranks > 0 {
            bail!("ranks on other machines stay with one model: name only one, or leave out --remote-ranks");
        }
        let first = offers.load_first()?;
        let layout = &first.layout;
        let verb = if several { "are" } else { "is" };
        let what = format!("{} ({layout}) {verb}", names.join(", "));
        let room = Room { models: self.models_max.into(), bytes: self.models_memory.unwrap_or(u64::MAX) };
        let keep_alive = self.keep_alive(several);
        let models = if several || keep_alive.is_some() {
            let models = Models::on_demand(offers.offers(), offers, room, keep_alive);
            models.put(Box::new(first));
            models
        } else {
            Models::fixed(Box::new(first))
        };
        Ok((models, what))
    }
}

/// The signals by which a terminal or a service manager asks a process to stop.
struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// Hears all that come from now on.
    fn listen() -> anyhow::Result<Self> {
        Ok(Self { interrupt: hear(SignalKind::interrupt())?, terminate: hear(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

fn hear(kind: SignalKind) -> anyhow::Result<Signal> {
    signal(kind).context("cannot handle signals")
}

/// Ends when the process is asked to stop. If it is asked once more, it ends at once.
async fn shutdown(mut signals: StopSignals) {
    signals.next().await;
    tokio::spawn(async move {
        signals.next().await;
        std::process::exit(interrupt::EXIT_CODE.into());
    });
}
