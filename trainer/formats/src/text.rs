//! Text of others on its way to a terminal.

use std::borrow::Cow;

/// Whether a terminal or a browser would not show this character as itself: control characters,
/// which begin escape sequences; characters that change the direction or the order of the text
/// around them; invisible characters that can hide text; and noncharacters.
///
/// Joiners and variation selectors, which scripts and emoji need, are not among them.
pub(crate) fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{feff}')
        || matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(letter, '\u{fdd0}'..='\u{fdef}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns a text that is safe to print to a terminal. Each control character, each character that
/// changes the direction of text and each invisible character is written as an escape, such as
/// `\u{1b}`. Line breaks and tabs are kept.
///
/// Everything that the library and the command print passes this function.
///
/// ```
/// assert_eq!(trainer_formats::visible("loss\u{1b}[2J\n"), "loss\\u{1b}[2J\n");
/// ```
#[must_use]
pub fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, |letter| matches!(letter, '\n' | '\t'))
}

/// Returns a text on one line, like [`visible`]: line breaks and tabs become spaces.
///
/// ```
/// assert_eq!(trainer_formats::one_line("two\r\nlines\u{202e}"), "two lines\\u{202e}");
/// ```
#[must_use]
pub fn one_line(text: &str) -> Cow<'_, str> {
    let is_break = |letter| matches!(letter, '\t'..='\r' | '\u{85}' | '\u{2028}' | '\u{2029}');
    if !text.contains(is_break) {
        return visible(text);
    }
    let line = text.replace("\r\n", " ").replace(is_break, " ");
    visible(&line).into_owned().into()
}

/// Prepares a name for a message, in which it may come from a file: see [`quoted`]. If it is longer
/// than 80 characters, keeps the first 80 and adds `…`.
#[must_use]
pub fn shortened(name: &str) -> String {
    at_most(80, name)
}

/// Prepares a text from a file for a message: [on one line](one_line), and with at most 500
/// characters. Every text that a file contains and a message repeats passes this function or
/// [`shortened`].
#[must_use]
pub fn quoted(text: &str) -> String {
    at_most(500, text)
}

fn at_most(max: usize, text: &str) -> String {
    match text.char_indices().nth(max) {
        None => one_line(text).into_owned(),
        Some((end, _)) => format!("{}…", one_line(&text[..end])),
    }
}

/// Escapes the hidden characters of a text except those that `is_kept` accepts.
fn escaped(text: &str, is_kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_escaped = |letter| is_hidden(letter) && !is_kept(letter);
    if !text.contains(is_escaped) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match is_escaped(letter) {
            true => shown.extend(letter.escape_unicode()),
            false => shown.push(letter),
        }
    }
    shown.into()
}

/// Returns the text of a JSON value with the characters that [`visible`] escapes as escapes of
/// JSON, so that it is safe to print and has the same value.
#[must_use]
pub fn visible_json(text: &str) -> Cow<'_, str> {
    // Outside of strings, JSON has no such characters but line breaks.
    if !text.contains(|letter| is_hidden(letter) && letter != '\n') {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if is_hidden(letter) && letter != '\n' {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                shown += &format!("\\u{unit:04x}");
            }
        } else {
            shown.push(letter);
        }
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_shown_as_escapes_and_all_others_are_kept() {
        for plain in
            ["", "loss 0.5", "状態", "é e\u{301}", "👩\u{200d}💻 ❤\u{fe0f}", "a\nb\tc", "می\u{200c}شود"]
        {
            assert!(matches!(visible(plain), Cow::Borrowed(_)), "{plain}");
        }
        for (hostile, shown) in [
            ("\u{1b}[31m", "\\u{1b}[31m"),
            ("\u{9b}2J", "\\u{9b}2J"),
            ("\u{7f}\u{8}\u{0}", "\\u{7f}\\u{8}\\u{0}"),
            ("a\rb", "a\\u{d}b"),
            ("\u{202e}evil\u{2066}", "\\u{202e}evil\\u{2066}"),
            ("\u{e0041}\u{feff}", "\\u{e0041}\\u{feff}"),
        ] {
            assert_eq!(visible(hostile), shown);
            assert_eq!(visible(&visible(hostile)), shown, "escapes are not escaped again");
            let text = serde_json::to_string(hostile).unwrap();
            let safe = visible_json(&text);
            assert!(!safe.contains(is_hidden), "{safe}");
            assert_eq!(serde_json::from_str::<String>(&safe).unwrap(), hostile);
        }
        assert_eq!(one_line("a\r\nb\u{2028}c\td\re"), "a b c d e");
    }
}
