//! From MODEL on the command line to an open file.

use anyhow::Context;
use model::Gguf;
use store::{LocalModel, Options, Source, Store};

use crate::interrupt::{self, Interrupted};
use crate::options::ModelOptions;
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
