//! Starts a group whose ranks are threads of the test.
#![allow(clippy::unwrap_used, dead_code, reason = "helpers of several tests, none of which uses all of them")]

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use engine::ranks::{Front, Job, Layout, RankError, Weights, model_bytes, run_rank};
use engine::{Engine, Event, FinishReason, Generation, Limits, ModelDetails, ModelInfo, Request, TokenInfo};
use fabric::{JoinOptions, Rendezvous, RendezvousOptions, Secret, Transport, join};
use kernels::KvType;
use model::{Gguf, Tokenizer};

pub(crate) fn tiny(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(format!("{name}.gguf"))
}

/// A group under way; the ranks' results come when the engine has been dropped.
pub(crate) struct Group {
    pub(crate) engine: Engine,
    pub(crate) ranks: Vec<JoinHandle<Result<(), RankError>>>,
}

impl Group {
    pub(crate) fn start(name: &str, (tensor, pipeline): (usize, usize), transport: Transport) -> Self {
        Self::start_with(name, (tensor, pipeline), transport, |_, _| {})
    }

    /// The same with a job that is changed for each rank.
    pub(crate) fn start_with(
        name: &str,
        (tensor, pipeline): (usize, usize),
        transport: Transport,
        change: impl Fn(usize, &mut Job),
    ) -> Self {
        let path = tiny(name);
        let file = Gguf::open(&path).unwrap();
        let layout = Layout { tensor, pipeline, shares: vec![1.0; tensor] };
        let size = layout.ranks();
        let job = Job {
            model: name.to_owned(),
            path: path.display().to_string(),
            model_bytes: model_bytes(&file),
            layout,
            threads: 1,
            slots: 4,
            context: 512,
            kv_blocks: 4 * 16,
            step_tokens: 80,
            token_latency_ms: None,
            draft_max: 0,
            draft_model: None,
            draft_price: None,
            crowded: true,
            end_tokens: vec![0, 2],
            kv_type: KvType::F16,
            weights: Weights::default(),
            prompt_cache: None,
        };
        let secret = Secret::random().unwrap();
        let mut rendezvous = Rendezvous::listen("127.0.0.1:0", &secret, size, RendezvousOptions::default()).unwrap();
        let address = rendezvous.address();
        let ranks = (0..size).map(|rank| {
            let (secret, path) = (secret.clone(), path.clone());
            std::thread::spawn(move || {
                let options = JoinOptions { rank: Some(rank), transport, ..JoinOptions::default() };
                let joined = join(address, &secret, &options)?;
                let job = serde_json::from_slice(&joined.job).unwrap();
                run_rank(joined, job, &path)
            })
        });
        let ranks: Vec<_> = ranks.collect();
        let controls = rendezvous.gather(|rank, _| {
            let mut job = job.clone();
            change(rank, &mut job);
            serde_json::to_vec(&job).unwrap()
        });
        let controls = controls.unwrap();
        let (front, _) = Front::start(controls, Duration::from_secs(60), &mut |_| {}).unwrap();
        let front = if job.prompt_cache.is_some() { front.keeping_cache() } else { front };
        let tokenizer = Arc::new(Tokenizer::from_gguf(&file).unwrap());
        let (id, context, details) = (name.to_owned(), job.context, ModelDetails::from_gguf(&file));
        let model = ModelInfo { id, created: 0, tokenizer, chat_template: None, ranking: None, context, details };
        let engine = Engine::start(model, Limits { running: job.slots, ..Limits::default() }, Box::new(front));
        Self { engine, ranks }
    }

    /// Drops the engine and waits for the ranks.
    pub(crate) fn stop(self) -> Vec<Result<(), RankError>> {
        drop(self.engine);
        self.ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    }

    /// Runs a request to its end.
    pub(crate) fn run(&self, request: Request) -> Answer {
        Answer::of(self.engine.submit(request).unwrap())
    }
}

/// Everything that a request brought.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) prompt: Vec<TokenInfo>,
    pub(crate) text: String,
    pub(crate) tokens: Vec<TokenInfo>,
    pub(crate) last: Option<Event>,
}

impl Answer {
    /// Hears a generation to its end.
    pub(crate) fn of(mut generation: Generation) -> Self {
        let mut answer = Self::default();
        while let Some(event) = generation.next_blocking() {
            match event {
                Event::Prompt(tokens) => answer.prompt = tokens,
                Event::Text { text, tokens } => {
                    answer.text.push_str(&text);
                    answer.tokens.extend(tokens);
                }
                last => answer.last = Some(last),
            }
        }
        answer
    }

    /// What came of a generation, but for its last event, which holds times. It must have come to its end.
    pub(crate) fn untimed(generation: Generation) -> Self {
        let mut answer = Self::of(generation);
        match answer.last.take() {
            Some(Event::Done(completion)) => assert_ne!(completion.finish, FinishReason::Cancelled),
            other => panic!("{other:?}"),
        }
        answer
    }

    pub(crate) fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }
}
