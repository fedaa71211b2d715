//! A rank that vanishes ends in an error on every survivor and for every caller, not in a hang.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::time::{Duration, Instant};

use common::{Group, tiny};
use engine::ranks::{Front, Job, Layout, StartError, Weights, model_bytes, run_rank};
use engine::{Event, Request, SubmitError};
use fabric::{JoinOptions, Rendezvous, RendezvousOptions, Secret, Transport, join};
use kernels::KvType;
use model::Gguf;

/// Two ranks of which the second joins and loads nothing: what it does instead is the caller's choice.
fn front_with_impostor(impostor: impl FnOnce(fabric::Joined) + Send + 'static) -> Result<Front, StartError> {
    let path = tiny("tiny-llama");
    let job = Job {
        model: "tiny".to_owned(),
        path: path.display().to_string(),
        model_bytes: model_bytes(&Gguf::open(&path).unwrap()),
        layout: Layout { tensor: 2, pipeline: 1, shares: vec![1.0; 2] },
        threads: 1,
        slots: 2,
        context: 64,
        step_tokens: 16,
        kv_blocks: 64,
        token_latency_ms: None,
        draft_max: 0,
        draft_model: None,
        draft_price: None,
        crowded: true,
        end_tokens: Vec::new(),
        kv_type: KvType::F16,
        weights: Weights::default(),
        prompt_cache: None,
    };
    let secret = Secret::random().unwrap();
    let mut rendezvous = Rendezvous::listen("127.0.0.1:0", &secret, 2, RendezvousOptions::default()).unwrap();
    let address = rendezvous.address();
    let options = |rank| JoinOptions { rank: Some(rank), ..JoinOptions::default() };
    let (zero, one) = (secret.clone(), secret);
    let honest = std::thread::spawn(move || {
        let joined = join(address, &zero, &options(0)).unwrap();
        let job = serde_json::from_slice(&joined.job).unwrap();
        run_rank(joined, job, &path)
    });
    std::thread::spawn(move || impostor(join(address, &one, &options(1)).unwrap()));
    let controls = rendezvous.gather(|_, _| serde_json::to_vec(&job).unwrap()).unwrap();
    let front = Front::start(controls, Duration::from_secs(30), &mut |_| {}).map(|(front, _)| front);
    drop(honest);
    front
}

#[test]
fn a_rank_that_ends_while_loading_is_named() {
    let error = front_with_impostor(drop).map(|_| ()).unwrap_err();
    assert!(matches!(error, StartError::Rank { rank: 1, .. }), "{error}");
}

#[test]
fn a_rank_that_talks_nonsense_is_named() {
    let impostor = |mut joined: fabric::Joined| {
        joined.control.send(b"{\"what\": 1}").unwrap();
        // Stays until the front hangs up.
        while joined.control.recv(Duration::from_secs(10)).is_ok() {}
    };
    let error = front_with_impostor(impostor).map(|_| ()).unwrap_err();
    assert!(matches!(&error, StartError::Rank { rank: 1, message } if message.contains("no sense")), "{error}");
}

#[test]
fn a_rank_lost_in_mid_generation_fails_the_request_and_those_that_wait() {
    for transport in [Transport::SharedMemory, Transport::Tcp] {
        // Rank 1 has room for fewer tokens than rank 0 believes, and gives up in the middle.
        let change = |rank, job: &mut Job| job.context = if rank == 1 { 64 } else { 512 };
        let group = Group::start_with("tiny-llama", (2, 1), transport, change);
        let request = Request { prompt: vec![5; 20], max_tokens: Some(480), ignore_end: true, ..Request::default() };
        let mut running = group.engine.submit(request.clone()).unwrap();
        let mut waiting = group.engine.submit(request.clone()).unwrap();
        assert!(matches!(running.next_blocking(), Some(Event::Prompt(_))));
        let started = Instant::now();
        for generation in [&mut running, &mut waiting] {
            let mut last = None;
            while let Some(event) = generation.next_blocking() {
                last = Some(event);
            }
            assert!(matches!(&last, Some(Event::Failed(error)) if error.to_string().contains("rank 1")), "{last:?}");
        }
        assert!(started.elapsed() < Duration::from_secs(5), "{transport:?}: {:?}", started.elapsed());
        assert!(group.engine.status().failure.is_some());
        assert!(matches!(group.engine.submit(request), Err(SubmitError::NotRunning(_))));
        group.stop();
    }
}
