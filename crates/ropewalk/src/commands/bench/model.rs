//! Prefill and decode speed of a model.

use anyhow::bail;
use engine::Completion;
use serde::Serialize;

use super::Arguments;
use super::answers::Answers;
use super::roofline::Roofline;
use super::spread::Spread;
use crate::commands::{print_json, print_now};
use crate::options::{LayoutOptions, ModelOptions};
use crate::session::Session;
use crate::table;

/// One line of the result.
#[derive(Serialize)]
struct Row {
    model: String,
    layout: String,
    ranks: usize,
    tp: usize,
    pp: usize,
    threads: usize,
    transport: &'static str,
    prompt: usize,
    r#gen: usize,
    depth: usize,
    /// Sequences at once, whose tokens all count.
    parallel: usize,
    repetitions: usize,
    /// Evaluating the prompt behind `depth` tokens.
    prefill_tok_s: Option<Spread>,
    /// From the request to its first token.
    ttft_ms: Option<Spread>,
    /// Generating behind `depth` tokens.
    decode_tok_s: Option<Spread>,
    /// The same as shares of what this machine could do, where that was asked for.
    prefill_share: Option<f64>,
    decode_share: Option<f64>,
    load_ms: f64,
    weight_bytes_per_token: u64,
    /// Of all processes so far.
    memory: Memory,
}

/// Largest resident memory; 0 where the system does not tell.
#[derive(Serialize, Clone, Default)]
struct Memory {
    front_bytes: u64,
    rank_bytes: Vec<u64>,
    sum_bytes: u64,
}

/// Lengths of one row.
#[derive(Clone, Copy)]
struct Lengths {
    prompt: usize,
    generated: usize,
    depth: usize,
}

pub(super) fn run(arguments: &Arguments, model: &ModelOptions) -> anyhow::Result<()> {
    let rows = rows(arguments);
    if arguments.repetitions == 0 || rows.iter().any(|it| it.prompt == 0 && it.generated == 0) {
        bail!("--repetitions must be at least 1, and --n-prompt or --n-gen too");
    }
    let mut roofline = arguments.roofline.then(|| Roofline::new(model, &arguments.layout)).transpose()?;
    // What is measured is the cost of a token, not how well it can be guessed.
    let draft_max = arguments.layout.draft_max.or(arguments.layout.draft_model.is_none().then_some(0));
    let layout = LayoutOptions { draft_max, ..arguments.layout.clone() };
    let session = Session::start_parallel(model, &layout, arguments.parallel.into())?;
    check_lengths(&rows, session.engine.model().context)?;
    let mut bench = Bench { session: &session, arguments, seed: 0, memory: Memory::default() };
    let mut rows = rows.into_iter().map(|lengths| bench.measure(lengths)).collect::<anyhow::Result<Vec<_>>>()?;
    if let Some(roofline) = &mut roofline {
        // Afterwards, so that the memory that this takes is not taken for the model's.
        roofline.measure(&session)?;
        rows.iter_mut().for_each(|row| row.add_shares(roofline));
    }
    if arguments.json {
        return print_json(&rows);
    }
    print(&rows, roofline.as_ref())
}

/// All combinations of lengths.
fn rows(arguments: &Arguments) -> Vec<Lengths> {
    let Arguments { prompt, r#gen, depth, .. } = arguments;
    let behind = |&prompt| {
        r#gen.iter().flat_map(move |&generated| depth.iter().map(move |&depth| Lengths { prompt, generated, depth }))
    };
    prompt.iter().flat_map(behind).collect()
}

/// Refuses lengths that the context does not hold: figures of a run that was cut short would mislead.
fn check_lengths(rows: &[Lengths], context: usize) -> anyhow::Result<()> {
    let needed = rows.iter().map(|it| it.depth.saturating_add(it.prompt.max(it.generated)).saturating_add(1)).max();
    match needed {
        Some(needed) if needed > context => {
            bail!("these lengths take up to {needed} tokens, but the context holds {context}: see --ctx-size")
        }
        _ => Ok(()),
    }
}

/// A series of measurements.
struct Bench<'a> {
    session: &'a Session,
    arguments: &'a Arguments,
    /// Changes from one prompt to the next.
    seed: u64,
    memory: Memory,
}

impl Bench<'_> {
    /// Measures one row; the first measurement warms caches up and does not count.
    fn measure(&mut self, lengths: Lengths) -> anyhow::Result<Row> {
        let Lengths { prompt, generated, depth } = lengths;
        let (mut prefill, mut first, mut decode) = (Vec::new(), Vec::new(), Vec::new());
        let mut texts = self.random_texts(depth.max(1) + prompt);
        for repetition in 0..=self.arguments.repetitions {
            if prompt > 0 && repetition > 0 {
                // Where only decode is measured, the same text does, which the KV cache holds after the first time.
                texts = self.random_texts(depth.max(1) + prompt);
            }
            let begin = |length: usize| texts.iter().map(|text| text[..length].to_vec()).collect();
            if prompt > 0 {
                if depth > 0 {
                    // What lies before the prompt stays in the KV cache.
                    self.answer(begin(depth), 0)?;
                }
                let evaluated = self.answer(begin(depth + prompt), 1)?;
                if repetition > 0 {
                    prefill.push(evaluated.prefill_tok_s());
                    first.push(evaluated.first_token_ms());
                }
            }
            if generated > 0 {
                // A generation needs something before it: depth 0 is a single token. The first token generated is drawn
                // from what the prompt's evaluation has left, so that one more is asked for.
                let completed = self.answer(begin(depth.max(1)), generated + 1)?;
                if repetition > 0 {
                    decode.push(completed.decode_tok_s());
                }
            }
        }
        let session = self.session;
        Ok(Row {
            model: session.engine.model().id.clone(),
            layout: session.layout.to_string(),
            ranks: session.layout.ranks(),
            tp: session.layout.tensor,
            pp: session.layout.pipeline,
            threads: session.threads,
            transport: self.arguments.layout.links.transport.word(),
            prompt,
            r#gen: generated,
            depth,
            parallel: self.arguments.parallel.into(),
            repetitions: self.arguments.repetitions,
            prefill_tok_s: Spread::of(prefill),
            ttft_ms: Spread::of(first),
            decode_tok_s: Spread::of(decode),
            prefill_share: None,
            decode_share: None,
            load_ms: session.load_ms,
            weight_bytes_per_token: session.weight_bytes,
            memory: self.memory.clone(),
        })
    }

    fn answer(&mut self, prompts: Vec<Vec<u32>>, length: usize) -> anyhow::Result<Answers> {
        let answers = Answers::to(self.session, prompts, length)?;
        if let Some(completion) = answers.completions().last() {
            self.memory = Memory::of(completion);
        }
        Ok(answers)
    }

    /// As many texts as there are sequences, which have nothing in common with earlier ones.
    fn random_texts(&mut self, length: usize) -> Vec<Vec<u32>> {
        let vocabulary = self.session.engine.model().tokenizer.vocabulary();
        let texts = (0..self.arguments.parallel).map(|_| {
            self.seed += 1;
            random_tokens(self.seed, length, vocabulary)
        });
        texts.collect()
    }
}

impl Memory {
    fn of(completion: &Completion) -> Self {
        let rank_bytes: Vec<u64> = completion.ranks.iter().map(|rank| rank.peak_rss_bytes).collect();
        let front_bytes = engine::peak_resident_bytes();
        Self { front_bytes, sum_bytes: front_bytes + rank_bytes.iter().sum::<u64>(), rank_bytes }
    }
}

impl Row {
    fn add_shares(&mut self, roofline: &Roofline) {
        let Self { prompt, r#gen: generated, depth, parallel, .. } = *self;
        self.prefill_share = self.prefill_tok_s.map(|rate| roofline.prefill_share(depth, prompt, rate.median));
        self.decode_share =
            self.decode_tok_s.map(|rate| roofline.decode_share(depth, generated, parallel, rate.median));
    }

    fn cells(&self, with_shares: bool) -> Vec<String> {
        let share = |share: Option<f64>| share.map_or_else(|| "?".to_owned(), |it| format!("{:.0}%", it * 100.0));
        let mut cells = vec![
            format!("{}, {} ranks of {} threads", self.layout, self.ranks, self.threads),
            self.parallel.to_string(),
            self.depth.to_string(),
            self.prompt.to_string(),
            Spread::shown(self.prefill_tok_s),
            Spread::shown(self.ttft_ms),
            self.r#gen.to_string(),
            Spread::shown(self.decode_tok_s),
        ];
        if with_shares {
            cells.insert(5, share(self.prefill_share));
            cells.push(share(self.decode_share));
        }
        cells
    }
}

fn print(rows: &[Row], roofline: Option<&Roofline>) -> anyhow::Result<()> {
    let mut header =
        vec!["layout", "sequences", "depth", "prompt", "prefill tok/s", "first token ms", "generated", "decode tok/s"];
    if roofline.is_some() {
        header.insert(5, "of limit");
        header.push("of limit");
    }
    table::print(&header, &rows.iter().map(|row| row.cells(roofline.is_some())).collect::<Vec<_>>())?;
    if let Some(Row { load_ms, weight_bytes_per_token, memory, .. }) = rows.last() {
        let ranks: Vec<String> = memory.rank_bytes.iter().map(|&bytes| table::bytes(bytes)).collect();
        print_now(&format!(
            "\nloaded in {load_ms:.0} ms; {} of weights per token; peak memory {}: ranks {}, and {} of this command\n",
            table::bytes(*weight_bytes_per_token),
            table::bytes(memory.sum_bytes),
            ranks.join(" and "),
            table::bytes(memory.front_bytes),
        ))?;
    }
    roofline.map_or(Ok(()), Roofline::print)
}

/// Tokens that differ from prompt to prompt from the first one on, so that no KV cache helps (SplitMix64, Steele et al.,
/// 2014).
fn random_tokens(seed: u64, count: usize, vocabulary: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    };
    (0..count).map(|_| (next() % vocabulary.max(1) as u64) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_share_no_beginning() {
        let firsts: Vec<u32> = (0..10).map(|seed| random_tokens(seed, 1, 49_152)[0]).collect();
        assert!((1..10).all(|i| !firsts[..i].contains(&firsts[i])));
    }
}
