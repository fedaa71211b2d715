//! The models that a server offers, and how they come into memory.

use std::collections::HashSet;
use std::path::Path;
use std::time::UNIX_EPOCH;

use anyhow::{Context, bail};
use engine::ModelDetails;
use engine::ranks::{DraftFile, Loading, model_bytes};
use model::{Blueprint, Gguf};
use server::{Loaded, Loader, Offer};
use store::LocalModel;

use crate::models;
use crate::options::LayoutOptions;
use crate::session::{Session, Sharing, context_size};

/// Models whose files are on this machine.
pub(crate) struct Offers {
    models: Vec<Known>,
    options: LayoutOptions,
    sharing: Sharing,
}

/// A model that was found.
struct Known {
    /// What the user called it.
    named: String,
    local: LocalModel,
    offer: Offer,
    draft_model: Option<DraftFile>,
}

impl Offers {
    /// Finds `named` models, downloading them if need be and allowed, and all in `folder`.
    pub(crate) fn find(
        named: &[String],
        folder: Option<&Path>,
        offline: bool,
        options: &LayoutOptions,
        sharing: Sharing,
    ) -> anyhow::Result<Self> {
        let found = folder.map(in_folder).transpose()?.unwrap_or_default();
        let models = named.iter().chain(&found).map(|named| Known::open(named, offline, options));
        let mut models = models.collect::<anyhow::Result<Vec<_>>>()?;
        let mut ids = HashSet::new();
        if let Some(twice) = models.iter().find(|known| !ids.insert(&known.offer.id)) {
            bail!("two models are called {:?}: clients could not tell them apart", twice.offer.id);
        }
        for (first, draft_model) in models.iter_mut().zip(models::draft(options, offline)?) {
            first.offer.memory_bytes += draft_model.model_bytes;
            first.draft_model = Some(draft_model);
        }
        Ok(Self { models, options: options.clone(), sharing })
    }

    /// What clients may ask for.
    pub(crate) fn offers(&self) -> Vec<Offer> {
        self.models.iter().map(|known| known.offer.clone()).collect()
    }

    /// Loads the model that requests get which name none.
    pub(crate) fn load_first(&self) -> anyhow::Result<Session> {
        let first = self.models.first().context("there is no model to serve")?;
        self.start(first, &|_| {})
    }

    fn start(&self, known: &Known, report: &dyn Fn(Loading)) -> anyhow::Result<Session> {
        let file = known.file()?;
        let draft_model = known.draft_model.clone();
        Session::start_with(&known.named, &self.options, self.sharing, (&known.local, &file, draft_model), report)
    }
}

impl Known {
    fn open(named: &str, offline: bool, options: &LayoutOptions) -> anyhow::Result<Self> {
        let (local, file) = models::open_named(named, offline)?;
        let blueprint = Blueprint::from_gguf(&file).with_context(|| format!("cannot use the model {}", local.name))?;
        let modified = std::fs::metadata(&local.path).and_then(|metadata| metadata.modified()).ok();
        let created = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0, |age| age.as_secs());
        let offer = Offer {
            id: local.name.clone(),
            created,
            context: context_size(options, &blueprint)?,
            details: ModelDetails::from_gguf(&file),
            memory_bytes: model_bytes(&file),
        };
        Ok(Self { named: named.to_owned(), local, offer, draft_model: None })
    }

    fn file(&self) -> anyhow::Result<Gguf> {
        Gguf::open(&self.local.path).with_context(|| format!("cannot use the model {}", self.local.name))
    }
}

impl Loader for Offers {
    fn load(&self, id: &str, progress: &dyn Fn(u64, u64)) -> Result<Box<dyn Loaded>, String> {
        let known = self.models.iter().find(|known| known.offer.id == id).ok_or("it is not on offer")?;
        match self.start(known, &|loading| progress(loading.done, loading.total)) {
            Ok(session) => Ok(Box::new(session)),
            Err(error) => Err(format!("{error:#}")),
        }
    }
}

/// The models in a folder, by name: GGUF files, of models in several parts the first, and folders in Hugging Face's form.
fn in_folder(folder: &Path) -> anyhow::Result<Vec<String>> {
    let context = || format!("cannot read the folder {} of --models-dir", folder.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(context)? {
        let path = entry.with_context(context)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let further_part = name.rsplit_once("-of-").is_some_and(|(start, _)| !start.ends_with("-00001"));
        let is_file = path.extension().is_some_and(|extension| extension == "gguf") && !further_part;
        if is_file || path.join("config.json").is_file() {
            found.push(path.display().to_string());
        }
    }
    found.sort();
    if found.is_empty() {
        bail!(
            "there is no .gguf file and no folder with a config.json in {}, the folder of --models-dir",
            folder.display()
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_several_models_has_the_draft_model() {
        let tiny = |name: &str| format!("{}/../model/tests/golden/{name}.gguf", env!("CARGO_MANIFEST_DIR"));
        let named = ["tiny-llama", "tiny-llama-q4_1"].map(tiny);
        let find = |draft_model| {
            let options = LayoutOptions { draft_model, ..LayoutOptions::local(1) };
            Offers::find(&named, None, true, &options, Sharing::of(1)).unwrap().models
        };
        let (with, without) = (find(Some(tiny("tiny-llama-q4_0"))), find(None));
        let draft_models: Vec<_> = with.iter().map(|known| known.draft_model.is_some()).collect();
        assert_eq!(draft_models, [true, false]);
        let more = with[0].draft_model.as_ref().unwrap().model_bytes;
        assert_eq!(with[0].offer.memory_bytes, without[0].offer.memory_bytes + more);
        assert_eq!(with[1].offer.memory_bytes, without[1].offer.memory_bytes);
    }
}
