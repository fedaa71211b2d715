//! The vector operations of this machine against their definition in plain code.

use proptest::prelude::*;

use super::*;

/// One call of every operation on the given inputs, all results as bits.
struct Everything<'a> {
    floats: &'a [[f32; LANES]; 4],
    codes: &'a [[u8; CODES]; 2],
    shift: i32,
}

struct Results<S>(S, Vec<u32>);

impl<S: Simd> Results<S> {
    #[inline(always)]
    fn floats(&mut self, values: S::Floats) {
        let mut stored = [0.0; LANES];
        self.0.store(values, &mut stored);
        self.1.extend(stored.map(f32::to_bits));
    }

    #[inline(always)]
    fn codes(&mut self, codes: S::Codes) {
        let mut stored = [0; CODES];
        self.0.store_codes(codes, &mut stored);
        self.1.extend(stored.map(u32::from));
    }
}

impl Task for Everything<'_> {
    type Output = Vec<u32>;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Vec<u32> {
        let mut results = Results(simd, Vec::new());
        let [a, b, c, d] = self.floats.map(|values| simd.load(&values));
        let bytes = &self.codes[0];
        let half_bytes = bytes.first_chunk().unwrap();
        for values in [
            simd.add(a, b),
            simd.sub(a, b),
            simd.mul(a, b),
            simd.div(a, b),
            simd.fused(a, b, c),
            simd.max(a, b),
            simd.min(a, b),
            simd.abs(a),
            simd.sums([a, b, c, d, simd.add(a, c), simd.sub(a, d), simd.mul(b, b), simd.max(a, b)]),
            simd.round(a),
            simd.power_of_two(simd.max(simd.splat(-126.0), simd.min(simd.round(c), simd.splat(127.0)))),
            simd.keep_from(a, b, c),
            simd.load_bf16(half_bytes),
            simd.widen_bytes(bytes.first_chunk().unwrap()),
        ] {
            results.floats(values);
        }
        results.1.push(simd.sum(b).to_bits());
        results.1.push(simd.largest(c).to_bits());
        results.1.extend(simd.narrow_to_halves(a).map(u32::from));

        let [x, y] = self.codes.map(|codes| simd.load_codes(&codes));
        let low = simd.shift_and_mask(x, 0, 0x0f);
        results.codes(low);
        let mask = if self.shift < 0 { 0xff >> -self.shift } else { 0xff << self.shift };
        results.codes(simd.shift_and_mask(x, self.shift, mask as u8));
        let right = self.shift.unsigned_abs();
        results.codes(simd.shift_right_and_mask(x, right, 0xff >> right));
        results.codes(simd.splat_codes(&[bytes[0], bytes[1], bytes[2], bytes[3]]));
        results.codes(simd.or(x, y));
        results.codes(simd.look_up(low, &std::array::from_fn(|i| bytes[i].cast_signed())));
        let largest = simd.splat(simd.largest(simd.max(simd.max(simd.abs(a), simd.abs(b)), simd.abs(c))));
        results.codes(simd.quantize([a, b, c, a], simd.div(simd.splat(127.0), largest)));
        results.floats(simd.to_floats(simd.dot_unsigned(simd.shift_and_mask(x, 0, 0x7f), y)));
        let start = simd.splat_shifted(-self.shift * 1000, 3);
        results.floats(simd.to_floats(simd.accumulate::<false>(start, simd.shift_and_mask(x, 0, 0x7f), y)));
        results.floats(simd.to_floats(simd.accumulate::<true>(start, x, y)));
        results.1
    }
}

proptest! {
    #[test]
    fn this_machine_agrees_with_the_definition(
        floats in prop::array::uniform4(prop::array::uniform8(-100f32..100.0)),
        mut codes in prop::array::uniform2(prop::array::uniform32(any::<u8>())),
        shift in -7i32..8,
    ) {
        // The second operand of the dot products is never -128.
        codes[1].iter_mut().for_each(|code| *code = (*code).max(1).cast_signed().max(-127).cast_unsigned());
        let expected = run_portable(Everything { floats: &floats, codes: &codes, shift });
        let found = dispatch(Everything { floats: &floats, codes: &codes, shift });
        prop_assert_eq!(&expected, &found);
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = x86::X86::<false>::detect() {
            prop_assert_eq!(&expected, &simd.run(Everything { floats: &floats, codes: &codes, shift }));
        }
        #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
        {
            let simd = neon::Neon::<false, false>::detect().unwrap();
            prop_assert_eq!(&expected, &simd.run(Everything { floats: &floats, codes: &codes, shift }));
            if let Some(simd) = neon::Neon::<true, false>::detect() {
                prop_assert_eq!(&expected, &simd.run(Everything { floats: &floats, codes: &codes, shift }));
            }
        }
    }
}

/// Widens all 65536 half-precision numbers, and narrows them again.
struct Halves;

impl Task for Halves {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for first in (0..=u16::MAX).step_by(LANES) {
            let halves: [u16; LANES] = std::array::from_fn(|i| first + i as u16);
            if halves.iter().any(|half| half & 0x7c00 == 0x7c00 && half & 0x3ff != 0) {
                continue;
            }
            let mut widened = [0.0; LANES];
            simd.store(simd.widen_halves(halves), &mut widened);
            assert_eq!(widened.map(f32::to_bits), Portable.widen_halves(halves).map(f32::to_bits));
            assert_eq!(simd.narrow_to_halves(simd.load(&widened)), halves);
        }
    }
}

#[test]
fn all_halves_convert_alike() {
    dispatch(Halves);
}

/// The extremes that a product of 8-bit codes must not saturate at.
struct Extremes;

impl Task for Extremes {
    type Output = [f32; 3];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> [f32; 3] {
        let code = |value: i8| simd.load_codes(&[value.cast_unsigned(); CODES]);
        [
            simd.accumulate::<true>(simd.splat_shifted(0, 0), code(-1), code(-127)),
            simd.accumulate::<false>(simd.splat_shifted(0, 0), code(127), code(-127)),
            simd.dot_unsigned(code(127), code(-127)),
        ]
        .map(|integers| simd.sum(simd.to_floats(integers)))
    }
}

#[test]
fn extreme_products_are_exact() {
    let expected = [-32.0 * 255.0 * 127.0, -32.0 * 127.0 * 127.0, -32.0 * 127.0 * 127.0];
    assert_eq!(dispatch(Extremes), expected);
    assert_eq!(run_portable(Extremes), expected);
}

/// The exponential of every lane of many vectors.
struct Exponentials<'a>(&'a [f32]);

impl Task for Exponentials<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Vec<f32> {
        let mut results = vec![0.0; self.0.len()];
        let (vectors, _) = self.0.as_chunks::<LANES>();
        for (x, result) in vectors.iter().zip(results.as_chunks_mut::<LANES>().0) {
            simd.store(math::exp(simd, simd.load(x)), result);
        }
        results
    }
}

#[test]
fn exponentials_are_close() {
    let mut x: Vec<f32> = (-88_000..88_800).map(|i| i as f32 / 1000.0).collect();
    x.extend([f32::NEG_INFINITY, -1e30, -87.31, 0.0, f32::INFINITY, 89.0, -0.0, f32::MIN_POSITIVE]);
    let found = dispatch(Exponentials(&x));
    let portable = run_portable(Exponentials(&x));
    let mut worst = 0.0f64;
    for ((x, found), portable) in x.iter().zip(found).zip(portable) {
        assert_eq!(found.to_bits(), portable.to_bits(), "exp({x})");
        match *x {
            ..-87.3 => assert_eq!(found, 0.0),
            88.3.. => assert!((2.2e38..2.3e38).contains(&found)),
            _ => worst = worst.max((f64::from(found) / f64::from(*x).exp() - 1.0).abs()),
        }
    }
    assert!(worst < 2e-7, "the relative error reaches {worst}");
    assert_eq!(dispatch(Exponentials(&[0.0; LANES])), [1.0; LANES]);
}
