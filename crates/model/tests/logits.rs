//! Each architecture against the float32 logits that the Python `transformers` library computes for the same weights.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::PathBuf;

use kernels::KvType;
use model::{Alone, Blueprint, Gguf, LOGIT_ROWS, Placement, Shard, ShardOptions, Stretch};
use serde_json::Value;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn integers(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as u32).collect()
}

/// A whole model on one rank, with a 32-bit KV cache so that only the order of additions differs from the reference.
struct Whole {
    shard: Shard,
    vocabulary: usize,
}

impl Whole {
    fn open(name: &str, threads: usize, step_tokens: usize) -> Self {
        let file = Gguf::open(&golden(name)).unwrap();
        let blueprint = Blueprint::from_gguf(&file).unwrap();
        let placement = Placement::whole(blueprint.layers.len());
        let options =
            ShardOptions { threads, slots: 3, context: 256, kv_blocks: 24, step_tokens, kv_type: KvType::F32 };
        let shard = Shard::load(&file, &blueprint, &placement, options).unwrap();
        Self { shard, vocabulary: blueprint.vocabulary }
    }

    /// The same with weights in memory of their own.
    fn packed(mut self) -> Self {
        let mut done = 0;
        self.shard.pack(&mut |bytes| done = bytes).unwrap();
        assert_eq!(done, self.shard.packed_bytes());
        self
    }

    /// The logits of every token [tokens, vocabulary], evaluated in chunks of `chunk` tokens.
    fn logits(&mut self, tokens: &[u32], chunk: usize) -> Vec<f32> {
        let mut all = Vec::new();
        for (index, tokens) in tokens.chunks(chunk).enumerate() {
            let stretch = Stretch { slot: 1, first_position: index * chunk, tokens: tokens.len() };
            all.extend(self.step(&[stretch], tokens));
        }
        all
    }

    /// The logits of all tokens of one step.
    fn step(&mut self, stretches: &[Stretch], tokens: &[u32]) -> Vec<f32> {
        self.shard.embed(tokens);
        self.shard.run_layers(stretches, &mut Alone).unwrap();
        let mut all = Vec::new();
        let rows: Vec<usize> = (0..tokens.len()).collect();
        for rows in rows.chunks(LOGIT_ROWS) {
            let mut logits = vec![0.0; rows.len() * self.vocabulary];
            self.shard.logits(rows, &mut logits, self.vocabulary);
            all.extend(logits);
        }
        all
    }
}

/// Compares every recorded logit; the error is relative to the largest logit of the row.
fn check(name: &str) {
    check_form(name, &format!("{name}.gguf"));
    // The library that writes folders refuses the head count of tiny-llama.
    if name != "tiny-llama" {
        check_form(name, &format!("{name}-folder"));
    }
}

/// The same of a model in one of the forms in which it is recorded.
fn check_form(name: &str, form: &str) {
    let index: Value = serde_json::from_slice(&std::fs::read(golden(&format!("{name}.json"))).unwrap()).unwrap();
    let bytes = std::fs::read(golden(&format!("{name}.logits.bin"))).unwrap();
    let recorded: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let mut model = Whole::open(form, 2, 128);
    let mut packed = Whole::open(form, 2, 128).packed();
    let width = model.vocabulary;
    let mut worst: f32 = 0.0;
    for prompt in index["prompts"].as_array().unwrap() {
        let tokens = integers(&prompt["tokens"]);
        let logits = model.logits(&tokens, 128);
        assert!(logits == packed.logits(&tokens, 128), "{form}: packed weights give other logits");
        let first = prompt["first_row"].as_u64().unwrap() as usize;
        for (row, position) in (first..).zip(integers(&prompt["positions"])) {
            let expected = &recorded[row * width..(row + 1) * width];
            let found = &logits[position as usize * width..(position as usize + 1) * width];
            let largest = expected.iter().fold(0.0_f32, |largest, logit| largest.max(logit.abs()));
            let difference = expected.iter().zip(found).fold(0.0_f32, |worst, (a, b)| worst.max((a - b).abs()));
            worst = worst.max(difference / largest);
        }
    }
    println!("{form}: largest relative error {worst:.2e}");
    assert!(worst < 1e-3, "{form}: relative error {worst}");
}

/// Wherever the blocks of a sequence lie, shared with another one or copied: the logits have the same bits.
#[test]
fn blocks_of_the_cache_may_lie_anywhere() {
    let tokens: Vec<u32> = (0..90).map(|token| token * 37 % 288).collect();
    for name in ["tiny-llama-q4_1.gguf", "tiny-gemma3.gguf"] {
        let expected = Whole::open(name, 2, 128).logits(&tokens, 128);
        let mut model = Whole::open(name, 2, 128);
        model.shard.change_table(1, 0, [17, 3, 8]);
        assert!(model.logits(&tokens, 50) == expected, "{name}");
        // Another sequence begins with the same 64 tokens, and one with 70 of them.
        let width = model.vocabulary;
        model.shard.change_table(0, 0, [17, 3, 20]);
        let rest = Stretch { slot: 0, first_position: 64, tokens: 26 };
        assert!(model.step(&[rest], &tokens[64..])[..] == expected[64 * width..], "{name}");
        model.shard.copy_kv_block(8, 5);
        model.shard.change_table(2, 0, [17, 3, 5]);
        let rest = Stretch { slot: 2, first_position: 70, tokens: 20 };
        assert!(model.step(&[rest], &tokens[70..])[..] == expected[70 * width..], "{name}");
        // What the first sequence has was not touched.
        let again = Stretch { slot: 1, first_position: 89, tokens: 1 };
        assert!(model.step(&[again], &tokens[89..])[..] == expected[89 * width..], "{name}");
    }
}

/// The hidden states behind the logits: with as many rows of the vocabulary as there are, the product of both determines
/// them, so that they are those of the reference where the logits are.
#[test]
fn normed_hidden_states_give_the_logits() {
    for name in ["tiny-llama.gguf", "tiny-gemma3.gguf"] {
        let mut model = Whole::open(name, 1, 64);
        let tokens: Vec<u32> = (0..40).map(|token| token * 37 % 288).collect();
        let logits = model.logits(&tokens, 64);
        let width = model.shard.width();
        let mut hidden = vec![0.0; tokens.len() * width];
        model.shard.normed(&(0..tokens.len()).collect::<Vec<_>>(), &mut hidden);
        let file = Gguf::open(&golden(name)).unwrap();
        let head = if file.find("output.weight").is_some() { "output.weight" } else { "token_embd.weight" };
        let tensor = file.tensor(head).unwrap();
        let mut weights = vec![0.0; model.vocabulary * width];
        kernels::dequantize(tensor.info.dtype, &tensor.data, &mut weights).unwrap();
        for (hidden, logits) in hidden.chunks(width).zip(logits.chunks(model.vocabulary)) {
            for (weights, logit) in weights.chunks(width).zip(logits) {
                let product: f32 = weights.iter().zip(hidden).map(|(weight, value)| weight * value).sum();
                assert!((product - logit).abs() < 1e-3 * (1.0 + logit.abs()), "{name}: {product} is not {logit}");
            }
        }
    }
}

/// The greedy continuation, one token at a time, equals the recorded one.
fn check_greedy(name: &str) {
    let index: Value = serde_json::from_slice(&std::fs::read(golden(&format!("{name}.json"))).unwrap()).unwrap();
    let mut tokens = integers(&index["greedy"]["prompt"]);
    let expected = integers(&index["greedy"]["tokens"]);
    let mut model = Whole::open(&format!("{name}.gguf"), 1, 64).packed();
    let mut logits = model.logits(&tokens, 64);
    for &next in &expected {
        let last = &logits[logits.len() - model.vocabulary..];
        let best = (0..last.len()).max_by(|&a, &b| last[a].total_cmp(&last[b])).unwrap() as u32;
        assert_eq!(best, next, "{name}: token {} of the continuation", tokens.len());
        let position = tokens.len();
        tokens.push(best);
        logits = model.step(&[Stretch { slot: 1, first_position: position, tokens: 1 }], &[best]);
    }
}

macro_rules! architectures {
    ($($test:ident: $name:literal,)*) => {$(
        #[test]
        fn $test() {
            check($name);
            check_greedy($name);
        }
    )*};
}

architectures! {
    llama: "tiny-llama",
    llama_with_rope_factors: "tiny-llama3",
    mistral: "tiny-mistral",
    qwen2: "tiny-qwen2",
    qwen3: "tiny-qwen3",
    gemma3: "tiny-gemma3",
    qwen3_moe: "tiny-qwen3moe",
    mixtral: "tiny-mixtral",
}

/// Splitting the prompt into chunks of any size, and the work over threads, changes no bit.
#[test]
fn chunks_and_threads_change_no_bit() {
    let tokens: Vec<u32> = (0..70).map(|token| token * 37 % 288).collect();
    for name in ["tiny-llama-q4_1.gguf", "tiny-gemma3.gguf", "tiny-qwen2.gguf", "tiny-qwen3moe-q4_0.gguf"] {
        let whole = Whole::open(name, 1, 128).logits(&tokens, 128);
        for (threads, chunk) in [(2, 128), (1, 1), (2, 7), (3, 64)] {
            assert!(Whole::open(name, threads, 128).logits(&tokens, chunk) == whole, "{name} {threads} {chunk}");
        }
    }
}

/// Sequences that share their steps get the bits that each gets alone, whatever part of the step is theirs.
#[test]
fn sequences_in_one_step_change_no_bit() {
    let sequence = |slot: u32| -> Vec<u32> { (0..40 + slot).map(|token| (token * 37 + slot * 11) % 288).collect() };
    let sequences: Vec<Vec<u32>> = (0..3).map(sequence).collect();
    for name in ["tiny-llama-q4_1.gguf", "tiny-gemma3.gguf", "tiny-qwen2.gguf"] {
        let alone: Vec<_> = sequences.iter().map(|tokens| Whole::open(name, 1, 128).logits(tokens, 128)).collect();
        for threads in [1, 2] {
            let mut model = Whole::open(name, threads, 128);
            let mut found = vec![Vec::new(); 3];
            let mut done = [0; 3];
            // Lengths of stretches by slot; the order of slots turns with each step.
            for (turn, lengths) in [[17, 1, 5], [1, 1, 0], [20, 9, 1], [0, 1, 30], [2, 29, 6]].into_iter().enumerate() {
                let slots: Vec<usize> =
                    (0..3).map(|place| (place + turn) % 3).filter(|&slot| lengths[slot] > 0).collect();
                let stretch = |&slot: &usize| Stretch { slot, first_position: done[slot], tokens: lengths[slot] };
                let stretches: Vec<_> = slots.iter().map(stretch).collect();
                let tokens = |stretch: &Stretch| &sequences[stretch.slot][stretch.first_position..][..stretch.tokens];
                let tokens: Vec<u32> = stretches.iter().flat_map(tokens).copied().collect();
                let logits = model.step(&stretches, &tokens);
                let mut rows = logits.chunks_exact(model.vocabulary);
                for stretch in stretches {
                    rows.by_ref().take(stretch.tokens).for_each(|row| found[stretch.slot].extend_from_slice(row));
                    done[stretch.slot] += stretch.tokens;
                }
            }
            assert_eq!(done, [40, 41, 42]);
            assert!(found == alone, "{name} with {threads} threads");
        }
    }
}
