//! Rerankers: models that say how well a document answers a query.
//!
//! Those of the kind of Qwen3-Reranker are asked by a prompt whose answer is yes or no. GGUF keeps the prompt as
//! `tokenizer.chat_template.rerank`, and the rows of the output matrix for both answers as `cls.output.weight`, in the order
//! of `ARCHITECTURE.classifier.output_labels`. Files without these rows have them in their output matrix.

use kernels::Matrix;

use crate::{EncodeOptions, Gguf, ModelError, Tokenizer};

const TEMPLATE: &str = "tokenizer.chat_template.rerank";
const HEAD: &str = "cls.output.weight";
const YES: &str = "yes";
const NO: &str = "no";
/// What the template has in place of the query and of the document.
const PLACES: [&str; 2] = ["{query}", "{document}"];

/// How a reranker is asked, and how its answer is read.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranking {
    template: String,
    /// What the hidden state of the last token is multiplied with: the row for yes less the one for no.
    row: Vec<f32>,
}

impl Ranking {
    /// With the text of a prompt that holds `{query}` and `{document}`, and the rows for yes and for no.
    pub fn new(template: impl Into<String>, yes: &[f32], no: &[f32]) -> Self {
        Self { template: template.into(), row: yes.iter().zip(no).map(|(yes, no)| yes - no).collect() }
    }

    /// Reads them from a file, of whose model `tokenizer` is the tokenizer. `None` if it is not a reranker.
    ///
    /// # Errors
    /// When the file says that it is one, but lacks a prompt, or its head is not for the answers yes and no.
    pub fn from_gguf(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<Option<Self>, ModelError> {
        let metadata = gguf.metadata();
        let Some(template) = metadata.find_str(TEMPLATE)? else { return Ok(None) };
        if let Some(missing) = PLACES.iter().find(|place| !template.contains(**place)) {
            return Err(metadata.bad(TEMPLATE, format!("has no {missing}")));
        }
        let architecture = metadata.get_str("general.architecture")?;
        let width = metadata.get_u64(&format!("{architecture}.embedding_length"))? as usize;
        let (matrix, [yes, no]) = if gguf.find(HEAD).is_some() {
            let labels = labels(gguf, &format!("{architecture}.classifier.output_labels"))?;
            (gguf.matrix(HEAD, 2, width)?, labels)
        } else {
            let name = ["output.weight", "token_embd.weight"].into_iter().find(|name| gguf.find(name).is_some());
            let matrix = gguf.matrix(name.unwrap_or("output.weight"), tokenizer.vocabulary(), width)?;
            let token = |text| match tokenizer.encode(text, EncodeOptions::default())?[..] {
                [token] => Ok(token as usize),
                _ => Err(metadata.bad(TEMPLATE, format!("needs a token {text:?}, which the vocabulary lacks"))),
            };
            (matrix, [token(YES)?, token(NO)?])
        };
        Ok(Some(Self::new(template, &row(&matrix, yes), &row(&matrix, no))))
    }

    /// The prompt for a document.
    pub fn prompt(&self, query: &str, document: &str) -> String {
        let mut prompt = String::with_capacity(self.template.len() + query.len() + document.len());
        let mut rest = self.template.as_str();
        // In one pass, as a query may hold what looks like a place.
        while let Some((start, place)) =
            PLACES.iter().filter_map(|place| rest.find(place).map(|start| (start, *place))).min()
        {
            prompt.push_str(&rest[..start]);
            prompt.push_str(if place == PLACES[0] { query } else { document });
            rest = &rest[start + place.len()..];
        }
        prompt + rest
    }

    /// How likely the answer is yes rather than no, from the hidden state of the prompt's last token.
    pub fn score(&self, hidden: &[f32]) -> f32 {
        let lead: f64 = self.row.iter().zip(hidden).map(|(row, value)| f64::from(*row) * f64::from(*value)).sum();
        (1.0 / (1.0 + (-lead).exp())) as f32
    }
}

/// The rows for yes and for no.
fn labels(gguf: &Gguf, key: &str) -> Result<[usize; 2], ModelError> {
    let metadata = gguf.metadata();
    let Some(labels) = metadata.find_array_str(key)? else { return Ok([0, 1]) };
    let place = |label| labels.iter().position(|found| found == label);
    match (place(YES), place(NO), labels.len()) {
        (Some(yes), Some(no), 2) => Ok([yes, no]),
        _ => Err(metadata.bad(key, "does not name the answers yes and no")),
    }
}

fn row(matrix: &Matrix, index: usize) -> Vec<f32> {
    let mut values = vec![0.0; matrix.columns()];
    matrix.row_into(index, &mut values);
    values
}
