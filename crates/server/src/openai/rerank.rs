//! `POST /v1/rerank`: which documents answer a query, as the APIs of Jina and Cohere have it and as vLLM and llama.cpp offer it.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use engine::{ModelInfo, Pooling, Request};
use model::EncodeOptions;
use serde_json::{Value, json};

use crate::app::App;
use crate::body::JsonBody;
use crate::error::{ApiError, Code};
use crate::fields::{self, Fields};
use crate::plan::Plan;
use crate::request;
use crate::run::Run;

/// Most documents in one request.
const DOCUMENTS_MAX: usize = 2048;

pub(super) async fn rerank(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>, ApiError> {
    let (lease, call) = app.prepare(body, |_, body, model| Call::read(body, model)).await?;
    let (name, ranking) = (lease.model().id.clone(), lease.model().ranking.clone());
    let Call { plan, documents, top } = call;
    let tokens: usize = plan.prompts.iter().map(Vec::len).sum();
    let states = Run::start(app, lease, plan)?.embeddings().await?;
    let scores = states.iter().map(|state| ranking.as_ref().map_or(0.0, |ranking| ranking.score(state)));
    let mut ranked: Vec<_> = scores.enumerate().collect();
    ranked.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let result = |(index, score): (usize, f32)| match &documents {
        None => json!({"index": index, "relevance_score": score}),
        Some(texts) => json!({"index": index, "relevance_score": score, "document": {"text": texts[index]}}),
    };
    let results: Vec<_> = ranked.into_iter().take(top).map(result).collect();
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    let id = super::new_id("rerank");
    Ok(Json(json!({"id": id, "object": "list", "model": name, "results": results, "usage": usage})))
}

/// What a request asks for.
struct Call {
    /// A prompt for each document.
    plan: Plan,
    /// The documents, where they are to be sent back.
    documents: Option<Vec<String>>,
    /// Results wanted.
    top: usize,
}

impl Call {
    fn read(body: &Value, model: &ModelInfo) -> Result<Self, ApiError> {
        let fields = Fields::of(body, "")?;
        fields.required_text("model")?;
        let query = fields.required_text("query")?;
        let documents = documents(&fields)?;
        let top = fields.count("top_n", 1..=u32::MAX)?.unwrap_or(documents.len());
        let returned = fields.flag("return_documents")?.unwrap_or(false);
        let Some(ranking) = &model.ranking else {
            let message = format!(
                "the model {:?} cannot rank documents: that takes a reranker, such as Qwen3-Reranker",
                model.id
            );
            return Err(ApiError::of_field(Code::UnsupportedParameter, "model", message));
        };
        let options = EncodeOptions { add_special: true, parse_special: true };
        let prompt =
            |(text, path): &(&str, String)| request::tokenize(model, path, &ranking.prompt(query, text), options);
        let prompts = documents.iter().map(prompt).collect::<Result<_, _>>()?;
        let request = Request { embed: Some(Pooling::Ranking), ..Request::default() };
        let plan = Plan { prompts, prompt_field: "documents", choices: 1, request, calls: None };
        let texts = || documents.iter().map(|(text, _)| (*text).to_owned()).collect();
        Ok(Self { plan, documents: returned.then(texts), top })
    }
}

/// The texts in `documents`, plain or each as an object's `text`, and where they stand.
fn documents<'a>(fields: &Fields<'a>) -> Result<Vec<(&'a str, String)>, ApiError> {
    let name = "documents";
    let documents = match fields.value(name).ok_or_else(|| fields.missing(name))? {
        Value::Array(documents) => documents,
        other => return Err(fields::wrong_type(name, "an array of texts", other)),
    };
    if documents.is_empty() || documents.len() > DOCUMENTS_MAX {
        let problem = format!("has {} texts, but between 1 and {DOCUMENTS_MAX} are allowed", documents.len());
        return Err(fields.error(Code::InvalidValue, name, problem));
    }
    let read = |(index, document): (usize, &'a Value)| {
        let path = format!("{name}[{index}]");
        let text = document.as_str().or_else(|| document.get("text").and_then(Value::as_str));
        Ok((text.ok_or_else(|| fields::wrong_type(&path, "a string or an object with a text", document))?, path))
    };
    documents.iter().enumerate().map(read).collect()
}
