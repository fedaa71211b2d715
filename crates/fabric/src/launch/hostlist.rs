//! Slurm's way to write many host names in few characters: `node[01-03,7],gpu5` are `node01`, `node02`, `node03`, `node7`
//! and `gpu5`.

use crate::error::FabricError;

/// The most hosts that a list may stand for.
pub const HOSTS_MAX: usize = 65_536;
/// More brackets than this in one name are no host's.
const BRACKETS_MAX: usize = 8;

/// The hosts that a list stands for, in its order.
///
/// # Errors
/// [`FabricError::Invalid`] when the list is malformed, empty, or stands for more than [`HOSTS_MAX`] hosts.
pub fn expand(list: &str) -> Result<Vec<String>, FabricError> {
    let mut hosts = Vec::new();
    for name in split_outside_brackets(list)? {
        expand_name(name, list, &mut hosts)?;
    }
    if hosts.is_empty() { Err(malformed(list, "it names no host")) } else { Ok(hosts) }
}

fn malformed(list: &str, why: &str) -> FabricError {
    let shown: String = list.chars().take(100).collect();
    FabricError::Invalid(format!("the list of hosts {shown:?} cannot be read: {why}"))
}

/// The parts between the commas that stand outside brackets.
fn split_outside_brackets(list: &str) -> Result<Vec<&str>, FabricError> {
    let mut parts = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (at, character) in list.char_indices() {
        match character {
            '[' if inside => return Err(malformed(list, "there are brackets within brackets")),
            ']' if !inside => return Err(malformed(list, "a bracket is closed that was not opened")),
            '[' => inside = true,
            ']' => inside = false,
            ',' if !inside => {
                parts.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(malformed(list, "a bracket is not closed"));
    }
    parts.push(list[start..].trim());
    Ok(parts)
}

/// Adds the hosts that a name with any number of brackets stands for.
fn expand_name(name: &str, list: &str, hosts: &mut Vec<String>) -> Result<(), FabricError> {
    if name.is_empty() {
        return Err(malformed(list, "there is nothing between two commas"));
    }
    if name.matches('[').count() > BRACKETS_MAX {
        return Err(malformed(list, "a name has too many brackets"));
    }
    let mut expanded = vec![String::new()];
    let mut rest = name;
    while let Some((before, after)) = rest.split_once('[') {
        let (ranges, behind) = after.split_once(']').ok_or_else(|| malformed(list, "a bracket is not closed"))?;
        let endings = expand_ranges(ranges, list)?;
        if hosts.len() + expanded.len() * endings.len() > HOSTS_MAX {
            return Err(malformed(list, "it stands for too many hosts"));
        }
        let join = |start: &String| endings.iter().map(|end| format!("{start}{before}{end}")).collect::<Vec<_>>();
        expanded = expanded.iter().flat_map(join).collect();
        rest = behind;
    }
    expanded.iter_mut().for_each(|host| host.push_str(rest));
    if hosts.len() + expanded.len() > HOSTS_MAX {
        return Err(malformed(list, "it stands for too many hosts"));
    }
    hosts.append(&mut expanded);
    Ok(())
}

/// The numbers that the inside of a bracket stands for, with the zeros in front that it is written with.
fn expand_ranges(ranges: &str, list: &str) -> Result<Vec<String>, FabricError> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(first) || !is_number(last) {
            return Err(malformed(list, "a bracket holds something else than numbers"));
        }
        let parse = |text: &str| text.parse::<u64>().map_err(|_| malformed(list, "a number is too large"));
        let (from, to) = (parse(first)?, parse(last)?);
        if from > to || to - from >= HOSTS_MAX as u64 || numbers.len() as u64 + (to - from) >= HOSTS_MAX as u64 {
            return Err(malformed(list, "a range is empty or too long"));
        }
        let width = first.len();
        numbers.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_are_expanded() {
        let expected: &[(&str, &[&str])] = &[
            ("localhost", &["localhost"]),
            ("a,b", &["a", "b"]),
            ("node[1-3]", &["node1", "node2", "node3"]),
            ("node[01-03,7],gpu5", &["node01", "node02", "node03", "node7", "gpu5"]),
            ("node[8-11]", &["node8", "node9", "node10", "node11"]),
            ("node[099-101].cluster", &["node099.cluster", "node100.cluster", "node101.cluster"]),
            ("r[0-1]n[2,4]", &["r0n2", "r0n4", "r1n2", "r1n4"]),
        ];
        for (list, hosts) in expected {
            assert_eq!(expand(list).unwrap(), *hosts, "{list}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let lists =
            ["", ",", "a,", "a[", "a]", "a[]", "a[1", "a[b]", "a[3-1]", "a[[1]]", "a[1-]", "a[-1]", "a[1-99999999]"];
        for list in lists {
            assert!(expand(list).is_err(), "{list}");
        }
        assert!(expand("a[0-65535]").is_ok());
        assert!(expand("a[0-65535],b").is_err());
        assert!(expand("a[0-999]b[0-999]").is_err(), "brackets multiply");
        assert!(expand("a[0-65535,0-65535]").is_err());
    }

    proptest! {
        #[test]
        fn any_text_gives_hosts_or_an_error(text in "[a-c0-9,\\[\\]-]{0,40}|\\PC{0,40}") {
            if let Ok(hosts) = expand(&text) {
                prop_assert!(!hosts.is_empty() && hosts.len() <= HOSTS_MAX);
            }
        }

        #[test]
        fn numbers_are_those_of_the_range(from in 0u64..2000, length in 0u64..200, width in 1usize..6) {
            let hosts = expand(&format!("n[{from:0width$}-{}]", from + length)).unwrap();
            let numbers: Vec<u64> = hosts.iter().map(|host| host[1..].parse().unwrap()).collect();
            prop_assert_eq!(numbers, (from..=from + length).collect::<Vec<_>>());
            prop_assert!(hosts.iter().all(|host| host.len() > width));
        }
    }
}
