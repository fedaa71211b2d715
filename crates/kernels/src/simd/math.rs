//! Functions of vectors, the same on every machine.

use super::{LANES, Simd};

/// `e` to the power of each lane, with a relative error below 2e-7. Below -87.3, where the result would be no normal float,
/// it is zero; above 88.3 it stays at the value for 88.3 (2.2e38).
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: S::Floats) -> S::Floats {
    // Cephes' expf: e^x = 2^n e^r with a whole n and |r| <= ln(2) / 2, and a polynomial for e^r. The logarithm of 2 comes in
    // two parts so that r is exact.
    let bounded = simd.max(simd.min(x, simd.splat(88.3)), simd.splat(-87.5));
    let n = simd.round(simd.mul(bounded, simd.splat(std::f32::consts::LOG2_E)));
    let r = simd.fused(n, simd.splat(-0.693_359_4), bounded);
    let r = simd.fused(n, simd.splat(2.121_944_4e-4), r);
    let mut p = simd.splat(1.987_569_1e-4);
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5, 1.0, 1.0] {
        p = simd.fused(p, r, simd.splat(coefficient));
    }
    simd.keep_from(simd.mul(p, simd.power_of_two(simd.max(n, simd.splat(-126.0)))), x, simd.splat(-87.3))
}

/// `x / (1 + exp(-s))`: `x` times the logistic function of `s`.
#[inline(always)]
pub(crate) fn times_sigmoid<S: Simd>(simd: S, x: S::Floats, s: S::Floats) -> S::Floats {
    let e = exp(simd, simd.sub(simd.splat(0.0), s));
    simd.div(x, simd.add(simd.splat(1.0), e))
}

/// Up to eight values as a vector, zeros behind them.
#[inline(always)]
pub(crate) fn load_part<S: Simd>(simd: S, values: &[f32]) -> S::Floats {
    let mut padded = [0.0; LANES];
    padded[..values.len()].copy_from_slice(values);
    simd.load(&padded)
}

/// Stores as many lanes as there are places, at most eight.
#[inline(always)]
pub(crate) fn store_part<S: Simd>(simd: S, values: S::Floats, to: &mut [f32]) {
    let mut stored = [0.0; LANES];
    simd.store(values, &mut stored);
    to.copy_from_slice(&stored[..to.len()]);
}
