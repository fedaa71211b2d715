//! llama.cpp's grammars (GBNF) as grammars of Lark.
//!
//! Lark cuts a text into terminals and only then looks at rules, each terminal as long as it can be. So whatever does not
//! refer to itself becomes one terminal: then nothing is cut that could have been cut otherwise, and following it is fast.

mod read;

use std::fmt::Write as _;

use super::constraint::ConstraintError;
use read::{Grammar, Node};

/// The grammar in Lark's words.
pub(super) fn to_lark(grammar: &str) -> Result<String, ConstraintError> {
    let grammar = read::read(grammar)?;
    let mut writer = Writer { recursive: recursive(&grammar), lines: String::new(), terminals: 0 };
    let root = writer.reference(grammar.root);
    let mut lark = format!("start: {root}\n");
    for (index, rule) in grammar.rules.iter().enumerate() {
        let body = if writer.recursive[index] { writer.rule(rule) } else { writer.terminal(rule) };
        // Writing to a string cannot fail.
        let _ = writeln!(lark, "{}: {body}", writer.reference(index));
    }
    lark.push_str(&writer.lines);
    Ok(lark)
}

/// Which rules lead back to themselves, or to one that does.
fn recursive(grammar: &Grammar) -> Vec<bool> {
    let count = grammar.rules.len();
    let mut references: Vec<Vec<usize>> = grammar.rules.iter().map(Node::references).collect();
    references.iter_mut().for_each(|references| {
        references.sort_unstable();
        references.dedup();
    });
    // What refers to no rule, or only to such ones, is taken away until only cycles and what leads to them are left.
    let mut left: Vec<bool> = vec![true; count];
    loop {
        let ends: Vec<usize> =
            (0..count).filter(|&rule| left[rule] && !references[rule].iter().any(|&other| left[other])).collect();
        if ends.is_empty() {
            return left;
        }
        ends.into_iter().for_each(|rule| left[rule] = false);
    }
}

struct Writer {
    recursive: Vec<bool>,
    /// Terminals that had no name.
    lines: String,
    terminals: usize,
}

impl Writer {
    /// The name of a rule. Lark knows terminals by their capitals.
    fn reference(&self, rule: usize) -> String {
        if self.recursive[rule] { format!("rule_{rule}") } else { format!("RULE_{rule}") }
    }

    fn is_regular(&self, node: &Node) -> bool {
        !node.references().iter().any(|&rule| self.recursive[rule])
    }

    /// A part of a rule. Parts of it that are regular become terminals.
    fn rule(&mut self, node: &Node) -> String {
        if self.is_regular(node) {
            let body = self.terminal(node);
            let name = format!("PART_{}", self.terminals);
            self.terminals += 1;
            let _ = writeln!(self.lines, "{name}: {body}");
            return name;
        }
        match node {
            Node::Sequence(nodes) => {
                let mut parts = Vec::new();
                let mut rest = nodes.as_slice();
                while let [first, ..] = rest {
                    let together = rest.iter().take_while(|node| self.is_regular(node)).count();
                    let (now, later) = rest.split_at(together.max(1));
                    parts.push(if together > 1 { self.rule(&Node::Sequence(now.to_vec())) } else { self.rule(first) });
                    rest = later;
                }
                parts.join(" ")
            }
            Node::Choice(nodes) => {
                let choices: Vec<String> = nodes.iter().map(|node| self.rule(node)).collect();
                format!("({})", choices.join(" | "))
            }
            Node::Repeat(node, least, most) => format!("({}){}", self.rule(node), count(*least, *most)),
            Node::Rule(rule) => self.reference(*rule),
            Node::Literal(_) | Node::Class(_) => self.terminal(node),
        }
    }

    /// A part of a terminal.
    fn terminal(&self, node: &Node) -> String {
        match node {
            Node::Literal(text) => serde_json::Value::from(text.as_str()).to_string(),
            Node::Class(class) => format!("/{class}/"),
            Node::Rule(rule) => self.reference(*rule),
            Node::Sequence(nodes) if nodes.is_empty() => "\"\"".to_owned(),
            Node::Sequence(nodes) => nodes.iter().map(|node| self.terminal(node)).collect::<Vec<_>>().join(" "),
            Node::Choice(nodes) => {
                format!("({})", nodes.iter().map(|node| self.terminal(node)).collect::<Vec<_>>().join(" | "))
            }
            Node::Repeat(node, least, most) => format!("({}){}", self.terminal(node), count(*least, *most)),
        }
    }
}

fn count(least: usize, most: Option<usize>) -> String {
    match (least, most) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::guide::Constraint;

    #[test]
    fn a_regular_grammar_is_one_terminal() {
        let lark = to_lark("root ::= greeting \" \" [a-z]+ # name\ngreeting ::= \"hi\" | \"ho\\n\"").unwrap();
        assert_eq!(lark, "start: RULE_0\nRULE_0: RULE_1 \" \" (/[\\x{61}-\\x{7a}]/)+\nRULE_1: (\"hi\" | \"ho\\n\")\n");
        Constraint::grammar("root ::= [^\\]\\n] . \"\" \"\\x41\\u00e9\" ([0-9]{2} | [a]{1,} | [b]{,3})?").unwrap();
    }

    #[test]
    fn a_recursive_grammar_keeps_its_rules() {
        let json = r#"
            root   ::= object
            value  ::= object | array | string | number | ("true" | "false" | "null") ws
            object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
            array  ::= "[" ws ( value ("," ws value)* )? "]" ws
            string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
            number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
            ws ::= | " " | "\n" [ \t]{0,20}
        "#;
        let lark = to_lark(json).unwrap();
        assert!(lark.contains("rule_2: ") && lark.contains("RULE_4: ") && lark.contains("PART_0: "), "{lark}");
        Constraint::grammar(json).unwrap();
    }

    #[test]
    fn bad_grammars_are_refused() {
        let deep = format!("root ::= {}", "(".repeat(5000));
        for bad in [
            "::= a",
            "root ::= a",
            "a ::= \"x\"",
            "root ::= \"x",
            "root ::= [a",
            "root ::= (",
            "root ::= )",
            "root ::= *",
            "root ::= [b-a]",
            "root ::= \"x\"{3,2}",
            "root ::= \"x\"{",
            "root ::= \"a\"\nroot ::= \"b\"",
            "root ::= \"\\q\"",
            &deep,
        ] {
            to_lark(bad).unwrap_err();
        }
    }

    proptest! {
        #[test]
        fn foreign_grammars_never_panic(grammar in "(root ::= )?[a-c\"\\[\\]{}()|*+?.:=0-9\\\\\n #-]{0,60}") {
            let _ = to_lark(&grammar);
        }
    }
}
