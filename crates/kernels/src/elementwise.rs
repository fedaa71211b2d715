//! Operations on each value by itself.

use crate::Pool;

/// The function that opens or closes a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// The Gaussian error linear unit in its tanh approximation.
    GeluTanh,
}

/// Adds `y` to `x`.
///
/// # Panics
/// When they differ in length.
pub fn add_assign(_pool: &Pool, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "both must have the same size");
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// `gate = act(gate) * up`.
///
/// # Panics
/// When they differ in length.
pub fn gate_in_place(_pool: &Pool, gate: &mut [f32], up: &[f32], kind: Gate) {
    assert_eq!(gate.len(), up.len(), "both must have the same size");
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = activation(kind, *gate) * up;
    }
}

fn activation(kind: Gate, x: f32) -> f32 {
    match kind {
        Gate::Silu => x / (1.0 + (-x).exp()),
        Gate::GeluTanh => 0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_open_for_large_values_and_close_for_small_ones() {
        let pool = Pool::new(1).unwrap();
        for kind in [Gate::Silu, Gate::GeluTanh] {
            let mut gate = [-30.0, 0.0, 30.0];
            gate_in_place(&pool, &mut gate, &[2.0, 2.0, 2.0], kind);
            assert!(gate[0].abs() < 1e-9 && gate[1] == 0.0 && gate[2] == 60.0, "{gate:?}");
        }
    }

    #[test]
    fn adds() {
        let mut x = [1.0, 2.0];
        add_assign(&Pool::new(1).unwrap(), &mut x, &[0.5, -2.0]);
        assert_eq!(x, [1.5, 0.0]);
    }
}
