//! How the text is cut into words before bytes are merged: one list of patterns for each family of models, by the
//! name that `tokenizer.ggml.pre` gives it.
//!
//! The patterns are those of the models' own `tokenizer.json` files. Nearly all of them end in the same alternatives,
//! `\s+(?!\S)|\s+`: white space up to the last character before a word. [`Step::Words`] stands for these, so that no
//! pattern needs to look ahead and all run in linear time.

use std::borrow::Cow;

use regex_automata::meta::Regex;
use regex_automata::util::syntax;

use super::words::{COMPOSES, STEPS, Step, TAKES_WHOLE_WORDS};
use crate::ModelError;
use crate::gguf::Metadata;

const KEY: &str = "tokenizer.ggml.pre";

/// The way of a family of models.
#[derive(Debug)]
struct Family {
    names: &'static [&'static str],
    steps: &'static [Step],
    /// Whether text is brought into Unicode's composed form (NFC) first.
    composes: bool,
    /// Whether a word that is a token is taken as it is, whether or not merges lead to it.
    takes_whole_words: bool,
    /// Whether the models expect the BOS token before a text where the file says nothing.
    adds_bos: bool,
}

/// What most families have in common.
const PLAIN: Family = Family { names: &[], steps: &[], composes: false, takes_whole_words: false, adds_bos: false };

const fn matches(pattern: &'static str) -> Step {
    Step::Matches(Cow::Borrowed(pattern))
}

const fn words(pattern: &'static str) -> Step {
    Step::Words(Cow::Borrowed(pattern))
}

const GPT2: Step = words(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+");
const LLAMA3: Step =
    words(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+");
const QWEN2: Step =
    words(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+");
const DEEPSEEK3_WORDS: Step = words(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"##,
);
const GPT4O: Step = words(concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+",
));
const TEKKEN: Step = words(concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+",
));
const KIMI: Step = words(concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
));
const HAN_AND_KANA: Step = matches("[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+");
const HAN_TO_HANGUL: Step = matches("[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+");
const DIGIT: Step = matches(r"\p{N}");
const UP_TO_THREE_DIGITS: Step = matches(r"\p{N}{1,3}");
const BLOOM: Step = matches(r" ?[^(\s|.,!?…。，、।۔،)]+");
/// The letters that have case, as the models' files spell them out, by code point because some would not survive an
/// editor that normalizes text.
const CASED_WORD: Step = matches(concat!(
    r"\s?[A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}\u{295}-\u{2af}",
    r"\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}\u{38e}-\u{3a1}\u{3a3}-\u{3f5}",
    r"\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}\u{13a0}-\u{13f5}\u{13f8}-\u{13fd}",
    r"\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}",
    r"\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}",
    r"\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}",
    r"\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}",
    r"\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}\u{2145}-\u{2149}\u{214e}",
    r"\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}",
    r"\u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\u{a78b}-\u{a78e}\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}",
    r"\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}",
    r"\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\u{1e900}-\u{1e943}]+",
));
const CASED_PUNCTUATION: Step =
    matches(r"\s?[!-/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+");

/// Every family that is known.
const FAMILIES: &[Family] = &[
    Family {
        names: &[
            "gpt-2",
            "default",
            "phi-2",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "jais",
            "trillion",
            "granite-docling",
            "modern-bert",
            "roberta-bpe",
        ],
        steps: &[GPT2],
        ..PLAIN
    },
    Family { names: &["olmo", "mpt", "dolma", "gpt-neox"], steps: &[GPT2], composes: true, ..PLAIN },
    Family {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        steps: &[DIGIT, GPT2],
        ..PLAIN
    },
    Family {
        names: &["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        steps: &[LLAMA3],
        takes_whole_words: true,
        adds_bos: true,
        ..PLAIN
    },
    Family { names: &["dbrx", "smaug-bpe", "chatglm-bpe", "glm4"], steps: &[LLAMA3], ..PLAIN },
    Family { names: &["qwen2", "stablelm2"], steps: &[QWEN2], composes: true, ..PLAIN },
    Family {
        names: &["deepseek-r1-qwen", "megrez", "hunyuan", "grok-2", "solar-open", "kormo", "f2llmv2"],
        steps: &[QWEN2],
        ..PLAIN
    },
    Family {
        names: &["qwen35"],
        steps: &[words(concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
            r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+",
        ))],
        composes: true,
        ..PLAIN
    },
    Family {
        names: &["deepseek-llm"],
        steps: &[matches(r"[\r\n]"), CASED_WORD, CASED_PUNCTUATION, matches(r"\s+$"), HAN_TO_HANGUL, DIGIT],
        ..PLAIN
    },
    Family {
        names: &["deepseek-coder"],
        steps: &[matches(r"[\r\n]"), matches(r"\s?\p{L}+"), matches(r"\s?\p{P}+"), HAN_TO_HANGUL, DIGIT],
        ..PLAIN
    },
    Family {
        names: &["deepseek-v3", "deepseek-r1", "hunyuan-dense", "joyai-llm"],
        steps: &[UP_TO_THREE_DIGITS, HAN_AND_KANA, DEEPSEEK3_WORDS],
        ..PLAIN
    },
    Family { names: &["gpt-4o", "llama4", "kanana2", "minimax-m2", "o200k"], steps: &[GPT4O], ..PLAIN },
    Family { names: &["tekken"], steps: &[TEKKEN], takes_whole_words: true, adds_bos: true, ..PLAIN },
    Family { names: &["kimi-k2"], steps: &[KIMI], ..PLAIN },
    Family {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        steps: &[words(r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]")],
        ..PLAIN
    },
    Family {
        names: &["seed-coder"],
        steps: &[words(concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}",
            r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+",
        ))],
        ..PLAIN
    },
    Family {
        names: &["exaone-moe"],
        steps: &[words(concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]",
        ))],
        ..PLAIN
    },
    Family {
        names: &["falcon"],
        steps: &[
            matches(r"[\p{P}$+<=>^`|~]+"),
            GPT2,
            // These models split numbers only after bytes have become characters, and six bytes inside longer
            // characters then look like `²³¹¼½¾`.
            matches(r"(?-u:[0-9\xb2\xb3\xb9\xbc-\xbe]+)"),
            matches("[0-9][0-9][0-9]"),
        ],
        ..PLAIN
    },
    Family { names: &["bloom", "poro-chat", "gpt3-finnish"], steps: &[BLOOM], ..PLAIN },
    Family { names: &["viking"], steps: &[BLOOM, DIGIT], ..PLAIN },
];

/// Cuts text into words.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    composes: bool,
    takes_whole_words: bool,
    adds_bos: bool,
    cutters: Vec<Cutter>,
}

impl PreTokenizer {
    /// The cuts that a model's file names or spells out.
    pub(super) fn from_metadata(metadata: &Metadata) -> Result<PreTokenizer, ModelError> {
        if let Some(steps) = metadata.find_array_str(STEPS)? {
            let cutter = |written: &str| Cutter::new(&Step::read(written)?).ok();
            let cutters = steps.iter().map(cutter).collect::<Option<_>>();
            return Ok(PreTokenizer {
                composes: metadata.find_bool(COMPOSES)?.unwrap_or(false),
                takes_whole_words: metadata.find_bool(TAKES_WHOLE_WORDS)?.unwrap_or(false),
                adds_bos: false,
                cutters: cutters.ok_or_else(|| metadata.bad(STEPS, "holds a step that cannot be run"))?,
            });
        }
        let name = match metadata.find_str(KEY)? {
            Some(name) => name,
            None => {
                tracing::warn!(
                    "{} does not say how its text is cut into words, assuming GPT-2's way",
                    metadata.file().display()
                );
                "gpt-2"
            }
        };
        let Some(family) = FAMILIES.iter().find(|family| family.names.contains(&name)) else {
            let known: Vec<_> = FAMILIES.iter().flat_map(|family| family.names).copied().collect();
            return Err(metadata.bad(KEY, format!("is `{name}`, which is not known; known are {}", known.join(", "))));
        };
        Ok(PreTokenizer::of(family))
    }

    fn of(family: &Family) -> Self {
        // The patterns are constants of this file and a test builds every one of them.
        let cutter = |step| Cutter::new(step).unwrap_or_else(|error| unreachable!("{step:?}: {error}"));
        let Family { composes, takes_whole_words, adds_bos, .. } = *family;
        PreTokenizer { composes, takes_whole_words, adds_bos, cutters: family.steps.iter().map(cutter).collect() }
    }

    /// Whether text is brought into Unicode's composed form (NFC) before it is cut.
    pub(super) fn composes(&self) -> bool {
        self.composes
    }

    /// Whether a word that is a token is taken as it is.
    pub(super) fn takes_whole_words(&self) -> bool {
        self.takes_whole_words
    }

    /// Whether texts begin with the BOS token where the file says nothing.
    pub(super) fn adds_bos(&self) -> bool {
        self.adds_bos
    }

    /// Hands the words of `text` to `word`, in order and none of them empty.
    pub(super) fn split(&self, text: &str, mut word: impl FnMut(&[u8])) {
        cut(&self.cutters, text.as_bytes(), &mut word);
    }
}

/// Cuts a piece with the first cutter and what comes of it with the others.
fn cut(cutters: &[Cutter], piece: &[u8], word: &mut dyn FnMut(&[u8])) {
    match cutters {
        [] if piece.is_empty() => {}
        [] => word(piece),
        [first, rest @ ..] => first.cut(piece, &mut |part| cut(rest, part, word)),
    }
}

/// A step, ready to run.
#[derive(Debug)]
pub(super) struct Cutter {
    /// The step's pattern, then the one for white space if the step has it.
    regex: Regex,
}

/// The number of the white-space pattern.
const WHITE_SPACE: usize = 1;

impl Cutter {
    pub(super) fn new(step: &Step) -> Result<Cutter, Box<regex_automata::meta::BuildError>> {
        let mut patterns = vec![step.pattern()];
        patterns.extend(matches!(step, Step::Words(_)).then_some(r"\s+"));
        // Pieces of text can end inside a character, so patterns may match such pieces.
        let syntax = syntax::Config::new().utf8(false);
        // The largest patterns need about 10 MB for text in many scripts, and run at a fraction of their speed with less.
        let config = Regex::config().utf8_empty(false).hybrid_cache_capacity(16 << 20);
        let regex = Regex::builder().syntax(syntax).configure(config).build_many(&patterns)?;
        Ok(Cutter { regex })
    }

    fn cut(&self, piece: &[u8], part: &mut dyn FnMut(&[u8])) {
        let mut done = 0;
        while let Some(found) = self.regex.find(regex_automata::Input::new(piece).range(done..)) {
            let mut end = found.end();
            if found.pattern().as_usize() == WHITE_SPACE && end < piece.len() {
                end = before_last_character(piece, found.start(), end);
            }
            if done < found.start() {
                part(&piece[done..found.start()]);
            }
            part(&piece[found.start()..end]);
            done = end;
        }
        if done < piece.len() {
            part(&piece[done..]);
        }
    }
}

/// Where the last character of `piece[start..end]` begins, or `end` if it is the only one.
fn before_last_character(piece: &[u8], start: usize, end: usize) -> usize {
    let is_continuation = |&byte: &u8| byte & 0xc0 == 0x80;
    let last = piece[start..end].iter().rev().take_while(|byte| is_continuation(byte)).count() + 1;
    if end - last > start { end - last } else { end }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn splitter(name: &str) -> PreTokenizer {
        let family = FAMILIES.iter().find(|family| family.names.contains(&name)).unwrap();
        PreTokenizer::of(family)
    }

    fn words(name: &str, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        splitter(name).split(text, |word| words.push(String::from_utf8(word.to_vec()).unwrap()));
        words
    }

    #[test]
    fn every_pattern_is_valid_and_loses_nothing() {
        let text =
            "It's 12345 o'clock,\r\n\r\n  ｆｕｌｌ　½ мир 東京タワー한국어\t\ta(b)|c e\u{301}\u{a0} \u{1f600}   ";
        for family in FAMILIES {
            let mut whole = Vec::new();
            splitter(family.names[0]).split(text, |word| {
                assert!(!word.is_empty());
                whole.extend_from_slice(word);
            });
            assert_eq!(whole, text.as_bytes(), "{}", family.names[0]);
        }
    }

    #[test]
    fn a_name_belongs_to_one_family() {
        let mut names: Vec<_> = FAMILIES.iter().flat_map(|family| family.names).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn the_last_space_goes_with_the_word() {
        assert_eq!(words("gpt-2", "a   b  "), ["a", "  ", " b", "  "]);
        assert_eq!(words("gpt-2", "a\n\n b"), ["a", "\n\n", " b"]);
        assert_eq!(words("gpt-2", "a\tb\u{3000}\u{3000}c"), ["a", "\t", "b", "\u{3000}", "\u{3000}", "c"]);
        assert_eq!(words("llama3", "a \n b"), ["a", " \n", " b"]);
    }

    #[test]
    fn digits_are_grouped_as_each_family_does() {
        assert_eq!(words("llama3", "12345 678"), ["123", "45", " ", "678"]);
        assert_eq!(words("qwen2", "123"), ["1", "2", "3"]);
        assert_eq!(words("smollm", "a 12"), ["a", " ", "1", "2"]);
        assert_eq!(words("falcon", "x 12345"), ["x", " ", "123", "45"]);
    }
}
