//! Reads GBNF.

use std::collections::HashMap;
use std::iter::Peekable;
use std::str::Chars;

use super::super::constraint::ConstraintError;

/// How deep parentheses may be nested.
const DEPTH_MAX: usize = 100;

/// A grammar: its rules, one of which is the root.
pub(super) struct Grammar {
    pub(super) rules: Vec<Node>,
    pub(super) root: usize,
}

/// A part of a rule.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Literal(String),
    /// A regular expression for one character.
    Class(String),
    /// Another rule, by its number.
    Rule(usize),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    Repeat(Box<Node>, usize, Option<usize>),
}

impl Node {
    /// The rules that it refers to.
    pub(super) fn references(&self) -> Vec<usize> {
        match self {
            Self::Literal(_) | Self::Class(_) => Vec::new(),
            Self::Rule(rule) => vec![*rule],
            Self::Sequence(nodes) | Self::Choice(nodes) => nodes.iter().flat_map(Self::references).collect(),
            Self::Repeat(node, ..) => node.references(),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Name(String),
    Literal(String),
    Class(String),
    /// `{least,most}`, or one of `*`, `+` and `?`.
    Count(usize, Option<usize>),
    Define,
    Bar,
    Open,
    Close,
}

/// Reads a grammar.
pub(super) fn read(text: &str) -> Result<Grammar, ConstraintError> {
    let tokens = tokens(text)?;
    let mut names = HashMap::new();
    for pair in tokens.windows(2) {
        if let [Token::Name(name), Token::Define] = pair {
            let number = names.len();
            if names.insert(name.as_str(), number).is_some() {
                return Err(bad(format!("the rule {name:?} is defined twice")));
            }
        }
    }
    let root = *names.get("root").ok_or_else(|| bad("there is no rule \"root\"".to_owned()))?;
    let mut parser = Parser { tokens: &tokens, names: &names };
    let mut rules = Vec::new();
    while let [Token::Name(_), Token::Define, rest @ ..] = parser.tokens {
        parser.tokens = rest;
        rules.push(parser.choice(0)?);
    }
    match parser.tokens.first() {
        None => Ok(Grammar { rules, root }),
        Some(token) => Err(bad(format!("{token:?} stands where a rule should begin"))),
    }
}

fn bad(problem: String) -> ConstraintError {
    ConstraintError::Invalid { problem }
}

struct Parser<'a> {
    tokens: &'a [Token],
    names: &'a HashMap<&'a str, usize>,
}

impl Parser<'_> {
    fn choice(&mut self, depth: usize) -> Result<Node, ConstraintError> {
        if depth > DEPTH_MAX {
            return Err(bad(format!("parentheses are nested deeper than {DEPTH_MAX}")));
        }
        let mut choices = vec![self.sequence(depth)?];
        while let [Token::Bar, rest @ ..] = self.tokens {
            self.tokens = rest;
            choices.push(self.sequence(depth)?);
        }
        Ok(if choices.len() == 1 { choices.remove(0) } else { Node::Choice(choices) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Node, ConstraintError> {
        let mut nodes = Vec::new();
        loop {
            let node = match self.tokens {
                // The next rule begins.
                [] | [Token::Bar | Token::Close, ..] | [Token::Name(_), Token::Define, ..] => break,
                [Token::Literal(text), ..] => Node::Literal(text.clone()),
                [Token::Class(class), ..] => Node::Class(class.clone()),
                [Token::Name(name), ..] => {
                    let rule = self.names.get(name.as_str());
                    Node::Rule(*rule.ok_or_else(|| bad(format!("the rule {name:?} is not defined")))?)
                }
                [Token::Open, rest @ ..] => {
                    self.tokens = rest;
                    let inside = self.choice(depth + 1)?;
                    if self.tokens.first() != Some(&Token::Close) {
                        return Err(bad("a parenthesis is not closed".to_owned()));
                    }
                    inside
                }
                [token, ..] => return Err(bad(format!("{token:?} has nothing before it"))),
            };
            self.tokens = &self.tokens[1..];
            nodes.push(match self.tokens {
                [Token::Count(least, most), rest @ ..] => {
                    self.tokens = rest;
                    Node::Repeat(Box::new(node), *least, *most)
                }
                _ => node,
            });
        }
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::Sequence(nodes) })
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, ConstraintError> {
    let mut tokens = Vec::new();
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        tokens.push(match character {
            _ if character.is_whitespace() => continue,
            '#' => {
                characters.by_ref().find(|character| *character == '\n');
                continue;
            }
            '|' => Token::Bar,
            '(' => Token::Open,
            ')' => Token::Close,
            '*' => Token::Count(0, None),
            '+' => Token::Count(1, None),
            '?' => Token::Count(0, Some(1)),
            '.' => Token::Class("(?s:.)".to_owned()),
            '"' => Token::Literal(literal(&mut characters)?),
            '[' => Token::Class(class(&mut characters)?),
            '{' => counts(&mut characters)?,
            ':' if characters.next() == Some(':') && characters.next() == Some('=') => Token::Define,
            _ if is_of_name(character) => {
                let mut name = character.to_string();
                while let Some(more) = characters.next_if(|character| is_of_name(*character)) {
                    name.push(more);
                }
                Token::Name(name)
            }
            other => return Err(bad(format!("{other:?} has no meaning"))),
        });
    }
    Ok(tokens)
}

fn is_of_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '-' | '_')
}

fn literal(characters: &mut Peekable<Chars<'_>>) -> Result<String, ConstraintError> {
    let mut text = String::new();
    loop {
        match characters.next().ok_or_else(|| bad("a text is not closed by quotes".to_owned()))? {
            '"' => return Ok(text),
            '\\' => text.push(escape(characters)?),
            character => text.push(character),
        }
    }
}

/// A set of characters, as a regular expression.
fn class(characters: &mut Peekable<Chars<'_>>) -> Result<String, ConstraintError> {
    let open = || bad("a set of characters is not closed by a bracket".to_owned());
    let mut class = "[".to_owned();
    if characters.next_if_eq(&'^').is_some() {
        class.push('^');
    }
    let mut is_empty = true;
    loop {
        let first = match characters.next().ok_or_else(open)? {
            ']' if is_empty => return Err(bad("a set of characters is empty".to_owned())),
            ']' => break,
            '\\' => escape(characters)?,
            character => character,
        };
        is_empty = false;
        let mut last = first;
        // A hyphen at the end stands for itself.
        let mut ahead = characters.clone();
        if ahead.next() == Some('-') && ahead.next().is_some_and(|character| character != ']') {
            characters.next();
            last = match characters.next().ok_or_else(open)? {
                '\\' => escape(characters)?,
                character => character,
            };
        }
        if last < first {
            return Err(bad(format!("the range from {first:?} to {last:?} is empty")));
        }
        class.push_str(&format!("\\x{{{:x}}}", first as u32));
        if last != first {
            class.push_str(&format!("-\\x{{{:x}}}", last as u32));
        }
    }
    class.push(']');
    Ok(class)
}

/// What follows a backslash.
fn escape(characters: &mut Peekable<Chars<'_>>) -> Result<char, ConstraintError> {
    let digits = match characters.next() {
        Some('n') => return Ok('\n'),
        Some('r') => return Ok('\r'),
        Some('t') => return Ok('\t'),
        Some(itself @ ('\\' | '"' | '[' | ']' | '-' | '^' | '/')) => return Ok(itself),
        Some('x') => 2,
        Some('u') => 4,
        Some('U') => 8,
        other => return Err(bad(format!("{other:?} after a backslash has no meaning"))),
    };
    let number =
        (0..digits).try_fold(0_u32, |number, _| Some(number.checked_mul(16)? + characters.next()?.to_digit(16)?));
    number.and_then(char::from_u32).ok_or_else(|| bad("a number after a backslash is no character".to_owned()))
}

/// `{3}`, `{3,}`, `{,5}` or `{3,5}`, after the brace.
fn counts(characters: &mut Peekable<Chars<'_>>) -> Result<Token, ConstraintError> {
    let inside: String = characters.by_ref().take_while(|character| *character != '}').collect();
    let number = |text: &str| {
        text.trim().parse::<u32>().map(|number| number as usize).map_err(|_| bad(format!("{{{inside}}} is no count")))
    };
    let (least, most) = match inside.split_once(',') {
        None => (number(&inside)?, Some(number(&inside)?)),
        Some((least, most)) => {
            let least = if least.trim().is_empty() { 0 } else { number(least)? };
            (least, if most.trim().is_empty() { None } else { Some(number(most)?) })
        }
    };
    if most.is_some_and(|most| most < least) {
        return Err(bad(format!("{{{inside}}} allows no count")));
    }
    Ok(Token::Count(least, most))
}
