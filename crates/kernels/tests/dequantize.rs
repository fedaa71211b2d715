//! Every format dequantizes bit for bit as the Python `gguf` package does. `golden/dequantize.py` wrote the files.

#![allow(clippy::unwrap_used)] // A test may panic.

use std::path::Path;

use bytes::Bytes;
use kernels::{DType, Matrix, dequantize};

/// The block bytes and the expected values of a golden file.
fn golden(dtype: DType) -> (Vec<u8>, Vec<f32>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{dtype}.bin"));
    let file = std::fs::read(&path).unwrap();
    let word = |i: usize| u32::from_le_bytes(file[4 * i..][..4].try_into().unwrap());
    let (header, rest) = file.split_at(8);
    assert_eq!(header.len(), 8);
    let (data, expected) = rest.split_at(word(1) as usize);
    let expected = expected.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
    let expected: Vec<f32> = expected.collect();
    assert_eq!(expected.len(), word(0) as usize);
    (data.to_vec(), expected)
}

#[test]
fn every_format_agrees_bit_for_bit() {
    for &dtype in DType::ALL {
        let (data, expected) = golden(dtype);
        let mut found = vec![0.0; expected.len()];
        dequantize(dtype, &data, &mut found).unwrap();
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found.to_bits(), expected.to_bits(), "{dtype}, value {i}: {found} should be {expected}");
        }
    }
}

#[test]
fn rows_of_a_matrix_agree_as_well() {
    for &dtype in DType::ALL {
        let (data, expected) = golden(dtype);
        let columns = expected.len() / 2;
        let matrix = Matrix::new(dtype, 2, columns, Bytes::from(data)).unwrap();
        let mut row = vec![0.0; columns];
        matrix.row_into(1, &mut row);
        assert!(row.iter().zip(&expected[columns..]).all(|(a, b)| a.to_bits() == b.to_bits()), "{dtype}");
    }
}
