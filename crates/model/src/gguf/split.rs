//! Models in several files, `NAME-00001-of-00003.gguf` and so on, as llama.cpp's `gguf-split` writes them. The first
//! part holds the metadata; every part says which one it is and how many there are.

use std::path::{Path, PathBuf};

use super::part::Part;
use crate::ModelError;

const PART_NUMBER: &str = "split.no";
const PART_COUNT: &str = "split.count";
const TENSOR_COUNT: &str = "split.tensors.count";

/// All parts of the model that `opened` belongs to, in order.
pub(super) fn all_parts(opened: Part) -> Result<Vec<Part>, ModelError> {
    let count = part_count(&opened)?;
    if count == 1 {
        return Ok(vec![opened]);
    }
    let Some(prefix) = name_prefix(&opened.file, count) else {
        let problem = format!(
            "this is one of {count} parts of a model; the parts must keep their names, NAME-00001-of-{count:05}.gguf \
             to NAME-{count:05}-of-{count:05}.gguf"
        );
        return Err(ModelError::Split { file: opened.file, problem });
    };
    let mut opened = Some(opened);
    let mut parts: Vec<Part> = Vec::new();
    for number in 1..=count {
        let file = part_path(&prefix, number, count);
        let part = match opened.take_if(|part| part.file == file) {
            Some(part) => part,
            None => open_part(file, number, count)?,
        };
        check_part(&part, number, count)?;
        parts.push(part);
    }
    check_tensor_count(&parts)?;
    Ok(parts)
}

/// Refuses a part of a split model where the others cannot be looked for.
pub(super) fn require_whole(part: &Part) -> Result<(), ModelError> {
    let count = part_count(part)?;
    if count == 1 {
        return Ok(());
    }
    Err(ModelError::Split { file: part.file.clone(), problem: format!("this is one of {count} parts of a model") })
}

fn part_count(part: &Part) -> Result<u64, ModelError> {
    match part.metadata.find_u64(PART_COUNT)?.unwrap_or(1) {
        0 => Err(part.metadata.bad(PART_COUNT, "is 0; there is at least one part")),
        count @ 1..=99_999 => Ok(count),
        count => Err(part.metadata.bad(PART_COUNT, format!("is {count}; file names leave room for 99999 parts"))),
    }
}

/// The path without `-00001-of-00003.gguf`, if it ends like this and the number of parts is `count`.
fn name_prefix(path: &Path, count: u64) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?.strip_suffix(&format!("-of-{count:05}.gguf"))?;
    let (prefix, number) = name.rsplit_once('-')?;
    let is_number = number.len() == 5 && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| path.with_file_name(prefix))
}

fn part_path(prefix: &Path, number: u64, count: u64) -> PathBuf {
    let mut path = prefix.to_owned().into_os_string();
    path.push(format!("-{number:05}-of-{count:05}.gguf"));
    path.into()
}

fn open_part(file: PathBuf, number: u64, count: u64) -> Result<Part, ModelError> {
    match mapped::map_file(&file) {
        Ok(mapped) => Part::of_file(file, mapped),
        Err(error) => {
            let problem = format!(
                "part {number} of {count} is needed but cannot be opened ({}); put all parts into one folder",
                error.source
            );
            Err(ModelError::Split { file, problem })
        }
    }
}

fn check_part(part: &Part, number: u64, count: u64) -> Result<(), ModelError> {
    let found_count = part_count(part)?;
    let found_number = part.metadata.get_u64(PART_NUMBER)?;
    if (found_number, found_count) == (number - 1, count) {
        return Ok(());
    }
    let problem = format!(
        "the name says part {number} of {count} but the file says part {} of {found_count}; download the model again",
        found_number.saturating_add(1)
    );
    Err(ModelError::Split { file: part.file.clone(), problem })
}

fn check_tensor_count(parts: &[Part]) -> Result<(), ModelError> {
    let found: usize = parts.iter().map(|part| part.tensors.len()).sum();
    let first = &parts[0];
    let wanted = first.metadata.get_u64(TENSOR_COUNT)?;
    if wanted == found as u64 {
        return Ok(());
    }
    let problem = format!("the model should have {wanted} tensors but its parts hold {found}; download it again");
    Err(ModelError::Split { file: first.file.clone(), problem })
}
