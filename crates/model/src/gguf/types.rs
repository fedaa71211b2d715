//! The numbers by which GGUF files name tensor types.

use kernels::DType;

/// The tensor type of a GGUF type number, as `enum ggml_type` assigns them.
pub(super) fn dtype_of(id: u32) -> Option<DType> {
    Some(match id {
        0 => DType::F32,
        1 => DType::F16,
        2 => DType::Q4_0,
        3 => DType::Q4_1,
        6 => DType::Q5_0,
        7 => DType::Q5_1,
        8 => DType::Q8_0,
        10 => DType::Q2K,
        11 => DType::Q3K,
        12 => DType::Q4K,
        13 => DType::Q5K,
        14 => DType::Q6K,
        20 => DType::Iq4Nl,
        23 => DType::Iq4Xs,
        30 => DType::BF16,
        39 => DType::Mxfp4,
        _ => return None,
    })
}

/// What a number that [`dtype_of`] does not know is called elsewhere, for messages.
pub(super) fn foreign_name(id: u32) -> Option<&'static str> {
    Some(match id {
        4 => "Q4_2",
        5 => "Q4_3",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36 => "IQ4_NL_4_4",
        37 => "IQ4_NL_4_8",
        38 => "IQ4_NL_8_8",
        _ => return None,
    })
}

/// The names of all supported types, for messages.
pub(super) fn supported() -> String {
    let names: Vec<_> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
    names.join(", ")
}
