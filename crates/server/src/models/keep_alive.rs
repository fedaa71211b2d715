//! How long a model stays in memory without being used.

use std::time::Duration;

/// Reads a duration as Ollama's `keep_alive` takes it: as Go writes it (`1h30m`, `300s`), or in seconds. Negative ones
/// stand for ever, which is `Some(None)`; what is no duration gives `None`.
pub fn parse_keep_alive(text: &str) -> Option<Option<Duration>> {
    const UNITS: [(&str, f64); 4] = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let (text, negative) = text.strip_prefix('-').map_or((text, false), |rest| (rest, true));
    let digits = |text: &str| text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (mut seconds, mut rest) = (0.0, text);
    if digits(text) == text.len() {
        (seconds, rest) = (text.parse().ok()?, "");
    }
    while !rest.is_empty() {
        let (number, unit) = rest.split_at(digits(rest));
        let end = unit.find(|letter: char| letter.is_ascii_digit() || letter == '.').unwrap_or(unit.len());
        let (_, each) = *UNITS.iter().find(|(name, _)| *name == &unit[..end])?;
        seconds += number.parse::<f64>().ok()? * each;
        rest = &unit[end..];
    }
    if negative { Some(None) } else { Some(Some(Duration::try_from_secs_f64(seconds).ok()?)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_ollama() {
        let seconds = |seconds| Some(Some(Duration::from_secs(seconds)));
        for (text, expected) in [("300", 300), ("5m", 300), ("1h30m", 5400), ("0", 0)] {
            assert_eq!(parse_keep_alive(text), seconds(expected), "{text}");
        }
        assert_eq!(parse_keep_alive("1.5s"), Some(Some(Duration::from_millis(1500))));
        assert_eq!((parse_keep_alive("-1"), parse_keep_alive("-1m")), (Some(None), Some(None)));
        for wrong in ["", "-", "m", "5 m", "5x", "5m3", "1e400", "--5"] {
            assert_eq!(parse_keep_alive(wrong), None, "{wrong}");
        }
    }
}
