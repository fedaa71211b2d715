//! Text from the user: arguments, files, standard input.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};
use engine::ModelInfo;
use model::{ChatInput, ChatTemplate};
use serde_json::{Value, json};

/// Most bytes of a prompt file; more is a mistake rather than a prompt.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// The prompt from `-p` or `-f`, where `-` means standard input.
pub(crate) fn prompt(text: Option<&str>, file: Option<&Path>) -> anyhow::Result<String> {
    match (text, file) {
        (Some(text), None) => Ok(text.to_owned()),
        (None, Some(path)) => read(path),
        _ => bail!("give a prompt with -p TEXT or -f FILE (- reads standard input)"),
    }
}

/// The text of a file, or of standard input for `-`.
pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    if path.as_os_str() == "-" {
        std::io::stdin().take(FILE_BYTES_MAX).read_to_end(&mut bytes).context("cannot read standard input")?;
    } else {
        let file = std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).with_context(|| format!("cannot read {}", path.display()))?;
    }
    if bytes.len() as u64 == FILE_BYTES_MAX {
        bail!("{} is larger than {} MiB: no context holds that much", path.display(), FILE_BYTES_MAX >> 20);
    }
    String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8 text", path.display()))
}

/// One message of a conversation.
pub(crate) fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

/// The model's chat template, or a word about what to use instead.
pub(crate) fn require_template(model: &ModelInfo) -> anyhow::Result<&ChatTemplate> {
    let Some(template) = &model.chat_template else {
        bail!("{} has no chat template: it completes text, use `ropewalk run`", model.id);
    };
    Ok(template)
}

/// The tokens of a conversation, ready for the model's answer.
pub(crate) fn conversation(model: &ModelInfo, messages: &[Value]) -> anyhow::Result<Vec<u32>> {
    let template = require_template(model)?;
    let input = ChatInput { messages: messages.into(), add_generation_prompt: true, ..ChatInput::default() };
    let text = template.render(&input)?;
    // The template writes the beginning of the text itself, so none is added.
    let options = model::EncodeOptions { add_special: false, parse_special: true };
    Ok(model.tokenizer.encode(&text, options)?)
}
