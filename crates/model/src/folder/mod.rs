//! Checkpoints as Hugging Face's libraries write them: a folder with `config.json`, tensors in safetensors files, and
//! `tokenizer.json` beside them.
//!
//! Such a folder is read as if it were a GGUF file: configuration and tokenizer become metadata under GGUF's keys, and tensors
//! get the names that llama.cpp's converter gives them. So whatever works with a model knows only one form. The tensors' bytes
//! stay where they are, but for the few small ones that GGUF keeps in another form.

mod config;
mod json;
mod names;
mod shards;
mod tokenizer;
mod words;

use std::path::Path;

use crate::gguf::{Metadata, Placed};
use crate::{Gguf, ModelError};
use config::Config;
use json::Document;

/// The name of the file that says what the model is; a folder without it holds no checkpoint.
const CONFIG: &str = "config.json";

impl Gguf {
    /// Opens and checks the checkpoint in a folder.
    ///
    /// # Errors
    /// When a file is missing or broken, tensors do not fit their files, or something is not supported.
    pub fn open_folder(folder: &Path) -> Result<Gguf, ModelError> {
        let document = Document::read(&folder.join(CONFIG))?;
        let config = Config::new(&document)?;
        let mut metadata = Metadata::new(folder.join(CONFIG));
        config.describe(&mut metadata)?;
        let (files, stored) = shards::read(folder)?;
        let mut tensors = Vec::with_capacity(stored.len());
        for tensor in stored {
            if let Some(name) = names::translated(&tensor.info.name, config.architecture())
                && !(name == names::OUTPUT && config.ties_embeddings()?)
            {
                tensors.push(config.adapted(name, tensor)?);
            }
        }
        tensors.extend(config.rope_factors()?.map(|factors| Placed::of_floats(names::ROPE_FACTORS, factors)));
        let vocabulary = tensors.iter().find(|tensor| tensor.info.name == names::EMBEDDING);
        let vocabulary = vocabulary.and_then(|tensor| tensor.info.shape.get(1)).copied().unwrap_or(0);
        tokenizer::describe(folder, vocabulary, &mut metadata)?;
        Gguf::of(files, metadata, tensors)
    }
}
