//! One GGUF file on its own: header, metadata, tensor records.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use mapped::MappedFile;

use super::cursor::{CONVERT_AGAIN, Cursor};
use super::layout::{self, Record};
use super::metadata::Metadata;
use super::value::{Array, Value, quoted};
use super::{OpenFile, Placed, types};
use crate::ModelError;

/// The first four bytes of every GGUF file.
const MAGIC: &[u8; 4] = b"GGUF";
/// Where tensors begin unless `general.alignment` says otherwise.
const DEFAULT_ALIGNMENT: u32 = 32;
/// The format's limit on the length of a key; tensor names are far shorter.
const MAX_NAME_BYTES: usize = 65_535;
/// ggml's limit on the dimensions of a tensor.
const MAX_DIMENSIONS: u32 = 4;
/// How deep arrays may lie in arrays. Files in the wild go to two.
const MAX_ARRAY_DEPTH: usize = 8;
/// The fewest bytes that a key-value pair takes: an empty key, a type and one byte of value.
const SMALLEST_PAIR: usize = 8 + 4 + 1;
/// The fewest bytes that a tensor record takes: a name of one byte, one dimension, a type and an offset.
const SMALLEST_RECORD: usize = 8 + 1 + 4 + 8 + 4 + 8;

/// One parsed and checked file.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) file: PathBuf,
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<Placed>,
}

impl Part {
    /// The same for a file, whose tensors can then also be read from it.
    pub(super) fn of_file(path: PathBuf, mapped: MappedFile) -> Result<Part, ModelError> {
        let mut part = Part::parse(path, mapped.bytes)?;
        let file = Arc::new(OpenFile(mapped.file));
        part.tensors.iter_mut().for_each(|tensor| tensor.file = Some(Arc::clone(&file)));
        Ok(part)
    }

    /// Parses `bytes` and checks every record. `file` is named in messages.
    pub(super) fn parse(file: PathBuf, bytes: Bytes) -> Result<Part, ModelError> {
        let mut cursor = Cursor::new(&file, &bytes);
        let (tensor_count, pair_count) = header(&mut cursor)?;
        let mut metadata = Metadata::new(file.clone());
        for index in 0..pair_count {
            pair(&mut cursor, index, &mut metadata)?;
        }
        let alignment = alignment(&metadata)?;
        cursor.enter("tensor list".to_owned());
        let mut names = HashSet::new();
        let mut records = Vec::new();
        for index in 0..tensor_count {
            let record = record(&mut cursor, index)?;
            if !names.insert(record.name) {
                return Err(cursor.damaged(record.place, "the name was used before", CONVERT_AGAIN));
            }
            records.push(record);
        }
        let tensors = layout::place(&file, &bytes, cursor.position(), alignment, records)?;
        Ok(Part { file, metadata, tensors })
    }
}

/// Checks magic and version; returns the numbers of tensors and of key-value pairs.
fn header(cursor: &mut Cursor<'_>) -> Result<(usize, usize), ModelError> {
    const NOT_GGUF: &str = "choose a model in GGUF format";
    let magic: [u8; 4] = cursor.array()?;
    if &magic != MAGIC {
        let problem = format!("the file begins with {:?}, not with \"GGUF\"", magic.escape_ascii().to_string());
        return Err(cursor.damaged(0, problem, NOT_GGUF));
    }
    let version = cursor.u32()?;
    match version {
        2 | 3 => {}
        1 => {
            return Err(cursor.damaged(4, "GGUF version 1 is not supported", "convert the model to version 3"));
        }
        _ if matches!(version.swap_bytes(), 1..=3) => {
            let problem = "the file is in big-endian byte order, which is not supported";
            return Err(cursor.damaged(4, problem, "use the little-endian file of the same model"));
        }
        _ => {
            let problem = format!("GGUF version {version} is not supported, only 2 and 3 are");
            return Err(cursor.damaged(4, problem, "use a newer Ropewalk or convert the model to version 3"));
        }
    }
    let tensor_count = cursor.count("tensors", SMALLEST_RECORD)?;
    let pair_count = cursor.count("metadata pairs", SMALLEST_PAIR)?;
    Ok((tensor_count, pair_count))
}

fn pair(cursor: &mut Cursor<'_>, index: usize, metadata: &mut Metadata) -> Result<(), ModelError> {
    cursor.enter(format!("metadata pair {index}"));
    let start = cursor.position();
    let key = name(cursor, "the key")?;
    cursor.enter(format!("metadata key {}", quoted(key)));
    let kind = cursor.u32()?;
    let value = value(cursor, kind)?;
    if !metadata.insert(key.to_owned(), value) {
        return Err(cursor.damaged(start, "the key was given before", CONVERT_AGAIN));
    }
    Ok(())
}

/// A key or tensor name: a string that is neither empty nor absurdly long.
fn name<'a>(cursor: &mut Cursor<'a>, what: &str) -> Result<&'a str, ModelError> {
    let start = cursor.position();
    let name = cursor.string(what)?;
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        let problem = format!("{what} is {} bytes long, it must have 1 to {MAX_NAME_BYTES}", name.len());
        return Err(cursor.damaged(start, problem, CONVERT_AGAIN));
    }
    Ok(name)
}

fn value(cursor: &mut Cursor<'_>, kind: u32) -> Result<Value, ModelError> {
    Ok(match kind {
        0 => Value::U8(cursor.array().map(u8::from_le_bytes)?),
        1 => Value::I8(cursor.array().map(i8::from_le_bytes)?),
        2 => Value::U16(cursor.array().map(u16::from_le_bytes)?),
        3 => Value::I16(cursor.array().map(i16::from_le_bytes)?),
        4 => Value::U32(cursor.u32()?),
        5 => Value::I32(cursor.array().map(i32::from_le_bytes)?),
        6 => Value::F32(cursor.array().map(f32::from_le_bytes)?),
        7 => Value::Bool(cursor.array::<1>()? != [0]),
        8 => Value::Str(cursor.string("text")?.into()),
        9 => Value::Array(array(cursor, 1)?),
        10 => Value::U64(cursor.u64()?),
        11 => Value::I64(cursor.array().map(i64::from_le_bytes)?),
        12 => Value::F64(cursor.array().map(f64::from_le_bytes)?),
        _ => return Err(unknown_kind(cursor, cursor.position() - 4, kind)),
    })
}

fn unknown_kind(cursor: &Cursor<'_>, offset: usize, kind: u32) -> ModelError {
    cursor.damaged(offset, format!("value type {kind} does not exist, the types are 0 to 12"), CONVERT_AGAIN)
}

fn array(cursor: &mut Cursor<'_>, depth: usize) -> Result<Array, ModelError> {
    let start = cursor.position();
    if depth > MAX_ARRAY_DEPTH {
        let problem = format!("arrays lie in each other more than {MAX_ARRAY_DEPTH} deep");
        return Err(cursor.damaged(start, problem, CONVERT_AGAIN));
    }
    let kind = cursor.u32()?;
    Ok(match kind {
        0 => Array::U8(numbers(cursor, u8::from_le_bytes)?),
        1 => Array::I8(numbers(cursor, i8::from_le_bytes)?),
        2 => Array::U16(numbers(cursor, u16::from_le_bytes)?),
        3 => Array::I16(numbers(cursor, i16::from_le_bytes)?),
        4 => Array::U32(numbers(cursor, u32::from_le_bytes)?),
        5 => Array::I32(numbers(cursor, i32::from_le_bytes)?),
        6 => Array::F32(numbers(cursor, f32::from_le_bytes)?),
        7 => Array::Bool(numbers(cursor, |byte: [u8; 1]| byte != [0])?),
        8 => {
            // Each string takes at least the eight bytes of its length.
            let count = cursor.count("strings", 8)?;
            Array::Str(cursor.strings(count)?)
        }
        9 => {
            // Each array takes at least a type and a count.
            let count = cursor.count("arrays", 12)?;
            Array::Array((0..count).map(|_| array(cursor, depth + 1)).collect::<Result<_, _>>()?)
        }
        10 => Array::U64(numbers(cursor, u64::from_le_bytes)?),
        11 => Array::I64(numbers(cursor, i64::from_le_bytes)?),
        12 => Array::F64(numbers(cursor, f64::from_le_bytes)?),
        _ => return Err(unknown_kind(cursor, start, kind)),
    })
}

/// A count and as many numbers of `N` bytes.
fn numbers<T, const N: usize>(cursor: &mut Cursor<'_>, from: impl Fn([u8; N]) -> T) -> Result<Box<[T]>, ModelError> {
    let count = cursor.count("elements", N)?;
    let (chunks, _) = cursor.take(count * N)?.as_chunks::<N>();
    Ok(chunks.iter().map(|&chunk| from(chunk)).collect())
}

fn alignment(metadata: &Metadata) -> Result<usize, ModelError> {
    const KEY: &str = "general.alignment";
    let alignment = metadata.find_u64(KEY)?.unwrap_or(DEFAULT_ALIGNMENT.into());
    match u32::try_from(alignment) {
        Ok(valid) if valid.is_power_of_two() => Ok(valid as usize),
        _ => Err(metadata.bad(KEY, format!("is {alignment}; it must be a power of two, at most 2^31"))),
    }
}

/// Reads the record of a tensor. What it says is checked against the file by [`layout::place`].
fn record<'a>(cursor: &mut Cursor<'a>, index: usize) -> Result<Record<'a>, ModelError> {
    cursor.enter(format!("tensor {index}"));
    let place = cursor.position();
    let name = name(cursor, "the name")?;
    cursor.enter(format!("tensor {}", quoted(name)));
    let start = cursor.position();
    let dimensions = cursor.u32()?;
    if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
        let problem = format!("it has {dimensions} dimensions, a tensor has 1 to {MAX_DIMENSIONS}");
        return Err(cursor.damaged(start, problem, CONVERT_AGAIN));
    }
    let mut shape = Vec::with_capacity(dimensions as usize);
    for _ in 0..dimensions {
        let start = cursor.position();
        match usize::try_from(cursor.u64()?) {
            Ok(length) if length > 0 => shape.push(length),
            Ok(_) => return Err(cursor.damaged(start, "a dimension is zero", CONVERT_AGAIN)),
            Err(_) => return Err(cursor.damaged(start, "a dimension is too large for this machine", CONVERT_AGAIN)),
        }
    }
    let id = cursor.u32()?;
    let Some(dtype) = types::dtype_of(id) else {
        return Err(unsupported_type(cursor, name, id));
    };
    Ok(Record { name, place, dtype, shape, offset: cursor.u64()? })
}

fn unsupported_type(cursor: &Cursor<'_>, tensor: &str, id: u32) -> ModelError {
    let called = types::foreign_name(id).map(|name| format!(" ({name})")).unwrap_or_default();
    cursor.unsupported(
        format!("type {id}{called} of tensor {}", quoted(tensor)),
        format!("use a file whose tensors are all {}", types::supported()),
    )
}
