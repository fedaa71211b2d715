//! Prints how fast this machine computes: GB/s of weights and GFLOP/s of each format for one token and for many,
//! attention, and the time that it takes to set the threads of a pool to work.
//!
//!     cargo run --release -p kernels --example speed -- [THREADS] [FORMAT... | attention | pool]

use std::time::{Duration, Instant};

use bytes::Bytes;
use kernels::{
    Activations, Attention, AttentionScratch, DType, KernelError, KvCache, KvType, Matrix, Pool, Product, attend,
    multiply,
};

const ROWS: usize = 1536;
const COLUMNS: usize = 768;
const TOKENS: usize = 128;
/// More matrices than fit the caches near a core, as in a real model.
const MATRICES: usize = 24;
/// Each figure is the best of many short rounds, so that other processes disturb it little.
const ROUND: Duration = Duration::from_micros(1500);
const ROUNDS: usize = 200;

fn main() -> Result<(), KernelError> {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().and_then(|argument| argument.parse().ok()).unwrap_or(1);
    let wanted: Vec<String> = arguments.collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name);
    let pool = Pool::new(threads)?;
    println!("{threads} threads, {ROWS} rows, {COLUMNS} columns");
    println!("{:8} {:>14} {:>16} {:>20}", "format", "1 token, GB/s", "1 token, GFLOP/s", "128 tokens, GFLOP/s");
    for dtype in DType::ALL.iter().copied().filter(|dtype| is_wanted(dtype.name())) {
        let matrices = matrices(dtype)?;
        let bytes = matrices[0].byte_len() as f64;
        let one = seconds_per_product(&pool, &matrices, 1);
        let many = seconds_per_product(&pool, &matrices, TOKENS);
        let operations = 2.0 * (ROWS * COLUMNS) as f64;
        println!(
            "{dtype:8} {:14.1} {:16.1} {:20.1}",
            bytes / one / 1e9,
            operations / one / 1e9,
            operations * TOKENS as f64 / many / 1e9
        );
    }
    if is_wanted("attention") {
        for head_dim in [64, 128] {
            for (tokens, depth) in [(1, 512), (1, 4096), (256, 512), (256, 4096)] {
                print_attention(&pool, head_dim, tokens, depth);
            }
        }
    }
    if is_wanted("pool") {
        let seconds = seconds_per_call(|_| pool.run(&|_| {}));
        println!("an empty job takes {:.2} us", seconds * 1e6);
    }
    Ok(())
}

/// Matrices of bytes that make scales of a usual size in every format.
fn matrices(dtype: DType) -> Result<Vec<Matrix>, KernelError> {
    let length = ROWS * dtype.row_bytes(COLUMNS)?;
    let data: Vec<u8> = (0..length).map(|i| (0x20 + i * i % 27) as u8).collect();
    (0..MATRICES).map(|_| Matrix::new(dtype, ROWS, COLUMNS, Bytes::from(data.clone()))).collect()
}

fn seconds_per_product(pool: &Pool, matrices: &[Matrix], tokens: usize) -> f64 {
    let x = waves(tokens * COLUMNS);
    let mut out = vec![0.0; tokens * ROWS];
    let mut input = Activations::new(tokens, COLUMNS);
    input.load(pool, &x, COLUMNS);
    seconds_per_call(|call| {
        let weights = &matrices[call % MATRICES];
        multiply(pool, &input, &mut [Product { weights, bias: None, out: &mut out, stride: ROWS }]);
    })
}

/// Nine heads that share three heads of the cache, the last of `tokens` tokens seeing `depth` positions.
fn print_attention(pool: &Pool, head_dim: usize, tokens: usize, depth: usize) {
    let kv_head_of = [0, 0, 0, 1, 1, 1, 2, 2, 2];
    let heads = kv_head_of.len();
    let shape = Attention { query_heads: heads, head_dim, scale: 0.1, window: None, kv_head_of: &kv_head_of };
    let mut cache = KvCache::new(KvType::F16, depth, 3, head_dim);
    let keys = waves(depth * 3 * head_dim);
    cache.store(0, &keys, &keys);
    let q = waves(tokens * heads * head_dim);
    let mut out = vec![0.0; q.len()];
    let mut scratch = AttentionScratch::new(pool.threads(), heads, head_dim, depth);
    let first = depth - tokens;
    let seconds = seconds_per_call(|_| attend(pool, &shape, &cache, &q, first, &mut out, &mut scratch));
    let positions: usize = (first + 1..=depth).sum();
    let operations = (positions * heads * head_dim * 4) as f64;
    println!(
        "attention, heads of {head_dim:3}, {tokens:3} tokens to depth {depth:4}: {:9.1} us, {:6.1} GFLOP/s",
        seconds * 1e6,
        operations / seconds / 1e9
    );
}

fn waves(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * 0.37).sin()).collect()
}

/// The time of one call in the best round. The function learns how many calls were before.
fn seconds_per_call(mut call: impl FnMut(usize)) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let (start, mut calls) = (Instant::now(), 0);
        while start.elapsed() < ROUND {
            call(calls);
            calls += 1;
        }
        best = best.min(start.elapsed().as_secs_f64() / calls as f64);
    }
    best
}
