//! `POST /v1/embeddings`

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use engine::{ModelInfo, Pooling, Request};
use serde_json::{Value, json};

use super::prompt;
use crate::app::App;
use crate::body::JsonBody;
use crate::error::{ApiError, Code};
use crate::fields::Fields;
use crate::plan::Plan;
use crate::run::Run;

pub(super) async fn embeddings(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>, ApiError> {
    let (lease, call) = app.prepare(body, |_, body, model| Call::read(body, model)).await?;
    let model = lease.model().id.clone();
    let Call { plan, base64, dimensions } = call;
    let tokens: usize = plan.prompts.iter().map(Vec::len).sum();
    let embeddings = Run::start(app, lease, plan)?.embeddings().await?;
    let mut data = Vec::new();
    for (index, values) in embeddings.into_iter().enumerate() {
        let values = shortened(values, dimensions)?;
        let embedding = if base64 {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            STANDARD.encode(bytes).into()
        } else {
            json!(values)
        };
        data.push(json!({"object": "embedding", "index": index, "embedding": embedding}));
    }
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    Ok(Json(json!({"object": "list", "data": data, "model": model, "usage": usage})))
}

/// What a request asks for.
struct Call {
    plan: Plan,
    base64: bool,
    dimensions: Option<usize>,
}

impl Call {
    fn read(body: &Value, model: &ModelInfo) -> Result<Self, ApiError> {
        let fields = Fields::of(body, "")?;
        fields.required_text("model")?;
        fields.text("user")?;
        let base64 = match fields.text("encoding_format")? {
            None | Some("float") => false,
            Some("base64") => true,
            Some(other) => {
                let problem = format!("is {other:?}, but must be \"float\" or \"base64\"");
                return Err(fields.error(Code::InvalidValue, "encoding_format", problem));
            }
        };
        let dimensions = fields.count("dimensions", 1..=u32::MAX)?;
        let pooling = pooling(&fields)?;
        let prompts = prompt::read_from(&fields, "input", &model.tokenizer)?;
        let prompts = prompts.into_iter().map(|prompt| prompt.tokens).collect();
        let request = Request { embed: Some(pooling), ..Request::default() };
        Ok(Self { plan: Plan { prompts, prompt_field: "input", choices: 1, request, calls: None }, base64, dimensions })
    }
}

/// How tokens become one embedding: `pooling`, under llama.cpp's names. Models that were not trained for embeddings are as
/// good with their mean as with anything.
fn pooling(fields: &Fields<'_>) -> Result<Pooling, ApiError> {
    match fields.text("pooling")? {
        None | Some("mean") => Ok(Pooling::Mean),
        Some("last") => Ok(Pooling::Last),
        Some(other) => {
            Err(fields.error(Code::InvalidValue, "pooling", format!("is {other:?}, but must be \"mean\" or \"last\"")))
        }
    }
}

/// The first `dimensions` values, of length 1 again.
pub(crate) fn shortened(mut values: Vec<f32>, dimensions: Option<usize>) -> Result<Vec<f32>, ApiError> {
    let Some(dimensions) = dimensions.filter(|&dimensions| dimensions != values.len()) else { return Ok(values) };
    if dimensions > values.len() {
        let message = format!("dimensions is {dimensions}, but embeddings of this model have {}", values.len());
        return Err(ApiError::of_field(Code::InvalidValue, "dimensions", message));
    }
    values.truncate(dimensions);
    let length = values.iter().map(|value| value * value).sum::<f32>().sqrt();
    if length > 0.0 {
        values.iter_mut().for_each(|value| *value /= length);
    }
    Ok(values)
}
