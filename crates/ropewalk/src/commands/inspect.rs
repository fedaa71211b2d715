//! `ropewalk inspect`: what is in a model file.

use std::collections::BTreeMap;

use clap::Args;
use kernels::KvType;
use model::gguf::{Array, Value};
use model::{Blueprint, Gguf};
use serde_json::{Map, json};
use store::LocalModel;

use super::{print_json, print_now};
use crate::models;
use crate::options::ModelOptions;
use crate::table;

/// Longer strings and arrays are shown by their beginning.
const SHOWN: usize = 60;

/// Show a model's metadata, tensors and memory
#[derive(Args)]
#[command(after_help = "Examples:
  ropewalk inspect smollm2
  ropewalk inspect smollm2 --tensors
  ropewalk inspect ./model.gguf --json")]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelOptions,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// Print one JSON object, with everything
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let (local, file) = models::open(&arguments.model)?;
    // A file whose architecture is unknown can be inspected all the same.
    let blueprint = Blueprint::from_gguf(&file);
    if arguments.json {
        return print_json(&everything(&local, &file, blueprint.as_ref().ok()));
    }
    let mut text = format!("{}\n{}, {}\n\n", local.name, local.path.display(), table::bytes(local.bytes));
    match &blueprint {
        Ok(blueprint) => text.push_str(&summary(blueprint)),
        Err(error) => text.push_str(&format!("this model cannot be run: {error}\n")),
    }
    text.push_str("\nmetadata\n");
    for (key, value) in file.metadata().iter() {
        text.push_str(&format!("  {key} = {}\n", short(value)));
    }
    text.push_str("\ntensors by type\n");
    for (dtype, (count, bytes)) in by_type(&file) {
        text.push_str(&format!("  {dtype:<7} {count:>5}  {}\n", table::bytes(bytes)));
    }
    if arguments.tensors {
        text.push_str("\ntensors\n");
        for tensor in file.tensors() {
            text.push_str(&format!("  {:<40} {:<7} {:?}\n", tensor.name, tensor.dtype.name(), tensor.shape));
        }
    }
    print_now(&text)
}

fn summary(blueprint: &Blueprint) -> String {
    let kv = blueprint.kv_bytes_per_token(KvType::F16) as u64;
    let context = blueprint.context as u64;
    let head = blueprint.layers.first().map(|layer| &layer.attention);
    let heads = head.map_or_else(String::new, |attention| {
        format!(", {} heads of {}, {} KV heads", attention.heads, attention.head_dim, attention.kv_heads)
    });
    format!(
        "architecture {}: {} layers, width {}{heads}, vocabulary {}\nKV cache {} a token, {} for the context of {}\n",
        blueprint.architecture,
        blueprint.layers.len(),
        blueprint.hidden,
        blueprint.vocabulary,
        table::bytes(kv),
        table::bytes(kv * context),
        context,
    )
}

fn by_type(file: &Gguf) -> BTreeMap<&'static str, (usize, u64)> {
    let mut types = BTreeMap::new();
    for tensor in file.tensors() {
        let (count, bytes) = types.entry(tensor.dtype.name()).or_insert((0, 0));
        *count += 1;
        *bytes += tensor.byte_len as u64;
    }
    types
}

fn everything(local: &LocalModel, file: &Gguf, blueprint: Option<&Blueprint>) -> serde_json::Value {
    let metadata: Map<_, _> = file.metadata().iter().map(|(key, value)| (key.to_owned(), as_json(value))).collect();
    let tensors = file.tensors().map(|tensor| {
        json!({ "name": tensor.name, "type": tensor.dtype.name(), "shape": tensor.shape, "bytes": tensor.byte_len })
    });
    let memory = blueprint.map(|blueprint| {
        json!({
            "weight_bytes": engine::ranks::model_bytes(file),
            "kv_bytes_per_token": blueprint.kv_bytes_per_token(KvType::F16),
            "context": blueprint.context,
        })
    });
    json!({
        "name": local.name,
        "path": local.path,
        "files": file.files(),
        "bytes": local.bytes,
        "architecture": blueprint.map(|blueprint| &blueprint.architecture),
        "layers": blueprint.map(|blueprint| blueprint.layers.len()),
        "memory": memory,
        "metadata": metadata,
        "tensors": tensors.collect::<Vec<_>>(),
    })
}

/// A value on one line, cut where it is long.
fn short(value: &Value) -> String {
    let text = match value {
        Value::Str(text) => format!("{text:?}"),
        Value::Array(array) => format!("{} values", array.len()),
        other => as_json(other).to_string(),
    };
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn as_json(value: &Value) -> serde_json::Value {
    match value {
        Value::U8(number) => json!(number),
        Value::I8(number) => json!(number),
        Value::U16(number) => json!(number),
        Value::I16(number) => json!(number),
        Value::U32(number) => json!(number),
        Value::I32(number) => json!(number),
        Value::U64(number) => json!(number),
        Value::I64(number) => json!(number),
        Value::F32(number) => json!(number),
        Value::F64(number) => json!(number),
        Value::Bool(truth) => json!(truth),
        Value::Str(text) => json!(text),
        Value::Array(array) => array_as_json(array),
        _ => serde_json::Value::Null,
    }
}

fn array_as_json(array: &Array) -> serde_json::Value {
    match array {
        Array::U8(values) => json!(values),
        Array::I8(values) => json!(values),
        Array::U16(values) => json!(values),
        Array::I16(values) => json!(values),
        Array::U32(values) => json!(values),
        Array::I32(values) => json!(values),
        Array::U64(values) => json!(values),
        Array::I64(values) => json!(values),
        Array::F32(values) => json!(values),
        Array::F64(values) => json!(values),
        Array::Bool(values) => json!(values),
        Array::Str(values) => values.iter().collect(),
        Array::Array(values) => values.iter().map(array_as_json).collect(),
        _ => serde_json::Value::Null,
    }
}
