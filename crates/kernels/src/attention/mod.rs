//! Causal attention over a cache.
//!
//! Keys are taken in blocks of [`KEYS`] positions, wherever these lie, and spans of [`SPAN`] positions, both aligned to position 0. Within a span,
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
use block::{Keys, Rows};

/// Positions whose results are merged into one before they meet those of other spans.
const SPAN: usize = 8 * KEYS;
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

    /// Where the values of one head of one token begin in queries and outputs.
    fn place(&self, token: usize, head: usize) -> usize {
        (token * self.query_heads + head) * self.head_dim
    }
}

/// Consecutive tokens of one sequence, as a part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// The slot of the sequence, whose table of blocks says where its keys and values are.
    pub slot: usize,
    /// Position of the first of the tokens within the sequence.
    pub first_position: usize,
    /// How many tokens there are.
    pub tokens: usize,
}

/// The stretches of a step with the keys and values that they see.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    /// Keys and values of all sequences.
    pub cache: &'a KvCache,
    /// The blocks of the cache that each slot's sequence has, in order of their positions.
    pub tables: &'a [Vec<u32>],
    /// Whose tokens these are, one stretch after the other.
    pub stretches: &'a [Stretch],
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
    /// Working memory for calls with pools of up to `threads` threads and sequences of up to `positions` positions, for layers
    /// of up to `query_heads` heads of up to `head_dim` values.
    pub fn new(threads: usize, query_heads: usize, head_dim: usize, positions: usize) -> AttentionScratch {
        let stride = head_dim.next_multiple_of(LANES);
        AttentionScratch {
            query_heads,
            stride,
            workers: (0..threads.max(1)).map(|_| Rows::new(ROWS, stride)).collect(),
            heads: Vec::with_capacity(query_heads),
            runs: Vec::with_capacity(query_heads),
            partial: vec![0.0; query_heads * positions.div_ceil(SPAN) * (stride + 2)],
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

/// Each query of `q`, `[tokens, query_heads, head_dim]`, attends to the positions of its sequence up to its own. The tokens are
/// those of all stretches of the batch, whose keys and values must have been stored. The result goes to `out`, which has the
/// shape of `q`. All of it is one parallel region.
///
/// # Panics
/// When sizes do not fit together, or the scratch is too small.
pub fn attend(
    pool: &Pool,
    shape: &Attention<'_>,
    batch: Batch<'_>,
    q: &[f32],
    out: &mut [f32],
    scratch: &mut AttentionScratch,
) {
    let Batch { cache, tables, stretches } = batch;
    let tokens: usize = stretches.iter().map(|stretch| stretch.tokens).sum();
    assert_eq!(q.len(), tokens * shape.query_heads * shape.head_dim, "there must be queries for all tokens");
    assert_eq!(q.len(), out.len(), "the output has the shape of the queries");
    assert_eq!(shape.kv_head_of.len(), shape.query_heads, "each query head needs a head of the cache");
    let heads = cache.kv_heads();
    assert!(shape.kv_head_of.iter().all(|head| *head < heads), "the cache has {heads} heads");
    assert_eq!(shape.head_dim, cache.head_dim(), "queries and keys must have the same size");
    for stretch in stretches {
        let end = stretch.first_position + stretch.tokens;
        assert!(end <= tables[stretch.slot].len() * KEYS, "position {end} is beyond the sequence's blocks");
    }
    let fits = shape.query_heads <= scratch.query_heads && pool.threads() <= scratch.workers.len();
    assert!(fits && cache.stride() <= scratch.stride, "the attention scratch is too small");
    scratch.sort_heads(shape);

    let call = Call { shape, batch, q };
    if let [stretch] = stretches
        && stretch.tokens == 1
        && pool.threads() > 1
        && call.spans(stretch).len() > 1
    {
        call.one_token_by_spans(pool, stretch, out, scratch);
    } else {
        call.by_tokens(pool, out, scratch);
    }
}

/// The arguments of a call.
#[derive(Clone, Copy)]
struct Call<'a> {
    shape: &'a Attention<'a>,
    batch: Batch<'a>,
    q: &'a [f32],
}

impl Call<'_> {
    /// Shares the work out by heads and tokens.
    fn by_tokens(&self, pool: &Pool, out: &mut [f32], scratch: &mut AttentionScratch) {
        let (heads, runs) = (&scratch.heads, &scratch.runs);
        let longest = runs.iter().map(|run| run.len()).max().unwrap_or(1);
        let tokens_each = (ROWS / longest).max(1);
        let portions: usize = self.batch.stretches.iter().map(|stretch| stretch.tokens.div_ceil(tokens_each)).sum();
        let workers = Pieces::new(&mut scratch.workers, 1);
        let out = SharedValues::new(out);
        let next = AtomicUsize::new(0);
        pool.run(&|_| {
            let Some((_, [rows])) = workers.take() else { return };
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                // The last tokens see the most keys, so they come first, lest one thread is left with them in the end.
                let Some(portion) = (portions * runs.len()).checked_sub(index + 1) else { break };
                let Some(queries) = self.queries(portion / runs.len(), tokens_each) else { break };
                let heads = &heads[runs[portion % runs.len()].clone()];
                dispatch(Portion { shape: self.shape, q: self.q, queries, heads, spans: None, rows });
                let place = |row: usize| self.shape.place(queries.token + row / heads.len(), heads[row % heads.len()]);
                rows.write(place, self.shape.head_dim, out);
            }
        });
    }

    /// The `index`-th of the portions of up to `tokens_each` tokens that the stretches are cut into.
    fn queries(&self, index: usize, tokens_each: usize) -> Option<Queries<'_>> {
        let (mut index, mut token) = (index, 0);
        for stretch in self.batch.stretches {
            let portions = stretch.tokens.div_ceil(tokens_each);
            if index < portions {
                let first = index * tokens_each;
                return Some(Queries {
                    cache: self.batch.cache,
                    table: &self.batch.tables[stretch.slot],
                    token: token + first,
                    first_position: stretch.first_position + first,
                    count: tokens_each.min(stretch.tokens - first),
                });
            }
            (index, token) = (index - portions, token + stretch.tokens);
        }
        None
    }

    /// The spans that the first token of a stretch sees.
    fn spans(&self, stretch: &Stretch) -> Range<usize> {
        self.shape.visible(stretch.first_position).start / SPAN..stretch.first_position / SPAN + 1
    }

    /// Shares the work for a single token out by heads and spans.
    fn one_token_by_spans(&self, pool: &Pool, stretch: &Stretch, out: &mut [f32], scratch: &mut AttentionScratch) {
        let (heads, runs) = (&scratch.heads, &scratch.runs);
        let Batch { cache, tables, .. } = self.batch;
        let table = &tables[stretch.slot];
        let queries = Queries { cache, table, token: 0, first_position: stretch.first_position, count: 1 };
        let (spans, size) = (self.spans(stretch), cache.stride() + 2);
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
                let spans = Some(span..span + 1);
                dispatch(Portion { shape: self.shape, q: self.q, queries, heads, spans, rows });
                rows.write_partial(|row| place(span, heads[row]), partial);
            }
        });
        let rows = &mut scratch.workers[0];
        for head in 0..self.shape.query_heads {
            let spans = spans.clone().map(|span| &scratch.partial[place(span, head)..][..size]);
            dispatch(block::Merge { rows, stride: cache.stride(), spans });
            rows.write(|_| self.shape.place(0, head), self.shape.head_dim, SharedValues::new(out));
        }
    }
}

/// Some consecutive tokens of one sequence.
#[derive(Clone, Copy)]
struct Queries<'a> {
    cache: &'a KvCache,
    /// The blocks of the sequence.
    table: &'a [u32],
    /// The first one's place among all tokens of the call.
    token: usize,
    /// Its position.
    first_position: usize,
    count: usize,
}

/// Some tokens and some heads that share a head of the cache: together, rows of queries. The result stays in `rows`.
struct Portion<'a> {
    shape: &'a Attention<'a>,
    q: &'a [f32],
    queries: Queries<'a>,
    heads: &'a [usize],
    /// The spans to attend to, all that the tokens see if `None`.
    spans: Option<Range<usize>>,
    rows: &'a mut Rows,
}

impl Task for Portion<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Portion { shape, q, queries, heads, spans, rows } = self;
        let Queries { cache, table, token, first_position, count } = queries;
        let positions = first_position..first_position + count;
        rows.begin(count * heads.len(), cache.stride());
        let queries = (token..token + count).flat_map(|token| heads.iter().map(move |head| (token, *head)));
        for (row, (token, head)) in queries.enumerate() {
            rows.set_query(row, &q[shape.place(token, head)..][..shape.head_dim], shape.scale);
        }
        let visible = shape.visible(positions.start).start..positions.end;
        let visible_end = visible.end;
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
                let keys = Keys { cache, head: shape.kv_head_of[heads[0]], block: table[start / KEYS], count };
                let next = table.get(start / KEYS + 1).filter(|_| start + KEYS < visible_end);
                rows.attend_block(simd, keys, next.copied(), seeing, visible);
            }
            rows.end_span(simd);
        }
    }
}
