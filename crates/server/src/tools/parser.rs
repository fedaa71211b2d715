//! Finds calls in the text of a model as it grows: pure, whatever the pieces in which the text comes.

use super::CallForm;
use super::object::{ObjectReader, Step};

/// Begins a call.
pub(super) const BEGIN: &str = "<tool_call>";
/// Ends one.
pub(super) const END: &str = "</tool_call>";

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// Text beside calls.
    Text(String),
    /// A call of the tool of this name begins.
    Begin(String),
    /// More of the arguments of the call under way.
    Arguments(String),
    /// The call is complete, or was cut off.
    End,
}

/// Takes text and gives parts.
#[derive(Debug)]
pub(crate) struct Parser {
    form: CallForm,
    state: State,
    /// Text that may become the beginning of a call, or is space before one.
    held: String,
    /// Whether there has been a call.
    called: bool,
    parts: Vec<Part>,
}

#[derive(Debug)]
enum State {
    Text,
    /// In a call. `raw` is what it would be as text, as long as it is not sure to be a call.
    Call {
        reader: ObjectReader,
        raw: Option<String>,
    },
    /// After the object of a call, up to what ends the call.
    After,
    /// Text that holds no more calls.
    Plain,
}

impl Parser {
    /// A parser for an answer in which calls are written in `form`.
    pub(crate) fn new(form: CallForm) -> Self {
        Self { form, state: State::Text, held: String::new(), called: false, parts: Vec::new() }
    }

    /// Takes more text.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Part> {
        for character in text.chars() {
            match &mut self.state {
                State::Text => self.text(character),
                State::Call { .. } => self.call(character),
                State::After => self.after(character),
                State::Plain => self.say(character),
            }
        }
        std::mem::take(&mut self.parts)
    }

    /// What is left at the end of the text.
    pub(crate) fn finish(&mut self) -> Vec<Part> {
        match std::mem::replace(&mut self.state, State::Plain) {
            State::Text if !(self.called && self.held.trim().is_empty()) => self.release(),
            // A call without a name is none; its tags are not for people.
            State::Call { raw: Some(raw), .. } if self.form == CallForm::Json => self.add_text(&raw),
            State::Call { raw: None, .. } => self.parts.push(Part::End),
            _ => {}
        }
        std::mem::take(&mut self.parts)
    }

    fn text(&mut self, character: char) {
        match self.form {
            CallForm::Hermes => self.text_with_tags(character),
            CallForm::Json if character == '{' => {
                let space = std::mem::take(&mut self.held);
                self.begin(space + "{");
            }
            CallForm::Json if character.is_whitespace() => self.held.push(character),
            CallForm::Json => {
                self.state = State::Plain;
                self.release();
                self.say(character);
            }
        }
    }

    /// Holds text back that may become a tag, and the space before it.
    fn text_with_tags(&mut self, character: char) {
        self.held.push(character);
        loop {
            let tag = self.held.trim_start();
            if tag == BEGIN {
                let raw = std::mem::take(&mut self.held);
                return self.begin(raw);
            }
            if BEGIN.starts_with(tag) {
                return;
            }
            // One character more is no tag. What comes after it may be.
            let spaces = self.held.len() - tag.len();
            let first = tag.chars().next().map_or(0, char::len_utf8);
            let rest = self.held.split_off(spaces + first);
            self.release();
            self.held = rest;
        }
    }

    fn begin(&mut self, raw: String) {
        let mut reader = ObjectReader::default();
        if self.form == CallForm::Json {
            reader.push('{');
        }
        self.state = State::Call { reader, raw: Some(raw) };
    }

    fn call(&mut self, character: char) {
        let State::Call { reader, raw } = &mut self.state else { return };
        if let Some(raw) = raw {
            raw.push(character);
        }
        match reader.push(character) {
            Step::More => {}
            Step::Name(name, early) => {
                *raw = None;
                self.called = true;
                self.parts.push(Part::Begin(name));
                if !early.is_empty() {
                    self.parts.push(Part::Arguments(early));
                }
            }
            Step::Arguments => self.argue(character),
            Step::End { had_arguments } => {
                if !had_arguments {
                    self.parts.push(Part::Arguments("{}".to_owned()));
                }
                self.end();
            }
            Step::Bad => match raw.take() {
                // It is text after all, and this character may begin another tag.
                Some(mut raw) => {
                    raw.pop();
                    self.add_text(&raw);
                    if self.form == CallForm::Json {
                        self.state = State::Plain;
                        self.say(character);
                    } else {
                        self.state = State::Text;
                        self.text(character);
                    }
                }
                None => self.end(),
            },
        }
    }

    fn end(&mut self) {
        self.parts.push(Part::End);
        self.state = State::After;
    }

    /// Looks for what ends a call, and for another one where there is none between them.
    fn after(&mut self, character: char) {
        match self.form {
            CallForm::Json if character.is_whitespace() || character == ';' => {}
            CallForm::Json if character == '{' => self.begin(character.to_string()),
            CallForm::Json => {
                self.state = State::Plain;
                self.say(character);
            }
            CallForm::Hermes => {
                self.held.push(character);
                if self.held.ends_with(END) {
                    self.held.clear();
                    self.state = State::Text;
                } else if self.held.ends_with(BEGIN) {
                    self.held.clear();
                    self.begin(BEGIN.to_owned());
                } else if self.held.len() > END.len() {
                    let first = self.held.chars().next().map_or(0, char::len_utf8);
                    self.held.drain(..first);
                }
            }
        }
    }

    fn release(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.add_text(&held);
    }

    fn say(&mut self, character: char) {
        self.add_text(character.encode_utf8(&mut [0; 4]));
    }

    fn add_text(&mut self, more: &str) {
        match self.parts.last_mut() {
            _ if more.is_empty() => {}
            Some(Part::Text(text)) => text.push_str(more),
            _ => self.parts.push(Part::Text(more.to_owned())),
        }
    }

    fn argue(&mut self, character: char) {
        match self.parts.last_mut() {
            Some(Part::Arguments(text)) => text.push(character),
            _ => self.parts.push(Part::Arguments(character.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Neighbours of a kind put together.
    fn joined(parts: Vec<Part>) -> Vec<Part> {
        let mut whole: Vec<Part> = Vec::new();
        for part in parts {
            match (whole.last_mut(), part) {
                (Some(Part::Text(text)), Part::Text(more)) => text.push_str(&more),
                (Some(Part::Arguments(text)), Part::Arguments(more)) => text.push_str(&more),
                (_, part) => whole.push(part),
            }
        }
        whole
    }

    fn parse(form: CallForm, pieces: &[&str]) -> Vec<Part> {
        let mut parser = Parser::new(form);
        let mut parts: Vec<Part> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
        parts.extend(parser.finish());
        joined(parts)
    }

    fn text(text: &str) -> Part {
        Part::Text(text.to_owned())
    }

    fn call(name: &str, arguments: &str) -> [Part; 3] {
        [Part::Begin(name.to_owned()), Part::Arguments(arguments.to_owned()), Part::End]
    }

    const TWO: &str = "Let me see.\n<tool_call>\n{\"name\": \"get \\\"it\\\"\", \"arguments\": {\"a\": [1, \"}\\\\\\\"\"], \"b\": {}}}\n</tool_call>\n\
        <tool_call>{\"arguments\": {\"é\": null}, \"id\": 5, \"name\": \"f\"}</tool_call>\n";

    #[test]
    fn calls_are_found_in_text_split_anywhere() {
        let mut expected = vec![text("Let me see.")];
        expected.extend(call("get \"it\"", "{\"a\": [1, \"}\\\\\\\"\"], \"b\": {}}"));
        expected.extend(call("f", "{\"é\": null}"));
        assert_eq!(parse(CallForm::Hermes, &[TWO]), expected);
        for (at, _) in TWO.char_indices() {
            let (first, second) = TWO.split_at(at);
            assert_eq!(parse(CallForm::Hermes, &[first, second]), expected, "split at {at}");
        }
        let characters: Vec<String> = TWO.chars().map(String::from).collect();
        let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
        assert_eq!(parse(CallForm::Hermes, &characters), expected);
    }

    #[test]
    fn a_call_cut_off_anywhere_is_no_text() {
        let whole = "Hm <tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";
        for at in whole.find("{\"name").unwrap()..whole.len() {
            let parts = parse(CallForm::Hermes, &[&whole[..at]]);
            assert_eq!(parts[0], text("Hm"), "{at}");
            assert!(parts[1..].is_empty() || parts.last() == Some(&Part::End), "{at} {parts:?}");
            assert!(!parts[1..].iter().any(|part| matches!(part, Part::Text(_))), "{at} {parts:?}");
        }
        assert_eq!(parse(CallForm::Hermes, &["a <tool_ca"]), [text("a <tool_ca")]);
    }

    #[test]
    fn what_only_looks_like_a_call_is_text() {
        for words in ["<tool_call> hello", "a < b <tool_calm> \n ", "<tool_call>[1]</tool_call> ", "<<tool_cal"] {
            assert_eq!(parse(CallForm::Hermes, &[words]), [text(words)]);
        }
        for words in ["{\"a\": 1}", " {\"a\": \"name\"", "Hello {\"name\": \"f\"}", "[1]", "{\"name\": 5}"] {
            assert_eq!(parse(CallForm::Json, &[words]), [text(words)]);
        }
    }

    #[test]
    fn a_call_may_have_no_arguments_or_no_end() {
        assert_eq!(parse(CallForm::Hermes, &["<tool_call>{\"name\": \"f\"}</tool_call>"]), call("f", "{}"));
        let both = [call("f", "{}"), call("g", "{}")].concat();
        let missing =
            "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n<tool_call>{\"name\": \"g\", \"arguments\": {}}";
        assert_eq!(parse(CallForm::Hermes, &[missing]), both);
    }

    #[test]
    fn an_answer_of_json_is_a_call_or_several() {
        let two = "{\"name\": \"f\", \"parameters\": {\"x\": 1}}; {\"name\": \"g\", \"parameters\": {}}";
        let expected = [call("f", "{\"x\": 1}"), call("g", "{}")].concat();
        assert_eq!(parse(CallForm::Json, &[two]), expected);
        assert_eq!(parse(CallForm::Json, &["Hello"]), [text("Hello")]);
    }

    trait ConcatText {
        fn concat_text(&self) -> String;
    }

    impl ConcatText for Vec<Part> {
        fn concat_text(&self) -> String {
            let text = |part: &Part| match part {
                Part::Text(text) => text.clone(),
                other => format!("{other:?}"),
            };
            self.iter().map(text).collect()
        }
    }

    proptest! {
        /// However a text is cut into pieces, its parts are the same; without tags they are the text.
        #[test]
        fn pieces_do_not_matter(
            words in prop::collection::vec(prop::sample::select(vec![
                "<tool_call>", "</tool_call>", "{", "}", "\"name\"", ":", "\"f\"", ",", "\"arguments\"", "{}", " ", "\n", "<", "é",
            ]), 0..24),
            cuts in prop::collection::vec(1_usize..6, 0..40),
            json in any::<bool>(),
        ) {
            let form = if json { CallForm::Json } else { CallForm::Hermes };
            let words = words.concat();
            let mut characters = words.chars().peekable();
            let mut pieces: Vec<String> = cuts.iter().map(|&cut| characters.by_ref().take(cut).collect()).collect();
            pieces.push(characters.collect());
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let parts = parse(form, &pieces);
            prop_assert_eq!(&parts, &parse(form, &[&words]));
            let depth = parts.iter().try_fold(0, |depth, part| match part {
                Part::Begin(_) if depth == 0 => Ok(1),
                Part::End if depth == 1 => Ok(0),
                Part::Arguments(_) if depth == 1 => Ok(1),
                Part::Text(_) if depth == 0 => Ok(0),
                other => Err(format!("{other:?} at {depth}")),
            });
            prop_assert_eq!(depth, Ok(0));
            if !words.contains("<tool_call>") && !json {
                prop_assert_eq!(parts.concat_text(), words);
            }
        }
    }
}
