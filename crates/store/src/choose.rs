//! Which of several files is the model.

use std::collections::BTreeMap;

use crate::paths::base_name;
use crate::source::has_gguf_ending;

/// What to do about several model files when none was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Several {
    /// Refuse, so that the user chooses.
    Ask,
    /// Take the only one of the usual quantization, and refuse otherwise.
    PreferUsual,
}

/// Why no file could be chosen.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChoiceError {
    /// There is no such model file, or none at all; these are there.
    None { choices: Vec<String> },
    /// These are the candidates.
    Several { choices: Vec<String> },
    /// A split model lacks this part.
    PartMissing { part: String },
}

/// The quantization that most people want: the smallest one with hardly any loss.
const USUAL: &str = "q4_k_m";

/// Chooses the model among the paths `files`: one path, or all parts of a split model in order.
///
/// `wanted` is a path, or the last component of one; any part of a split model stands for all.
pub(crate) fn choose(files: &[String], wanted: Option<&str>, several: Several) -> Result<Vec<String>, ChoiceError> {
    let sets = Sets::of(files);
    if let Some(wanted) = wanted {
        return sets.named(wanted);
    }
    let models: Vec<&String> = sets.models().collect();
    let usual: Vec<&String> = models.iter().copied().filter(|path| path.to_lowercase().contains(USUAL)).collect();
    let chosen = match (models.as_slice(), usual.as_slice()) {
        ([], _) => return Err(ChoiceError::None { choices: Vec::new() }),
        ([only], _) => only,
        (_, [only]) if several == Several::PreferUsual => only,
        _ => return Err(ChoiceError::Several { choices: models.into_iter().cloned().collect() }),
    };
    sets.complete(chosen)
}

/// Files grouped so that the parts of a split model count as one, under the path of its first part.
struct Sets {
    files: BTreeMap<String, Vec<String>>,
    totals: BTreeMap<String, u32>,
}

impl Sets {
    fn of(files: &[String]) -> Sets {
        let mut sets = Sets { files: BTreeMap::new(), totals: BTreeMap::new() };
        for path in files {
            let first = match split_part(path) {
                Some(part) => {
                    let first = part.sibling(1);
                    sets.totals.insert(first.clone(), part.total);
                    first
                }
                None => path.clone(),
            };
            sets.files.entry(first).or_default().push(path.clone());
        }
        sets
    }

    /// The candidates when nothing was asked for: projectors of vision models and importance matrices are no models.
    fn models(&self) -> impl Iterator<Item = &String> {
        self.files.keys().filter(|path| {
            let base = base_name(path).to_lowercase();
            has_gguf_ending(&base) && !base.contains("mmproj") && !base.contains("imatrix")
        })
    }

    fn named(&self, wanted: &str) -> Result<Vec<String>, ChoiceError> {
        let holds = |test: &dyn Fn(&String) -> bool| -> Vec<&String> {
            self.files.iter().filter(|(_, paths)| paths.iter().any(test)).map(|(first, _)| first).collect()
        };
        let mut found = holds(&|path| path == wanted);
        if found.is_empty() {
            found = holds(&|path| base_name(path) == wanted);
        }
        match found.as_slice() {
            [] => Err(ChoiceError::None { choices: self.models().cloned().collect() }),
            [only] => self.complete(only),
            _ => Err(ChoiceError::Several { choices: found.into_iter().cloned().collect() }),
        }
    }

    /// All parts of the set whose first part is `first`, in order.
    fn complete(&self, first: &str) -> Result<Vec<String>, ChoiceError> {
        let paths = self.files.get(first).map(Vec::as_slice).unwrap_or_default();
        let (Some(&total), Some(part)) = (self.totals.get(first), split_part(first)) else {
            return Ok(vec![first.to_owned()]);
        };
        // The count is foreign: more parts than there are files are missing, whatever the count says.
        let mut parts = Vec::with_capacity(paths.len());
        for number in 1..=total {
            let name = part.sibling(number);
            if !paths.contains(&name) {
                return Err(ChoiceError::PartMissing { part: name });
            }
            parts.push(name);
        }
        Ok(parts)
    }
}

/// A name of the form `STEM-00001-of-00003.gguf`, which llama.cpp's gguf-split gives the parts of a model.
struct SplitPart<'a> {
    stem: &'a str,
    total: u32,
}

impl SplitPart<'_> {
    fn sibling(&self, number: u32) -> String {
        format!("{}-{number:05}-of-{:05}.gguf", self.stem, self.total)
    }
}

fn split_part(path: &str) -> Option<SplitPart<'_>> {
    let rest = path.strip_suffix(".gguf")?;
    let (rest, total) = rest.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| (text.len() == 5).then(|| text.parse::<u32>().ok()).flatten();
    let (number, total) = (digits(number)?, digits(total)?);
    (!stem.is_empty() && (1..=total).contains(&number)).then_some(SplitPart { stem, total })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn files(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_only_model_is_chosen() {
        let list = files(&["README.md", "a/model-Q8_0.gguf", "mmproj-F16.gguf", "imatrix.gguf"]);
        assert_eq!(choose(&list, None, Several::Ask), Ok(files(&["a/model-Q8_0.gguf"])));
    }

    #[test]
    fn the_usual_quantization_is_preferred_only_where_allowed() {
        let list = files(&["m-Q2_K.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf"]);
        assert_eq!(choose(&list, None, Several::PreferUsual), Ok(files(&["m-Q4_K_M.gguf"])));
        assert_eq!(choose(&list, None, Several::Ask), Err(ChoiceError::Several { choices: list.clone() }));
        let two = files(&["a-q4_k_m.gguf", "b-q4_k_m.gguf"]);
        assert_eq!(choose(&two, None, Several::PreferUsual), Err(ChoiceError::Several { choices: two.clone() }));
    }

    #[test]
    fn a_file_is_found_by_path_or_by_name() {
        let list = files(&["x/m.gguf", "y/m.gguf", "y/other.gguf", "mmproj.gguf"]);
        assert_eq!(choose(&list, Some("x/m.gguf"), Several::Ask), Ok(files(&["x/m.gguf"])));
        assert_eq!(choose(&list, Some("other.gguf"), Several::Ask), Ok(files(&["y/other.gguf"])));
        assert_eq!(choose(&list, Some("mmproj.gguf"), Several::Ask), Ok(files(&["mmproj.gguf"])));
        let both = files(&["x/m.gguf", "y/m.gguf"]);
        assert_eq!(choose(&list, Some("m.gguf"), Several::Ask), Err(ChoiceError::Several { choices: both }));
        let models = files(&["x/m.gguf", "y/m.gguf", "y/other.gguf"]);
        assert_eq!(choose(&list, Some("n.gguf"), Several::Ask), Err(ChoiceError::None { choices: models }));
    }

    #[test]
    fn the_parts_of_a_split_model_are_one() {
        let list = files(&["m-00002-of-00003.gguf", "m-00003-of-00003.gguf", "m-00001-of-00003.gguf", "n.gguf"]);
        let parts = files(&["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"]);
        assert_eq!(choose(&list[..3], None, Several::Ask), Ok(parts.clone()));
        assert_eq!(choose(&list, Some("m-00002-of-00003.gguf"), Several::Ask), Ok(parts));
        let missing = ChoiceError::PartMissing { part: "m-00001-of-00003.gguf".into() };
        assert_eq!(choose(&list[..2], None, Several::Ask), Err(missing));
    }

    #[test]
    fn nothing_to_choose_from() {
        assert_eq!(choose(&[], None, Several::Ask), Err(ChoiceError::None { choices: vec![] }));
        let list = files(&["README.md"]);
        assert_eq!(choose(&list, None, Several::PreferUsual), Err(ChoiceError::None { choices: vec![] }));
    }

    proptest! {
        #[test]
        fn what_is_chosen_is_in_the_list(
            list in prop::collection::vec("[a-b]/?(m|n)(-0000[0-3]-of-0000[0-3])?\\.(gguf|md)", 0..8),
            wanted in prop::option::of("(m|n)(-0000[1-3]-of-0000[1-3])?\\.gguf"),
        ) {
            if let Ok(chosen) = choose(&list, wanted.as_deref(), Several::PreferUsual) {
                prop_assert!(!chosen.is_empty());
                prop_assert!(chosen.iter().all(|path| list.contains(path)));
            }
        }
    }
}
