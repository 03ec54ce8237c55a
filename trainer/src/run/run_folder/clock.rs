//! The current time as text.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the current time in RFC 3339, UTC: `2026-11-21T23:59:58Z`.
pub(crate) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc_3339(since.as_secs())
}

/// Formats seconds since 1970-01-01T00:00:00Z.
fn rfc_3339(seconds: u64) -> String {
    let days = seconds / 86_400;
    let second = seconds % 86_400;
    // Days since 0000-03-01, so that the leap day is the last day of a year.
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

#[cfg(test)]
mod tests {
    use super::rfc_3339;

    #[test]
    fn dates_follow_the_gregorian_calendar() {
        assert_eq!(rfc_3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc_3339(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(rfc_3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc_3339(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(rfc_3339(1_795_305_599), "2026-11-21T23:59:59Z");
        assert_eq!(rfc_3339(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
