//! A conversation as the template gets it, tools included.

use engine::ModelInfo;
use model::ToolForm;
use serde_json::Value;

use super::{Toolbox, native, plain};

/// Messages and tools in a form that the model's template can write.
#[derive(Debug, PartialEq)]
pub(crate) struct Told {
    pub(crate) messages: Value,
    pub(crate) tools: Option<Value>,
}

impl Told {
    /// Tells the model of the tools. The messages are in OpenAI's form, with the arguments of calls as objects.
    pub(crate) fn new(model: &ModelInfo, toolbox: &Toolbox, mut messages: Vec<Value>) -> Self {
        if native(model) != ToolForm::Unknown {
            let tools = toolbox.tools.iter().map(|tool| tool.described.clone()).collect();
            let tools = toolbox.is_in_use().then_some(Value::Array(tools));
            return Self { messages: Value::Array(messages), tools };
        }
        plain::flatten(&mut messages);
        if toolbox.is_in_use() {
            plain::instruct(&mut messages, &plain::paragraph(&toolbox.tools));
        }
        Self { messages: Value::Array(messages), tools: None }
    }
}
