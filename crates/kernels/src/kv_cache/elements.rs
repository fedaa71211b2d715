//! Rows of values in one of the types in which caches store them.

use std::ops::Range;

use half::f16;

use super::KvType;
use super::stored::{Codes, Floats, Halves, PREFETCH_BYTES, Stored, View};
use crate::simd::math::{load_part, store_part};
use crate::simd::{CODES, LANES, Simd, Task, dispatch};

/// Rows of `stride` values, a multiple of [`LANES`].
pub(super) struct Elements {
    stride: usize,
    storage: Storage,
}

enum Storage {
    F32(Vec<f32>),
    F16(Vec<u16>),
    /// A scale for each [`CODES`] codes of a row, or what is left of it.
    Q8_0 {
        codes: Vec<u8>,
        scales: Vec<u16>,
    },
}

impl Elements {
    /// Zeros.
    pub(super) fn new(kind: KvType, rows: usize, stride: usize) -> Elements {
        let size = rows * stride;
        let storage = match kind {
            KvType::F32 => Storage::F32(vec![0.0; size]),
            KvType::F16 => Storage::F16(vec![0; size]),
            KvType::Q8_0 => Storage::Q8_0 { codes: vec![0; size], scales: vec![0; rows * stride.div_ceil(CODES)] },
        };
        Elements { stride, storage }
    }

    /// Stores up to `stride` values as a row, and zeros behind them.
    pub(super) fn store(&mut self, row: usize, values: &[f32]) {
        let place = row * self.stride..(row + 1) * self.stride;
        match &mut self.storage {
            Storage::F32(floats) => {
                let (used, rest) = floats[place].split_at_mut(values.len());
                used.copy_from_slice(values);
                rest.fill(0.0);
            }
            Storage::F16(halves) => dispatch(Narrow { from: values, to: &mut halves[place] }),
            Storage::Q8_0 { codes, scales } => {
                let blocks = self.stride.div_ceil(CODES);
                let scales = &mut scales[row * blocks..(row + 1) * blocks];
                dispatch(Quantize { from: values, codes: &mut codes[place], scales });
            }
        }
    }

    /// Copies rows to where `to` is the first.
    pub(super) fn copy(&mut self, rows: Range<usize>, to: usize) {
        let (from, at) = (rows.start * self.stride..rows.end * self.stride, to * self.stride);
        match &mut self.storage {
            Storage::F32(floats) => floats.copy_within(from, at),
            Storage::F16(halves) => halves.copy_within(from, at),
            Storage::Q8_0 { codes, scales } => {
                codes.copy_within(from, at);
                let blocks = self.stride.div_ceil(CODES);
                scales.copy_within(rows.start * blocks..rows.end * blocks, to * blocks);
            }
        }
    }

    /// The bytes of rows, in up to two pieces.
    pub(super) fn bytes(&self, rows: Range<usize>) -> [&[u8]; 2] {
        let (place, scale_place) = self.places(rows);
        match &self.storage {
            Storage::F32(floats) => [bytemuck::cast_slice(&floats[place]), &[]],
            Storage::F16(halves) => [bytemuck::cast_slice(&halves[place]), &[]],
            Storage::Q8_0 { codes, scales } => [&codes[place], bytemuck::cast_slice(&scales[scale_place])],
        }
    }

    /// The same, to be written.
    pub(super) fn bytes_mut(&mut self, rows: Range<usize>) -> [&mut [u8]; 2] {
        let (place, scale_place) = self.places(rows);
        match &mut self.storage {
            Storage::F32(floats) => [bytemuck::cast_slice_mut(&mut floats[place]), &mut []],
            Storage::F16(halves) => [bytemuck::cast_slice_mut(&mut halves[place]), &mut []],
            Storage::Q8_0 { codes, scales } => [&mut codes[place], bytemuck::cast_slice_mut(&mut scales[scale_place])],
        }
    }

    /// Where the values of rows are, and their scales.
    fn places(&self, rows: Range<usize>) -> (Range<usize>, Range<usize>) {
        let blocks = self.stride.div_ceil(CODES);
        (rows.start * self.stride..rows.end * self.stride, rows.start * blocks..rows.end * blocks)
    }

    /// Asks the memory for as much of some rows as rows before them would ask for ahead, were they adjacent.
    #[inline(always)]
    pub(super) fn prefetch<S: Simd>(&self, simd: S, rows: Range<usize>) {
        let place = rows.start * self.stride..rows.end * self.stride;
        let bytes: &[u8] = match &self.storage {
            Storage::F32(floats) => bytemuck::cast_slice(&floats[place]),
            Storage::F16(halves) => bytemuck::cast_slice(&halves[place]),
            Storage::Q8_0 { codes, .. } => &codes[place],
        };
        simd.prefetch(&bytes[..bytes.len().min(PREFETCH_BYTES)], 0);
    }

    /// Some rows, as they are stored, or as floats if `widened`. `buffer` is where rows or what they need are widened to.
    #[inline(always)]
    pub(super) fn view<'a, S: Simd>(
        &'a self,
        simd: S,
        rows: Range<usize>,
        widened: bool,
        buffer: &'a mut [f32],
    ) -> View<'a> {
        let place = rows.start * self.stride..rows.end * self.stride;
        let width = self.stride / LANES;
        match &self.storage {
            Storage::F32(floats) => View::Floats(Floats { vectors: floats[place].as_chunks().0, width }),
            Storage::F16(halves) => {
                let halves = Halves { vectors: halves[place].as_chunks().0, width };
                if widened {
                    View::Floats(widen(simd, halves, rows.len(), width, buffer))
                } else {
                    View::Halves(halves)
                }
            }
            Storage::Q8_0 { codes, scales } => {
                let blocks = self.stride.div_ceil(CODES);
                let (buffer, widened_scales) = buffer.split_at_mut(buffer.len() - rows.len() * blocks);
                widen_scales(simd, &scales[rows.start * blocks..rows.end * blocks], widened_scales);
                let codes = Codes { vectors: codes[place].as_chunks().0, scales: widened_scales, width };
                if widened { View::Floats(widen(simd, codes, rows.len(), width, buffer)) } else { View::Codes(codes) }
            }
        }
    }
}

/// Values in the buffer that a view of so many rows needs.
pub(crate) fn buffer_values(rows: usize, stride: usize) -> usize {
    rows * (stride + stride.div_ceil(CODES))
}

/// Rows as floats.
#[inline(always)]
fn widen<'a, S: Simd, K: Stored>(simd: S, stored: K, rows: usize, width: usize, buffer: &'a mut [f32]) -> Floats<'a> {
    let (vectors, _) = buffer.as_chunks_mut::<LANES>();
    let vectors = &mut vectors[..rows * width];
    for (row, floats) in vectors.chunks_exact_mut(width).enumerate() {
        let row = stored.row(row);
        K::prefetch(simd, row);
        for (i, floats) in floats.iter_mut().enumerate() {
            simd.store(K::vector(simd, row, i), floats);
        }
    }
    Floats { vectors, width }
}

#[inline(always)]
fn widen_scales<S: Simd>(simd: S, halves: &[u16], scales: &mut [f32]) {
    for (halves, scales) in halves.chunks(LANES).zip(scales.chunks_mut(LANES)) {
        let mut padded = [0; LANES];
        padded[..halves.len()].copy_from_slice(halves);
        store_part(simd, simd.widen_halves(padded), scales);
    }
}

/// Bounds values by what 16-bit floats hold. What is not a number becomes the largest.
#[inline(always)]
fn bounded<S: Simd>(simd: S, values: S::Floats) -> S::Floats {
    simd.max(simd.min(values, simd.splat(f16::MAX.to_f32())), simd.splat(f16::MIN.to_f32()))
}

/// Up to eight values, zeros behind them.
#[inline(always)]
fn load<S: Simd>(simd: S, values: &[f32]) -> S::Floats {
    values.first_chunk().map_or_else(|| load_part(simd, values), |vector| simd.load(vector))
}

/// Rounds floats to halves, and pads them with zeros.
struct Narrow<'a> {
    from: &'a [f32],
    to: &'a mut [u16],
}

impl Task for Narrow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut from = self.from.chunks(LANES);
        for to in self.to.as_chunks_mut::<LANES>().0 {
            *to = simd.narrow_to_halves(bounded(simd, load(simd, from.next().unwrap_or(&[]))));
        }
    }
}

/// Rounds floats to 8-bit codes, blocks of which share a scale, and pads them with zeros.
struct Quantize<'a> {
    from: &'a [f32],
    codes: &'a mut [u8],
    scales: &'a mut [u16],
}

impl Task for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut from = self.from.chunks(CODES);
        for (codes, scale) in self.codes.chunks_mut(CODES).zip(self.scales) {
            let mut vectors = from.next().unwrap_or(&[]).chunks(LANES);
            let mut values = [simd.splat(0.0); CODES / LANES];
            let mut largest = simd.splat(0.0);
            for value in &mut values {
                *value = bounded(simd, load(simd, vectors.next().unwrap_or(&[])));
                largest = simd.max(largest, simd.abs(*value));
            }
            let half = f16::from_f32(simd.largest(largest) / 127.0);
            // Codes are multiplied with the rounded scale, so it is this that values are divided by. Where it was rounded
            // down by much, as those near zero are, codes have to be bounded.
            let factor = if half == f16::ZERO { 0.0 } else { 1.0 / half.to_f32() };
            for value in &mut values {
                let code = simd.mul(*value, simd.splat(factor));
                *value = simd.max(simd.min(code, simd.splat(127.0)), simd.splat(-127.0));
            }
            let mut block = [0; CODES];
            simd.store_codes(simd.quantize(values, simd.splat(1.0)), &mut block);
            codes.copy_from_slice(&block[..codes.len()]);
            *scale = half.to_bits();
        }
    }
}

/// Some rows as floats, by way of a view.
#[cfg(test)]
pub(super) struct Load<'a>(pub(super) &'a Elements, pub(super) Range<usize>, pub(super) bool);

#[cfg(test)]
impl Task for Load<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Vec<f32> {
        let Load(elements, rows, widened) = self;
        let (count, width) = (rows.len(), elements.stride / LANES);
        let mut buffer = vec![f32::NAN; buffer_values(count, elements.stride)];
        let mut floats = vec![f32::NAN; buffer_values(count, elements.stride)];
        let view = elements.view(simd, rows, widened, &mut buffer);
        let floats = match view {
            View::Floats(rows) => widen(simd, rows, count, width, &mut floats),
            View::Halves(rows) => widen(simd, rows, count, width, &mut floats),
            View::Codes(rows) => widen(simd, rows, count, width, &mut floats),
        };
        floats.vectors.as_flattened().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simd::{Portable, run_portable};

    /// What comes back of a row that was stored over another.
    fn stored(kind: KvType, values: &[f32]) -> Vec<f32> {
        let stride = values.len().next_multiple_of(LANES);
        let mut elements = Elements::new(kind, 3, stride);
        elements.store(1, &vec![7.0; stride]);
        elements.store(1, values);
        let rows = Load(&elements, 0..3, true).run(Portable);
        assert!(rows[..stride].iter().chain(&rows[2 * stride..]).all(|value| *value == 0.0));
        assert!(rows[stride + values.len()..2 * stride].iter().all(|value| *value == 0.0));
        rows[stride..][..values.len()].to_vec()
    }

    /// Numbers of all magnitudes.
    fn numbers() -> impl Strategy<Value = Vec<f32>> {
        (prop::collection::vec(-1f32..1.0, 1..100), -30..18).prop_map(|(mut numbers, exponent)| {
            numbers.iter_mut().for_each(|number| *number *= 2f32.powi(exponent));
            numbers
        })
    }

    proptest! {
        #[test]
        fn values_come_back_as_far_as_their_type_holds_them(numbers in numbers()) {
            prop_assert_eq!(&stored(KvType::F32, &numbers), &numbers);
            let bounded: Vec<_> = numbers.iter().map(|number| number.clamp(-65504.0, 65504.0)).collect();
            for (found, number) in stored(KvType::F16, &numbers).iter().zip(&bounded) {
                prop_assert_eq!(*found, f16::from_f32(*number).to_f32());
            }
            let found = stored(KvType::Q8_0, &numbers);
            for (found, numbers) in found.chunks(32).zip(bounded.chunks(32)) {
                let largest = numbers.iter().fold(0f32, |largest, number| largest.max(number.abs()));
                for (found, number) in found.iter().zip(numbers) {
                    // Half a step, or what the rounding of the smallest scales takes from the largest codes.
                    prop_assert!((found - number).abs() <= largest / 127.0 * 0.502 + 4e-6, "{} is not {}", found, number);
                }
            }
        }

        #[test]
        fn every_machine_stores_and_loads_the_same(numbers in numbers()) {
            let stride = numbers.len().next_multiple_of(LANES);
            let (mut codes, mut scales) = (vec![1; stride], vec![1; stride.div_ceil(CODES)]);
            run_portable(Quantize { from: &numbers, codes: &mut codes, scales: &mut scales });
            let mut elements = Elements::new(KvType::Q8_0, 1, stride);
            elements.store(0, &numbers);
            let Storage::Q8_0 { codes: found_codes, scales: found_scales } = &elements.storage else { unreachable!() };
            prop_assert_eq!((&codes, &scales), (found_codes, found_scales));
            let expected = run_portable(Load(&elements, 0..1, false));
            for widened in [false, true] {
                prop_assert_eq!(&dispatch(Load(&elements, 0..1, widened)), &expected);
            }
        }
    }

    #[test]
    fn values_beyond_the_range_are_bounded() {
        let numbers = [1e9, -1e9, 1.0 + 1e-6, 65504.0, 1e-9, 0.1, f32::INFINITY, f32::NEG_INFINITY];
        let expected = [65504.0, -65504.0, 1.0, 65504.0, 0.0, f16::from_f32(0.1).to_f32(), 65504.0, -65504.0];
        assert_eq!(stored(KvType::F16, &numbers), expected);
        // The step is 515.78, rounded to a 16-bit float.
        let largest = 127.0 * 516.0;
        assert_eq!(stored(KvType::Q8_0, &numbers), [largest, -largest, 0.0, largest, 0.0, 0.0, largest, -largest]);
    }
}
