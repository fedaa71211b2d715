//! From the text of a constraint to what follows tokens by it.

use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv};
use llguidance::{Matcher, ParserFactory};

use super::constraint::{ConstraintError, Form};

/// The stack that constraints are compiled on: the library goes as deep as they are nested. Only what is touched takes
/// memory.
pub(super) const STACK_BYTES: usize = 256 << 20;

/// Longest time that a constraint may take to compile: rank 0 compiles it again, and a sequence whose prompt is evaluated sooner
/// holds up the others meanwhile. Usual ones take some milliseconds.
const COMPILE_MAX: Duration = Duration::from_secs(2);
/// Longest words about a constraint in characters. They quote it.
const PROBLEM_MAX: usize = 400;

/// Bounds on the work and memory of one constraint. The library's own are for grammars from trusted places.
pub(super) fn limits() -> ParserLimits {
    ParserLimits {
        // One or two kilobytes each.
        max_lexer_states: 30_000,
        max_grammar_size: 200_000,
        // Errors go to clients, who know their grammar.
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// A factory of parsers over the tokens of `environment`.
pub(super) fn factory(environment: &TokEnv, slices: &[String]) -> Result<ParserFactory, String> {
    let created = ParserFactory::new(environment, InferenceCapabilities::default(), slices);
    let mut factory = created.map_err(|error| error.to_string())?;
    *factory.limits_mut() = limits();
    factory.quiet();
    Ok(factory)
}

/// Compiles a constraint for the tokens of `factory`. To be called on a thread with a stack of [`STACK_BYTES`].
pub(super) fn compile(factory: &ParserFactory, form: &Form) -> Result<Matcher, String> {
    let grammar = match form {
        Form::Schema(schema) => TopLevelGrammar::from_json_schema(schema.clone()),
        Form::Regex(expression) => TopLevelGrammar::from_regex(expression),
        Form::Lark(grammar) => TopLevelGrammar::from_lark(grammar.clone()),
    };
    let matcher = Matcher::new(factory.create_parser(grammar));
    match matcher.get_error() {
        Some(error) => Err(error),
        None => Ok(matcher),
    }
}

/// Single bytes as tokens, which suffice to find out whether a constraint can be followed at all.
static BYTES: LazyLock<Result<ParserFactory, String>> = LazyLock::new(|| {
    let environment: TokEnv = Arc::new(ApproximateTokEnv::single_byte());
    factory(&environment, &[])
});

/// Checks that a constraint can be followed, at least at its beginning.
pub(super) fn check(form: &Form) -> Result<(), ConstraintError> {
    let invalid = |problem: String| ConstraintError::Invalid { problem };
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("constraint".to_owned()).stack_size(STACK_BYTES);
        let work = || {
            let factory = BYTES.as_ref().map_err(Clone::clone)?;
            let started = Instant::now();
            let mut matcher = compile(factory, form)?;
            match matcher.compute_mask_or_eos() {
                Ok(_) if started.elapsed() > COMPILE_MAX => {
                    Err(format!("it takes more than {COMPILE_MAX:?} to compile"))
                }
                Ok(_) => Ok(()),
                Err(error) => Err(format!("nothing fulfils it ({error})")),
            }
        };
        let worker = builder.spawn_scoped(scope, work).map_err(|error| invalid(error.to_string()))?;
        let checked = worker.join().unwrap_or_else(|_| Err("the compiler of constraints panicked".to_owned()));
        checked.map_err(|problem| invalid(tidy(&problem)))
    })
}

/// The library's words without its remarks for developers.
fn tidy(problem: &str) -> String {
    let end = problem.find("\n<").unwrap_or(problem.len());
    let problem = problem[..end].trim();
    if problem.starts_with("panic: ") {
        return "the compiler of constraints gave up".to_owned();
    }
    match problem.char_indices().nth(PROBLEM_MAX) {
        Some((end, _)) => format!("{} …", &problem[..end]),
        None => problem.to_owned(),
    }
}
