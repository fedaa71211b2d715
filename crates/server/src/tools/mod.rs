//! The tools that a model may call, whatever the API: how it is told of them, what its calls look like, and how they are
//! found in its answer.
//!
//! A model calls tools in the form that its chat template teaches it. Where that is none that is known here, it is taught
//! one by a paragraph of the system prompt. A constraint holds it to the form and to the schemas of the arguments.

mod object;
mod parser;
mod plain;
mod told;

use engine::guide::{Lead, Structure, Tag};
use engine::{Constraint, ConstraintError, ModelInfo};
use model::ToolForm;
use serde_json::{Map, Value, json};

use crate::error::{ApiError, Code};
use crate::fields::Fields;
pub(crate) use parser::{Parser, Part};
pub(crate) use told::Told;

/// Most tools in a request.
const TOOLS_MAX: usize = 256;
/// Longest name of a tool in bytes.
const NAME_BYTES_MAX: usize = 256;

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tool {
    pub(crate) name: String,
    /// The schema of its arguments.
    pub(crate) parameters: Option<Value>,
    /// Whether its schema must be kept to the letter, so that what is not supported is refused.
    pub(crate) strict: bool,
    /// The field of the request that the schema came from, for errors.
    pub(crate) field: String,
    /// All of it in OpenAI's form, which templates know.
    pub(crate) described: Value,
}

impl Tool {
    /// A tool of these parts.
    pub(crate) fn new(
        name: &str,
        description: Option<&str>,
        parameters: Option<&Value>,
        (strict, field): (bool, String),
    ) -> Self {
        let mut function = Map::new();
        function.insert("name".to_owned(), name.into());
        function.extend(description.map(|text| ("description".to_owned(), text.into())));
        function.extend(parameters.map(|schema| ("parameters".to_owned(), schema.clone())));
        let described = json!({"type": "function", "function": function});
        Self { name: name.to_owned(), parameters: parameters.cloned(), strict, field, described }
    }
}

/// Which tools are to be called.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Choice {
    /// Those that the model likes, or none.
    #[default]
    Auto,
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// How calls are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallForm {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>` anywhere in the text.
    Hermes,
    /// The whole answer is `{"name": …, "parameters": {…}}`.
    Json,
}

impl CallForm {
    /// The form of a model's calls.
    pub(crate) fn of(model: &ModelInfo) -> Self {
        match native(model) {
            ToolForm::Json => Self::Json,
            ToolForm::Hermes | ToolForm::Unknown => Self::Hermes,
        }
    }
}

fn native(model: &ModelInfo) -> ToolForm {
    model.chat_template.as_ref().map_or(ToolForm::Unknown, |template| template.tool_form())
}

/// The tools of a request.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Toolbox {
    pub(crate) tools: Vec<Tool>,
    pub(crate) choice: Choice,
    /// Whether several calls may stand in an answer.
    pub(crate) parallel: bool,
}

impl Toolbox {
    /// Checks the tools and the choice, which stand in these fields, as far as all APIs want the same of them.
    pub(crate) fn check(&self, fields: &Fields<'_>, tools: &str, choice: &str) -> Result<(), ApiError> {
        let invalid = |name: &str, problem: String| Err(fields.error(Code::InvalidValue, name, problem));
        if self.tools.len() > TOOLS_MAX {
            return invalid(tools, format!("has {} tools, but at most {TOOLS_MAX} are allowed", self.tools.len()));
        }
        if let Some(tool) = self.tools.iter().find(|tool| !(1..=NAME_BYTES_MAX).contains(&tool.name.len())) {
            let bytes = tool.name.len();
            return invalid(tools, format!("has a tool whose name has {bytes} bytes, not 1 to {NAME_BYTES_MAX}"));
        }
        match &self.choice {
            Choice::Required | Choice::Named(_) if self.tools.is_empty() => {
                invalid(choice, format!("asks for a call, but there are no {tools}"))
            }
            Choice::Named(name) if !self.tools.iter().any(|tool| tool.name == *name) => {
                invalid(choice, format!("names {name:?}, which is none of the {tools}"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the model may call anything.
    pub(crate) fn is_in_use(&self) -> bool {
        !self.tools.is_empty() && self.choice != Choice::None
    }

    /// What the answer must look like, where it must look like `format` if it calls nothing. `format_field` is where that
    /// came from.
    pub(crate) fn constraint(
        &self,
        form: CallForm,
        format: Option<Constraint>,
        format_field: &str,
    ) -> Result<Option<Constraint>, ApiError> {
        if !self.is_in_use() {
            return Ok(format);
        }
        let called = self.tools.iter().filter(|tool| match &self.choice {
            Choice::Named(name) => tool.name == *name,
            _ => true,
        });
        let lead = match (&self.choice, format, form) {
            (Choice::Required | Choice::Named(_), ..) => Lead::Nothing,
            (_, Some(format), _) => Lead::Other(format),
            (_, None, CallForm::Hermes) => Lead::Until(parser::BEGIN.to_owned()),
            (_, None, CallForm::Json) => Lead::Instead,
        };
        let with_format = matches!(lead, Lead::Other(_));
        let several = self.parallel && !matches!(self.choice, Choice::Named(_));
        let between = several.then(|| if form == CallForm::Json { "; " } else { "\n" }.to_owned());
        let tags: Vec<Tag> = called.map(|tool| tag(tool, form)).collect();
        Constraint::structure(&Structure { lead, tags, between }).map(Some).map_err(|error| {
            let fault = self.fault();
            let field = fault.as_ref().map_or(format_field, |(field, _)| field);
            let error = fault.as_ref().map_or(&error, |(_, error)| error);
            let code = if matches!(error, ConstraintError::Keyword { .. }) {
                Code::UnsupportedValue
            } else {
                Code::InvalidValue
            };
            let where_to = if with_format && fault.is_none() { " together with tools" } else { "" };
            ApiError::of_field(code, field, format!("{field} {error}{where_to}"))
        })
    }

    /// The first tool whose schema is at fault, and its error.
    fn fault(&self) -> Option<(String, ConstraintError)> {
        self.tools.iter().find_map(|tool| {
            let error = Constraint::json_schema(&arguments(tool), tool.strict).err()?;
            Some((tool.field.clone(), error))
        })
    }
}

/// The schema of a tool's arguments, which are an object.
fn arguments(tool: &Tool) -> Value {
    match &tool.parameters {
        Some(Value::Object(schema)) if schema.contains_key("type") || schema.contains_key("$ref") => {
            Value::Object(schema.clone())
        }
        Some(Value::Object(schema)) if !schema.is_empty() => {
            let mut schema = schema.clone();
            schema.insert("type".to_owned(), "object".into());
            Value::Object(schema)
        }
        Some(other @ (Value::Array(_) | Value::String(_) | Value::Number(_))) => other.clone(),
        _ => json!({"type": "object", "properties": {}, "additionalProperties": false}),
    }
}

fn tag(tool: &Tool, form: CallForm) -> Tag {
    let (name, schema, strict) = (Value::from(tool.name.as_str()), arguments(tool), tool.strict);
    let (begin, end) = match form {
        CallForm::Hermes => {
            let begin = format!("{}\n{{\"name\": {name}, \"arguments\": ", parser::BEGIN);
            (begin, format!("}}\n{}", parser::END))
        }
        CallForm::Json => (format!("{{\"name\": {name}, \"parameters\": "), "}".to_owned()),
    };
    Tag { begin, schema, strict, end }
}

/// A call that is complete, or as far as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) name: String,
    /// JSON, as the model wrote it.
    pub(crate) arguments: String,
}

impl Call {
    /// The arguments as an object: empty where they are none, as after a cut.
    pub(crate) fn object(&self) -> Value {
        serde_json::from_str(&self.arguments).ok().filter(Value::is_object).unwrap_or_else(|| json!({}))
    }
}
