//! What an answer must look like.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::compile;
use super::gbnf;
use super::schema;
use super::structure::Structure;

/// Longest constraint in bytes, as it is written.
const BYTES_MAX: usize = 256 << 10;
/// Most alternatives of a choice.
const CHOICES_MAX: usize = 4096;

/// What an answer must look like. There are none that cannot be followed: they are checked when they are made.
///
/// Tokens that end an answer are allowed where it is complete, and the answer ends by itself where nothing can follow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Constraint {
    form: Form,
}

/// How a constraint is written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Form {
    /// A JSON value by a schema.
    Schema(Value),
    /// A text by a regular expression, from its first character to its last.
    Regex(String),
    /// A text by a grammar in the dialect of Lark that llguidance reads.
    Lark(String),
}

/// A constraint that cannot be followed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// A keyword of JSON Schema that is not supported.
    #[error("uses the keyword {keyword:?} at {place}, which is not supported")]
    Keyword {
        /// The keyword.
        keyword: String,
        /// Where it stands, as a JSON pointer (`#/properties/name`).
        place: String,
    },
    /// A constraint beyond a bound.
    #[error("{what}, but at most {most} are allowed")]
    TooLarge {
        /// What there is too much of, and how much there is.
        what: String,
        /// The bound.
        most: usize,
    },
    /// A constraint that makes no sense, that nothing fulfils, or that takes too much work.
    #[error("cannot be followed: {problem}")]
    Invalid {
        /// What is wrong with it.
        problem: String,
    },
}

impl Constraint {
    /// Any JSON object.
    ///
    /// # Errors
    /// None in practice; what builds it can fail for others.
    pub fn json_object() -> Result<Self, ConstraintError> {
        Self::json_schema(&json!({"type": "object"}), true)
    }

    /// A JSON value that `schema` allows. Drafts 4 to 2020-12 are understood. If `strict`, keywords that are not supported
    /// are refused; else they are ignored, as are formats that are not known, and `oneOf` means `anyOf`.
    ///
    /// # Errors
    /// When the schema is no schema, has an unsupported keyword, allows nothing, or is beyond the bounds.
    pub fn json_schema(schema: &Value, strict: bool) -> Result<Self, ConstraintError> {
        let prepared = schema::prepare(schema, strict)?;
        Self::checked(Form::Schema(prepared)).map_err(|error| schema::explain(schema, strict, error))
    }

    /// A text that `expression`, a regular expression in the syntax of Rust's `regex` without look-around, matches from its
    /// beginning to its end.
    ///
    /// # Errors
    /// When it cannot be parsed, matches nothing, or is beyond the bounds.
    pub fn regex(expression: &str) -> Result<Self, ConstraintError> {
        Self::checked(Form::Regex(expression.to_owned()))
    }

    /// A text by a grammar in llguidance's dialect of Lark.
    ///
    /// # Errors
    /// When it cannot be parsed, allows nothing, or is beyond the bounds.
    pub fn lark(grammar: &str) -> Result<Self, ConstraintError> {
        Self::checked(Form::Lark(grammar.to_owned()))
    }

    /// A text by a grammar in the dialect of Lark, or in llama.cpp's GBNF, which its `::=` gives away.
    ///
    /// # Errors
    /// As for [`Constraint::lark`].
    pub fn grammar(grammar: &str) -> Result<Self, ConstraintError> {
        within(grammar.len(), BYTES_MAX, "bytes")?;
        if grammar.contains("::=") { Self::lark(&gbnf::to_lark(grammar)?) } else { Self::lark(grammar) }
    }

    /// One of these texts.
    ///
    /// # Errors
    /// When there is none, or there are too many.
    pub fn choice(choices: &[String]) -> Result<Self, ConstraintError> {
        within(choices.len(), CHOICES_MAX, "choices")?;
        if choices.is_empty() {
            return Err(ConstraintError::Invalid { problem: "there is nothing to choose from".to_owned() });
        }
        let literals: Vec<String> = choices.iter().map(|choice| Value::from(choice.as_str()).to_string()).collect();
        Self::lark(&format!("start: {}", literals.join(" | ")))
    }

    /// Text with pieces of JSON in it, such as the calls of tools.
    ///
    /// # Errors
    /// When one of the schemas is refused, or all of it is beyond the bounds.
    pub fn structure(structure: &Structure) -> Result<Self, ConstraintError> {
        Self::checked(Form::Lark(structure.grammar()?))
    }

    fn checked(form: Form) -> Result<Self, ConstraintError> {
        let bytes = match &form {
            Form::Schema(schema) => schema.to_string().len(),
            Form::Regex(text) | Form::Lark(text) => text.len(),
        };
        within(bytes, BYTES_MAX, "bytes")?;
        compile::check(&form)?;
        Ok(Self { form })
    }

    pub(super) fn form(&self) -> &Form {
        &self.form
    }
}

/// Refuses more than `most` of something.
pub(super) fn within(count: usize, most: usize, things: &str) -> Result<(), ConstraintError> {
    if count <= most {
        return Ok(());
    }
    Err(ConstraintError::TooLarge { what: format!("has {count} {things}"), most })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guide::{Lead, Tag};

    fn refused(schema: Value) -> String {
        Constraint::json_schema(&schema, true).unwrap_err().to_string()
    }

    #[test]
    fn unsupported_keywords_are_named_with_their_place() {
        let schema = json!({"properties": {"a/b": {"items": {"not": {"type": "string"}}}}});
        assert_eq!(
            refused(schema.clone()),
            "uses the keyword \"not\" at #/properties/a~1b/items, which is not supported"
        );
        assert!(Constraint::json_schema(&schema, false).is_ok());
        let schema = json!({"anyOf": [true, {"oneOf": [{"type": "integer"}, {"type": "number"}]}]});
        assert_eq!(
            refused(json!({"$defs": {"d": schema}, "$ref": "#/$defs/d/anyOf/1"})),
            "uses the keyword \"oneOf\" at #/$defs/d/anyOf/1, which is not supported"
        );
        assert!(refused(json!({"type": "string", "format": "shoe-size"})).contains("shoe-size"));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for schema in [json!(1), json!(false), json!({"type": "strnig"}), json!({"$ref": "#/$defs/gone"})] {
            Constraint::json_schema(&schema, true).unwrap_err();
        }
        for schema in [
            json!({"type": "string", "minLength": 3, "maxLength": 2}),
            json!({"minimum": 2, "maximum": 1, "type": "integer"}),
        ] {
            Constraint::json_schema(&schema, true).unwrap_err();
        }
        Constraint::regex("(").unwrap_err();
        Constraint::regex("(?=a)b").unwrap_err();
        Constraint::lark("start: nothing").unwrap_err();
        Constraint::lark("").unwrap_err();
        Constraint::choice(&[]).unwrap_err();
        assert!(Constraint::json_schema(&json!(true), true).is_ok());
    }

    #[test]
    fn the_client_has_no_say_in_how_schemas_are_compiled() {
        let schema = json!({"type": "integer", "x-guidance": {"whitespace_pattern": "("}});
        assert!(Constraint::json_schema(&schema, true).is_ok());
    }

    #[test]
    fn what_is_beyond_bounds_is_refused_before_it_takes_time() {
        let mut deep = json!({});
        for _ in 0..70 {
            deep = json!({"items": deep});
        }
        assert!(refused(deep).contains("levels"));
        let wide: Vec<Value> = (0..30_000).map(Value::from).collect();
        assert!(refused(json!({"enum": wide})).contains("values"));
        assert!(refused(json!({"const": "x".repeat(300_000)})).contains("bytes"));
        let references: Value = (0..2000).map(|_| json!({"$ref": "#"})).collect();
        assert!(refused(json!({"anyOf": references})).contains("references"));
        Constraint::lark(&format!("start: {}", "(".repeat(100_000))).unwrap_err();
        let problem = Constraint::regex(&"(".repeat(100_000)).unwrap_err().to_string();
        assert!(problem.chars().count() < 500, "{problem}");
        // Others are compact, however much they allow.
        Constraint::regex("((a{1,1000}){1,1000}){1,1000}").unwrap();
    }

    #[test]
    fn a_structure_says_which_of_its_schemas_is_at_fault() {
        let tag = |name: &str, schema| Tag { begin: format!("<{name}>"), schema, strict: true, end: "</>".to_owned() };
        let tags = vec![tag("a", json!({"type": "object"})), tag("b", json!(3))];
        let structure = Structure { lead: Lead::Nothing, tags, between: None };
        let error = Constraint::structure(&structure).unwrap_err().to_string();
        assert!(error.contains("<b>"), "{error}");
    }
}
