//! `/api/version`, `/api/tags`, `/api/ps` and `/api/show`.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::app::App;
use crate::body::JsonBody;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::models::{Offer, Presence};
use crate::request::model_name;
use crate::stamp::{now, rfc3339};

/// The release of Ollama whose API this is: clients look here for what a server can do.
const OLLAMA_VERSION: &str = "0.6.4";

/// When a model that stays for good is unloaded.
const NEVER: &str = "2318-01-01T00:00:00Z";

pub(super) async fn version() -> Json<Value> {
    Json(json!({"version": OLLAMA_VERSION, "ropewalk": env!("CARGO_PKG_VERSION")}))
}

pub(super) async fn tags(State(app): State<Arc<App>>) -> Json<Value> {
    let models: Vec<_> = app.models.offers().map(|(offer, _)| listed(offer)).collect();
    Json(json!({"models": models}))
}

pub(super) async fn running(State(app): State<Arc<App>>) -> Json<Value> {
    let running = |(offer, presence): (&Offer, Presence)| {
        let Presence::Ready { expires_in } = presence else { return None };
        let mut running = listed(offer);
        running["expires_at"] = expires_in.map_or_else(|| NEVER.to_owned(), |left| rfc3339(now() + left)).into();
        running["size_vram"] = 0.into();
        running["context_length"] = offer.context.into();
        Some(running)
    };
    let models: Vec<_> = app.models.offers().filter_map(running).collect();
    Json(json!({"models": models}))
}

pub(super) async fn show(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>, ApiError> {
    let body = body.parse()?;
    let fields = Fields::of(&body, "")?;
    name(&fields)?;
    let (model, _) = app.models.offer(model_name(&body))?;
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
        "capabilities": ["completion", "tools", "embedding"],
        "modified_at": modified(model),
    })))
}

/// The name of the model that a request asks for, which it has to.
pub(super) fn name<'a>(fields: &Fields<'a>) -> Result<&'a str, ApiError> {
    // `name` is what the field was called first.
    match fields.text("name")? {
        Some(name) if fields.value("model").is_none() => Ok(name),
        _ => fields.required_text("model"),
    }
}

fn listed(model: &Offer) -> Value {
    json!({
        "name": model.id,
        "model": model.id,
        "modified_at": modified(model),
        "size": model.details.bytes,
        // No digest of the whole file is known.
        "digest": "",
        "details": details(model),
    })
}

fn details(model: &Offer) -> Value {
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

fn modified(model: &Offer) -> String {
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
