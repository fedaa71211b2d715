//! Products against the reference, and their independence of everything that must not matter.

use bytes::Bytes;
use proptest::prelude::*;
use proptest::sample::select;

use std::sync::Arc;

use super::*;
use crate::activations::BLOCKS;
use crate::packing::{ReadAt, pack, packed_len};
use crate::simd::CODES;
use crate::{DType, Forms, KernelError, Rows};

#[test]
fn small_product_with_bias_and_stride() {
    let weights: [f32; 6] = [1.0, 2.0, 3.0, -1.0, 0.5, 2.0];
    let weights = Matrix::new(DType::F32, 2, 3, Bytes::copy_from_slice(bytemuck::cast_slice(&weights))).unwrap();
    let pool = Pool::new(2).unwrap();
    let mut input = Activations::new(2, 3);
    input.load(&pool, &Rows::Plain { x: &[1.0, 1.0, 1.0, 2.0, 0.0, -1.0], columns: 3 }, Forms::ALL);
    let mut out = [9.0; 6];
    let product = Product { weights: &weights, bias: Some(&[0.0, 10.0]), tokens: 0..2, out: &mut out, stride: 3 };
    multiply(&pool, &input, [product]);
    assert_eq!(out, [6.0, 11.5, 9.0, -1.0, 6.0, 9.0]);
}

#[test]
fn many_products_at_once() {
    let weights = Matrix::new(DType::F32, 1, 1, Bytes::copy_from_slice(&2f32.to_le_bytes())).unwrap();
    let empty = weights.select_rows(0..0);
    let pool = Pool::new(2).unwrap();
    let mut input = Activations::new(1, 1);
    input.load(&pool, &Rows::Plain { x: &[3.0], columns: 1 }, Forms::for_weights(&[&weights]));
    let mut out = [0.0; 20];
    let products = out.chunks_mut(1).enumerate();
    let weights = |i: usize| if i % 3 == 1 { &empty } else { &weights };
    let products = products.map(|(i, out)| Product { weights: weights(i), bias: None, tokens: 0..1, out, stride: 1 });
    multiply(&pool, &input, products);
    for (i, value) in out.into_iter().enumerate() {
        assert_eq!(value, if i % 3 == 1 { 0.0 } else { 6.0 });
    }
}

/// A simple generator of numbers that look random, the same ones for one seed.
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    /// Between -1 and 1.
    fn float(&mut self) -> f32 {
        (self.next() % 2001) as f32 / 1000.0 - 1.0
    }
}

/// Random blocks of a format, their scales of reasonable size.
pub(super) fn random_weights(dtype: DType, rows: usize, columns: usize, numbers: &mut Numbers) -> Matrix {
    let mut data: Vec<u8> = (0..rows * dtype.row_bytes(columns).unwrap()).map(|_| numbers.next() as u8).collect();
    let halves: &[usize] = match dtype {
        DType::F16 | DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::Iq4Nl | DType::Iq4Xs => &[0],
        DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
        DType::Q2K => &[80, 82],
        DType::Q3K => &[108],
        DType::Q6K => &[208],
        _ => &[],
    };
    for block in data.chunks_exact_mut(dtype.block_bytes()) {
        for &offset in halves {
            block[offset..offset + 2].copy_from_slice(&half::f16::from_f32(numbers.float()).to_le_bytes());
        }
        match dtype {
            DType::F32 => block.copy_from_slice(&numbers.float().to_le_bytes()),
            DType::BF16 => block.copy_from_slice(&half::bf16::from_f32(numbers.float()).to_le_bytes()),
            DType::Mxfp4 => block[0] = 120 + block[0] % 16,
            _ => {}
        }
    }
    Matrix::new(dtype, rows, columns, Bytes::from(data)).unwrap()
}

/// What a case consists of: weights, inputs, and how they are multiplied.
struct Case {
    weights: Matrix,
    bias: Vec<f32>,
    x: Vec<f32>,
}

impl Case {
    fn new(dtype: DType, rows: usize, blocks: usize, tokens: usize, seed: u64) -> Case {
        let mut numbers = Numbers(seed);
        let columns = blocks * dtype.block_len();
        let weights = random_weights(dtype, rows, columns, &mut numbers);
        let bias = (0..rows).map(|_| numbers.float()).collect();
        let x = (0..tokens * columns).map(|_| numbers.float()).collect();
        Case { weights, bias, x }
    }

    fn tokens(&self) -> usize {
        self.x.len() / self.weights.columns()
    }

    fn input(&self, tokens: Range<usize>) -> Activations {
        let columns = self.weights.columns();
        let mut input = Activations::new(tokens.len(), columns);
        let x = &self.x[tokens.start * columns..tokens.end * columns];
        input.load(&Pool::new(1).unwrap(), &Rows::Plain { x, columns }, Forms::ALL);
        input
    }

    /// The outputs `[tokens, rows]` of all tokens with the last rows, as which `weights` stands.
    fn multiply_whole(&self, weights: &Matrix, threads: usize) -> Vec<f32> {
        let (tokens, rows) = (self.tokens(), weights.rows());
        let mut out = vec![f32::NAN; tokens * rows];
        let bias = Some(&self.bias[self.weights.rows() - rows..]);
        let product = Product { weights, bias, tokens: 0..tokens, out: &mut out, stride: rows };
        multiply(&Pool::new(threads).unwrap(), &self.input(0..tokens), [product]);
        out
    }

    /// The outputs `[tokens, rows]` of some tokens and rows.
    fn multiply(&self, threads: usize, tokens: Range<usize>, rows: Range<usize>) -> Vec<f32> {
        let mut out = vec![f32::NAN; tokens.len() * rows.len()];
        let weights = self.weights.select_rows(rows.clone());
        let bias = Some(&self.bias[rows.clone()]);
        let product = Product { weights: &weights, bias, tokens: 0..tokens.len(), out: &mut out, stride: rows.len() };
        multiply(&Pool::new(threads).unwrap(), &self.input(tokens), [product]);
        out
    }

    /// The outputs of some tokens of an input that has all of them.
    fn multiply_some(&self, tokens: Range<usize>) -> Vec<f32> {
        let rows = self.weights.rows();
        let mut out = vec![f32::NAN; tokens.len() * rows];
        let product = Product { weights: &self.weights, bias: Some(&self.bias), tokens, out: &mut out, stride: rows };
        multiply(&Pool::new(2).unwrap(), &self.input(0..self.tokens()), [product]);
        out
    }

    /// The same by the definition of the vector operations.
    fn multiply_portable(&self) -> Vec<f32> {
        let (tokens, rows) = (self.tokens(), self.weights.rows());
        let mut out = vec![f32::NAN; tokens * rows];
        let (weights, bias) = (&self.weights, Some(&self.bias[..]));
        let target = Target { weights, bias, tokens: 0..tokens, out: SharedValues::new(&mut out), stride: rows };
        multiply_rows_portably(&self.input(0..tokens), &target, 0..rows);
        out
    }

    /// One output in double precision, and the sum of the absolute values of what was added up.
    fn reference(&self, token: usize, row: usize) -> (f64, f64) {
        let columns = self.weights.columns();
        let mut weights = vec![0.0; columns];
        self.weights.row_into(row, &mut weights);
        let input = self.input(token..token + 1);
        let is_float = self.weights.dtype().is_float();
        let x = |column: usize| {
            let block = column / CODES;
            let group = &input.groups(0)[block / BLOCKS];
            let code = group.codes[block % BLOCKS][column % CODES].cast_signed();
            let rounded = f32::from(code) * group.scales[block % BLOCKS];
            f64::from(if is_float { input.values(0)[column] } else { rounded })
        };
        let products = weights.iter().enumerate().map(|(column, weight)| f64::from(*weight) * x(column));
        let bias = f64::from(self.bias[row]);
        products.fold((bias, bias.abs()), |(sum, size), product| (sum + product, size + product.abs()))
    }
}

/// A file whose bytes begin at position 7.
#[derive(Debug)]
struct File(Vec<u8>);

impl ReadAt for File {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        let from = offset as usize - 7;
        let bytes = self.0.get(from..from + buffer.len()).ok_or(std::io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }
}

#[test]
fn weights_that_cannot_be_read_stay_where_they_are() {
    let mut numbers = Numbers(1);
    let weights = random_weights(DType::Q4_1, 20, 64, &mut numbers);
    let mut cut = weights.clone().with_source(Arc::new(File(vec![0; 100])), 7);
    let error = pack(&Pool::new(2).unwrap(), &mut [&mut cut], &mut |_| {}).unwrap_err();
    assert!(matches!(error, KernelError::Read { .. }), "{error}");
    assert_eq!(cut.row(19), weights.row(19));
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn products_are_close_to_the_reference() {
    for &dtype in DType::ALL {
        let blocks = if dtype.block_len() == 1 { 301 } else { 1280 / dtype.block_len() - 1 };
        let case = Case::new(dtype, 7, blocks, 6, 1);
        let out = case.multiply(2, 0..6, 0..7);
        for (i, found) in out.iter().enumerate() {
            let (expected, size) = case.reference(i / 7, i % 7);
            let error = (f64::from(*found) - expected).abs();
            assert!(error <= size * 1e-6, "{dtype}, output {i}: {found} should be {expected}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn an_output_depends_on_its_row_and_token_only(
        dtype in select(DType::ALL),
        rows in 1usize..40,
        blocks in 1usize..50,
        tokens in prop_oneof![1usize..10, 60usize..70],
        threads in 1usize..4,
        seed in any::<u64>(),
    ) {
        let blocks = if dtype.block_len() == 256 { blocks.div_ceil(8) } else { blocks };
        let case = Case::new(dtype, rows, blocks, tokens, seed);
        let whole = case.multiply(threads, 0..tokens, 0..rows);
        let mut numbers = Numbers(seed);
        for _ in 0..4 {
            let (row, token) = (numbers.next() as usize % rows, numbers.next() as usize % tokens);
            let alone = case.multiply(1, token..token + 1, row..row + 1);
            prop_assert_eq!(alone[0].to_bits(), whole[token * rows + row].to_bits());
            let column = case.multiply(1, 0..tokens, row..row + 1);
            prop_assert!((0..tokens).all(|t| column[t].to_bits() == whole[t * rows + row].to_bits()));
            let from_here = case.multiply(2, token..tokens, row..rows);
            for (i, value) in from_here.iter().enumerate() {
                let (t, r) = (token + i / (rows - row), row + i % (rows - row));
                prop_assert_eq!(value.to_bits(), whole[t * rows + r].to_bits());
            }
            let end = token + 1 + numbers.next() as usize % (tokens - token);
            let some = case.multiply_some(token..end);
            prop_assert!(some.iter().zip(&whole[token * rows..end * rows]).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }

    #[test]
    fn packed_weights_give_the_same(
        dtype in select(DType::ALL),
        rows in 1usize..40,
        blocks in 1usize..20,
        tokens in 1usize..12,
        threads in 1usize..4,
        seed in any::<u64>(),
    ) {
        let blocks = if dtype.block_len() == 256 { blocks.div_ceil(8) } else { blocks };
        let mut case = Case::new(dtype, rows, blocks, tokens, seed);
        let stored = case.multiply(2, 0..tokens, 0..rows);
        let bytes = case.weights.select_rows(0..rows);
        let file = Arc::new(File((0..rows).flat_map(|row| bytes.row(row).to_vec()).collect()));
        let mut second = case.weights.select_rows(rows / 2..rows).with_source(file, 7 + (rows / 2 * bytes.row_bytes()) as u64);
        let mut done = 0;
        let pool = Pool::new(threads).unwrap();
        pack(&pool, &mut [&mut case.weights, &mut second], &mut |bytes| done = bytes).unwrap();
        prop_assert_eq!(done, packed_len(&case.weights) + packed_len(&second));
        prop_assert_eq!(bits(&stored), bits(&case.multiply_whole(&case.weights, threads)));
        let half = case.multiply_whole(&second, threads);
        for (stored, half) in stored.chunks(rows).zip(half.chunks(rows - rows / 2)) {
            prop_assert_eq!(bits(&stored[rows / 2..]), bits(half));
        }
    }

    #[test]
    fn this_machine_computes_what_every_other_does(
        dtype in select(DType::ALL),
        rows in 1usize..6,
        blocks in 1usize..50,
        tokens in 1usize..10,
        seed in any::<u64>(),
    ) {
        let blocks = if dtype.block_len() == 256 { blocks.div_ceil(8) } else { blocks };
        let case = Case::new(dtype, rows, blocks, tokens, seed);
        prop_assert_eq!(bits(&case.multiply(1, 0..tokens, 0..rows)), bits(&case.multiply_portable()));
    }
}
