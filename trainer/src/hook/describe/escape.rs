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

/// Escapes the text for a quoted label of a Mermaid diagram. Mermaid displays such a label as HTML,
/// but has its own syntax for entities.
pub(super) fn mermaid(text: &str) -> String {
    let mut label = String::new();
    for letter in one_line(text).chars() {
        match letter {
            '&' => label.push_str("#amp;"),
            '<' => label.push_str("#lt;"),
            '>' => label.push_str("#gt;"),
            '"' => label.push_str("#quot;"),
            // Mermaid's entity for a character is its number.
            '#' | '%' | '`' | '\\' => label.push_str(&format!("#{};", u32::from(letter))),
            _ => label.push(letter),
        }
    }
    label
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_text_is_one_line_and_renders_as_written() {
        for (text, cell, label) in [
            ("plain", "plain", "plain"),
            ("a\r\nb\nc\td\u{2028}e\u{1b}[1m", "a b c d e\\u{1b}[1m", "a b c d e#92;u{1b}[1m"),
            ("a | b", "a \\| b", "a | b"),
            ("a \\| b\\", "a \\\\\\| b\\", "a #92;| b#92;"),
            ("`Vec<T>` and `a|b`", "`Vec<T>` and `a\\|b`", "#96;Vec#lt;T#gt;#96; and #96;a|b#96;"),
            ("``a`b``", "``a`b``", "#96;#96;a#96;b#96;#96;"),
            ("one ` two", "one \\` two", "one #96; two"),
            ("<b>bold</b>", "\\<b>bold\\</b>", "#lt;b#gt;bold#lt;/b#gt;"),
            (
                "\"#quot;\" %%{init}%%",
                "\"#quot;\" %%{init}%%",
                "#quot;#35;quot;#quot; #37;#37;{init}#37;#37;",
            ),
        ] {
            assert_eq!(markdown(text), cell, "{text:?}");
            assert_eq!(mermaid(text), label, "{text:?}");
        }
    }
}
