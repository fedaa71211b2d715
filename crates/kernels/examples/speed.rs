//! Prints how fast this machine multiplies each format: GB/s of weights for one token, GFLOP/s for many.
//!
//!     cargo run --release -p kernels --example speed -- [THREADS] [FORMAT...]

use std::time::{Duration, Instant};

use bytes::Bytes;
use kernels::{Activations, DType, Matrix, Pool, Product, multiply};

const ROWS: usize = 1536;
const COLUMNS: usize = 768;
const TOKENS: usize = 128;
/// More matrices than fit the caches near a core, as in a real model.
const MATRICES: usize = 24;
/// Each figure is the best of many short rounds, so that other processes disturb it little.
const ROUND: Duration = Duration::from_micros(1500);
const ROUNDS: usize = 200;

fn main() -> Result<(), kernels::KernelError> {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().and_then(|argument| argument.parse().ok()).unwrap_or(1);
    let wanted: Vec<String> = arguments.collect();
    let pool = Pool::new(threads)?;
    println!("{threads} threads, {ROWS} rows, {COLUMNS} columns");
    println!("{:8} {:>14} {:>16} {:>20}", "format", "1 token, GB/s", "1 token, GFLOP/s", "128 tokens, GFLOP/s");
    for &dtype in DType::ALL {
        if wanted.is_empty() || wanted.iter().any(|name| name == dtype.name()) {
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
    }
    Ok(())
}

/// Matrices of bytes that make scales of a usual size in every format.
fn matrices(dtype: DType) -> Result<Vec<Matrix>, kernels::KernelError> {
    let length = ROWS * dtype.row_bytes(COLUMNS)?;
    let data: Vec<u8> = (0..length).map(|i| (0x20 + i * i % 27) as u8).collect();
    (0..MATRICES).map(|_| Matrix::new(dtype, ROWS, COLUMNS, Bytes::from(data.clone()))).collect()
}

/// The time of one product of the best round.
fn seconds_per_product(pool: &Pool, matrices: &[Matrix], tokens: usize) -> f64 {
    let x: Vec<f32> = (0..tokens * COLUMNS).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut out = vec![0.0; tokens * ROWS];
    let mut input = Activations::new(tokens, COLUMNS);
    input.load(pool, &x, COLUMNS);
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let (start, mut products) = (Instant::now(), 0);
        while start.elapsed() < ROUND {
            let weights = &matrices[products % MATRICES];
            multiply(pool, &input, &mut [Product { weights, bias: None, out: &mut out, stride: ROWS }]);
            products += 1;
        }
        best = best.min(start.elapsed().as_secs_f64() / f64::from(products as u32));
    }
    best
}
