//! Text of limited width, and rounded amounts.

use trainer_formats::one_line;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Splits a text into lines of at most `width` columns, at spaces if possible.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = vec![String::new()];
    let text = one_line(text);
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is a line");
        if last.is_empty() || last.width() + 1 + word.width() <= width {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
        while lines.last().is_some_and(|last| last.width() > width) {
            let long = lines.pop().unwrap_or_default();
            let mut used = 0;
            let fits = |letter: &(usize, char)| {
                used += letter.1.width().unwrap_or(0);
                used <= width
            };
            let at = long.char_indices().take_while(fits).map(|(at, letter)| at + letter.len_utf8()).last();
            // A character that is wider than the line is kept.
            let first = long.chars().next().map_or(0, char::len_utf8);
            let at = at.unwrap_or(first);
            if at == long.len() {
                lines.push(long);
                break;
            }
            lines.push(long[..at].to_owned());
            lines.push(long[at..].to_owned());
        }
    }
    lines
}

/// Formats a time in seconds: `12 s`, `3 min`, `2 h 5 min`, `3 d 4 h`.
pub(crate) fn rough(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    match seconds {
        0..100 => format!("{seconds} s"),
        100..5400 => format!("{} min", (seconds + 30) / 60),
        5400..172_800 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// Formats a number of bytes: `1.5 GiB`.
pub(crate) fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_wrapped_at_spaces_or_within_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("損失損失損", 4), ["損失", "損失", "損"]);
        assert_eq!(wrap("abcdef gh", 4), ["abcd", "ef", "gh"]);
        assert_eq!(wrap("", 4), [""]);
        assert_eq!(wrap("損", 1), ["損"]);
    }

    #[test]
    fn amounts_are_rounded_to_their_leading_units() {
        assert_eq!([0.4, 119.0, 7500.0, 270_000.0].map(rough), ["0 s", "2 min", "2 h 5 min", "3 d 3 h"]);
        assert_eq!([0, 999, 1000, 1 << 30].map(bytes), ["0 B", "999 B", "1.0 KiB", "1.0 GiB"]);
    }
}
