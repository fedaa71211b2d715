//! From MODEL on the command line to an open file.

use anyhow::{Context, bail};
use engine::ranks::{DraftFile, model_bytes};
use model::Gguf;
use store::{LocalModel, Options, Source, Store};

use crate::interrupt::{self, Interrupted};
use crate::options::{LayoutOptions, ModelOptions};
use crate::progress::DownloadProgress;

/// The user's store.
pub(crate) fn open_store() -> anyhow::Result<Store> {
    Ok(Store::open(Store::default_root()?)?)
}

/// The model's files on this machine, downloaded if need be and allowed.
pub(crate) fn resolve(model: &str, offline: bool) -> anyhow::Result<LocalModel> {
    let source: Source = model.parse()?;
    let progress = DownloadProgress::default();
    let _guard = interrupt::watched();
    match open_store()?.resolve(&source, &Options { offline, progress: &progress }) {
        Err(_) if interrupt::seen() => Err(Interrupted.into()),
        resolved => Ok(resolved?),
    }
}

/// The model's files and its metadata and tensors.
pub(crate) fn open(options: &ModelOptions) -> anyhow::Result<(LocalModel, Gguf)> {
    open_named(&options.model, options.offline)
}

/// The same of a model that may be one of several.
pub(crate) fn open_named(model: &str, offline: bool) -> anyhow::Result<(LocalModel, Gguf)> {
    let local = resolve(model, offline)?;
    let file = Gguf::open(&local.path).with_context(|| format!("cannot use the model {}", local.name))?;
    Ok((local, file))
}

/// The draft model that the options name, if they do.
pub(crate) fn draft(options: &LayoutOptions, offline: bool) -> anyhow::Result<Option<DraftFile>> {
    let Some(named) = &options.draft_model else { return Ok(None) };
    if options.draft_max == Some(0) {
        bail!("--draft-model is of no use with --draft-max 0: leave one of them out");
    }
    let (local, file) = open_named(named, offline).context("there is no such --draft-model")?;
    let path = local.path.display().to_string();
    Ok(Some(DraftFile { model: named.clone(), path, model_bytes: model_bytes(&file) }))
}
