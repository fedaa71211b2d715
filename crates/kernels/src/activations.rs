//! The inputs of products, as floats and as 8-bit integers.

use bytemuck::{Pod, Zeroable};

use crate::Pool;
use crate::simd::{CODES, LANES, Simd, Task, dispatch};

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

/// Up to `max_tokens` rows of up to `max_columns` values, ready to be multiplied with a [`crate::Matrix`] of any format.
pub struct Activations {
    max_tokens: usize,
    max_columns: usize,
    tokens: usize,
    columns: usize,
    /// `[tokens, columns]`, each row padded with zeros to whole blocks.
    values: Vec<f32>,
    /// `[tokens, groups]`.
    groups: Vec<InputGroup>,
}

impl Activations {
    /// Room for `max_tokens` rows of `max_columns` values. This is the only place that allocates.
    pub fn new(max_tokens: usize, max_columns: usize) -> Activations {
        let values = vec![0.0; max_tokens * max_columns.next_multiple_of(CODES)];
        let groups = bytemuck::zeroed_vec(max_tokens * max_columns.div_ceil(GROUP));
        Activations { max_tokens, max_columns, tokens: 0, columns: 0, values, groups }
    }

    /// Takes over the rows of `x`, `[tokens, columns]`, in place of what was loaded before.
    ///
    /// # Panics
    /// When `x` is no whole number of rows, or there is no room for so many or such long ones.
    pub fn load(&mut self, pool: &Pool, x: &[f32], columns: usize) {
        assert!(columns > 0 && x.len().is_multiple_of(columns), "{} values are no rows of {columns}", x.len());
        let tokens = x.len() / columns;
        let fits = tokens <= self.max_tokens && columns <= self.max_columns;
        assert!(fits, "no room for {tokens} rows of {columns} values");
        (self.tokens, self.columns) = (tokens, columns);
        let (padded, groups) = (columns.next_multiple_of(CODES), columns.div_ceil(GROUP));
        // Loading a row takes about as long as waking a thread, so threads get several.
        let rows = 8;
        pool.for_each_piece(&mut self.values[..tokens * padded], rows * padded, |piece, values| {
            for (values, x) in values.chunks_exact_mut(padded).zip(x[piece * rows * columns..].chunks_exact(columns)) {
                values[..columns].copy_from_slice(x);
                values[columns..].fill(0.0);
            }
        });
        let values = &self.values;
        pool.for_each_piece(&mut self.groups[..tokens * groups], rows * groups, |piece, inputs| {
            let values = &values[piece * rows * padded..][..inputs.len() / groups * padded];
            dispatch(Quantize { values, padded, groups, inputs });
        });
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

/// Rounds rows of floats to groups of integers.
struct Quantize<'a> {
    values: &'a [f32],
    padded: usize,
    groups: usize,
    inputs: &'a mut [InputGroup],
}

impl Task for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let rows = self.values.chunks_exact(self.padded).zip(self.inputs.chunks_exact_mut(self.groups));
        for (row, groups) in rows {
            for (values, group) in row.chunks(GROUP).zip(groups) {
                let (blocks, _) = values.as_chunks::<CODES>();
                if blocks.len() < BLOCKS {
                    *group = InputGroup::zeroed();
                }
                for (i, block) in blocks.iter().enumerate() {
                    quantize_block(simd, block, i, group);
                }
            }
        }
    }
}

#[inline(always)]
fn quantize_block<S: Simd>(simd: S, block: &[f32; CODES], index: usize, group: &mut InputGroup) {
    let (quarters, _) = block.as_chunks::<LANES>();
    let mut values = [simd.splat(0.0); 4];
    let mut largest = simd.splat(0.0);
    for (value, quarter) in values.iter_mut().zip(quarters) {
        *value = simd.load(quarter);
        largest = simd.max(largest, simd.abs(*value));
    }
    let largest = simd.largest(largest);
    // Below the smallest normal scale the quotient would overflow; such values are as good as zero.
    let (scale, factor) =
        if largest > 127.0 * f32::MIN_POSITIVE { (largest / 127.0, 127.0 / largest) } else { (0.0, 0.0) };
    let codes = simd.quantize(values, simd.splat(factor));
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
    use proptest::prelude::*;

    fn quantized<T>(values: &[f32], with: impl Fn(Quantize<'_>) -> T) -> Vec<InputGroup> {
        let groups = values.len().div_ceil(GROUP);
        let mut inputs: Vec<InputGroup> = bytemuck::zeroed_vec(groups);
        with(Quantize { values, padded: values.len(), groups, inputs: &mut inputs });
        inputs
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
    }

    #[test]
    fn loading_less_leaves_nothing_behind() {
        let pool = Pool::new(2).unwrap();
        let mut reused = Activations::new(20, 600);
        reused.load(&pool, &[1.5; 20 * 600], 600);
        let mut fresh = Activations::new(20, 600);
        let x: Vec<f32> = (0..17 * 40).map(|i| (i as f32).sin()).collect();
        for input in [&mut reused, &mut fresh] {
            input.load(&pool, &x, 40);
        }
        assert_eq!((reused.tokens(), reused.columns()), (17, 40));
        for token in 0..17 {
            assert_eq!(reused.values(token), fresh.values(token));
            assert_eq!(&reused.values(token)[..40], &x[token * 40..][..40]);
            assert_eq!(bytemuck::bytes_of(&reused.groups(token)[0]), bytemuck::bytes_of(&fresh.groups(token)[0]));
        }
    }
}
