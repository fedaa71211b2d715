//! Chat templates: a conversation to the text that the model was trained on.
//!
//! Models ship their template in Jinja, written for the environment of the Python library `transformers`; this module
//! provides the same: its options, its functions, and the methods of Python's strings, lists and dicts.

mod content;
mod environment;
mod json;
mod python;
mod tools;

use std::thread;

use minijinja::value::{Serde, Value as Variable};
use minijinja::{Environment, Error, ErrorKind};
use serde_json::{Map, Value};

use crate::{Gguf, ModelError, Tokenizer};
use content::ContentForm;
use environment::Refusal;
pub use tools::ToolForm;

/// A model's chat template, parsed.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// Variables for the texts of special tokens, such as `bos_token`.
    tokens: SpecialTexts,
    /// How the default template takes the content of messages, and how the template for tools does.
    forms: [ContentForm; 2],
    tool_form: ToolForm,
}

/// A conversation and what the template should know about it.
#[derive(Debug, Clone, Default)]
pub struct ChatInput {
    /// The messages, an array of objects with `role` and `content`.
    ///
    /// Content is a string or an array of parts. Where a template only understands strings, parts of the type `text`
    /// are joined with line ends between them; where it only understands parts, a string becomes one part.
    pub messages: Value,
    /// The tools that the model may call, an array in OpenAI's form.
    pub tools: Option<Value>,
    /// Whether to end with the beginning of the model's answer.
    pub add_generation_prompt: bool,
    /// More variables for the template, such as `enable_thinking`.
    pub extra: Map<String, Value>,
}

/// The texts of special tokens that templates refer to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTexts {
    /// Begins a text (`bos_token`).
    pub bos: Option<String>,
    /// Ends a text (`eos_token`).
    pub eos: Option<String>,
    /// Stands for unknown text (`unk_token`).
    pub unknown: Option<String>,
    /// Fills batches up (`pad_token`).
    pub padding: Option<String>,
}

const TEMPLATE: &str = "tokenizer.chat_template";
/// The template that a model uses unless there are tools.
const DEFAULT: &str = "default";
/// The name that models with several templates give to the one for tools.
const TOOL_USE: &str = "tool_use";

/// The work that a template may do before it is stopped, in instructions of the template engine or 64 bytes of text
/// each; published templates need a few hundred a message.
const FUEL: u64 = 2_000_000;
/// The longest template. Published ones have up to 40 KB.
const MAX_SOURCE_BYTES: usize = 256 << 10;
/// The stack that templates run on. Only what is touched takes memory.
const STACK_BYTES: usize = 256 << 20;
/// How deep loops, blocks and macros may be nested or call themselves.
const RECURSION_LIMIT: usize = 200;

impl ChatTemplate {
    /// Reads the templates that a model ships: `tokenizer.chat_template`, and `tokenizer.chat_template.tool_use` for
    /// conversations with tools. None if it ships none.
    ///
    /// # Errors
    /// When a template cannot be parsed or is no string.
    pub fn from_gguf(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>, ModelError> {
        let metadata = gguf.metadata();
        let tool_use = metadata.find_str(&format!("{TEMPLATE}.{TOOL_USE}"))?;
        let default = match metadata.find_str(TEMPLATE)? {
            Some(template) => Some(template),
            None => metadata.find_str(&format!("{TEMPLATE}.{DEFAULT}"))?,
        };
        let Some(default) = default.or(tool_use) else { return Ok(None) };
        let text = |token: Option<u32>| token.map(|id| tokenizer.token_text(id).to_owned());
        let tokens = SpecialTexts {
            bos: text(tokenizer.bos()),
            eos: text(tokenizer.eos()),
            unknown: text(tokenizer.unknown()),
            padding: text(tokenizer.padding()),
        };
        ChatTemplate::new(default, tool_use, tokens).map(Some)
    }

    /// Parses a template and, if there is one, the template for conversations with tools.
    ///
    /// # Errors
    /// When a template cannot be parsed.
    pub fn new(default: &str, tool_use: Option<&str>, tokens: SpecialTexts) -> Result<ChatTemplate, ModelError> {
        let mut environment = environment::environment();
        for (name, source) in [(DEFAULT, Some(default)), (TOOL_USE, tool_use)] {
            if let Some(source) = source {
                environment = apart(name, || parse(environment, name, source))?;
            }
        }
        let forms = [ContentForm::Either; 2];
        let mut template = ChatTemplate { environment, tokens, forms, tool_form: ToolForm::Unknown };
        template.forms = [DEFAULT, TOOL_USE].map(|name| {
            content::probe(|messages| {
                let input = ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() };
                template.render_with(name, &input, &input.messages).ok()
            })
        });
        template.tool_form = tools::probe(|messages, tools| {
            let input = ChatInput { messages, tools: Some(tools), add_generation_prompt: true, ..ChatInput::default() };
            template.render(&input).ok()
        });
        Ok(template)
    }

    /// The form in which the template has the model call tools.
    pub fn tool_form(&self) -> ToolForm {
        self.tool_form
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// When the template refuses the conversation, fails, or does more work than any template should; when the
    /// messages are not an array of objects; when the content has parts that are no text and the template cannot take
    /// them.
    pub fn render(&self, input: &ChatInput) -> Result<String, ModelError> {
        let has_tools = input.tools.as_ref().and_then(Value::as_array).is_some_and(|tools| !tools.is_empty());
        let (name, form) = if has_tools && self.environment.get_template(TOOL_USE).is_ok() {
            (TOOL_USE, self.forms[1])
        } else {
            (DEFAULT, self.forms[0])
        };
        let messages = form.adapt(&input.messages)?;
        self.render_with(name, input, &messages)
    }

    fn render_with(&self, name: &str, input: &ChatInput, messages: &Value) -> Result<String, ModelError> {
        let texts = [
            ("bos_token", &self.tokens.bos),
            ("eos_token", &self.tokens.eos),
            ("unk_token", &self.tokens.unknown),
            ("pad_token", &self.tokens.padding),
        ];
        let texts = texts.into_iter().filter_map(|(name, text)| Some((name, Variable::from(text.as_deref()?))));
        let extra = input.extra.iter().map(|(name, value)| (name.as_str(), Variable::from(Serde(value))));
        // Where there are no tools or documents, they are Python's None rather than undefined.
        let documents = (!input.extra.contains_key("documents")).then(|| ("documents", Variable::from(())));
        let fixed = [
            ("messages", Variable::from(Serde(messages))),
            ("tools", Variable::from(Serde(&input.tools))),
            ("add_generation_prompt", Variable::from(input.add_generation_prompt)),
        ];
        let variables = Variable::from_pairs(texts.chain(extra).chain(documents).chain(fixed));
        apart(name, || self.environment.get_template(name)?.render(variables))
    }
}

/// Adds a template to an environment.
fn parse(
    mut environment: Environment<'static>,
    name: &'static str,
    source: &str,
) -> Result<Environment<'static>, Error> {
    if source.len() > MAX_SOURCE_BYTES {
        let problem = format!("it has {} bytes, more than {MAX_SOURCE_BYTES}", source.len());
        return Err(Error::new(ErrorKind::SyntaxError, problem));
    }
    environment.add_template_owned(name, environment::without_generation_tags(source))?;
    Ok(environment)
}

/// Runs the template engine on a stack of its own. The engine goes as deep as expressions and values are nested,
/// which only the size of the template and the fuel limit; on the caller's stack this could end the process.
fn apart<T: Send>(template: &str, work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, ModelError> {
    let failed = |problem: String| ModelError::Template { template: template.to_owned(), line: None, problem };
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("chat-template".to_owned()).stack_size(STACK_BYTES);
        // Errors can hold values, so they are translated, and dropped, over there.
        let work = || work().map_err(|error| template_error(template, &error));
        let worker = builder.spawn_scoped(scope, work).map_err(|error| failed(format!("cannot start it: {error}")))?;
        worker.join().unwrap_or_else(|_| Err(failed("the template engine panicked".to_owned())))
    })
}

/// Translates an error of the template engine.
fn template_error(template: &str, error: &Error) -> ModelError {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    let mut problem = String::new();
    while let Some(error) = cause {
        if let Some(Refusal(message)) = error.downcast_ref() {
            return ModelError::TemplateRefused { message: message.clone() };
        }
        if !problem.is_empty() {
            problem.push_str(": ");
        }
        match error.downcast_ref::<Error>() {
            // Its own text repeats the template and the line.
            Some(error) => match error.detail() {
                Some(detail) => problem.push_str(&format!("{}: {detail}", error.kind())),
                None => problem.push_str(&error.kind().to_string()),
            },
            None => problem.push_str(&error.to_string()),
        }
        cause = error.source();
    }
    ModelError::Template { template: template.to_owned(), line: error.line(), problem }
}
