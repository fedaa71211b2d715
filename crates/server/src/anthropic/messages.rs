//! `POST /v1/messages` and `POST /v1/messages/count_tokens`

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use engine::ModelInfo;
use serde_json::{Value, json};

use super::answer::Message;
use super::conversation::{self, Conversation};
use super::{params, tools};
use crate::app::App;
use crate::body::JsonBody;
use crate::error::{ApiError, Code};
use crate::fields::Fields;
use crate::plan::Plan;
use crate::run::Run;
use crate::sse;
use crate::tools::{CallForm, Choice};

pub(super) async fn create(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response, ApiError> {
    let (lease, Call { plan, stream }) = app.prepare(body, |_, body, model| Call::read(body, model)).await?;
    let message = Message::new(&lease.model().id, plan.request.max_tokens);
    let run = Run::start(Arc::clone(&app), lease, plan)?;
    if stream {
        return Ok(sse::respond(run, message, app.options.keep_alive_interval));
    }
    let (_, answers) = run.collect().await?;
    let [answer] = answers.as_slice() else {
        return Err(ApiError::new(Code::Internal, "the engine did not give one answer"));
    };
    Ok(Json(message.whole(answer)).into_response())
}

pub(super) async fn count_tokens(State(app): State<Arc<App>>, body: JsonBody) -> Result<Json<Value>, ApiError> {
    let count = |_: &App, body: &Value, model: &ModelInfo| {
        let fields = Fields::of(body, "")?;
        params::check(&fields)?;
        Ok(conversation::read(&fields, model, &tools::read(&fields)?)?.prompt.len())
    };
    let (_, tokens) = app.prepare(body, count).await?;
    Ok(Json(json!({"input_tokens": tokens})))
}

/// What a request asks for.
struct Call {
    plan: Plan,
    stream: bool,
}

impl Call {
    fn read(body: &Value, model: &ModelInfo) -> Result<Self, ApiError> {
        let fields = Fields::of(body, "")?;
        params::check(&fields)?;
        let mut request = params::read(&fields)?;
        let stream = fields.flag("stream")?.unwrap_or(false);
        let (toolbox, form) = (tools::read(&fields)?, CallForm::of(model));
        let Conversation { prompt, goes_on } = conversation::read(&fields, model, &toolbox)?;
        if goes_on && (request.constraint.is_some() || matches!(toolbox.choice, Choice::Required | Choice::Named(_))) {
            let problem = "must not end with the assistant's where the answer has to begin with JSON or a call";
            return Err(fields.error(Code::InvalidValue, "messages", problem));
        }
        request.constraint = toolbox.constraint(form, request.constraint.take(), "output_config.format")?;
        let (prompts, calls) = (vec![prompt], toolbox.is_in_use().then_some(form));
        Ok(Self { plan: Plan { prompts, prompt_field: "messages", choices: 1, request, calls }, stream })
    }
}
