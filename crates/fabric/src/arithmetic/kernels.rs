//! The inner loops, written so that the compiler makes vector instructions of them.

use half::bf16;

use crate::element::Operator;

/// Elements after which a loop looks whether one of them was not a number.
const STRETCH: usize = 256;

/// Makes each number of `block` the result of itself and the one in `others`, in this order.
pub(super) fn accumulate(operator: Operator, block: &mut [f32], others: &[f32]) {
    match operator {
        Operator::Sum => apply(block, others, |own, other| own + other),
        Operator::Max => apply(block, others, larger),
    }
}

/// As [`accumulate`], in the other order.
pub(super) fn accumulate_behind(operator: Operator, block: &mut [f32], others: &[f32]) {
    match operator {
        // Without NaNs, which are all made equal, sums do not depend on it.
        Operator::Sum => accumulate(operator, block, others),
        Operator::Max => apply(block, others, |own, other| larger(other, own)),
    }
}

/// NaN if one of the two is, else the larger one, and the first of equal ones.
fn larger(first: f32, second: f32) -> f32 {
    if first >= second || first.is_nan() { first } else { second }
}

#[inline(always)]
fn apply(block: &mut [f32], others: &[f32], operation: impl Fn(f32, f32) -> f32) {
    for (block, others) in block.chunks_mut(STRETCH).zip(others.chunks(STRETCH)) {
        let mut strange = 0;
        for (own, &other) in block.iter_mut().zip(others) {
            *own = operation(*own, other);
            strange |= u32::from(own.is_nan());
        }
        if strange != 0 {
            make_equal(block);
        }
    }
}

#[cold]
fn make_equal(block: &mut [f32]) {
    for number in block.iter_mut().filter(|number| number.is_nan()) {
        *number = f32::NAN;
    }
}

pub(super) fn widen_bf16(numbers: &[bf16], target: &mut [f32]) {
    for (target, number) in target.iter_mut().zip(numbers) {
        *target = f32::from_bits(u32::from(number.to_bits()) << 16);
    }
}

/// Rounds to nearest, ties to even.
pub(super) fn narrow_bf16(numbers: &[f32], target: &mut [bf16]) {
    for (target, number) in target.iter_mut().zip(numbers) {
        let bits = number.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        // Rounding could carry a NaN's last bits over into an infinity.
        let quiet = bits >> 16 | 0x40;
        *target = bf16::from_bits(if number.is_nan() { quiet } else { rounded } as u16);
    }
}
