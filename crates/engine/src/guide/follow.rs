//! Follows the tokens of sequences by their constraints.

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use llguidance::toktrie::SimpleVob;
use llguidance::{Matcher, ParserFactory, panic_utils};
use model::{Gguf, Tokenizer};

use super::compile::{self, STACK_BYTES};
use super::constraint::{Constraint, Form};
use super::vocabulary;

/// How long a mask may take. Constraints have bounds that keep them far below it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Everything that rank 0 needs for constrained sequences. Nothing is built before the first of them.
pub(crate) struct Guides {
    source: Arc<Source>,
    /// The thread that works out which tokens may come next, for all sequences.
    worker: Option<Sender<Work>>,
}

/// Where the vocabulary comes from.
struct Source {
    path: PathBuf,
    end_tokens: Vec<u32>,
    factory: OnceLock<Result<ParserFactory, String>>,
}

struct Work {
    matcher: Matcher,
    answer: Sender<Result<Ready, String>>,
}

/// A matcher and the tokens that it allows next.
struct Ready {
    matcher: Matcher,
    mask: SimpleVob,
}

impl Guides {
    /// For the model in the file `path`, of whose tokens `end_tokens` end an answer.
    pub(crate) fn new(path: &Path, end_tokens: &[u32]) -> Self {
        let (path, end_tokens) = (path.to_owned(), end_tokens.to_vec());
        Self { source: Arc::new(Source { path, end_tokens, factory: OnceLock::new() }), worker: None }
    }

    /// A guide through `constraint`, which is compiled while the prompt is evaluated.
    pub(crate) fn guide(&mut self, constraint: &Constraint) -> Guide {
        let worker = self.worker.get_or_insert_with(start_worker).clone();
        let (answer, awaited) = mpsc::channel();
        let (source, form) = (Arc::clone(&self.source), constraint.form().clone());
        let builder = thread::Builder::new().name("constraint".to_owned()).stack_size(STACK_BYTES);
        let spawned = builder.spawn(move || {
            let ready = source.compile(&form).and_then(work_out);
            // A sequence that was cancelled meanwhile does not wait any more.
            let _ = answer.send(ready);
        });
        let state = match spawned {
            Ok(_) => State::Awaited(awaited),
            Err(error) => State::Broken(error.to_string()),
        };
        Guide { worker, state }
    }
}

impl Source {
    fn compile(&self, form: &Form) -> Result<Matcher, String> {
        let factory = self.factory.get_or_init(|| {
            let read = || {
                let gguf = Gguf::open(&self.path).map_err(|error| error.to_string())?;
                let tokenizer = Tokenizer::from_gguf(&gguf).map_err(|error| error.to_string())?;
                vocabulary::factory(&tokenizer, &self.end_tokens)
            };
            // The tree of tokens asserts what it assumes of a vocabulary.
            panic_utils::catch_unwind(AssertUnwindSafe(|| Ok(read()))).unwrap_or_else(|error| Err(error.to_string()))
        });
        compile::compile(factory.as_ref().map_err(Clone::clone)?, form)
    }
}

/// Starts the thread that works out masks. It ends when nobody can ask it any more. If it cannot be started, whoever asks is
/// told so by the closed channel.
fn start_worker() -> Sender<Work> {
    let (sender, work) = mpsc::channel::<Work>();
    let builder = thread::Builder::new().name("masks".to_owned()).stack_size(STACK_BYTES);
    let run = move || {
        for Work { matcher, answer } in work {
            let _ = answer.send(work_out(matcher));
        }
    };
    if let Err(error) = builder.spawn(run) {
        tracing::error!("no thread for constraints: {error}");
    }
    sender
}

fn work_out(mut matcher: Matcher) -> Result<Ready, String> {
    match matcher.compute_mask_or_eos() {
        Ok(mask) => Ok(Ready { matcher, mask }),
        Err(error) => Err(error.to_string()),
    }
}

/// Follows the tokens of one sequence.
pub(crate) struct Guide {
    worker: Sender<Work>,
    state: State,
}

enum State {
    /// On another thread, which answers here.
    Awaited(Receiver<Result<Ready, String>>),
    Ready(Box<Ready>),
    /// Nothing but the end can follow.
    Complete,
    Broken(String),
}

/// How a constrained sequence goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    GoesOn,
    /// Nothing can follow.
    Complete,
    /// The constraint has become too complex, and the token drawn last is not by it.
    Broken,
}

impl Guide {
    /// Waits until it is known what may come next, and takes all other tokens out of `logits`.
    pub(crate) fn mask(&mut self, logits: &mut [f32]) {
        if let State::Awaited(answer) = &self.state {
            self.state = match answer.recv_timeout(PATIENCE) {
                Ok(Ok(ready)) => State::Ready(Box::new(ready)),
                Ok(Err(problem)) => State::Broken(problem),
                Err(error) => State::Broken(error.to_string()),
            };
        }
        if let State::Ready(ready) = &self.state {
            forbid(logits, ready.mask.as_slice());
        }
    }

    /// Goes on with `token`, which was drawn after [`Guide::mask`].
    pub(crate) fn commit(&mut self, token: u32) {
        if !matches!(self.state, State::Ready(_)) {
            return;
        }
        let State::Ready(mut ready) = std::mem::replace(&mut self.state, State::Complete) else { return };
        if let Err(error) = ready.matcher.consume_token(token) {
            self.state = State::Broken(error.to_string());
        } else if !ready.matcher.is_stopped() {
            let (answer, awaited) = mpsc::channel();
            // If the worker is gone, so is the other end of the channel on which its answer is awaited.
            let _ = self.worker.send(Work { matcher: ready.matcher, answer });
            self.state = State::Awaited(awaited);
        }
    }

    /// How the sequence goes on after the last call.
    pub(crate) fn verdict(&self) -> Verdict {
        match &self.state {
            State::Awaited(_) | State::Ready(_) => Verdict::GoesOn,
            State::Complete => Verdict::Complete,
            State::Broken(problem) => {
                tracing::debug!("a constraint cannot be followed any further: {problem}");
                Verdict::Broken
            }
        }
    }
}

/// Takes out all tokens whose bits are not set in `allowed`, and those that it does not reach.
fn forbid(logits: &mut [f32], allowed: &[u32]) {
    const BITS: usize = u32::BITS as usize;
    let (known, beyond) = logits.split_at_mut(logits.len().min(allowed.len() * BITS));
    beyond.fill(f32::NEG_INFINITY);
    for (logits, &word) in known.chunks_mut(BITS).zip(allowed) {
        match word {
            0 => logits.fill(f32::NEG_INFINITY),
            u32::MAX => {}
            _ => {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    if word >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A model of 256 byte tokens and a few merges, of which 2 ends answers.
    pub(in crate::guide) fn guides() -> Guides {
        Guides::new(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden/tiny-llama.gguf"), &[2])
    }

    pub(in crate::guide) fn tokenizer() -> Tokenizer {
        let guides = guides();
        Tokenizer::from_gguf(&Gguf::open(&guides.source.path).unwrap()).unwrap()
    }

    /// The texts of the tokens that may come next.
    pub(in crate::guide) fn allowed(guide: &mut Guide, tokenizer: &Tokenizer) -> Vec<String> {
        let mut logits = vec![0.0; tokenizer.vocabulary() + 3];
        guide.mask(&mut logits);
        let ids = (0..).zip(logits).filter(|(_, logit)| *logit == 0.0).map(|(id, _)| id);
        ids.map(|id| if id == 2 { "END".to_owned() } else { tokenizer.decode(&[id]) }).collect()
    }

    /// Draws the tokens of `text` as the model would.
    pub(in crate::guide) fn say(guide: &mut Guide, tokenizer: &Tokenizer, text: &str) -> Verdict {
        for id in tokenizer.encode(text, model::EncodeOptions::default()).unwrap() {
            let mut logits = vec![0.0; tokenizer.vocabulary()];
            guide.mask(&mut logits);
            assert_eq!(logits[id as usize], 0.0, "{text:?} is not allowed at {:?}", tokenizer.decode(&[id]));
            guide.commit(id);
        }
        guide.verdict()
    }

    #[test]
    fn a_choice_is_followed_to_its_end() {
        let (mut guides, tokenizer) = (guides(), tokenizer());
        let constraint = Constraint::choice(&["yes".to_owned(), "no".to_owned(), "no!".to_owned()]).unwrap();
        let mut guide = guides.guide(&constraint);
        let first = allowed(&mut guide, &tokenizer);
        assert!(first.contains(&"y".to_owned()) && first.contains(&"n".to_owned()), "{first:?}");
        assert!(first.iter().all(|text| "yes".starts_with(text) || "no!".starts_with(text)), "{first:?}");
        assert_eq!(say(&mut guide, &tokenizer, "no"), Verdict::GoesOn);
        assert_eq!(allowed(&mut guide, &tokenizer), ["END", "!"]);
        guide.commit(2);
        assert_eq!(guide.verdict(), Verdict::Complete);
        let mut other = guides.guide(&constraint);
        assert_eq!(say(&mut other, &tokenizer, "yes"), Verdict::Complete);
    }

    #[test]
    fn tokens_that_no_tree_holds_are_never_allowed() {
        let mut logits = vec![1.0; 100];
        forbid(&mut logits, &[u32::MAX, 0, 0b101]);
        let allowed: Vec<usize> = (0..100).filter(|&id| logits[id] == 1.0).collect();
        assert_eq!(allowed, (0..32).chain([64, 66]).collect::<Vec<_>>());
    }

    #[test]
    fn what_was_not_allowed_breaks_the_guide() {
        let (mut guides, tokenizer) = (guides(), tokenizer());
        let mut guide = guides.guide(&Constraint::regex("[0-9]{3}").unwrap());
        assert_eq!(allowed(&mut guide, &tokenizer).len(), 10);
        guide.commit(tokenizer.encode("x", model::EncodeOptions::default()).unwrap()[0]);
        assert_eq!(guide.verdict(), Verdict::Broken);
    }

    #[test]
    fn several_sequences_are_guided_at_once() {
        let (mut guides, tokenizer) = (guides(), tokenizer());
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
            "additionalProperties": false});
        let constraint = Constraint::json_schema(&schema, true).unwrap();
        let mut sequences: Vec<Guide> = (0..8).map(|_| guides.guide(&constraint)).collect();
        for (index, guide) in sequences.iter_mut().enumerate() {
            assert_eq!(say(guide, &tokenizer, &format!("{{\"a\": {index}")), Verdict::GoesOn);
        }
        for guide in &mut sequences {
            assert!(allowed(guide, &tokenizer).contains(&"}".to_owned()));
            assert_eq!(say(guide, &tokenizer, "}"), Verdict::Complete);
        }
    }

    #[test]
    fn a_constraint_survives_the_way_to_rank_0() {
        let constraint = Constraint::json_schema(&json!({"enum": ["a", 1, null]}), true).unwrap();
        let sent: Value = serde_json::to_value(&constraint).unwrap();
        assert_eq!(serde_json::from_value::<Constraint>(sent).unwrap(), constraint);
    }

    #[test]
    fn a_model_that_cannot_be_read_breaks_the_guide() {
        let mut guides = Guides::new(Path::new("/nowhere"), &[2]);
        let mut guide = guides.guide(&Constraint::json_object().unwrap());
        guide.mask(&mut [0.0; 4]);
        assert_eq!(guide.verdict(), Verdict::Broken);
    }
}
