//! The inputs of products, as floats and as 8-bit integers.

mod rows;
mod words;

use bytemuck::{Pod, Zeroable};

pub use self::rows::Rows;
use self::rows::{Visitor, visit};
pub use self::words::{round_into, rounded_words};
use crate::simd::{CODES, LANES, Simd, Task, dispatch};
use crate::{Matrix, Pool};

/// Columns in a group.
pub(crate) const GROUP: usize = 256;
/// Blocks of 32 values, which share a scale, in a group.
pub(crate) const BLOCKS: usize = GROUP / CODES;

/// 256 columns of one token as 8-bit integers. Columns beyond the end of the row are zero.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct InputGroup {
    /// Signed, -127 to 127.
    pub(crate) codes: [[u8; CODES]; BLOCKS],
    /// What each block's codes are to be multiplied with.
    pub(crate) scales: [f32; BLOCKS],
    /// The sum of each block's values, for formats that add something to all weights of a block.
    pub(crate) sums: [f32; BLOCKS],
    /// The sum of each block's codes, negated, for formats whose codes are raised.
    pub(crate) negated: [i32; BLOCKS],
    /// The same for each half of a block.
    pub(crate) negated_halves: [[i32; 2]; BLOCKS],
    padding: [u32; 8],
}

/// The forms in which products take their inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forms {
    /// For quantized weights.
    codes: bool,
    /// For float weights.
    floats: bool,
}

impl Forms {
    /// Whatever the weights may be.
    pub const ALL: Forms = Forms { codes: true, floats: true };

    /// For quantized weights alone.
    pub const CODES: Forms = Forms { codes: true, floats: false };

    /// What products with these weights take.
    pub fn for_weights(weights: &[&Matrix]) -> Forms {
        let floats = |matrix: &&Matrix| matrix.dtype().is_float();
        Forms { codes: !weights.iter().all(floats), floats: weights.iter().any(floats) }
    }
}

/// Up to `max_tokens` rows of up to `max_columns` values, ready to be multiplied with a [`crate::Matrix`].
pub struct Activations {
    max_tokens: usize,
    max_columns: usize,
    tokens: usize,
    columns: usize,
    /// Those of what is loaded.
    forms: Forms,
    /// `[tokens, columns]`, each row padded with zeros to whole blocks. The system hands out this memory when it is first
    /// written, so that it costs nothing if there are no float weights.
    values: Vec<f32>,
    /// `[tokens, groups]`.
    groups: Vec<InputGroup>,
}

/// Loading a row takes about as long as waking a thread, so threads get several.
const ROWS_AT_ONCE: usize = 4;

impl Activations {
    /// Room for `max_tokens` rows of `max_columns` values. This is the only place that allocates.
    pub fn new(max_tokens: usize, max_columns: usize) -> Activations {
        let values = vec![0.0; max_tokens * max_columns.next_multiple_of(CODES)];
        let groups = bytemuck::zeroed_vec(max_tokens * max_columns.div_ceil(GROUP));
        Activations { max_tokens, max_columns, tokens: 0, columns: 0, forms: Forms::ALL, values, groups }
    }

    /// Computes rows and takes them over, in the forms that are wanted, in place of what was loaded before.
    ///
    /// # Panics
    /// When the values are no whole number of rows, or there is no room for so many or such long ones.
    pub fn load(&mut self, pool: &Pool, rows: &Rows<'_>, forms: Forms) {
        let (tokens, columns) = (rows.count(), rows.columns());
        self.begin(tokens, columns, forms);
        if forms.codes {
            let groups = columns.div_ceil(GROUP);
            pool.for_each_piece(&mut self.groups[..tokens * groups], ROWS_AT_ONCE * groups, |piece, inputs| {
                dispatch(Quantize { rows, first: piece * ROWS_AT_ONCE, groups, inputs });
            });
        }
        if forms.floats {
            let padded = columns.next_multiple_of(CODES);
            let values = &mut self.values[..tokens * padded];
            values.chunks_exact_mut(padded).for_each(|row| row[columns..].fill(0.0));
            rows.write(pool, values, 0, padded);
        }
    }

    /// Makes place for rows.
    fn begin(&mut self, tokens: usize, columns: usize, forms: Forms) {
        let fits = tokens <= self.max_tokens && columns <= self.max_columns;
        assert!(fits, "no room for {tokens} rows of {columns} values");
        (self.tokens, self.columns, self.forms) = (tokens, columns, forms);
    }

    /// Whether a product with this matrix can take what is loaded.
    pub(crate) fn suits(&self, weights: &Matrix) -> bool {
        if weights.dtype().is_float() { self.forms.floats } else { self.forms.codes }
    }

    /// Rows that are loaded.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Values in each of them.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The values of one row, padded with zeros to a multiple of 32.
    pub(crate) fn values(&self, token: usize) -> &[f32] {
        let padded = self.columns.next_multiple_of(CODES);
        &self.values[token * padded..][..padded]
    }

    /// One row as integers.
    pub(crate) fn groups(&self, token: usize) -> &[InputGroup] {
        let groups = self.columns.div_ceil(GROUP);
        &self.groups[token * groups..][..groups]
    }
}

/// Rounds rows to groups of integers.
struct Quantize<'a> {
    rows: &'a Rows<'a>,
    first: usize,
    /// Groups in a row.
    groups: usize,
    inputs: &'a mut [InputGroup],
}

impl Task for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Quantize { rows, first, groups, inputs } = self;
        if !rows.columns().is_multiple_of(GROUP) {
            for row in inputs.chunks_exact_mut(groups) {
                row[groups - 1] = InputGroup::zeroed();
            }
        }
        let count = inputs.len() / groups;
        visit(simd, rows, first, count, &mut ToCodes { simd, groups, inputs });
    }
}

struct ToCodes<'a, S> {
    simd: S,
    groups: usize,
    inputs: &'a mut [InputGroup],
}

impl<S: Simd> Visitor<S> for ToCodes<'_, S> {
    #[inline(always)]
    fn block(&mut self, row: usize, block: usize, values: [S::Floats; 4]) {
        let (codes, scale) = quantize_block(self.simd, values);
        set_block(self.simd, &mut self.inputs[row * self.groups + block / BLOCKS], block % BLOCKS, codes, scale);
    }
}

/// Rounds 32 values to integers, and says what those are to be multiplied with.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Iterators over arrays of vectors keep them in memory instead of registers.
fn quantize_block<S: Simd>(simd: S, values: [S::Floats; 4]) -> (S::Codes, f32) {
    let mut largest = simd.splat(0.0);
    for i in 0..4 {
        largest = simd.max(largest, simd.abs(values[i]));
    }
    let largest = simd.largest(largest);
    // Below the smallest normal scale the quotient would overflow; such values are as good as zero.
    let (scale, factor) =
        if largest > 127.0 * f32::MIN_POSITIVE { (largest / 127.0, 127.0 / largest) } else { (0.0, 0.0) };
    (simd.quantize(values, simd.splat(factor)), scale)
}

/// Sets one block of a group.
#[inline(always)]
fn set_block<S: Simd>(simd: S, group: &mut InputGroup, index: usize, codes: S::Codes, scale: f32) {
    simd.store_codes(codes, &mut group.codes[index]);
    group.scales[index] = scale;
    let ones = simd.load_codes(&[1; CODES]);
    let mut sums = [0.0; LANES];
    simd.store(simd.to_floats(simd.dot_unsigned(ones, codes)), &mut sums);
    // Sums of so few small integers are exact in any order.
    let (low, high) = ((sums[0] + sums[1]) + (sums[2] + sums[3]), (sums[4] + sums[5]) + (sums[6] + sums[7]));
    group.sums[index] = scale * (low + high);
    group.negated_halves[index] = [-low as i32, -high as i32];
    group.negated[index] = -(low + high) as i32;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::run_portable;
    use crate::{Gate, rms_norm_in_place};
    use proptest::prelude::*;

    fn quantized(values: &[f32], with: impl Fn(Quantize<'_>)) -> Vec<InputGroup> {
        let groups = values.len().div_ceil(GROUP);
        let mut inputs: Vec<InputGroup> = bytemuck::zeroed_vec(groups);
        let rows = &Rows::Plain { x: values, columns: values.len() };
        with(Quantize { rows, first: 0, groups, inputs: &mut inputs });
        inputs
    }

    /// What was loaded of one row, in both forms.
    fn loaded(input: &Activations, token: usize) -> (Vec<u32>, &[u8]) {
        let values = input.values(token).iter().map(|value| value.to_bits()).collect();
        (values, bytemuck::cast_slice(input.groups(token)))
    }

    proptest! {
        #[test]
        fn blocks_are_rounded_to_the_nearest(mut values in prop::collection::vec(-3f32..3.0, 32..700), small in any::<bool>()) {
            values.truncate(values.len() / 32 * 32);
            if small {
                values[..32].fill(1e-40);
            }
            let found = quantized(&values, |task| dispatch(task));
            let expected = quantized(&values, |task| run_portable(task));
            prop_assert_eq!(bytemuck::cast_slice::<_, u8>(&found), bytemuck::cast_slice::<_, u8>(&expected));
            for (i, block) in values.chunks(32).enumerate() {
                let group = &found[i / 8];
                let scale = group.scales[i % 8];
                let codes = group.codes[i % 8].map(|code| f32::from(code.cast_signed()));
                for (value, code) in block.iter().zip(codes) {
                    prop_assert!((value - code * scale).abs() <= scale * 0.5001 + 1e-35);
                }
                let sum = scale * codes.iter().sum::<f32>();
                prop_assert_eq!(group.sums[i % 8], sum);
                let [low, high] = group.negated_halves[i % 8];
                prop_assert_eq!(low + high, group.negated[i % 8]);
                prop_assert_eq!(-low as f32, codes[..16].iter().sum::<f32>());
                prop_assert_eq!(-high as f32, codes[16..].iter().sum::<f32>());
            }
        }

        #[test]
        fn what_is_computed_on_the_way_has_the_bits_of_what_is_computed_before(
            columns in 1usize..600,
            tokens in prop_oneof![1usize..4, 15usize..20],
            threads in 1usize..4,
            kind in prop_oneof![Just(Gate::Silu), Just(Gate::GeluTanh)],
            seed in 0u32..1000,
        ) {
            let number = |i: usize| ((i as f32 + seed as f32) * 12.9898).sin() * 3.0;
            let x: Vec<f32> = (0..tokens * columns).map(number).collect();
            let other: Vec<f32> = (0..tokens * columns).map(|i| number(i + 7)).collect();
            let pool = Pool::new(threads).unwrap();
            let (mut before, mut on_the_way) = (Activations::new(tokens, columns), Activations::new(tokens, columns));

            let mut normed = x.clone();
            rms_norm_in_place(&pool, &mut normed, columns, &other[..columns], 1e-5);
            before.load(&pool, &Rows::Plain { x: &normed, columns }, Forms::ALL);
            on_the_way.load(&pool, &Rows::Normed { x: &x, weight: &other[..columns], epsilon: 1e-5 }, Forms::ALL);
            prop_assert!((0..tokens).all(|token| loaded(&before, token) == loaded(&on_the_way, token)));

            let mut gated = vec![0.0; x.len()];
            let gates = Rows::Gated { gate: &x, up: &other, kind, columns };
            gates.write(&pool, &mut gated, 0, columns);
            before.load(&pool, &Rows::Plain { x: &gated, columns }, Forms::ALL);
            on_the_way.load(&pool, &gates, Forms::ALL);
            prop_assert!((0..tokens).all(|token| loaded(&before, token) == loaded(&on_the_way, token)));
        }
    }

    proptest! {
        #[test]
        fn ranks_that_round_their_columns_make_together_what_one_makes(
            cut in 0usize..6,
            blocks in 6usize..20,
            tokens in prop_oneof![1usize..4, 15usize..20],
            threads in 1usize..4,
            seed in 0u32..1000,
        ) {
            let (cut, columns) = (cut * CODES, blocks * CODES);
            let x: Vec<f32> = (0..tokens * columns).map(|i| ((i as f32 + seed as f32) * 12.9898).sin() * 3.0).collect();
            let pool = Pool::new(threads).unwrap();
            let stride = rounded_words(columns).unwrap();
            let mut words = vec![f32::NAN; tokens * stride];
            for part in [0..cut, cut..columns].into_iter().filter(|part| !part.is_empty()) {
                let own: Vec<f32> = x.chunks(columns).flat_map(|row| &row[part.clone()]).copied().collect();
                let first = rounded_words(part.start).unwrap();
                round_into(&pool, &Rows::Plain { x: &own, columns: part.len() }, &mut words, first, stride);
            }
            let (mut whole, mut together) = (Activations::new(tokens, columns), Activations::new(tokens, columns));
            // What was there before must not show.
            together.load(&pool, &Rows::Plain { x: &vec![9.0; tokens * columns], columns }, Forms::ALL);
            whole.load(&pool, &Rows::Plain { x: &x, columns }, Forms::CODES);
            together.load_rounded(&pool, &words, columns);
            for token in 0..tokens {
                let bytes = |input: &Activations| bytemuck::cast_slice::<_, u8>(input.groups(token)).to_vec();
                prop_assert_eq!(bytes(&whole), bytes(&together));
            }
        }

        #[test]
        fn rows_are_written_between_what_stays(columns in 1usize..100, first in 0usize..9, behind in 0usize..9, tokens in 1usize..20) {
            let x: Vec<f32> = (0..tokens * columns).map(|i| i as f32).collect();
            let stride = first + columns + behind;
            let mut out = vec![-1.0; tokens * stride];
            Rows::Plain { x: &x, columns }.write(&Pool::new(2).unwrap(), &mut out, first, stride);
            for (row, found) in x.chunks(columns).zip(out.chunks(stride)) {
                prop_assert_eq!(&found[first..first + columns], row);
                prop_assert!(found[..first].iter().chain(&found[first + columns..]).all(|value| *value == -1.0));
            }
            let mut sums: Vec<f32> = x.iter().map(|value| value * 0.3).collect();
            Rows::Plain { x: &x, columns }.add_to(&Pool::new(2).unwrap(), &mut sums);
            prop_assert!(sums.iter().zip(&x).all(|(sum, value)| *sum == value * 0.3 + value));
        }
    }

    #[test]
    fn only_whole_blocks_can_be_rounded_by_parts() {
        assert_eq!((rounded_words(0), rounded_words(64), rounded_words(48)), (Some(0), Some(18), None));
    }

    #[test]
    fn loading_less_leaves_nothing_behind() {
        let pool = Pool::new(2).unwrap();
        let mut reused = Activations::new(20, 600);
        reused.load(&pool, &Rows::Plain { x: &[1.5; 20 * 600], columns: 600 }, Forms::ALL);
        let mut fresh = Activations::new(20, 600);
        let x: Vec<f32> = (0..17 * 40).map(|i| (i as f32).sin()).collect();
        for input in [&mut reused, &mut fresh] {
            input.load(&pool, &Rows::Plain { x: &x, columns: 40 }, Forms::ALL);
        }
        assert_eq!((reused.tokens(), reused.columns()), (17, 40));
        for token in 0..17 {
            assert_eq!(loaded(&reused, token), loaded(&fresh, token));
            assert_eq!(&reused.values(token)[..40], &x[token * 40..][..40]);
        }
    }
}
