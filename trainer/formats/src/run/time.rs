//! Times as text, in RFC 3339, UTC, with a resolution of one second.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Formats a time like those in the files of a run: `2026-11-21T23:59:58Z`.
#[must_use]
pub fn format_time(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let days = seconds / 86_400;
    let second = seconds % 86_400;
    // Days since 0000-03-01: the year then begins in March, and the leap day is its last day.
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let hour = second / 3600;
    let minute = second / 60 % 60;
    let second = second % 60;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Parses a time in the format of [`format_time`]. Returns `None` for any other text.
#[must_use]
pub fn parse_time(text: &str) -> Option<SystemTime> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // The inverse of `format_time`, with years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, year) = (year / 400, year % 400);
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let days = era * 146_097 + year * 365 + year / 4 - year / 100 + day_of_year - 719_468;
    let time = UNIX_EPOCH + Duration::from_secs(days * 86_400 + hour * 3600 + minute * 60 + second);
    (format_time(time) == text).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_follow_the_gregorian_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_795_305_599, "2026-11-21T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(format_time(time), text);
            assert_eq!(parse_time(text), Some(time));
        }
        for other in [
            "",
            "2026",
            "2026-11-21",
            "2026-02-30T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-11-21 23:59:59Z",
            "2026-11-21T24:00:00Z",
            "2026-11-21T23:59:59+01:00",
            "1969-12-31T23:59:59Z",
            "äöü-11-21T23:59:59Z",
        ] {
            assert_eq!(parse_time(other), None, "{other}");
        }
    }
}
