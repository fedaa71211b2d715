//! Models of the Hugging Face hub. Their files stay in the hub's own cache, where its other clients find them too.

mod api;
mod cache;
mod transfer;

use std::fs;
use std::path::Path;

use crate::catalogue::KnownModel;
use crate::choose::{self, ChoiceError, Several};
use crate::incoming::{Expected, Incoming, digest_of};
use crate::record::ModelFile;
use crate::store::Fetch;
use crate::{HubSource, StoreError};
use api::{Client, RemoteFile};
pub(crate) use cache::remove_file;
use cache::{HubCache, ends_in_digest};

/// Fetches the model file, or all parts of a split one, of a repository into the hub's cache.
pub(crate) fn fetch(fetch: &Fetch<'_>, source: &HubSource) -> Result<Vec<ModelFile>, StoreError> {
    obtain(fetch, source, Expected::default())
}

/// Fetches a model of the catalogue into the hub's cache.
pub(crate) fn fetch_known(
    fetch: &Fetch<'_>,
    known: &KnownModel,
    owner: &str,
    repository: &str,
) -> Result<Vec<ModelFile>, StoreError> {
    let source = HubSource::new(owner, repository, Some(known.file))?;
    obtain(fetch, &source, Expected { bytes: known.bytes, digest: known.digest })
}

fn obtain(fetch: &Fetch<'_>, source: &HubSource, promised: Expected) -> Result<Vec<ModelFile>, StoreError> {
    let hub = &fetch.settings.hub;
    let cache = HubCache::open(hub, source)?;
    if let Some(switch) = fetch.offline.or(hub.offline.then_some("HF_HUB_OFFLINE")) {
        let found = from_cache(fetch, source, &cache, promised)?;
        return found.ok_or_else(|| StoreError::Offline { model: fetch.model.to_owned(), switch });
    }
    let client = Client::new(hub, source)?;
    let listing = match client.listing(fetch.progress) {
        Ok(listing) => listing,
        Err(error @ StoreError::Network { .. }) => {
            return match from_cache(fetch, source, &cache, promised) {
                Ok(Some(files)) => {
                    tracing::warn!("{error}; using the copy in the hub's cache");
                    Ok(files)
                }
                _ => Err(error),
            };
        }
        Err(error) => return Err(error),
    };
    let names: Vec<String> = listing.files.iter().map(|file| file.name.clone()).collect();
    let chosen = choose::choose(&names, source.file(), Several::PreferUsual);
    let chosen = chosen.map_err(|error| choice_error(source, error))?;
    let remote = chosen.iter().filter_map(|name| listing.files.iter().find(|file| file.name == *name));
    remote.map(|file| obtain_file(fetch, &client, &cache, &listing.commit, file, promised)).collect()
}

/// One file of a snapshot: what the hub's cache has of it is used, the rest is downloaded.
fn obtain_file(
    fetch: &Fetch<'_>,
    client: &Client<'_>,
    cache: &HubCache,
    commit: &str,
    file: &RemoteFile,
    promised: Expected,
) -> Result<ModelFile, StoreError> {
    let expected = Expected { bytes: promised.bytes.or(file.bytes), digest: promised.digest.or(file.digest) };
    let blob = file.blob_name(commit);
    let _lock = cache.lock(&blob, &file.name, fetch.progress)?;
    let pointer = cache.pointer(commit, &file.name);
    if let Some((bytes, digest)) = intact(fetch, &cache.blob(&blob), &file.name, expected)? {
        cache.link(&blob, commit, &file.name)?;
        return Ok(ModelFile { path: pointer, bytes, digest: Some(digest) });
    }
    let incomplete = cache.incomplete(&blob)?;
    fetch.progress.start(&format!("downloading {}", file.name), expected.bytes);
    let mut incoming = Incoming::resume(fetch.disk, &incomplete, &file.name, fetch.progress)?;
    incoming.keep();
    transfer::download(
        client,
        &client.file_url(commit, &file.name),
        &file.name,
        expected.bytes,
        &mut incoming,
        fetch.progress,
    )?;
    let (bytes, digest) = incoming.finish(expected)?;
    fetch.progress.finish();
    cache.land(&incomplete, &blob, commit, &file.name)?;
    Ok(ModelFile { path: pointer, bytes, digest: Some(digest) })
}

/// The model in the hub's cache, as this or another program downloaded it, if it is there.
fn from_cache(
    fetch: &Fetch<'_>,
    source: &HubSource,
    cache: &HubCache,
    promised: Expected,
) -> Result<Option<Vec<ModelFile>>, StoreError> {
    let Some(commit) = cache.newest_commit() else { return Ok(None) };
    let chosen = match choose::choose(&cache.files(&commit), source.file(), Several::PreferUsual) {
        Ok(chosen) => chosen,
        Err(ChoiceError::None { .. } | ChoiceError::PartMissing { .. }) => return Ok(None),
        Err(error) => return Err(choice_error(source, error)),
    };
    let mut files = Vec::with_capacity(chosen.len());
    for name in chosen {
        let path = cache.pointer(&commit, &name);
        let expected = Expected { digest: promised.digest.or_else(|| ends_in_digest(&path)), ..promised };
        let Some((bytes, digest)) = intact(fetch, &path, &name, expected)? else { return Ok(None) };
        files.push(ModelFile { path, bytes, digest: Some(digest) });
    }
    Ok(Some(files))
}

/// Reads a file of the hub's cache to verify it; `None` if it is absent or not what it should be.
fn intact(
    fetch: &Fetch<'_>,
    path: &Path,
    name: &str,
    expected: Expected,
) -> Result<Option<(u64, crate::Digest)>, StoreError> {
    let Some(found) = fs::metadata(path).ok().filter(fs::Metadata::is_file) else { return Ok(None) };
    if expected.bytes.is_some_and(|bytes| bytes != found.len()) {
        return Ok(None);
    }
    fetch.progress.start(&format!("checking {name}"), Some(found.len()));
    let (bytes, digest) = digest_of(path, fetch.progress)?;
    fetch.progress.finish();
    if expected.digest.is_some_and(|expected| expected != digest) {
        tracing::warn!("{} is damaged: its SHA-256 is {digest}", path.display());
        return Ok(None);
    }
    Ok(Some((bytes, digest)))
}

fn choice_error(source: &HubSource, error: ChoiceError) -> StoreError {
    let model = format!("hf:{}", source.repository_id());
    match error {
        ChoiceError::None { choices } => {
            let wanted = source.file().map_or_else(|| "GGUF file".to_owned(), |file| format!("file {file}"));
            StoreError::NoModelFile { model, wanted, choices }
        }
        ChoiceError::Several { choices } => StoreError::SeveralModelFiles { model, choices },
        ChoiceError::PartMissing { part } => {
            StoreError::NoModelFile { model, wanted: format!("file {part}"), choices: Vec::new() }
        }
    }
}
