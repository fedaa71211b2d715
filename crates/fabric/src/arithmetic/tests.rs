use half::{bf16, f16};
use proptest::prelude::*;

use super::kernels::{narrow_bf16, widen_bf16};
use super::*;

const NAN_BITS: u32 = 0x7fc0_0000;

/// The plain way: two numbers at a time.
fn plain(operator: Operator, first: f32, second: f32) -> f32 {
    if first.is_nan() || second.is_nan() {
        return f32::from_bits(NAN_BITS);
    }
    let result = match operator {
        Operator::Sum => first + second,
        Operator::Max if first >= second => first,
        Operator::Max => second,
    };
    if result.is_nan() { f32::from_bits(NAN_BITS) } else { result }
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// Any bits at all, and often the odd ones.
fn numbers(count: usize) -> impl Strategy<Value = Vec<f32>> {
    let odd =
        prop::sample::select(vec![0.0, -0.0, f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-42]);
    let number = prop_oneof![4 => any::<u32>().prop_map(f32::from_bits), 1 => odd];
    prop::collection::vec(number, count)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn folding_is_what_a_plain_loop_does(
        (a, b) in (0usize..700).prop_flat_map(|count| (numbers(count), numbers(count))),
        max: bool,
        behind: bool,
    ) {
        let operator = if max { Operator::Max } else { Operator::Sum };
        let pairs = a.iter().zip(&b);
        let expected: Vec<f32> =
            pairs.map(|(&a, &b)| if behind { plain(operator, b, a) } else { plain(operator, a, b) }).collect();
        let mut result = a.clone();
        let bytes = bytemuck::cast_slice_mut(&mut result);
        Folder::new().combine(operator, Encoding::F32, bytes, bytemuck::cast_slice(&b), behind);
        prop_assert_eq!(bits(&result), bits(&expected));
    }

    #[test]
    fn halves_are_rounded_as_elsewhere(numbers in numbers(300)) {
        let mut narrow = vec![bf16::ZERO; 300];
        narrow_bf16(&numbers, &mut narrow);
        let expected: Vec<u16> = numbers.iter().map(|&number| bf16::from_f32(number).to_bits()).collect();
        prop_assert_eq!(narrow.iter().map(|number| number.to_bits()).collect::<Vec<_>>(), expected);
        let mut wide = vec![0.0; 300];
        widen_bf16(&narrow, &mut wide);
        for (wide, narrow) in wide.iter().zip(&narrow) {
            prop_assert!(wide.to_bits() >> 16 == u32::from(narrow.to_bits()));
        }
    }

    #[test]
    fn encodings_know_their_length(elements in 0usize..5000) {
        for encoding in [Encoding::F32, Encoding::F16, Encoding::Bf16, Encoding::Int8] {
            prop_assert_eq!(encoding.elements(encoding.bytes(elements)), elements);
        }
    }

    #[test]
    fn eight_bits_are_close(numbers in prop::collection::vec(-1000f32..1000.0, 1..300), shift in -120i32..60) {
        let numbers: Vec<f32> = numbers.iter().map(|number| number * 2f32.powi(shift)).collect();
        let mut bytes = vec![0; Encoding::Int8.bytes(numbers.len())];
        Encoding::Int8.encode(&numbers, &mut bytes);
        let mut back = vec![0.0; numbers.len()];
        Encoding::Int8.decode(&bytes, &mut back);
        for (numbers, back) in numbers.chunks(64).zip(back.chunks(64)) {
            let largest = numbers.iter().fold(0f32, |largest, number| largest.max(number.abs()));
            for (number, back) in numbers.iter().zip(back) {
                prop_assert!((number - back).abs() <= largest / 127.0 * 0.501 + 1e-36, "{number} became {back}");
            }
        }
    }
}

#[test]
fn blocks_that_are_not_finite_show() {
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut numbers = [1.0; 100];
        numbers[70] = odd;
        let mut bytes = [0; 108];
        Encoding::Int8.encode(&numbers, &mut bytes);
        let mut back = [0.0; 100];
        Encoding::Int8.decode(&bytes, &mut back);
        assert!(back[..64].iter().all(|&number| (number - 1.0f32).abs() < 1e-6));
        assert!(back[64..].iter().all(|number| number.is_nan()));
    }
}

#[test]
fn half_precision_is_summed_in_single_and_rounded_once() {
    // One after the other in half precision, the small ones would all be lost.
    let values = [2048.0, 1.0, 1.0, 1.0].map(f16::from_f32);
    let mut folder = Folder::new();
    folder.begin(Encoding::F16, bytemuck::bytes_of(&values[0]), 1);
    for value in &values[1..] {
        folder.fold(Operator::Sum, Encoding::F16, bytemuck::bytes_of(value), 1);
    }
    let mut sum = f16::ZERO;
    folder.store(Encoding::F16, bytemuck::bytes_of_mut(&mut sum), 1);
    assert_eq!(sum, f16::from_f32(2052.0));
}
