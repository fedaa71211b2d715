//! What `tokenizer.json` does to text before the model sees it: normalizers and pre-tokenizers.

use serde_json::Value as Json;

use super::json::Document;
use crate::ModelError;
use crate::gguf::{Array, Metadata, Value};
use crate::tokenizer::words::{COMPOSES, STEPS, Step, TAKES_WHOLE_WORDS};

/// The alternatives for white space with which nearly all patterns end.
const WHITE_SPACE: &str = r"|\s+(?!\S)|\s+";
/// How the library's own byte-level step cuts words.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+";

/// How text is cut into words.
#[derive(Debug, Default)]
pub(super) struct Words {
    steps: Vec<Step>,
    composes: bool,
}

impl Words {
    pub(super) fn describe(&self, takes_whole_words: bool, metadata: &mut Metadata) {
        let steps: Vec<_> = self.steps.iter().map(Step::written).collect();
        metadata.insert(STEPS.to_owned(), Value::Array(Array::Str(steps.iter().map(String::as_str).collect())));
        metadata.insert(COMPOSES.to_owned(), Value::Bool(self.composes));
        metadata.insert(TAKES_WHOLE_WORDS.to_owned(), Value::Bool(takes_whole_words));
    }
}

/// The parts of a pipeline: those of a sequence, or the only one.
fn parts<'a>(document: &'a Document, key: &str, list: &str) -> Vec<&'a Json> {
    match document.get(key) {
        None => Vec::new(),
        Some(part) if kind(part) == "Sequence" => part[list].as_array().into_iter().flatten().collect(),
        Some(part) => vec![part],
    }
}

fn kind(part: &Json) -> &str {
    part["type"].as_str().unwrap_or_default()
}

fn pre_tokenizers(document: &Document) -> Vec<&Json> {
    parts(document, "pre_tokenizer", "pretokenizers")
}

fn normalizers(document: &Document) -> Vec<&Json> {
    parts(document, "normalizer", "normalizers")
}

/// Whether tokens are written in characters that stand for bytes.
pub(super) fn are_bytes(document: &Document) -> bool {
    pre_tokenizers(document)
        .into_iter()
        .chain(parts(document, "decoder", "decoders"))
        .any(|part| kind(part) == "ByteLevel")
}

/// Whether a space is put before a text, where spaces are characters of tokens.
pub(super) fn adds_space(document: &Document) -> bool {
    let prepends = |part: &&Json| match kind(part) {
        "Prepend" => true,
        "Metaspace" => {
            part["prepend_scheme"].as_str().map_or(part["add_prefix_space"] != false, |scheme| scheme != "never")
        }
        _ => false,
    };
    normalizers(document).iter().chain(&pre_tokenizers(document)).any(prepends)
}

/// The token that is put before a text, and the one behind it.
pub(super) fn added_around(document: &Document) -> [Option<&str>; 2] {
    let template =
        parts(document, "post_processor", "processors").into_iter().find(|part| kind(part) == "TemplateProcessing");
    let Some(single) = template.and_then(|template| template["single"].as_array()) else { return [None; 2] };
    [single.first(), single.last()].map(|part| part?["SpecialToken"]["id"].as_str())
}

/// Reads how a byte-level tokenizer cuts text.
pub(super) fn read(document: &Document) -> Result<Words, ModelError> {
    let mut words = Words::default();
    for part in normalizers(document) {
        match kind(part) {
            "NFC" => words.composes = true,
            other => return Err(document.unsupported(format!("the normalizer {other}"), "supported is NFC")),
        }
    }
    for part in pre_tokenizers(document) {
        match kind(part) {
            "ByteLevel" if part["use_regex"] == false => {}
            "ByteLevel" => words.steps.push(Step::Words(GPT2.into())),
            "Digits" if part["individual_digits"] == true => words.steps.push(Step::Matches(r"\p{N}".into())),
            "Digits" => words.steps.push(Step::Matches(r"\p{N}+".into())),
            "Split" => words.steps.push(split(document, part)?),
            other => {
                let advice = "supported are ByteLevel, Digits and Split";
                return Err(document.unsupported(format!("the pre-tokenizer {other}"), advice));
            }
        }
        if part["add_prefix_space"] == true {
            return Err(
                document.unsupported("a space put before words (add_prefix_space)", "use a GGUF file of the model")
            );
        }
    }
    if let Some(step) = words.steps.iter().find(|step| !step.is_valid()) {
        let advice = "use a GGUF file of the model";
        return Err(document.unsupported(format!("the pattern {:?} of the pre-tokenizer", step.pattern()), advice));
    }
    Ok(words)
}

/// A step that cuts text at matches of a pattern, so that these and what is between them become words.
fn split(document: &Document, part: &Json) -> Result<Step, ModelError> {
    let pattern = &part["pattern"];
    let isolates = part["behavior"] == "Isolated" && part["invert"] != true;
    // Words are all that the pattern matches, and it matches everything.
    let keeps_matches = part["behavior"] == "Removed" && part["invert"] == true;
    let pattern = match (pattern["Regex"].as_str(), pattern["String"].as_str()) {
        (Some(regex), _) if isolates || keeps_matches => regex.to_owned(),
        (None, Some(text)) if isolates => {
            text.chars().map(|character| format!(r"\x{{{:x}}}", u32::from(character))).collect()
        }
        _ => {
            let what = format!("the behavior {} of a Split pre-tokenizer", part["behavior"]);
            return Err(document.unsupported(what, "supported is Isolated"));
        }
    };
    Ok(match pattern.strip_suffix(WHITE_SPACE) {
        Some(words) => Step::Words(words.to_owned().into()),
        None => Step::Matches(pattern.into()),
    })
}
