//! Rounded inputs on their way to other ranks: each block of 32 columns as its codes and its scale, which is all that
//! [`Activations`] need to know, in less than a third of the bytes.

use bytemuck::Zeroable;

use super::rows::{Rows, Visitor, visit};
use super::{Activations, BLOCKS, Forms, GROUP, InputGroup, ROWS_AT_ONCE, quantize_block, set_block};
use crate::Pool;
use crate::simd::{CODES, Simd, Task, dispatch};

/// 32-bit words of a block: four codes in each, and the scale.
const BLOCK_WORDS: usize = CODES / 4 + 1;

/// 32-bit words that so many rounded columns take; `None` unless they are whole blocks of 32.
pub fn rounded_words(columns: usize) -> Option<usize> {
    columns.is_multiple_of(CODES).then_some(columns / CODES * BLOCK_WORDS)
}

/// Rounds rows and writes each to `words` from word `first` of its row of `stride` words on. The words are floats by name
/// only: they may be copied, but not computed with.
///
/// # Panics
/// When the rows are no whole number of blocks of 32 columns long, or do not fit.
pub fn round_into(pool: &Pool, rows: &Rows<'_>, words: &mut [f32], first: usize, stride: usize) {
    let count = rows.count();
    let fits = rounded_words(rows.columns()).is_some_and(|length| first + length <= stride);
    assert!(fits && words.len() == count * stride, "rows of {} columns do not fit", rows.columns());
    pool.for_each_piece(words, ROWS_AT_ONCE * stride, |piece, words| {
        dispatch(Round { rows, first_row: piece * ROWS_AT_ONCE, words, first, stride });
    });
}

impl Activations {
    /// As [`Activations::load`], from rows that [`round_into`] has written, by however many ranks: with the same bits as
    /// without the way over words. Only quantized weights can be multiplied with them.
    ///
    /// # Panics
    /// When the words are no whole number of rows, or there is no room for so many or such long ones.
    pub fn load_rounded(&mut self, pool: &Pool, words: &[f32], columns: usize) {
        let stride = rounded_words(columns).unwrap_or(0);
        assert!(stride > 0 && words.len().is_multiple_of(stride), "{} words are no rows of {columns}", words.len());
        let (tokens, groups) = (words.len() / stride, columns.div_ceil(GROUP));
        self.begin(tokens, columns, Forms::CODES);
        pool.for_each_piece(&mut self.groups[..tokens * groups], ROWS_AT_ONCE * groups, |piece, inputs| {
            dispatch(Restore { words: &words[piece * ROWS_AT_ONCE * stride..], stride, inputs });
        });
    }
}

/// Rounds rows to words.
struct Round<'a> {
    rows: &'a Rows<'a>,
    first_row: usize,
    words: &'a mut [f32],
    first: usize,
    stride: usize,
}

impl Task for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Round { rows, first_row, words, first, stride } = self;
        let count = words.len() / stride;
        visit(simd, rows, first_row, count, &mut ToWords { simd, words, first, stride });
    }
}

struct ToWords<'a, S> {
    simd: S,
    words: &'a mut [f32],
    first: usize,
    stride: usize,
}

impl<S: Simd> Visitor<S> for ToWords<'_, S> {
    #[inline(always)]
    fn block(&mut self, row: usize, block: usize, values: [S::Floats; 4]) {
        let (codes, scale) = quantize_block(self.simd, values);
        let words = &mut self.words[row * self.stride + self.first + block * BLOCK_WORDS..][..BLOCK_WORDS];
        if let Some((scale_word, code_words)) = words.split_last_mut()
            && let Ok(bytes) = bytemuck::cast_slice_mut(code_words).try_into()
        {
            self.simd.store_codes(codes, bytes);
            *scale_word = scale;
        }
    }
}

/// Makes groups of integers of rows of words.
struct Restore<'a> {
    words: &'a [f32],
    stride: usize,
    inputs: &'a mut [InputGroup],
}

impl Task for Restore<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let groups = (self.stride / BLOCK_WORDS).div_ceil(BLOCKS);
        for (words, inputs) in self.words.chunks_exact(self.stride).zip(self.inputs.chunks_exact_mut(groups)) {
            let (blocks, _) = words.as_chunks::<BLOCK_WORDS>();
            for (blocks, input) in blocks.chunks(BLOCKS).zip(inputs) {
                if blocks.len() < BLOCKS {
                    *input = InputGroup::zeroed();
                }
                for (i, block) in blocks.iter().enumerate() {
                    let [codes @ .., scale] = block;
                    set_block(simd, input, i, simd.load_codes(bytemuck::cast_ref(codes)), *scale);
                }
            }
        }
    }
}
