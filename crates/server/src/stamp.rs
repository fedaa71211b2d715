//! Identifiers and times in answers.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A new identifier such as `chatcmpl-1f2e…` for the prefix `chatcmpl-`. Unique, not secret.
pub(crate) fn new_id(prefix: &str) -> String {
    // Each `RandomState` has new random keys, so that an empty hash is a random number.
    let random = || RandomState::new().build_hasher().finish();
    format!("{prefix}{:016x}{:016x}", random(), random())
}

/// Time since the Unix epoch.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A time since the Unix epoch as RFC 3339 writes it, for example `2026-11-30T21:45:00.000000000Z`.
pub(crate) fn rfc3339(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let nanoseconds = since_epoch.subsec_nanos();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanoseconds:09}Z")
}

/// Year, month and day of a day since the Unix epoch in the Gregorian calendar.
///
/// Years are counted from March on, so that the leap day is the last of a year, in eras of 400 years, which all have
/// the same days.
fn date(day_since_epoch: u64) -> (u64, u64, u64) {
    const DAYS_OF_ERA: u64 = 146_097;
    // Days from the first of March of the year 0 to the epoch.
    let days = day_since_epoch + 719_468;
    let (era, day) = (days / DAYS_OF_ERA, days % DAYS_OF_ERA);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // Five months from March on have 153 days, whichever five they are.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    (era * 400 + year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_dates() {
        let cases = [
            (0, "1970-01-01T00:00:00.000000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000000Z"),
            (951_868_799, "2000-02-29T23:59:59.000000000Z"),
            (951_868_800, "2000-03-01T00:00:00.000000000Z"),
            (1_700_000_000, "2023-11-14T22:13:20.000000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000000Z"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(rfc3339(Duration::from_secs(seconds)), expected);
        }
        assert_eq!(rfc3339(Duration::new(1, 5)), "1970-01-01T00:00:01.000000005Z");
    }
}
