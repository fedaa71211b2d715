//! What the ranks of a stage exchange, and that it gives the bits of one rank whichever form it has.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::PathBuf;
use std::sync::{Barrier, Mutex};

use kernels::KvType;
use model::{Alone, Blueprint, Exchange, ExchangeError, Gguf, Placement, Shard, ShardOptions, Slices, Stretch};

/// Ranks as threads, which show each other their buffers.
struct Stage {
    /// The latest buffer of each rank.
    shown: Vec<Mutex<Vec<f32>>>,
    barrier: Barrier,
}

impl Stage {
    fn new(ranks: usize) -> Self {
        Self { shown: (0..ranks).map(|_| Mutex::default()).collect(), barrier: Barrier::new(ranks) }
    }
}

/// One rank's end of it.
struct End<'a> {
    stage: &'a Stage,
    rank: usize,
    /// The width of each exchange.
    widths: Vec<usize>,
    /// How many of them were on their way while something was computed.
    overlapped: usize,
}

impl Exchange for End<'_> {
    fn all_gather(&mut self, slices: Slices<'_>) -> Result<(), ExchangeError> {
        let Slices { rows, width, parts, buffer } = slices;
        assert_eq!(buffer.len(), rows * width);
        self.widths.push(width);
        *self.stage.shown[self.rank].lock().unwrap() = buffer.to_vec();
        self.stage.barrier.wait();
        for (other, part) in parts.iter().enumerate().filter(|(other, _)| *other != self.rank) {
            let theirs = self.stage.shown[other].lock().unwrap();
            for (to, from) in buffer.chunks_exact_mut(width).zip(theirs.chunks_exact(width)) {
                to[part.clone()].copy_from_slice(&from[part.clone()]);
            }
        }
        // Nobody shows anything new before all have seen this.
        self.stage.barrier.wait();
        Ok(())
    }

    fn takes_its_time(&self) -> bool {
        true
    }

    fn all_gather_while(&mut self, slices: Slices<'_>, compute: &mut dyn FnMut()) -> Result<(), ExchangeError> {
        // What others have comes late: before that, this rank computes with whatever else it has.
        for (_, part) in slices.parts.iter().enumerate().filter(|(other, _)| *other != self.rank) {
            slices.buffer.chunks_exact_mut(slices.width).for_each(|row| row[part.clone()].fill(f32::NAN));
        }
        compute();
        self.overlapped += 1;
        self.all_gather(slices)
    }
}

/// The hidden state of some tokens after all layers, as one of the ranks with these shares has it, in steps of so many tokens.
fn hidden_states(name: &str, shares: &[f64], rank: usize, steps: &[usize], exchange: &mut dyn Exchange) -> Vec<f32> {
    let file = Gguf::open(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)).unwrap();
    let blueprint = Blueprint::from_gguf(&file).unwrap();
    let placement = Placement::of_rank(rank, &blueprint.stages(1), shares);
    let options =
        ShardOptions { threads: 1, slots: 1, context: 256, kv_blocks: 8, step_tokens: 128, kv_type: KvType::F16 };
    let mut shard = Shard::load(&file, &blueprint, &placement, options).unwrap();
    let tokens: Vec<u32> = (0..steps.iter().sum::<usize>() as u32).map(|token| token * 37 % 288).collect();
    let mut hidden = Vec::new();
    let mut first = 0;
    for &count in steps {
        shard.embed(&tokens[first..first + count]);
        shard.run_layers(&[Stretch { slot: 0, first_position: first, tokens: count }], exchange).unwrap();
        hidden.extend_from_slice(shard.hidden(count));
        first += count;
    }
    hidden
}

/// All ranks have the bits of one, and the exchanges of each layer have these widths.
fn check(name: &str, shares: &[f64], widths: [usize; 4]) {
    check_steps(name, shares, &[8, 1, 1, 1], |end| {
        assert!(!end.widths.is_empty());
        assert!(end.widths.chunks(4).all(|layer| layer == widths), "{name} {shares:?}: {:?}", end.widths);
        assert_eq!(end.overlapped, 0);
    });
}

/// All ranks have the bits of one in these steps, and their exchanges are as they should be.
fn check_steps(name: &str, shares: &[f64], steps: &[usize], check: impl Fn(End<'_>) + Sync) {
    let expected = hidden_states(name, &[1.0], 0, steps, &mut Alone);
    let stage = Stage::new(shares.len());
    std::thread::scope(|scope| {
        for rank in 0..shares.len() {
            let (stage, expected, check) = (&stage, &expected, &check);
            scope.spawn(move || {
                let mut end = End { stage, rank, widths: Vec::new(), overlapped: 0 };
                let found = hidden_states(name, shares, rank, steps, &mut end);
                assert!(&found == expected, "rank {rank} of {name} with {shares:?} has other bits than one rank");
                check(end);
            });
        }
    });
}

/// 32 columns take nine words: eight of codes, one of their scale.
#[test]
fn whole_blocks_travel_rounded() {
    check("tiny-llama-q4_1.gguf", &[1.0, 1.0, 1.0], [288 / 32 * 9, 64, 96 / 32 * 9, 64]);
    check("tiny-llama-q4_1.gguf", &[2.0, 1.0], [288 / 32 * 9, 64, 96 / 32 * 9, 64]);
}

/// Of each token the columns of two experts travel.
#[test]
fn experts_are_sliced() {
    check("tiny-qwen3moe-q4_0.gguf", &[1.0, 1.0], [64 / 32 * 9, 64, 64 / 32 * 9, 64]);
    check("tiny-qwen3moe-q4_0.gguf", &[2.0, 1.0, 1.0], [64, 64, 64, 64]);
    check("tiny-qwen3moe.gguf", &[1.0, 1.0], [64, 64, 64, 64]);
    check("tiny-mixtral.gguf", &[3.0, 1.0, 0.0001], [64, 64, 40, 64]);
}

#[test]
fn a_rank_without_columns_takes_part() {
    check("tiny-llama-q4_0.gguf", &[40.0, 1.0], [288 / 32 * 9, 64, 96 / 32 * 9, 64]);
}

/// Halves of the feed-forward network's 96 columns are no whole blocks, and the shares would be too uneven if they were.
#[test]
fn cut_blocks_travel_as_floats() {
    check("tiny-llama-q4_1.gguf", &[1.0, 1.0], [288 / 32 * 9, 64, 96, 64]);
    check("tiny-llama-q4_0.gguf", &[1.0; 5], [288 / 32 * 9, 64, 96, 64]);
}

#[test]
fn inputs_of_float_weights_travel_as_floats() {
    check("tiny-llama.gguf", &[1.0, 1.0, 1.0], [288, 64, 96, 64]);
    check("tiny-gemma3.gguf", &[1.0, 1.0], [80, 40, 56, 40]);
}

/// In a long step, one part is computed while the other's columns travel.
#[test]
fn long_steps_compute_while_columns_travel() {
    let models = [
        ("tiny-llama-q4_1.gguf", &[1.0, 1.0][..]),
        ("tiny-gemma3.gguf", &[2.0, 0.1, 1.0]),
        ("tiny-qwen3moe-q4_0.gguf", &[1.0, 1.0]),
    ];
    for (name, shares) in models {
        check_steps(name, shares, &[100, 1, 64, 63], |end| {
            // Steps of 100 and 64 tokens have two parts with exchanges of their own, those of 1 and 63 tokens have one.
            let exchanges = end.widths.len();
            assert!(exchanges > 0);
            assert_eq!(end.overlapped * 6, exchanges * 4, "{name} {shares:?}");
        });
    }
}
