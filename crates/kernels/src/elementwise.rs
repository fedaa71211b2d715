//! Functions of each value by itself.

use crate::simd::Simd;
use crate::simd::math::times_sigmoid;

/// The function that opens or closes a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// The Gaussian error linear unit in its tanh approximation.
    GeluTanh,
}

/// The function of a gate, lane by lane, with a relative error below 1e-6 where it is at least 1e-30 in size.
#[inline(always)]
pub(crate) fn activation<S: Simd>(simd: S, kind: Gate, x: S::Floats) -> S::Floats {
    let argument = match kind {
        Gate::Silu => x,
        // (1 + tanh(z)) / 2 is the logistic function of 2 z, where z = sqrt(2 / pi) (x + 0.044715 x³).
        Gate::GeluTanh => {
            let cubic =
                simd.fused(simd.mul(x, x), simd.splat(2.0 * 0.797_884_6 * 0.044_715), simd.splat(2.0 * 0.797_884_6));
            simd.mul(x, cubic)
        }
    };
    times_sigmoid(simd, x, argument)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pool, Rows};

    fn gated(gate: &[f32], up: &[f32], kind: Gate) -> Vec<f32> {
        let mut out = vec![0.0; gate.len()];
        let columns = gate.len();
        Rows::Gated { gate, up, kind, columns }.write(&Pool::new(1).unwrap(), &mut out, 0, columns);
        out
    }

    /// The definition, in double precision.
    fn reference(kind: Gate, x: f32) -> f64 {
        let x = f64::from(x);
        match kind {
            Gate::Silu => x / (1.0 + (-x).exp()),
            // 1 + tanh(z), without cancellation for negative z.
            Gate::GeluTanh => {
                let z = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                x / (1.0 + (-2.0 * z).exp())
            }
        }
    }

    #[test]
    fn gates_are_close_to_the_reference() {
        let x: Vec<f32> = (-40_000..40_003).map(|i| i as f32 / 1000.0).collect();
        let up: Vec<f32> = (0..x.len()).map(|i| if i % 2 == 0 { 1.0 } else { -2.0 }).collect();
        for kind in [Gate::Silu, Gate::GeluTanh] {
            for ((found, x), up) in gated(&x, &up, kind).iter().zip(&x).zip(&up) {
                let expected = reference(kind, *x) * f64::from(*up);
                // The argument of the exponential carries its rounding into the result.
                let allowed = expected.abs() * (1e-6 + 2e-7 * f64::from(x.abs() + x.abs().powi(3))) + 1e-30;
                assert!((f64::from(*found) - expected).abs() <= allowed, "{kind:?} of {x}: {found}, not {expected}");
            }
        }
    }

    #[test]
    fn extreme_gates_stay_finite() {
        for kind in [Gate::Silu, Gate::GeluTanh] {
            let gate = gated(&[-1e4, -200.0, -0.0, 200.0, 1e4], &[1.0; 5], kind);
            assert!(gate[..3].iter().all(|value| value.abs() < 1e-30), "{gate:?}");
            assert_eq!(gate[3..], [200.0, 1e4]);
        }
    }
}
