//! Text with pieces of JSON in it: the form of tool calls.

use std::fmt::Write as _;

use llguidance::regex_to_lark;
use serde_json::Value;

use super::constraint::{Constraint, ConstraintError, Form, within};
use super::schema;

/// Most pieces after the first, where there is nothing but pieces: small models do not always find an end.
const MORE_MAX: usize = 15;
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
    /// What another constraint allows, instead of pieces. It must not be a grammar.
    Other(Constraint),
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
            (Lead::Nothing, Some(between)) => format!("start: tag ({}? tag){{0,{MORE_MAX}}}\n", quoted(between)),
            (Lead::Until(_), None) => "start: TEXT | head tag\n".to_owned(),
            (Lead::Until(_), Some(_)) => "start: (head tag)* rest\nrest: TEXT\n".to_owned(),
            (_, None) => "start: other | tag\n".to_owned(),
            (_, Some(between)) => format!("start: other | tag ({}? tag){{0,{MORE_MAX}}}\n", quoted(between)),
        };
        match &self.lead {
            Lead::Nothing => {}
            Lead::Other(constraint) => grammar.push_str(&other(constraint)?),
            Lead::Until(_) => grammar.push_str(&format!("head[lazy]: TEXT {}\nTEXT: /(?s:.*)/\n", quoted(trigger))),
            Lead::Instead => grammar.push_str("other: /(?s:[^{].*)?/\n"),
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

/// The rule for what may be said instead of pieces.
fn other(constraint: &Constraint) -> Result<String, ConstraintError> {
    match constraint.form() {
        Form::Schema(schema) => Ok(format!("other: %json {schema}\n")),
        Form::Regex(expression) => Ok(format!("other: /{}/\n", regex_to_lark(expression, ""))),
        Form::Lark(_) => {
            Err(ConstraintError::Invalid { problem: "a grammar or a choice cannot be combined".to_owned() })
        }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::guide::Verdict;
    use crate::guide::follow::tests::{allowed, guides, say, tokenizer};

    fn tag(name: &str) -> Tag {
        let schema = json!({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"],
            "additionalProperties": false});
        Tag { begin: format!("<call>{name}("), schema, strict: true, end: ")</call>".to_owned() }
    }

    fn structure(lead: Lead, several: bool) -> Constraint {
        let tags = vec![tag("f"), tag("g")];
        Constraint::structure(&Structure { lead, tags, between: several.then(|| "\n".to_owned()) }).unwrap()
    }

    #[test]
    fn free_text_is_free_until_a_piece_begins() {
        let (mut guides, tokenizer) = (guides(), tokenizer());
        let mut guide = guides.guide(&structure(Lead::Until("<call>".to_owned()), true));
        assert_eq!(say(&mut guide, &tokenizer, "I call: <ca, no.\n{}\n<call"), Verdict::GoesOn);
        assert!(allowed(&mut guide, &tokenizer).contains(&"!".to_owned()));
        assert_eq!(say(&mut guide, &tokenizer, ">"), Verdict::GoesOn);
        assert_eq!(allowed(&mut guide, &tokenizer).concat().replace('(', ""), "fg");
        assert_eq!(say(&mut guide, &tokenizer, "g({\"x\": 12})</call>"), Verdict::GoesOn);
        assert!(allowed(&mut guide, &tokenizer).contains(&"END".to_owned()));
        assert_eq!(say(&mut guide, &tokenizer, "\n<call>f({\"x\": 1})</call> done"), Verdict::GoesOn);
        let mut once = guides.guide(&structure(Lead::Until("<call>".to_owned()), false));
        assert_eq!(say(&mut once, &tokenizer, "Hm. <call>f({\"x\": 1})</call>"), Verdict::Complete);
    }

    #[test]
    fn a_piece_can_be_asked_for() {
        let (mut guides, tokenizer) = (guides(), tokenizer());
        let mut guide = guides.guide(&structure(Lead::Nothing, true));
        assert!(allowed(&mut guide, &tokenizer).iter().all(|text| "<call>".starts_with(text.as_str())));
        assert_eq!(
            say(&mut guide, &tokenizer, "<call>f({\"x\": 1})</call>\n<call>g({\"x\": 2})</call>"),
            Verdict::GoesOn
        );
        assert!(allowed(&mut guide, &tokenizer).contains(&"END".to_owned()));
    }

    #[test]
    fn pieces_or_something_else_of_a_form_or_without() {
        let (mut guides, tokenizer) = (guides(), tokenizer());
        let other = Constraint::json_schema(&json!({"enum": ["no"]}), true).unwrap();
        let either = structure(Lead::Other(other), false);
        assert_eq!(say(&mut guides.guide(&either), &tokenizer, "\"no\""), Verdict::Complete);
        assert_eq!(say(&mut guides.guide(&either), &tokenizer, "<call>f({\"x\": 1})</call>"), Verdict::Complete);
        let free = structure(Lead::Instead, false);
        assert_eq!(say(&mut guides.guide(&free), &tokenizer, "Hello {\"x\""), Verdict::GoesOn);
        assert!(!allowed(&mut guides.guide(&free), &tokenizer).contains(&"{".to_owned()));
        let choice = Constraint::choice(&["a".to_owned()]).unwrap();
        let tags = vec![tag("f")];
        Constraint::structure(&Structure { lead: Lead::Other(choice), tags, between: None }).unwrap_err();
    }
}
