//! The parts of a response: a message of the assistant, or a call of a tool.

use serde_json::{Value, json};

use crate::stamp::new_id;
use crate::tools::Call;

/// A part of a response.
pub(super) enum Item {
    Message { id: String, text: String },
    Call { id: String, call_id: String, call: Call },
}

impl Item {
    pub(super) fn message(text: String) -> Self {
        Self::Message { id: new_id("msg_"), text }
    }

    pub(super) fn call(call: Call) -> Self {
        Self::Call { id: new_id("fc_"), call_id: new_id("call_"), call }
    }

    pub(super) fn id(&self) -> &str {
        match self {
            Self::Message { id, .. } | Self::Call { id, .. } => id,
        }
    }

    /// As it is announced.
    pub(super) fn begun(&self) -> Value {
        let mut item = self.written("in_progress");
        match self {
            Self::Message { .. } => item["content"] = json!([]),
            Self::Call { .. } => item["arguments"] = "".into(),
        }
        item
    }

    /// As it is known now.
    pub(super) fn written(&self, status: &str) -> Value {
        match self {
            Self::Message { id, text } => json!({
                "type": "message",
                "id": id,
                "status": status,
                "role": "assistant",
                "content": [part(text)],
            }),
            Self::Call { id, call_id, call } => json!({
                "type": "function_call",
                "id": id,
                "call_id": call_id,
                "name": call.name,
                "arguments": call.arguments,
                "status": status,
            }),
        }
    }
}

/// The only part of a message.
pub(super) fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// All parts of a response as a turn of the conversation, in the form of chat templates.
pub(super) fn as_turn(items: &[Item]) -> Value {
    let texts = items.iter().filter_map(|item| match item {
        Item::Message { text, .. } => Some(text.as_str()),
        Item::Call { .. } => None,
    });
    let text = texts.collect::<Vec<_>>().join("\n");
    let calls: Vec<Value> = items
        .iter()
        .filter_map(|item| match item {
            Item::Message { .. } => None,
            Item::Call { call_id, call, .. } => {
                let function = json!({"name": call.name, "arguments": call.object()});
                Some(json!({"id": call_id, "type": "function", "function": function}))
            }
        })
        .collect();
    let mut turn = json!({"role": "assistant", "content": text});
    if !calls.is_empty() {
        turn["tool_calls"] = calls.into();
    }
    turn
}
