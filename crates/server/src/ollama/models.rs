//! `/api/version`, `/api/tags`, `/api/ps` and `/api/show`.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use engine::ModelInfo;
use serde_json::{Value, json};

use crate::app::App;
use crate::body::JsonBody;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::request;
use crate::stamp::rfc3339;

/// The release of Ollama whose API this is: clients look here for what a server can do.
const OLLAMA_VERSION: &str = "0.6.4";

/// When a model that stays for good is unloaded.
const NEVER: &str = "2318-01-01T00:00:00Z";

pub(super) async fn version() -> Json<Value> {
    Json(json!({"version": OLLAMA_VERSION, "ropewalk": env!("CARGO_PKG_VERSION")}))
}

pub(super) async fn tags(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"models": [listed(app.engine.model())]}))
}

pub(super) async fn running(State(app): State<Arc<App>>) -> Json<Value> {
    let model = app.engine.model();
    let mut running = listed(model);
    running["expires_at"] = NEVER.into();
    running["size_vram"] = 0.into();
    running["context_length"] = model.context.into();
    Json(json!({"models": [running]}))
}

pub(super) async fn show(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>, ApiError> {
    let body = body.parse()?;
    let fields = Fields::of(&body, "")?;
    let model = app.engine.model();
    name(&fields, model)?;
    fields.flag("verbose")?;
    let architecture = &model.details.architecture;
    let context_length = format!("{architecture}.context_length");
    Ok(Json(json!({
        "modelfile": format!("FROM {}", model.id),
        "parameters": "",
        "template": "",
        "details": details(model),
        "model_info": {
            "general.architecture": architecture,
            "general.parameter_count": model.details.parameters,
            context_length: model.context,
        },
        "capabilities": ["completion"],
        "modified_at": loaded(model),
    })))
}

/// The name that a request asks for, if it is the model's, with or without Ollama's default tag.
pub(super) fn name<'a>(fields: &Fields<'a>, model: &ModelInfo) -> Result<&'a str, ApiError> {
    // `name` is what the field was called first.
    let name = match fields.text("name")? {
        Some(name) if fields.value("model").is_none() => name,
        _ => fields.required_text("model")?,
    };
    let untagged = name.strip_suffix(":latest").filter(|untagged| *untagged == model.id);
    request::check_model(untagged.unwrap_or(name), model)?;
    Ok(name)
}

fn listed(model: &ModelInfo) -> Value {
    json!({
        "name": model.id,
        "model": model.id,
        "modified_at": loaded(model),
        "size": model.details.bytes,
        // No digest of the whole file is known.
        "digest": "",
        "details": details(model),
    })
}

fn details(model: &ModelInfo) -> Value {
    let details = &model.details;
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": details.architecture,
        "families": [details.architecture],
        "parameter_size": short(details.parameters),
        "quantization_level": details.quantization,
    })
}

fn loaded(model: &ModelInfo) -> String {
    rfc3339(Duration::from_secs(model.created))
}

/// A number of weights as people say it: `134.5M`, `7.2B`.
fn short(parameters: u64) -> String {
    const UNITS: [(f64, &str); 3] = [(1e9, "B"), (1e6, "M"), (1e3, "K")];
    let parameters = parameters as f64;
    match UNITS.iter().find(|(size, _)| parameters >= *size) {
        Some((size, unit)) => format!("{:.1}{unit}", parameters / size),
        None => format!("{parameters}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        let cases = [(5, "5"), (1500, "1.5K"), (134_515_008, "134.5M"), (7_241_732_096, "7.2B")];
        for (parameters, expected) in cases {
            assert_eq!(short(parameters), expected);
        }
    }
}
