//! Backends that do as they are told.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, mpsc};
use std::time::Duration;

use engine::{
    Backend, Drafts, EngineError, FinishReason, Flow, ModelDetails, Observer, Outcome, Pooling, RankStatistics,
    Request, TokenInfo, TopToken,
};
use model::{ChatTemplate, EncodeOptions, Gguf, Tokenizer};

/// How often a script that waits looks whether it is still wanted.
const POLL: Duration = Duration::from_millis(2);

pub(crate) struct TestModel {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Option<Arc<ChatTemplate>>,
    pub(crate) details: ModelDetails,
}

/// A model of 256 byte tokens, a few merges and a ChatML template.
pub(crate) static MODEL: LazyLock<TestModel> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden/tiny-llama.gguf");
    let gguf = Gguf::open(&path).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let template = ChatTemplate::from_gguf(&gguf, &tokenizer).unwrap();
    let details = ModelDetails::from_gguf(&gguf);
    TestModel { tokenizer: Arc::new(tokenizer), template: template.map(Arc::new), details }
});

pub(crate) type Run = Result<Outcome, EngineError>;

/// A backend made of a closure, which runs one request at a time.
pub(crate) struct Script<F>(pub(crate) Mutex<F>);

impl<F: FnMut(&Request, &mut dyn Observer) -> Run + Send> Backend for Script<F> {
    fn generate(&self, request: &Request, observer: &mut dyn Observer) -> Run {
        (self.0.lock().unwrap())(request, observer)
    }
}

/// The same for requests that run at the same time.
pub(crate) struct AtOnce<F>(pub(crate) F);

impl<F: Fn(&Request, &mut dyn Observer) -> Run + Send + Sync> Backend for AtOnce<F> {
    fn generate(&self, request: &Request, observer: &mut dyn Observer) -> Run {
        (self.0)(request, observer)
    }
}

/// The tokens of `text`, special tokens included.
pub(crate) fn tokens(text: &str) -> Vec<u32> {
    MODEL.tokenizer.encode(text, EncodeOptions { add_special: false, parse_special: true }).unwrap()
}

/// Log-probability that scripts give to every token.
pub(crate) const LOGPROB: f32 = -0.5;

/// A token with the log-probabilities that were asked for: the alternatives are the token itself and its successors.
fn token(id: u32, logprobs: Option<usize>) -> TokenInfo {
    let vocabulary = MODEL.tokenizer.vocabulary() as u32;
    let alternative = |rank: usize| TopToken { id: (id + rank as u32) % vocabulary, logprob: LOGPROB - rank as f32 };
    let top = (0..logprobs.unwrap_or(0)).map(alternative).collect();
    TokenInfo { id, logprob: logprobs.map(|_| LOGPROB), top }
}

/// Reports the prompt, of which one token comes from the cache.
fn report_prompt(request: &Request, observer: &mut dyn Observer) -> Flow {
    let entry = |(index, &id): (usize, &u32)| token(id, request.prompt_logprobs.filter(|_| index > 0));
    let evaluated = request.prompt_logprobs.map(|_| request.prompt.iter().enumerate().map(entry).collect());
    observer.prompt(evaluated.unwrap_or_default(), 1)
}

pub(crate) fn outcome(finish: FinishReason) -> Outcome {
    let rank = RankStatistics { compute_ms: 2000.0, wait_ms: 500.0, peak_rss_bytes: 1 << 20 };
    Outcome { finish, prefill_ms: 3.0, decode_ms: 5.0, drafts: Drafts::default(), ranks: vec![rank, rank] }
}

/// Says these tokens and then an end-of-text token, within the request's limit.
pub(crate) fn say(ids: &[u32], request: &Request, observer: &mut dyn Observer) -> Outcome {
    let end = MODEL.tokenizer.eos().unwrap();
    if report_prompt(request, observer) == Flow::Stop {
        return outcome(FinishReason::Cancelled);
    }
    if let Some(pooling) = request.embed {
        observer.embedding(match pooling {
            Pooling::Mean => vec![0.6, 0.0, 0.8],
            Pooling::Last => vec![0.0, 1.0, 0.0],
            Pooling::Ranking => vec![request.prompt.len() as f32, 1.0],
        });
        return outcome(FinishReason::Stop);
    }
    for (count, &id) in ids.iter().chain([&end]).enumerate() {
        if request.max_tokens.is_some_and(|limit| count >= limit) {
            return outcome(FinishReason::Length);
        }
        if observer.token(token(id, request.logprobs)) == Flow::Stop {
            return outcome(FinishReason::Cancelled);
        }
    }
    outcome(FinishReason::Stop)
}

/// A script that answers everything with `text`.
pub(crate) fn says(text: &str) -> impl FnMut(&Request, &mut dyn Observer) -> Run + Send + 'static {
    let ids = tokens(text);
    move |request, observer| Ok(say(&ids, request, observer))
}

/// What the script [`endless`] is doing.
#[derive(Clone, Default)]
pub(crate) struct Activity {
    pub(crate) running: Arc<AtomicBool>,
    pub(crate) stopped: Arc<AtomicUsize>,
}

impl Activity {
    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Ordering::SeqCst)
    }

    /// How often a run was told to stop.
    pub(crate) fn stopped(&self) -> usize {
        self.stopped.load(Ordering::SeqCst)
    }
}

/// A script that says `text` over and over until it is told to stop.
pub(crate) fn endless(
    activity: Activity,
    text: &str,
) -> impl FnMut(&Request, &mut dyn Observer) -> Run + Send + 'static {
    endless_with_pauses(activity, text, POLL)
}

/// The same with this pause between two tokens.
pub(crate) fn endless_with_pauses(
    activity: Activity,
    text: &str,
    pause: Duration,
) -> impl FnMut(&Request, &mut dyn Observer) -> Run + Send + 'static {
    let ids = tokens(text);
    move |request, observer| {
        report_prompt(request, observer);
        activity.running.store(true, Ordering::SeqCst);
        for &id in ids.iter().cycle() {
            if observer.token(token(id, request.logprobs)) == Flow::Stop {
                break;
            }
            std::thread::sleep(pause);
        }
        activity.running.store(false, Ordering::SeqCst);
        activity.stopped.fetch_add(1, Ordering::SeqCst);
        Ok(outcome(FinishReason::Cancelled))
    }
}

/// Opens the script [`gated`], once per call.
#[derive(Clone)]
pub(crate) struct Gate(mpsc::Sender<()>);

impl Gate {
    pub(crate) fn open(&self) {
        self.0.send(()).unwrap();
    }
}

/// A script that waits for its gate between the prompt and the answer `text`.
pub(crate) fn gated(text: &str) -> (Gate, impl FnMut(&Request, &mut dyn Observer) -> Run + Send + 'static) {
    let ids = tokens(text);
    let (sender, opened) = mpsc::channel();
    let script = move |request: &Request, observer: &mut dyn Observer| {
        while opened.recv_timeout(POLL) == Err(mpsc::RecvTimeoutError::Timeout) {
            if observer.flow() == Flow::Stop {
                return Ok(outcome(FinishReason::Cancelled));
            }
        }
        Ok(say(&ids, request, observer))
    };
    (Gate(sender), script)
}
