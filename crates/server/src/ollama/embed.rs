//! `POST /api/embed`, and `POST /api/embeddings`, which it replaced.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use engine::{ModelInfo, Pooling, Request};
use model::EncodeOptions;
use serde_json::{Value, json};

use super::answer::nanoseconds;
use super::{models, params};
use crate::app::App;
use crate::body::JsonBody;
use crate::error::{ApiError, Code};
use crate::fields::{self, Fields};
use crate::openai::shortened;
use crate::plan::Plan;
use crate::request;
use crate::run::Run;

/// Most texts in one request.
const TEXTS_MAX: usize = 2048;

pub(super) async fn embed(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>, ApiError> {
    let started = Instant::now();
    let answer = embedded(app, body, "input").await?;
    Ok(Json(json!({
        "model": answer.model,
        "embeddings": answer.embeddings,
        "total_duration": nanoseconds(started.elapsed()),
        "load_duration": nanoseconds(answer.waited),
        "prompt_eval_count": answer.tokens,
    })))
}

pub(super) async fn embeddings(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>, ApiError> {
    let answer = embedded(app, body, "prompt").await?;
    Ok(Json(json!({"embedding": answer.embeddings.into_iter().next().unwrap_or_default()})))
}

struct Embedded {
    model: String,
    embeddings: Vec<Vec<f32>>,
    tokens: usize,
    waited: Duration,
}

/// Carries out a request whose texts are in the field `name`.
async fn embedded(app: Arc<App>, body: JsonBody, name: &'static str) -> Result<Embedded, ApiError> {
    let (lease, call) = app.prepare(body, move |_, body, model| Call::read(body, model, name)).await?;
    if let Some(keep) = call.keep_alive {
        lease.keep_for(keep);
    }
    let waited = lease.waited();
    let tokens = call.plan.prompts.iter().map(Vec::len).sum();
    let mut embeddings = Vec::new();
    if !call.plan.prompts.is_empty() {
        for values in Run::start(app, lease, call.plan)?.embeddings().await? {
            embeddings.push(shortened(values, call.dimensions)?);
        }
    }
    Ok(Embedded { model: call.model, embeddings, tokens, waited })
}

struct Call {
    model: String,
    plan: Plan,
    dimensions: Option<usize>,
    keep_alive: Option<Option<Duration>>,
}

impl Call {
    fn read(body: &Value, model: &ModelInfo, name: &'static str) -> Result<Self, ApiError> {
        let fields = Fields::of(body, "")?;
        let asked = models::name(&fields)?.to_owned();
        fields.nested("options")?;
        let (keep_alive, dimensions) = (params::keep_alive(&fields)?, fields.count("dimensions", 1..=u32::MAX)?);
        let truncate = fields.flag("truncate")?.unwrap_or(true);
        let mut prompts = Vec::new();
        for (text, path) in texts(&fields, name)? {
            let options = EncodeOptions { add_special: true, parse_special: false };
            let mut tokens = request::tokenize(model, &path, text, options)?;
            if tokens.is_empty() {
                return Err(ApiError::of_field(Code::InvalidValue, &path, format!("{path} must not be empty")));
            }
            if truncate {
                // One place of the context is kept free.
                tokens.truncate(model.context - 1);
            }
            prompts.push(tokens);
        }
        let request = Request { embed: Some(Pooling::Mean), ..Request::default() };
        let plan = Plan { prompts, prompt_field: name, choices: 1, request, calls: None };
        Ok(Self { model: asked, plan, dimensions, keep_alive })
    }
}

/// The texts in field `name`, one or several, and where they stand. Without any, the model is only loaded.
fn texts<'a>(fields: &Fields<'a>, name: &str) -> Result<Vec<(&'a str, String)>, ApiError> {
    match fields.value(name) {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![(text.as_str(), name.to_owned())]),
        Some(Value::Array(texts)) if texts.len() > TEXTS_MAX => {
            let problem = format!("has {} texts, but at most {TEXTS_MAX} are allowed", texts.len());
            Err(fields.error(Code::InvalidValue, name, problem))
        }
        Some(Value::Array(texts)) => {
            let read = |(index, text): (usize, &'a Value)| {
                let path = format!("{name}[{index}]");
                let text = text.as_str().ok_or_else(|| fields::wrong_type(&path, "a string", text))?;
                Ok((text, path))
            };
            texts.iter().enumerate().map(read).collect()
        }
        Some(other) => Err(fields::wrong_type(name, "a string or an array of strings", other)),
    }
}
