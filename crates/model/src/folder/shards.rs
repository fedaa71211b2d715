//! Safetensors files: <https://github.com/huggingface/safetensors>.
//!
//! A checkpoint is one file `model.safetensors`, or several that `model.safetensors.index.json` lists, with the tensors in each.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use kernels::DType;
use safetensors::{Dtype, SafeTensors};

use super::json::{Document, damaged};
use crate::ModelError;
use crate::gguf::{OpenFile, Placed, TensorInfo};

const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The files of the checkpoint in `folder` and the tensors in them, under the names that they have there.
pub(super) fn read(folder: &Path) -> Result<(Vec<PathBuf>, Vec<Placed>), ModelError> {
    let Some(index) = Document::find(&folder.join(INDEX))? else {
        let file = folder.join(WHOLE);
        if !file.is_file() {
            return Err(damaged(folder, format!("it holds neither {WHOLE} nor {INDEX}")));
        }
        let tensors = tensors(&file)?;
        return Ok((vec![file], tensors));
    };
    let wrong = || index.bad("weight_map", "must name the file of each tensor");
    let map = index.get("weight_map").and_then(|map| map.as_object()).ok_or_else(wrong)?;
    let mut places = std::collections::BTreeMap::new();
    for (tensor, file) in map {
        let file = file.as_str().ok_or_else(wrong)?;
        // An index comes from elsewhere: it must not lead out of its folder.
        let mut parts = Path::new(file).components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
            return Err(index.bad("weight_map", format!("names the file {file:?}, which is not in the folder itself")));
        }
        places.insert(tensor.as_str(), file);
    }
    let names: BTreeSet<&str> = places.values().copied().collect();
    let (mut files, mut found) = (Vec::new(), Vec::new());
    for name in names {
        let file = folder.join(name);
        if !file.is_file() {
            let tensor = places.iter().find(|(_, place)| **place == name).map_or("", |(tensor, _)| tensor);
            return Err(damaged(&file, format!("it is missing, though {INDEX} says that it holds {tensor}")));
        }
        let mut tensors = tensors(&file)?;
        // What the index does not name as this file's is not part of the model.
        tensors.retain(|tensor| places.get(tensor.info.name.as_str()) == Some(&name));
        files.push(file);
        found.append(&mut tensors);
    }
    let present: BTreeSet<&str> = found.iter().map(|tensor| tensor.info.name.as_str()).collect();
    match places.iter().find(|(tensor, _)| !present.contains(**tensor)) {
        Some((tensor, file)) => {
            Err(damaged(&folder.join(file), format!("it lacks tensor `{tensor}`, which {INDEX} says is in it")))
        }
        None => Ok((files, found)),
    }
}

/// The tensors of a file.
fn tensors(file: &Path) -> Result<Vec<Placed>, ModelError> {
    let mapped::MappedFile { bytes, file: open } = mapped::map_file(file)?;
    let refused = |error: safetensors::SafeTensorError| {
        damaged(file, format!("its header is broken or it is cut off ({error}); download it again"))
    };
    let (header, metadata) = SafeTensors::read_metadata(&bytes).map_err(refused)?;
    // The header's length stands in eight bytes before it.
    let start = header + 8;
    if start.checked_add(metadata.data_len()) != Some(bytes.len()) {
        let problem = format!(
            "it has {} bytes, but its header speaks of {}; download it again",
            bytes.len(),
            start + metadata.data_len()
        );
        return Err(damaged(file, problem));
    }
    let open = Arc::new(OpenFile::new(open));
    let place = |(name, info): (String, &safetensors::tensor::TensorInfo)| {
        let dtype = dtype(info.dtype).ok_or_else(|| ModelError::Unsupported {
            file: file.to_owned(),
            what: format!("the type {:?} of tensor `{name}`", info.dtype),
            advice: "supported are F32, F16 and BF16".to_owned(),
        })?;
        let (from, to) = info.data_offsets;
        // Rows of the innermost dimension come first in GGUF's order.
        let shape = info.shape.iter().rev().copied().collect();
        let data: Bytes = bytes.slice(start + from..start + to);
        let info = TensorInfo { name, dtype, shape, byte_len: to - from };
        Ok(Placed { info, data, offset: (start + from) as u64, file: Some(Arc::clone(&open)) })
    };
    metadata.tensors().into_iter().map(place).collect()
}

fn dtype(found: Dtype) -> Option<DType> {
    Some(match found {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        _ => return None,
    })
}
