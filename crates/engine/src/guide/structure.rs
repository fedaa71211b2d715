//! Text with pieces of JSON in it: the form of tool calls.

use std::fmt::Write as _;

use serde_json::Value;

use super::constraint::{ConstraintError, within};
use super::schema;

/// Most kinds of pieces.
const TAGS_MAX: usize = 512;

/// Pieces of JSON between fixed texts, and what may be said beside them.
#[derive(Debug, Clone, PartialEq)]
pub struct Structure {
    /// What may come before a piece.
    pub lead: Lead,
    /// The kinds of pieces, at least one.
    pub tags: Vec<Tag>,
    /// What may stand between two pieces; `None` allows only one.
    pub between: Option<String>,
}

/// What may be said beside the pieces.
#[derive(Debug, Clone, PartialEq)]
pub enum Lead {
    /// Nothing: the answer begins with a piece.
    Nothing,
    /// Any text, before, between and after pieces or without any. Where this text occurs, with which all pieces begin, a
    /// piece must follow.
    Until(String),
    /// Any text that does not begin with a brace, instead of pieces.
    Instead,
}

/// One kind of piece.
#[derive(Debug, Clone, PartialEq)]
pub struct Tag {
    /// The text before the JSON.
    pub begin: String,
    /// What the JSON is like.
    pub schema: Value,
    /// Whether unsupported keywords of the schema are refused; see [`super::Constraint::json_schema`].
    pub strict: bool,
    /// The text after the JSON.
    pub end: String,
}

impl Structure {
    /// The grammar of all this.
    pub(super) fn grammar(&self) -> Result<String, ConstraintError> {
        within(self.tags.len(), TAGS_MAX, "kinds of pieces")?;
        let trigger = if let Lead::Until(trigger) = &self.lead { trigger.as_str() } else { "" };
        let several = self.between.as_ref();
        let mut grammar = match (&self.lead, several) {
            (Lead::Nothing, None) => "start: tag\n".to_owned(),
            (Lead::Nothing, Some(between)) => format!("start: tag ({}? tag)*\n", quoted(between)),
            (Lead::Until(_), None) => "start: TEXT | head tag\n".to_owned(),
            (Lead::Until(_), Some(_)) => "start: (head tag)* rest\nrest: TEXT\n".to_owned(),
            (Lead::Instead, None) => "start: PLAIN | tag\n".to_owned(),
            (Lead::Instead, Some(between)) => format!("start: PLAIN | tag ({}? tag)*\n", quoted(between)),
        };
        match self.lead {
            Lead::Nothing => {}
            Lead::Until(_) => grammar.push_str(&format!("head[lazy]: TEXT {}\nTEXT: /(?s:.*)/\n", quoted(trigger))),
            Lead::Instead => grammar.push_str("PLAIN: /(?s:[^{].*)?/\n"),
        }
        let names: Vec<String> = (0..self.tags.len()).map(|index| format!("tag_{index}")).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(grammar, "tag: {}", names.join(" | "));
        for (tag, name) in self.tags.iter().zip(names) {
            let begin = tag.begin.strip_prefix(trigger).unwrap_or(&tag.begin);
            let schema = schema::prepare(&tag.schema, tag.strict).map_err(|error| inside(&tag.begin, error))?;
            // Each schema is compiled by itself as well, to say which is at fault.
            let _ = writeln!(grammar, "{name}: {} {name}_json {}", quoted(begin), quoted(&tag.end));
            let _ = writeln!(grammar, "{name}_json: %json {schema}");
        }
        Ok(grammar)
    }
}

/// An error in the schema of the piece that begins so.
fn inside(begin: &str, error: ConstraintError) -> ConstraintError {
    match error {
        ConstraintError::Invalid { problem } => {
            ConstraintError::Invalid { problem: format!("after {begin:?}: {problem}") }
        }
        other => other,
    }
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
