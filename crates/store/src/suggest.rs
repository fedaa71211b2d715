//! Near misses: which known names an unknown one may have meant.

/// Longest text that is compared at all: the comparison's cost is the product of the lengths.
const LONGEST: usize = 64;

/// At most three of `known` that look like `wanted`, best first.
pub(crate) fn near_misses<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let wanted = wanted.to_lowercase();
    if wanted.is_empty() || wanted.len() > LONGEST {
        return Vec::new();
    }
    let mut ranked: Vec<(usize, &str)> = known
        .into_iter()
        .filter(|name| name.len() <= LONGEST)
        .filter_map(|name| {
            let lower = name.to_lowercase();
            let distance = edit_distance(&wanted, &lower);
            let near = distance <= (wanted.chars().count() / 3).max(2);
            let contained = wanted.len() >= 3 && (lower.contains(&wanted) || wanted.contains(&lower));
            (near || contained).then_some((distance, name))
        })
        .collect();
    ranked.sort();
    ranked.into_iter().take(3).map(|(_, name)| name).collect()
}

/// The number of insertions, deletions and replacements of characters between two texts (Levenshtein).
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("abc", ""), 3);
        assert_eq!(edit_distance("same", "same"), 0);
    }

    #[test]
    fn typing_errors_and_parts_of_names_are_found() {
        let known = ["smollm2", "gemma3-270m", "qwen3-0.6b", "qwen3-4b"];
        assert_eq!(near_misses("smolm2", known), ["smollm2"]);
        assert_eq!(near_misses("SmolLM", known), ["smollm2"]);
        assert_eq!(near_misses("gemma", known), ["gemma3-270m"]);
        assert_eq!(near_misses("qwen3", known), ["qwen3-4b", "qwen3-0.6b"]);
        assert!(near_misses("entirely-different", known).is_empty());
        assert!(near_misses("", known).is_empty());
        assert!(near_misses(&"q".repeat(10_000), known).is_empty());
    }
}
