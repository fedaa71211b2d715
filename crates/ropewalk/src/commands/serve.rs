//! `ropewalk serve`: the model behind the APIs that clients speak.

use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;

use crate::interrupt;
use crate::options::{LayoutOptions, ModelOptions};
use crate::session::Session;

/// Serve a model to clients of the APIs of OpenAI, Anthropic and Ollama
#[derive(Args)]
#[command(after_help = "Examples:
  ropewalk serve smollm2
  ropewalk serve smollm2 --listen 127.0.0.1:8080 --ranks 2
Then, for example:
  curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"model\": \"smollm2\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'")]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelOptions,
    /// Address to listen on; only this machine reaches the default
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    listen: String,
    /// How long running requests may go on once the server is told to stop, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain_timeout: u64,
    /// Requests that are answered at once, each with a context of its own; those beyond wait
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: u16,
    #[command(flatten)]
    pub(crate) layout: LayoutOptions,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.context("cannot start the server's threads")?;
    // The port is taken before the model is loaded, so that a mistake in it shows at once.
    let listener = runtime.block_on(server::bind(&arguments.listen))?;
    let session = Session::start_parallel(&arguments.model, &arguments.layout, arguments.parallel.into())?;
    interrupt::leave_to_others();
    let options =
        server::Options { drain_timeout: Duration::from_secs(arguments.drain_timeout), ..server::Options::default() };
    eprintln!("{} is served at http://{} ({})", session.engine.model().id, listener.address(), session.layout);
    let drained = runtime.block_on(server::serve(listener, session.engine.clone(), options, stop_signal()));
    if drained.cancelled > 0 {
        eprintln!("{} requests were cancelled", drained.cancelled);
    }
    let failure = session.engine.status().failure;
    session.engine.shutdown();
    match failure {
        Some(failure) => bail!("the engine had stopped: {failure}"),
        None => Ok(()),
    }
}

/// Ends when the process is asked to stop, by the terminal or by a service manager.
async fn stop_signal() {
    let interrupted = async {
        // Without a handler for interrupts the process would end at once, so waiting for ever is no worse.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let terminated = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = interrupted => {}
        () = terminated => {}
    }
}
