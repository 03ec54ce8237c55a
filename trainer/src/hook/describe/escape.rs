//! Escapes user text for the output formats, so that it stays on one line and is shown as written.

use crate::io::terminal::one_line;

/// Escapes the text for a cell of a Markdown table. Code in backticks stays code, but HTML is
/// escaped.
pub(super) fn markdown(text: &str) -> String {
    let text = one_line(text);
    let mut cell = String::new();
    let mut rest = &*text;
    while let Some(letter) = rest.chars().next() {
        let ticks = rest.len() - rest.trim_start_matches('`').len();
        let code = &rest[..ticks];
        match rest[ticks..].find(code).filter(|_| ticks > 0) {
            // `end` is the length of the code between the backticks.
            Some(end) if !rest[2 * ticks + end..].starts_with('`') => {
                let (span, after) = rest.split_at(2 * ticks + end);
                cell.push_str(&span.replace('|', "\\|"));
                rest = after;
            }
            _ => {
                let length = if ticks > 0 { ticks } else { letter.len_utf8() };
                for letter in rest[..length].chars() {
                    let before_bar = letter == '\\' && rest[1..].starts_with('|');
                    if ['|', '<', '`'].contains(&letter) || before_bar {
                        cell.push('\\');
                    }
                    cell.push(letter);
                }
                rest = &rest[length..];
            }
        }
    }
    cell
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_text_is_one_line_and_renders_as_written() {
        for (text, cell) in [
            ("plain", "plain"),
            ("a\r\nb\nc\td\u{2028}e\u{1b}[1m", "a b c d e\\u{1b}[1m"),
            ("a | b", "a \\| b"),
            ("a \\| b\\", "a \\\\\\| b\\"),
            ("`Vec<T>` and `a|b`", "`Vec<T>` and `a\\|b`"),
            ("``a`b``", "``a`b``"),
            ("one ` two", "one \\` two"),
            ("<b>bold</b>", "\\<b>bold\\</b>"),
        ] {
            assert_eq!(markdown(text), cell, "{text:?}");
        }
    }
}
