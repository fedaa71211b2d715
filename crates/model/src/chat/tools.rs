//! How a template tells a model of its tools, and what it tells the model to answer when it wants one.

use serde_json::{Value, json};

/// The form in which a model calls tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolForm {
    /// The template knows no tools, or has the model call them in a form that is not known here.
    #[default]
    Unknown,
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Hermes introduced it and Qwen took it over.
    Hermes,
    /// The answer is `{"name": …, "parameters": {…}}`, as Llama 3 has it.
    Json,
}

/// The name of a tool that no template mentions.
const NEEDLE: &str = "xqz_needle_zqx";

/// Finds out the form by rendering a conversation with a tool. `render` takes messages and tools and gives nothing where it
/// fails.
pub(super) fn probe(render: impl Fn(Value, Value) -> Option<String>) -> ToolForm {
    let parameters = json!({"type": "object", "properties": {"x": {"type": "string", "description": "A text."}}});
    let function = json!({"name": NEEDLE, "description": "A function.", "parameters": parameters});
    let tools = json!([{"type": "function", "function": function}]);
    let messages = json!([{"role": "user", "content": "Hello"}]);
    let Some(text) = render(messages, tools).filter(|text| text.contains(NEEDLE)) else { return ToolForm::Unknown };
    let says = |words: &str| text.contains(words);
    // Others write what is between the tags in XML.
    if says("</tool_call>") && says("{\"name\":") && says("\"arguments\":") && !says("<function=") && !says("<arg_key>")
    {
        ToolForm::Hermes
    } else if says("{\"name\": function name, \"parameters\":") {
        ToolForm::Json
    } else {
        ToolForm::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{ChatTemplate, SpecialTexts};

    fn form(template: &str) -> ToolForm {
        ChatTemplate::new(template, None, SpecialTexts::default()).unwrap().tool_form()
    }

    #[test]
    fn the_form_is_what_the_template_tells_the_model() {
        let with = |words: &str| form(&format!("{{% if tools %}}{{{{ tools | tojson }}}} {words}{{% endif %}}Hello"));
        let hermes = "<tool_call>\n{\"name\": <name>, \"arguments\": <args>}\n</tool_call>";
        assert_eq!(with(hermes), ToolForm::Hermes);
        assert_eq!(with("Respond in the format {\"name\": function name, \"parameters\": dictionary}"), ToolForm::Json);
        assert_eq!(with("<tool_call><function=example></function></tool_call>"), ToolForm::Unknown);
        assert_eq!(with("[TOOL_CALLS]"), ToolForm::Unknown);
        assert_eq!(form(hermes.replace('{', "(").as_str()), ToolForm::Unknown);
        let refuses = "{% if tools %}{{ raise_exception('no tools') }}{% endif %}Hello";
        assert_eq!(form(refuses), ToolForm::Unknown);
        let qwen = include_str!("../../tests/golden/chat-templates/qwen2-tools.jinja");
        assert_eq!(form(qwen), ToolForm::Hermes);
    }
}
