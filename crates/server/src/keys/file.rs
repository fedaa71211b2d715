//! Files with keys: one a line, `[NAME] KEY [LIMIT=NUMBER]...`, where KEY may be `sha256:` and the key's digest.

use std::collections::HashSet;

use super::{Key, KeyLimits};

/// What begins the digest of a key.
const HASHED: &str = "sha256:";

/// A line that cannot be read. The message never shows what may be a key.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct KeyFileError {
    /// The line, from 1 on.
    pub line: usize,
    /// What is wrong with it, and how it has to be.
    pub problem: String,
}

/// Reads the keys in `text`. Empty lines, and those that begin with `#`, are skipped.
///
/// # Errors
/// When a line is not of the form above, or two keys have the same name or are the same.
pub fn parse_keys(text: &str) -> Result<Vec<Key>, KeyFileError> {
    let (mut names, mut digests) = (HashSet::new(), HashSet::new());
    let lines = text.lines().zip(1..).map(|(content, line)| (content.trim(), line));
    let lines = lines.filter(|(content, _)| !content.is_empty() && !content.starts_with('#'));
    let read = |(content, line): (&str, usize)| {
        let key = parse_line(content).and_then(|key| {
            if !names.insert(key.name.clone()) {
                return Err(format!("there is a key {:?} already", key.name));
            }
            if digests.insert(key.digest) { Ok(key) } else { Err("there is the same key already".to_owned()) }
        });
        key.map_err(|problem| KeyFileError { line, problem })
    };
    lines.map(read).collect()
}

fn parse_line(content: &str) -> Result<Key, String> {
    let words: Vec<&str> = content.split_whitespace().collect();
    let (limits, words): (Vec<&str>, Vec<&str>) = words.into_iter().partition(|word| is_limit(word));
    let (name, key) = match words.as_slice() {
        [key] => (None, *key),
        // Without a name a mistyped limit would make a key into a name, which is shown.
        [name, key] if !looks_like_limit(key) && !looks_like_limit(name) => (Some(*name), *key),
        _ => {
            return Err("expected a key, or a name and a key, and limits such as requests-per-minute=60, \
                         tokens-per-minute=20000 or concurrent=4 after it"
                .to_owned());
        }
    };
    let limits = parse_limits(&limits)?;
    let Some(digest) = key.strip_prefix(HASHED) else {
        check_secret(key)?;
        return Ok(Key::new(name, key, limits));
    };
    let digest = parse_digest(digest).ok_or("expected 64 hexadecimal digits after sha256:")?;
    Ok(Key::hashed(name, digest, limits))
}

/// Keys travel in headers, which carry visible characters.
fn check_secret(key: &str) -> Result<(), String> {
    let visible = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
    if visible { Ok(()) } else { Err("a key must consist of letters, digits and signs of ASCII".to_owned()) }
}

fn is_limit(word: &str) -> bool {
    let name = word.split_once('=').map(|(name, _)| name);
    matches!(name, Some("requests-per-minute" | "tokens-per-minute" | "concurrent"))
}

/// Keys may end in `=`, as base64 does, but have none inside.
fn looks_like_limit(word: &str) -> bool {
    word.trim_end_matches('=').contains('=')
}

fn parse_limits(words: &[&str]) -> Result<KeyLimits, String> {
    let mut limits = KeyLimits::default();
    for (name, value) in words.iter().filter_map(|word| word.split_once('=')) {
        let number = value.parse::<u32>().ok().filter(|&number| number > 0);
        let number = number.ok_or_else(|| format!("{name} must be a positive number"))?;
        let limit = match name {
            "requests-per-minute" => &mut limits.requests_per_minute,
            "tokens-per-minute" => &mut limits.tokens_per_minute,
            _ => &mut limits.concurrent,
        };
        if limit.replace(number).is_some() {
            return Err(format!("{name} is there twice"));
        }
    }
    Ok(limits)
}

fn parse_digest(text: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if text.len() != 2 * digest.len() || !text.is_ascii() {
        return None;
    }
    for (index, byte) in digest.iter_mut().enumerate() {
        let digits = &text[2 * index..2 * index + 2];
        // A sign would be read as part of a number.
        *byte = u8::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_digests_and_limits_are_read() {
        let text = "# who may ask\n\n alice sk-1 requests-per-minute=60 concurrent=2\n\
                    bob sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\n\
                    c2VjcmV0MQ== tokens-per-minute=1000\r\n";
        let keys = parse_keys(text).unwrap();
        let limits = |requests, tokens, concurrent| KeyLimits {
            requests_per_minute: requests,
            tokens_per_minute: tokens,
            concurrent,
        };
        let expected = [
            Key::new(Some("alice"), "sk-1", limits(Some(60), None, Some(2))),
            Key::new(Some("bob"), "secret", KeyLimits::default()),
            Key::new(None, "c2VjcmV0MQ==", limits(None, Some(1000), None)),
        ];
        assert_eq!(keys, expected);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line_and_without_the_key() {
        let cases = [
            ("a sk-1\na sk-2", 2, "there is a key \"a\" already"),
            ("a sk-1\nb sk-1", 2, "the same key"),
            ("sk-1 request-per-minute=5", 1, "expected a key"),
            ("a sk-1 b", 1, "expected a key"),
            ("concurrent=1", 1, "expected a key"),
            ("\na sk-1 concurrent=0", 2, "concurrent must be a positive number"),
            ("a sk-1 concurrent=1 concurrent=2", 1, "concurrent is there twice"),
            ("a sha256:12", 1, "64 hexadecimal digits"),
            ("a sk-\u{e9}", 1, "ASCII"),
        ];
        for (text, line, problem) in cases {
            let error = parse_keys(text).unwrap_err();
            assert_eq!(error.line, line, "{text}");
            assert!(error.problem.contains(problem) && !error.to_string().contains("sk-"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*|[a-c =#:\n0-9sha256:]{0,200}") {
            drop(parse_keys(&text));
        }
    }
}
