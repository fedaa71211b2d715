//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use engine::ModelInfo;
use serde::Serialize;

use crate::app::App;
use crate::error::ApiError;
use crate::request;

#[derive(Serialize)]
pub(super) struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// Tokens that prompt and answer together may take, under vLLM's name.
    max_model_len: usize,
}

#[derive(Serialize)]
pub(super) struct ModelList {
    object: &'static str,
    data: Vec<Model>,
}

impl Model {
    fn of(info: &ModelInfo) -> Self {
        let id = info.id.clone();
        Self { id, object: "model", created: info.created, owned_by: "ropewalk", max_model_len: info.context }
    }
}

pub(super) async fn list(State(app): State<Arc<App>>) -> Json<ModelList> {
    Json(ModelList { object: "list", data: vec![Model::of(app.engine.model())] })
}

pub(super) async fn retrieve(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Model>, ApiError> {
    let info = app.engine.model();
    request::check_model(&id, info)?;
    Ok(Json(Model::of(info)))
}
