//! `GET /v1/models` and `GET /v1/models/{id}`. Anthropic's clients ask here too, so answers have both forms at once.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use engine::ModelInfo;
use serde::Serialize;

use crate::app::App;
use crate::error::ApiError;
use crate::request;
use crate::stamp::rfc3339;

#[derive(Serialize)]
pub(super) struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// Tokens that prompt and answer together may take, under vLLM's name.
    max_model_len: usize,
    #[serde(flatten)]
    anthropic: AnthropicModel,
}

/// What Anthropic's form of a model has beside the name.
#[derive(Serialize)]
struct AnthropicModel {
    #[serde(rename = "type")]
    kind: &'static str,
    display_name: String,
    created_at: String,
}

#[derive(Serialize)]
pub(super) struct ModelList {
    object: &'static str,
    data: Vec<Model>,
    /// The others are Anthropic's: there is but one page.
    has_more: bool,
    first_id: Option<String>,
    last_id: Option<String>,
}

impl Model {
    fn of(info: &ModelInfo) -> Self {
        let id = info.id.clone();
        let created_at = rfc3339(Duration::from_secs(info.created));
        let anthropic = AnthropicModel { kind: "model", display_name: id.clone(), created_at };
        let (created, max_model_len) = (info.created, info.context);
        Self { id, object: "model", created, owned_by: "ropewalk", max_model_len, anthropic }
    }
}

pub(super) async fn list(State(app): State<Arc<App>>) -> Json<ModelList> {
    let data = vec![Model::of(app.engine.model())];
    let name = |model: Option<&Model>| model.map(|model| model.id.clone());
    let (first_id, last_id) = (name(data.first()), name(data.last()));
    Json(ModelList { object: "list", data, has_more: false, first_id, last_id })
}

pub(super) async fn retrieve(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Model>, ApiError> {
    let info = app.engine.model();
    request::check_model(&id, info)?;
    Ok(Json(Model::of(info)))
}
