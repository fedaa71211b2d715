//! Causal attention over a cache.
//!
//! Keys are taken in blocks of [`KEYS`] positions and spans of [`SPAN`] positions, both aligned to position 0. Within a span,
//! the softmax runs on: a block whose scores exceed all before it scales down what is summed up so far. The results of spans
//! are then merged in order. So the order of all additions depends on positions alone, while the work can be shared out by
//! head, by token, or by span.

mod block;
mod products;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::kv_cache::KEYS;
use crate::pool::{Pieces, SharedValues};
use crate::simd::{LANES, Simd, Task, dispatch};
use crate::{KvCache, Pool};
use block::Rows;

/// Positions whose results are merged into one before they meet those of other spans.
const SPAN: usize = 16 * KEYS;
/// Queries that meet a block of keys while it lies in the nearest cache.
const ROWS: usize = 32;

/// The shape of an attention layer.
pub struct Attention<'a> {
    /// Heads of queries.
    pub query_heads: usize,
    /// Values in a head.
    pub head_dim: usize,
    /// What scores are multiplied with before the softmax.
    pub scale: f32,
    /// How many positions a token sees, itself included; all before it if `None`.
    pub window: Option<usize>,
    /// The head of the cache that each query head attends to.
    pub kv_head_of: &'a [usize],
}

impl Attention<'_> {
    /// The positions that a token sees.
    fn visible(&self, position: usize) -> Range<usize> {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window.max(1)))..position + 1
    }
}

/// Working memory of [`attend`], to be used for one layer after the other.
pub struct AttentionScratch {
    query_heads: usize,
    stride: usize,
    /// One for each thread.
    workers: Vec<Rows>,
    /// The query heads, sorted by the head of the cache that they attend to, and cut into runs.
    heads: Vec<usize>,
    runs: Vec<Range<usize>>,
    /// For each query head and span: the sum of exponentials, the maximum, and the weighted values.
    partial: Vec<f32>,
}

impl AttentionScratch {
    /// Working memory for calls with pools of up to `threads` threads and caches of up to `capacity` positions, for layers
    /// of up to `query_heads` heads of up to `head_dim` values.
    pub fn new(threads: usize, query_heads: usize, head_dim: usize, capacity: usize) -> AttentionScratch {
        let stride = head_dim.next_multiple_of(LANES);
        AttentionScratch {
            query_heads,
            stride,
            workers: (0..threads.max(1)).map(|_| Rows::new(ROWS, stride)).collect(),
            heads: Vec::with_capacity(query_heads),
            runs: Vec::with_capacity(query_heads),
            partial: vec![0.0; query_heads * capacity.div_ceil(SPAN) * (stride + 2)],
        }
    }

    /// Sorts the query heads into runs of at most [`ROWS`] that share a head of the cache.
    fn sort_heads(&mut self, shape: &Attention<'_>) {
        self.heads.clear();
        self.runs.clear();
        let kv_heads = shape.kv_head_of.iter().max().map_or(0, |last| last + 1);
        for kv_head in 0..kv_heads {
            let first = self.heads.len();
            self.heads.extend((0..shape.query_heads).filter(|head| shape.kv_head_of[*head] == kv_head));
            let last = self.heads.len();
            self.runs.extend((first..last).step_by(ROWS).map(|start| start..last.min(start + ROWS)));
        }
    }
}

/// Each query of `q`, `[tokens, query_heads, head_dim]`, attends to the positions of `cache` up to its own, the first
/// token's being `first_position`; the keys and values of these tokens must have been stored. The result goes to `out`,
/// which has the shape of `q`.
///
/// # Panics
/// When sizes do not fit together, or the scratch is too small.
pub fn attend(
    pool: &Pool,
    shape: &Attention<'_>,
    cache: &KvCache,
    q: &[f32],
    first_position: usize,
    out: &mut [f32],
    scratch: &mut AttentionScratch,
) {
    let token = shape.query_heads * shape.head_dim;
    assert!(token > 0 && q.len().is_multiple_of(token), "queries must be whole tokens");
    assert_eq!(q.len(), out.len(), "the output has the shape of the queries");
    assert_eq!(shape.kv_head_of.len(), shape.query_heads, "each query head needs a head of the cache");
    assert!(shape.kv_head_of.iter().all(|head| *head < cache.kv_heads()), "the cache has {} heads", cache.kv_heads());
    assert_eq!(shape.head_dim, cache.head_dim(), "queries and keys must have the same size");
    let tokens = q.len() / token;
    assert!(first_position + tokens <= cache.capacity(), "{tokens} tokens at {first_position} are beyond the cache");
    let fits = shape.query_heads <= scratch.query_heads && cache.stride() <= scratch.stride;
    assert!(fits && pool.threads() <= scratch.workers.len(), "the attention scratch is too small");
    scratch.sort_heads(shape);

    let call = Call { shape, cache, q, first_position, tokens };
    let spans = shape.visible(first_position).start / SPAN..first_position / SPAN + 1;
    if tokens == 1 && pool.threads() > 1 && spans.len() > 1 {
        call.one_token_by_spans(pool, spans, out, scratch);
    } else {
        call.by_tokens(pool, out, scratch);
    }
}

/// The arguments of a call.
#[derive(Clone, Copy)]
struct Call<'a> {
    shape: &'a Attention<'a>,
    cache: &'a KvCache,
    q: &'a [f32],
    first_position: usize,
    tokens: usize,
}

impl Call<'_> {
    /// Shares the work out by heads and tokens.
    fn by_tokens(&self, pool: &Pool, out: &mut [f32], scratch: &mut AttentionScratch) {
        let (heads, runs) = (&scratch.heads, &scratch.runs);
        let longest = runs.iter().map(|run| run.len()).max().unwrap_or(1);
        let tokens_each = (ROWS / longest).max(1);
        let portions = self.tokens.div_ceil(tokens_each);
        let workers = Pieces::new(&mut scratch.workers, 1);
        let out = SharedValues::new(out);
        let next = AtomicUsize::new(0);
        pool.run(&|_| {
            let Some((_, [rows])) = workers.take() else { return };
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                // The last tokens see the most keys, so they come first, lest one thread is left with them in the end.
                let Some(portion) = (portions * runs.len()).checked_sub(index + 1) else { break };
                let first = portion / runs.len() * tokens_each;
                let tokens = first..self.tokens.min(first + tokens_each);
                let heads = &heads[runs[portion % runs.len()].clone()];
                dispatch(Portion { call: self, tokens, heads, spans: None, rows });
                rows.write(
                    |row| self.place(first + row / heads.len(), heads[row % heads.len()]),
                    self.shape.head_dim,
                    out,
                );
            }
        });
    }

    /// Shares the work for one token out by heads and spans.
    fn one_token_by_spans(&self, pool: &Pool, spans: Range<usize>, out: &mut [f32], scratch: &mut AttentionScratch) {
        let (heads, runs) = (&scratch.heads, &scratch.runs);
        let size = self.cache.stride() + 2;
        let place = |span: usize, head: usize| ((span - spans.start) * self.shape.query_heads + head) * size;
        let workers = Pieces::new(&mut scratch.workers, 1);
        let partial = SharedValues::new(&mut scratch.partial);
        let next = AtomicUsize::new(0);
        pool.run(&|_| {
            let Some((_, [rows])) = workers.take() else { return };
            loop {
                let portion = next.fetch_add(1, Ordering::Relaxed);
                if portion >= spans.len() * runs.len() {
                    break;
                }
                let span = spans.start + portion / runs.len();
                let heads = &heads[runs[portion % runs.len()].clone()];
                dispatch(Portion { call: self, tokens: 0..1, heads, spans: Some(span..span + 1), rows });
                rows.write_partial(|row| place(span, heads[row]), partial);
            }
        });
        let rows = &mut scratch.workers[0];
        for head in 0..self.shape.query_heads {
            let spans = spans.clone().map(|span| &scratch.partial[place(span, head)..][..size]);
            dispatch(block::Merge { rows, stride: self.cache.stride(), spans });
            rows.write(|_| self.place(0, head), self.shape.head_dim, SharedValues::new(out));
        }
    }

    /// Where the output of one head of one token begins.
    fn place(&self, token: usize, head: usize) -> usize {
        (token * self.shape.query_heads + head) * self.shape.head_dim
    }
}

/// Some consecutive tokens and some heads that share a head of the cache: together, rows of queries. The result stays in
/// `rows`.
struct Portion<'a> {
    call: &'a Call<'a>,
    tokens: Range<usize>,
    heads: &'a [usize],
    /// The spans to attend to, all that the tokens see if `None`.
    spans: Option<Range<usize>>,
    rows: &'a mut Rows,
}

impl Task for Portion<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Portion { call, tokens, heads, spans, rows } = self;
        let (shape, cache) = (call.shape, call.cache);
        let positions = call.first_position + tokens.start..call.first_position + tokens.end;
        rows.begin(positions.len() * heads.len(), cache.stride());
        let queries = tokens.flat_map(|token| heads.iter().map(move |head| (token, *head)));
        for (row, (token, head)) in queries.enumerate() {
            rows.set_query(row, &call.q[call.place(token, head)..][..shape.head_dim], shape.scale);
        }
        let visible = shape.visible(positions.start).start..positions.end;
        for span in spans.unwrap_or(visible.start / SPAN..(visible.end - 1) / SPAN + 1) {
            rows.begin_span();
            let starts = (span * SPAN).max(visible.start / KEYS * KEYS)..(span * SPAN + SPAN).min(visible.end);
            for start in starts.step_by(KEYS) {
                // A block is seen by positions from its first key on, until its last key slides out of their window.
                let end = shape.window.map_or(usize::MAX, |window| (start + KEYS - 1).saturating_add(window.max(1)));
                let seeing = positions.start.max(start)..positions.end.min(end);
                let count = (seeing.end - start).min(KEYS);
                let visible = |row: usize| {
                    let visible = shape.visible(positions.start + row / heads.len());
                    visible.start.saturating_sub(start)..(visible.end - start).min(KEYS)
                };
                let seeing =
                    (seeing.start - positions.start) * heads.len()..(seeing.end - positions.start) * heads.len();
                rows.attend_block(simd, cache, shape.kv_head_of[heads[0]], start, count, seeing, visible);
            }
            rows.end_span(simd);
        }
    }
}
