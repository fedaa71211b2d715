//! Several texts for Prometheus made one.
//!
//! Each model has figures of its own under the same names, and all lines of a name must stand together (OpenMetrics 1.0,
//! section "MetricFamily").

/// Merges texts in which the same figures may occur, with different labels.
pub(crate) fn merge(texts: &[String]) -> String {
    let mut families: Vec<Family<'_>> = Vec::new();
    for text in texts {
        let mut current = None;
        for line in text.lines().filter(|line| *line != "# EOF") {
            let index = match described(line) {
                Some(name) => {
                    let known = families.iter().position(|family| family.name == name);
                    known.unwrap_or_else(|| {
                        families.push(Family { name, description: Vec::new(), samples: Vec::new() });
                        families.len() - 1
                    })
                }
                // Samples follow what describes them.
                None => match current {
                    Some(index) => index,
                    None => continue,
                },
            };
            current = Some(index);
            let family = &mut families[index];
            let lines = if line.starts_with('#') { &mut family.description } else { &mut family.samples };
            if !line.starts_with('#') || !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    let lines = families.iter().flat_map(|family| family.description.iter().chain(&family.samples));
    let mut merged: String = lines.flat_map(|line| [line, "\n"]).collect();
    merged.push_str("# EOF\n");
    merged
}

/// All lines of one name.
struct Family<'a> {
    name: &'a str,
    description: Vec<&'a str>,
    samples: Vec<&'a str>,
}

/// The name that a line of description is about.
fn described(line: &str) -> Option<&str> {
    let mut words = line.strip_prefix("# ")?.split(' ');
    let kind = words.next()?;
    ["HELP", "TYPE", "UNIT"].contains(&kind).then(|| words.next())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_name_stand_together() {
        let text = |model: &str, more: &str| {
            format!(
                "# HELP a Help.\n# TYPE a counter\na_total{{m=\"{model}\"}} 1\n# HELP b B.\n# TYPE b gauge\n{more}# EOF\n"
            )
        };
        let merged = merge(&[text("x", "b 2\n"), text("y", "")]);
        let expected = "# HELP a Help.\n# TYPE a counter\na_total{m=\"x\"} 1\na_total{m=\"y\"} 1\n\
                        # HELP b B.\n# TYPE b gauge\nb 2\n# EOF\n";
        assert_eq!(merged, expected);
    }

    #[test]
    fn one_text_stays_as_it_is() {
        let text = "# HELP a Help.\n# TYPE a counter\na_total 1\n# EOF\n".to_owned();
        assert_eq!(merge(std::slice::from_ref(&text)), text);
    }
}
