//! `ropewalk pull`, `list` and `rm`: the models on this machine.

use std::time::SystemTime;

use clap::Args;
use serde_json::json;
use store::{CATALOGUE, HubFiles, Source};

use super::{print_json, print_now};
use crate::interrupt;
use crate::models::{open_store, resolve};
use crate::options::MODEL_HELP;
use crate::table;

/// Download a model
#[derive(Args)]
#[command(after_help = "Examples:\n  ropewalk pull smollm2\n  ropewalk pull hf:Qwen/Qwen3-0.6B-GGUF")]
pub(crate) struct PullArguments {
    #[arg(value_name = "MODEL", help = MODEL_HELP)]
    model: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// List the models on this machine
#[derive(Args)]
#[command(after_help = "Examples:\n  ropewalk list\n  ropewalk list --catalogue")]
pub(crate) struct ListArguments {
    /// List the short names that can be pulled instead
    #[arg(long)]
    catalogue: bool,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// Remove a model from this machine
#[derive(Args)]
#[command(after_help = "Example:\n  ropewalk rm smollm2")]
pub(crate) struct RemoveArguments {
    #[arg(value_name = "MODEL", help = MODEL_HELP)]
    model: String,
    /// Remove the file of a hub model also from the hub's own cache, which other programs share
    #[arg(long)]
    hub_files: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn pull(arguments: &PullArguments) -> anyhow::Result<()> {
    interrupt::install()?;
    let model = resolve(&arguments.model, false)?;
    if arguments.json {
        let digest = model.digest.map(|digest| digest.to_string());
        return print_json(&json!({ "name": model.name, "path": model.path, "bytes": model.bytes, "sha256": digest }));
    }
    print_now(&format!("{} {}\n", table::bytes(model.bytes), model.path.display()))
}

pub(crate) fn list(arguments: &ListArguments) -> anyhow::Result<()> {
    if arguments.catalogue {
        return list_catalogue(arguments.json);
    }
    let entries = open_store()?.list()?;
    if arguments.json {
        let entries = entries.iter().map(|entry| {
            let pulled = entry.pulled.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |age| age.as_secs());
            json!({
                "name": entry.name, "source": entry.source, "path": entry.path, "bytes": entry.bytes,
                "pulled": pulled, "present": entry.present,
            })
        });
        return print_json(&entries.collect::<Vec<_>>());
    }
    let rows = entries.iter().map(|entry| {
        let size = if entry.present { table::bytes(entry.bytes) } else { "? (gone)".to_owned() };
        vec![entry.name.clone(), size, entry.path.display().to_string()]
    });
    table::print(&["model", "size", "path"], &rows.collect::<Vec<_>>())
}

fn list_catalogue(as_json: bool) -> anyhow::Result<()> {
    if as_json {
        let models = CATALOGUE.iter().map(
            |model| json!({ "name": model.name, "description": model.description, "licence": model.licence, "bytes": model.bytes }),
        );
        return print_json(&models.collect::<Vec<_>>());
    }
    let rows = CATALOGUE.iter().map(|model| {
        vec![
            model.name.to_owned(),
            model.bytes.map_or_else(|| "?".to_owned(), table::bytes),
            model.licence.to_owned(),
            model.description.to_owned(),
        ]
    });
    table::print(&["name", "size", "licence", "description"], &rows.collect::<Vec<_>>())
}

pub(crate) fn remove(arguments: &RemoveArguments) -> anyhow::Result<()> {
    let source: Source = arguments.model.parse()?;
    let hub_files = if arguments.hub_files { HubFiles::Delete } else { HubFiles::Keep };
    let bytes = open_store()?.remove(&source, hub_files)?;
    if arguments.json {
        return print_json(&json!({ "removed": source.to_string(), "bytes": bytes }));
    }
    print_now(&format!("removed {source}, {}\n", table::bytes(bytes)))
}
