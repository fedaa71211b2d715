//! `GET /v1/models` and `GET /v1/models/{id}`. Anthropic's clients ask here too, so answers have both forms at once.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;

use crate::app::App;
use crate::error::ApiError;
use crate::models::{Offer, Presence};
use crate::stamp::rfc3339;

#[derive(Serialize)]
pub(super) struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// Tokens that prompt and answer together may take, under vLLM's name.
    max_model_len: usize,
    status: ModelStatus,
    #[serde(flatten)]
    anthropic: AnthropicModel,
}

/// Whether a model is in memory, under llama.cpp's name.
#[derive(Serialize)]
struct ModelStatus {
    value: &'static str,
    /// The share that is loaded, while it is being loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<f64>,
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
    fn of((offer, presence): (&Offer, Presence)) -> Self {
        let Offer { id, created, context, .. } = offer.clone();
        let created_at = rfc3339(Duration::from_secs(created));
        let (value, progress) = match presence {
            Presence::Absent => ("unloaded", None),
            Presence::Loading(share) => ("loading", Some(share)),
            Presence::Ready { .. } => ("loaded", None),
        };
        let status = ModelStatus { value, progress };
        let anthropic = AnthropicModel { kind: "model", display_name: id.clone(), created_at };
        Self { id, object: "model", created, owned_by: "ropewalk", max_model_len: context, status, anthropic }
    }
}

pub(super) async fn list(State(app): State<Arc<App>>) -> Json<ModelList> {
    let data: Vec<_> = app.models.offers().map(Model::of).collect();
    let name = |model: Option<&Model>| model.map(|model| model.id.clone());
    let (first_id, last_id) = (name(data.first()), name(data.last()));
    Json(ModelList { object: "list", data, has_more: false, first_id, last_id })
}

pub(super) async fn retrieve(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Model>, ApiError> {
    Ok(Json(Model::of(app.models.offer(Some(&id))?)))
}
