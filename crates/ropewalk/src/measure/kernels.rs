//! Timings of single kernels, with sizes as real models have them.

use std::time::{Duration, Instant};

use bytes::Bytes;
use kernels::{
    Activations, Attention, AttentionScratch, Batch, DType, Forms, Gate, KvCache, KvType, Matrix, Pool, Product,
    RopeAngles, RopeLayout, Rows, Stretch, attend, multiply,
};

use super::work::Work;

/// Calls are timed in rounds of at least this length, of which the best one counts: others disturb it least.
const ROUND: Duration = Duration::from_millis(1);
/// Rounds of one measurement at least.
const ROUNDS: usize = 3;

/// One kernel with its arguments.
pub(crate) struct Kernel<'a> {
    /// What it does, and to what, such as `multiply Q4_1`.
    pub(crate) name: String,
    /// Sizes, in words of the kernel.
    pub(crate) shape: String,
    /// Tokens in one call.
    pub(crate) tokens: usize,
    /// What one call takes at least.
    pub(crate) work: Work,
    /// Runs it. The argument counts the calls, so that each can take other weights than the one before.
    call: Box<dyn FnMut(usize) + 'a>,
}

/// Times of one call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) best: f64,
    pub(crate) median: f64,
}

impl Kernel<'_> {
    /// Seconds that a call takes, measured for `budget`.
    pub(crate) fn time(&mut self, budget: Duration) -> Times {
        let mut calls = 0;
        let mut rounds = Vec::new();
        let started = Instant::now();
        while rounds.len() < ROUNDS || started.elapsed() < budget {
            let (round, before) = (Instant::now(), calls);
            while round.elapsed() < ROUND {
                (self.call)(calls);
                calls += 1;
            }
            rounds.push(round.elapsed().as_secs_f64() / (calls - before) as f64);
        }
        rounds.sort_by(f64::total_cmp);
        Times { best: rounds[0], median: rounds[rounds.len() / 2] }
    }
}

/// The size of a matrix of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

/// The product of `tokens` tokens with a matrix: a different one in each call, until all of `weights` was used. `None` if
/// rows of this format cannot be of this size.
pub(crate) fn product<'a>(
    pool: &'a Pool,
    weights: &Bytes,
    dtype: DType,
    size: Size,
    tokens: usize,
) -> anyhow::Result<Option<Kernel<'a>>> {
    let Size { rows, columns } = size;
    let Ok(row_bytes) = dtype.row_bytes(columns) else { return Ok(None) };
    let bytes = row_bytes * rows;
    let matrices = (0..weights.len() / bytes.max(1))
        .map(|index| Matrix::new(dtype, rows, columns, weights.slice(index * bytes..(index + 1) * bytes)));
    let matrices = matrices.collect::<Result<Vec<_>, _>>()?;
    anyhow::ensure!(!matrices.is_empty(), "a matrix of {rows}x{columns} takes more than {} bytes", weights.len());
    let mut input = Activations::new(tokens, columns);
    let forms = Forms::for_weights(&matrices.iter().collect::<Vec<_>>());
    input.load(pool, &Rows::Plain { x: &waves(tokens * columns), columns }, forms);
    let mut out = vec![0.0; tokens * rows];
    Ok(Some(Kernel {
        name: format!("multiply {dtype}"),
        shape: format!("{rows}x{columns}"),
        tokens,
        work: Work::product(dtype, bytes, 2 * rows * columns * tokens),
        call: Box::new(move |call| {
            let weights = &matrices[call % matrices.len()];
            let product = Product { weights, bias: None, tokens: 0..input.tokens(), out: &mut out, stride: rows };
            multiply(pool, &input, [product]);
        }),
    }))
}

/// Heads of an attention layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    pub(crate) query: usize,
    pub(crate) kv: usize,
    pub(crate) dim: usize,
}

/// Attention of `tokens` tokens, the last of which sees `depth` positions: over another sequence in each call, until all of
/// them together take `rotated` bytes.
pub(crate) fn attention(
    pool: &Pool,
    kind: KvType,
    heads: Heads,
    (tokens, depth): (usize, usize),
    rotated: usize,
) -> Kernel<'_> {
    let Heads { query, kv, dim } = heads;
    let bytes = 2 * depth * kv * kind.bytes(dim);
    // Many tokens read a cache many times, so that it does not matter where it lies at first.
    let count = if tokens == 1 { (rotated / bytes).max(1) } else { 1 };
    let keys = waves(depth * kv * dim);
    let blocks = depth.div_ceil(KvCache::BLOCK);
    let mut cache = KvCache::new(kind, count * blocks, kv, dim);
    let tables = (0..count).map(|index| {
        let table: Vec<u32> = (index * blocks..(index + 1) * blocks).map(|block| block as u32).collect();
        cache.store(&table, 0, &keys, &keys);
        table
    });
    let tables: Vec<_> = tables.collect();
    let kv_head_of: Vec<usize> = (0..query).map(|head| head * kv / query).collect();
    let mut scratch = AttentionScratch::new(pool.threads(), query, dim, depth);
    let queries = waves(tokens * query * dim);
    let mut out = vec![0.0; queries.len()];
    let first = depth - tokens;
    let pairs: usize = (first + 1..=depth).sum();
    Kernel {
        name: format!("attention {kind:?}"),
        shape: format!("{query}/{kv} heads of {dim}, depth {depth}"),
        tokens,
        work: Work { bytes: bytes as f64, float_operations: (4 * pairs * query * dim) as f64, ..Work::default() },
        call: Box::new(move |call| {
            let shape =
                Attention { query_heads: query, head_dim: dim, scale: 0.1, window: None, kv_head_of: &kv_head_of };
            let stretch = Stretch { slot: call % tables.len(), first_position: first, tokens };
            let batch = Batch { cache: &cache, tables: &tables, stretches: &[stretch] };
            attend(pool, &shape, batch, &queries, &mut out, &mut scratch);
        }),
    }
}

/// What else happens to `tokens` tokens of a model with a hidden state of `hidden` and a feed-forward network of `wide`
/// values. All of it lies in a cache.
pub(crate) fn small_ones<'a>(pool: &'a Pool, tokens: usize, hidden: usize, wide: usize) -> Vec<Kernel<'a>> {
    let (x, weight) = (waves(tokens * hidden), waves(hidden));
    let (up, gate) = (waves(tokens * wide), waves(tokens * wide));
    let (mut rotated, keys) = (x.clone(), x.clone());
    let mut input = Activations::new(tokens, hidden);
    let mut normed = Activations::new(tokens, hidden);
    let mut gated = Activations::new(tokens, wide);
    let codes = Forms::CODES;
    let loaded = x.clone();
    let frequencies = (0..HEAD / 2).map(|i| 1e4_f32.powf(-2.0 * i as f32 / HEAD as f32)).collect();
    let mut angles = RopeAngles::new(frequencies, 1.0, tokens);
    let table: Vec<u32> = (0..tokens.div_ceil(KvCache::BLOCK) as u32).collect();
    let mut cache = KvCache::new(KvType::F16, table.len(), hidden / HEAD, HEAD);
    let kernel = |name: &str, width: usize, inputs: usize, call: Box<dyn FnMut(usize) + 'a>| Kernel {
        name: name.to_owned(),
        shape: width.to_string(),
        tokens,
        work: Work { cached_bytes: (inputs * tokens * width * size_of::<f32>()) as f64, ..Work::default() },
        call,
    };
    vec![
        kernel(
            "quantize activations",
            hidden,
            1,
            Box::new(move |_| input.load(pool, &Rows::Plain { x: &loaded, columns: hidden }, codes)),
        ),
        kernel(
            "norm and quantize",
            hidden,
            1,
            Box::new(move |_| normed.load(pool, &Rows::Normed { x: &x, weight: &weight, epsilon: 1e-5 }, codes)),
        ),
        kernel(
            "gate SiLU and quantize",
            wide,
            2,
            Box::new(move |_| {
                let rows = Rows::Gated { gate: &gate, up: &up, kind: Gate::Silu, columns: wide };
                gated.load(pool, &rows, codes);
            }),
        ),
        kernel(
            "rotary embedding",
            hidden,
            1,
            Box::new(move |_| {
                angles.prepare(0..tokens);
                angles.rotate(RopeLayout::Interleaved, 0, &mut rotated, hidden / HEAD, HEAD);
            }),
        ),
        kernel("store keys and values", hidden, 2, Box::new(move |_| cache.store(&table, 0, &keys, &keys))),
    ]
}

/// An empty job: what it takes to set all threads to work and to wait for their end.
pub(crate) fn empty_job(pool: &Pool) -> Kernel<'_> {
    Kernel {
        name: "empty job".to_owned(),
        shape: format!("{} threads", pool.threads()),
        tokens: 0,
        work: Work::default(),
        call: Box::new(move |_| pool.run(&|_| {})),
    }
}

/// Values of a head in the kernels that do not depend much on it.
const HEAD: usize = 64;

fn waves(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * 0.37).sin()).collect()
}
