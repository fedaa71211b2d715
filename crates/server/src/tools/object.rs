//! Reads the JSON object of a call as it grows.

use serde_json::Value;

/// Longest name of a tool or of a field in bytes. Nothing that long is called.
const NAME_BYTES_MAX: usize = 1024;

/// What is known of an object under way.
#[derive(Debug, Default)]
pub(super) struct ObjectReader {
    place: Place,
    /// The string under way, in quotes and with its escapes.
    string: String,
    field: Field,
    name: Option<String>,
    /// Arguments that came before the name.
    early: String,
    has_arguments: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before the opening brace.
    #[default]
    Before,
    /// Before a field, or the end.
    Field,
    /// In the name of a field.
    FieldName {
        escaped: bool,
    },
    Colon,
    /// Before a value.
    Value,
    /// In the value of a field.
    Inside {
        depth: usize,
        in_string: bool,
        escaped: bool,
    },
    /// In a number or a word.
    Plain,
    Comma,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Field {
    Name,
    Arguments,
    #[default]
    Other,
}

/// What a character has led to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing yet.
    More,
    /// The name is known; with it come arguments that were before it.
    Name(String, String),
    /// The character belongs to the arguments.
    Arguments,
    /// The object is complete; arguments are `{}` where there were none.
    End { had_arguments: bool },
    /// This is no call.
    Bad,
}

impl ObjectReader {
    /// Takes the next character.
    pub(super) fn push(&mut self, character: char) -> Step {
        let is_space = character.is_ascii_whitespace();
        match self.place {
            Place::Before | Place::Field | Place::Colon | Place::Value | Place::Comma if is_space => Step::More,
            Place::Before => self.go(character == '{', Place::Field),
            Place::Field if character == '}' => self.end(),
            Place::Field => {
                self.string = "\"".to_owned();
                self.go(character == '"', Place::FieldName { escaped: false })
            }
            Place::FieldName { escaped } => self.field_name(character, escaped),
            Place::Colon => self.go(character == ':', Place::Value),
            Place::Value => self.begin_value(character),
            Place::Inside { depth, in_string, escaped } => self.inside(character, depth, in_string, escaped),
            Place::Plain if is_space => self.value_ended(Step::More),
            Place::Plain | Place::Comma if character == ',' => self.go(true, Place::Field),
            Place::Plain | Place::Comma if character == '}' => self.end(),
            Place::Plain => self.of_value(character),
            Place::Comma => Step::Bad,
        }
    }

    fn go(&mut self, is_right: bool, place: Place) -> Step {
        self.place = place;
        if is_right { Step::More } else { Step::Bad }
    }

    fn field_name(&mut self, character: char, escaped: bool) -> Step {
        self.string.push(character);
        if self.string.len() > NAME_BYTES_MAX {
            return Step::Bad;
        }
        if character != '"' || escaped {
            return self.go(true, Place::FieldName { escaped: character == '\\' && !escaped });
        }
        self.field = match unquoted(&self.string).as_deref() {
            Some("name") => Field::Name,
            Some("arguments" | "parameters") if !self.has_arguments => Field::Arguments,
            Some(_) => Field::Other,
            None => return Step::Bad,
        };
        self.go(true, Place::Colon)
    }

    fn begin_value(&mut self, character: char) -> Step {
        self.string.clear();
        self.has_arguments |= self.field == Field::Arguments;
        self.place = match character {
            '"' => Place::Inside { depth: 0, in_string: true, escaped: false },
            _ if self.field == Field::Name => return Step::Bad,
            '{' | '[' => Place::Inside { depth: 1, in_string: false, escaped: false },
            '-' | 't' | 'f' | 'n' | '0'..='9' => Place::Plain,
            _ => return Step::Bad,
        };
        self.of_value(character)
    }

    fn inside(&mut self, character: char, depth: usize, in_string: bool, escaped: bool) -> Step {
        let (depth, in_string, escaped) = match character {
            _ if escaped => (depth, true, false),
            '\\' if in_string => (depth, true, true),
            '"' => (depth, !in_string, false),
            '{' | '[' if !in_string => (depth + 1, false, false),
            '}' | ']' if !in_string => (depth.saturating_sub(1), false, false),
            _ => (depth, in_string, false),
        };
        self.place = Place::Inside { depth, in_string, escaped };
        let step = self.of_value(character);
        if depth == 0 && !in_string && step != Step::Bad { self.value_ended(step) } else { step }
    }

    /// A character of a value.
    fn of_value(&mut self, character: char) -> Step {
        match self.field {
            Field::Other => Step::More,
            Field::Name => {
                self.string.push(character);
                if self.string.len() > NAME_BYTES_MAX { Step::Bad } else { Step::More }
            }
            Field::Arguments if self.name.is_none() => {
                self.early.push(character);
                Step::More
            }
            Field::Arguments => Step::Arguments,
        }
    }

    fn value_ended(&mut self, step: Step) -> Step {
        self.place = Place::Comma;
        if self.field != Field::Name || self.name.is_some() {
            return step;
        }
        match unquoted(&self.string) {
            Some(name) => {
                self.name = Some(name.clone());
                Step::Name(name, std::mem::take(&mut self.early))
            }
            None => Step::Bad,
        }
    }

    fn end(&self) -> Step {
        if self.name.is_some() { Step::End { had_arguments: self.has_arguments } } else { Step::Bad }
    }
}

/// The text of a string of JSON.
fn unquoted(string: &str) -> Option<String> {
    match serde_json::from_str(string) {
        Ok(Value::String(text)) => Some(text),
        _ => None,
    }
}
