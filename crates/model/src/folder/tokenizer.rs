//! `tokenizer.json`, `tokenizer_config.json`, `generation_config.json` and chat templates as metadata under GGUF's keys.
//!
//! `tokenizer.json` is what the Python library `tokenizers` serializes: a model (BPE or unigram), and what is done to text before
//! and after it. Those combinations are read that models use.

use std::path::Path;

use serde_json::Value as Json;

use super::json::Document;
use super::words::{self, Words};
use crate::ModelError;
use crate::gguf::{Array, Metadata, Strings, Value};

/// How GGUF numbers what tokens are for.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// What has no merge of its own and is never joined.
const UNREACHABLE: f32 = -1e9;

/// Adds to `metadata` what the files in `folder` say of the tokenizer of a model with so many tokens, or more.
pub(super) fn describe(folder: &Path, vocabulary: usize, metadata: &mut Metadata) -> Result<(), ModelError> {
    let document = Document::read(&folder.join("tokenizer.json"))?;
    let model = document.object("model")?.ok_or_else(|| document.bad("model", "is missing"))?;
    let mut tokens = Tokens::default();
    // Files of old leave the type out.
    match model.text("type")?.unwrap_or("BPE") {
        "BPE" if words::are_bytes(&document) => {
            tokens.read_vocabulary(&model)?;
            let words = words::read(&document)?;
            add_byte_level(&model, &words, metadata)?;
        }
        "BPE" => {
            tokens.read_vocabulary(&model)?;
            tokens.score_by_merges(&model)?;
            metadata.insert(key("model"), text("llama"));
            metadata.insert(key("add_space_prefix"), Value::Bool(words::adds_space(&document)));
        }
        other => {
            return Err(
                document.unsupported(format!("a tokenizer of the type {other}"), "supported are those of the type BPE")
            );
        }
    }
    tokens.add(&document, vocabulary)?;
    tokens.describe(metadata);
    let around = words::added_around(&document);
    let settings = Document::find(&folder.join("tokenizer_config.json"))?;
    let generation = Document::find(&folder.join("generation_config.json"))?;
    add_roles(&tokens, settings.as_ref(), generation.as_ref(), around, metadata)?;
    let flag = |name: &str| settings.as_ref().map(|settings| settings.flag(name)).transpose().map(Option::flatten);
    metadata.insert(key("add_bos_token"), Value::Bool(flag("add_bos_token")?.unwrap_or(around[0].is_some())));
    metadata.insert(key("add_eos_token"), Value::Bool(flag("add_eos_token")?.unwrap_or(around[1].is_some())));
    add_templates(folder, settings.as_ref(), metadata)
}

fn key(name: &str) -> String {
    format!("tokenizer.ggml.{name}")
}

fn text(value: &str) -> Value {
    Value::Str(value.into())
}

fn add_byte_level(model: &Document, words: &Words, metadata: &mut Metadata) -> Result<(), ModelError> {
    metadata.insert(key("model"), text("gpt2"));
    metadata.insert(key("merges"), Value::Array(Array::Str(merges(model)?.iter().map(String::as_str).collect())));
    words.describe(model.flag("ignore_merges")?.unwrap_or(false), metadata);
    Ok(())
}

/// The merges, each as two halves with a space between them.
fn merges(model: &Document) -> Result<Vec<String>, ModelError> {
    let wrong = || model.bad("merges", "must be a list of pairs");
    let list = model.get("merges").and_then(Json::as_array).ok_or_else(wrong)?;
    let read = |merge: &Json| match merge {
        Json::String(merge) => Ok(merge.clone()),
        Json::Array(halves) => match halves.as_slice() {
            [Json::String(left), Json::String(right)] => Ok(format!("{left} {right}")),
            _ => Err(wrong()),
        },
        _ => Err(wrong()),
    };
    list.iter().map(read).collect()
}

/// The tokens by their number.
#[derive(Default)]
struct Tokens {
    texts: Vec<Option<String>>,
    kinds: Vec<i32>,
    scores: Vec<f32>,
}

impl Tokens {
    /// Tokens a vocabulary may have at most.
    const MAX: u64 = 1 << 24;

    fn put(&mut self, id: u64, text: &str, kind: i32, document: &Document) -> Result<(), ModelError> {
        if id >= Self::MAX {
            return Err(document.bad("vocab", format!("gives {text:?} the number {id}; no vocabulary is that large")));
        }
        let id = id as usize;
        if id >= self.texts.len() {
            self.texts.resize(id + 1, None);
            self.kinds.resize(id + 1, UNUSED);
        }
        self.texts[id] = Some(text.to_owned());
        self.kinds[id] = kind;
        Ok(())
    }

    fn find(&self, text: &str) -> Option<usize> {
        self.texts.iter().position(|found| found.as_deref() == Some(text))
    }

    /// The tokens of a model of the type BPE.
    fn read_vocabulary(&mut self, model: &Document) -> Result<(), ModelError> {
        let wrong = || model.bad("vocab", "must give each token a number");
        let unknown = model.text("unk_token")?;
        let bytes = model.flag("byte_fallback")?.unwrap_or(false);
        for (text, id) in model.get("vocab").and_then(Json::as_object).ok_or_else(wrong)? {
            let kind = match text {
                text if Some(text.as_str()) == unknown => UNKNOWN,
                text if bytes && text.len() == 6 && text.starts_with("<0x") && text.ends_with('>') => BYTE,
                _ => NORMAL,
            };
            self.put(id.as_u64().ok_or_else(wrong)?, text, kind, model)?;
        }
        Ok(())
    }

    /// SentencePiece joins what makes the token with the best score: merges are in the order of these.
    fn score_by_merges(&mut self, model: &Document) -> Result<(), ModelError> {
        let ids: std::collections::HashMap<&str, usize> =
            self.texts.iter().enumerate().filter_map(|(id, text)| Some((text.as_deref()?, id))).collect();
        let mut scores = vec![UNREACHABLE; self.texts.len()];
        for (rank, merge) in merges(model)?.iter().enumerate() {
            let joined = merge.replacen(' ', "", 1);
            let id = *ids.get(joined.as_str()).ok_or_else(|| {
                model.bad("merges", format!("has {merge:?} at position {rank}, but the vocabulary lacks {joined:?}"))
            })?;
            if scores[id] == UNREACHABLE {
                scores[id] = -(rank as f32);
            }
        }
        self.scores = scores;
        Ok(())
    }

    /// The tokens that were added to the model's, and names for rows of the embedding that have no token.
    fn add(&mut self, document: &Document, vocabulary: usize) -> Result<(), ModelError> {
        for token in document.get("added_tokens").and_then(Json::as_array).into_iter().flatten() {
            let wrong = || document.bad("added_tokens", "must have a number and a content each");
            let (id, content) = (token["id"].as_u64().ok_or_else(wrong)?, token["content"].as_str().ok_or_else(wrong)?);
            let special = token["special"].as_bool().unwrap_or(false);
            let known = self.kinds.get(id as usize).copied();
            let kind = match known {
                Some(UNKNOWN) => UNKNOWN,
                _ if special => CONTROL,
                _ => USER_DEFINED,
            };
            self.put(id, content, kind, document)?;
        }
        if self.texts.len() < vocabulary {
            self.texts.resize(vocabulary, None);
            self.kinds.resize(vocabulary, UNUSED);
        }
        Ok(())
    }

    fn describe(&self, metadata: &mut Metadata) {
        let mut texts = Strings::default();
        for (id, token) in self.texts.iter().enumerate() {
            match token {
                Some(token) => texts.push(token),
                None => texts.push(&format!("[PAD{id}]")),
            }
        }
        if !self.scores.is_empty() {
            let mut scores = self.scores.clone();
            scores.resize(self.texts.len(), UNREACHABLE);
            metadata.insert(key("scores"), Value::Array(Array::F32(scores.into())));
        }
        metadata.insert(key("tokens"), Value::Array(Array::Str(texts)));
        metadata.insert(key("token_type"), Value::Array(Array::I32(self.kinds.clone().into())));
    }
}

/// The tokens with roles: those at which `generation_config.json` ends an answer, those that `tokenizer_config.json` names, and
/// else those that are put around a text.
fn add_roles(
    tokens: &Tokens,
    settings: Option<&Document>,
    generation: Option<&Document>,
    around: [Option<&str>; 2],
    metadata: &mut Metadata,
) -> Result<(), ModelError> {
    let mut add = |role: &str, id: u64| metadata.insert(key(role), Value::U64(id));
    if let Some(generation) = generation {
        let ends: Vec<u64> = match generation.get("eos_token_id") {
            Some(Json::Array(ids)) => ids.iter().filter_map(Json::as_u64).collect(),
            id => id.and_then(Json::as_u64).into_iter().collect(),
        };
        for (role, id) in ["eos_token_id", "eot_token_id", "eom_token_id"].into_iter().zip(ends) {
            if id >= tokens.texts.len() as u64 {
                return Err(generation.bad("eos_token_id", format!("names token {id}, which there is not")));
            }
            add(role, id);
        }
    }
    for (name, role) in [
        ("bos_token", "bos_token_id"),
        ("eos_token", "eos_token_id"),
        ("unk_token", "unknown_token_id"),
        ("pad_token", "padding_token_id"),
    ] {
        let content = settings
            .and_then(|settings| settings.get(name))
            .and_then(|token| token.as_str().or_else(|| token["content"].as_str()));
        if let Some(id) = content.and_then(|content| tokens.find(content)) {
            add(role, id as u64);
        }
    }
    for (role, content) in ["bos_token_id", "eos_token_id"].into_iter().zip(around) {
        if let Some(id) = content.and_then(|content| tokens.find(content)) {
            add(role, id as u64);
        }
    }
    Ok(())
}

/// The chat templates: a file of its own, or in `tokenizer_config.json`, one or several with names.
fn add_templates(folder: &Path, settings: Option<&Document>, metadata: &mut Metadata) -> Result<(), ModelError> {
    const TEMPLATE: &str = "tokenizer.chat_template";
    let file = folder.join("chat_template.jinja");
    if file.is_file() {
        let source = std::fs::read_to_string(&file)
            .map_err(|error| super::json::damaged(&file, format!("it cannot be read: {error}")))?;
        metadata.insert(TEMPLATE.to_owned(), Value::Str(source.into()));
        return Ok(());
    }
    match settings.and_then(|settings| settings.get("chat_template")) {
        Some(Json::String(source)) => {
            metadata.insert(TEMPLATE.to_owned(), text(source));
        }
        Some(Json::Array(templates)) => {
            for template in templates {
                if let (Some(name), Some(source)) = (template["name"].as_str(), template["template"].as_str()) {
                    metadata.insert(format!("{TEMPLATE}.{name}"), text(source));
                }
            }
        }
        _ => {}
    }
    Ok(())
}
