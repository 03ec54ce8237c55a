//! Times as text, in RFC 3339, UTC, with a resolution of one second.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// 9999-12-31T23:59:59Z, the last time with four digits for the year, in seconds since 1970.
const LAST: u64 = 253_402_300_799;

/// Formats a time like those in the files of a run: `2026-11-21T23:59:58Z`. A time before 1970 or
/// after 9999, which only a wrong clock has, becomes the first or the last of this format.
#[must_use]
pub fn format_time(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().min(LAST);
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds)).to_string()
}

/// Parses a time in the format of [`format_time`]. Returns `None` for any other text.
#[must_use]
pub fn parse_time(text: &str) -> Option<SystemTime> {
    let time = humantime::parse_rfc3339(text).ok()?;
    (format_time(time) == text).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_one_form_in_both_directions() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_795_305_599, "2026-11-21T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (LAST, "9999-12-31T23:59:59Z"),
        ] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(format_time(time), text);
            assert_eq!(parse_time(text), Some(time));
        }
        // A wrong clock.
        let day = Duration::from_secs(86_400);
        assert_eq!(format_time(UNIX_EPOCH - day), "1970-01-01T00:00:00Z");
        assert_eq!(format_time(UNIX_EPOCH + Duration::from_secs(LAST) + day), "9999-12-31T23:59:59Z");
        for other in [
            "",
            "2026",
            "2026-11-21",
            "2026-02-30T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-11-21 23:59:59Z",
            "2026-11-21T24:00:00Z",
            "2026-11-21T23:59:60Z",
            "2026-11-21T23:59:59.5Z",
            "2026-11-21T23:59:59",
            "2026-11-21T23:59:59+01:00",
            "1969-12-31T23:59:59Z",
            "äöü-11-21T23:59:59Z",
        ] {
            assert_eq!(parse_time(other), None, "{other}");
        }
    }
}
