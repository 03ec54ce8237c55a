//! [`Text`]: escapes text for HTML.

use std::fmt::{self, Write};

use crate::text::is_hidden;

/// A text whose `Display` escapes it for use as the content or a quoted attribute of an HTML
/// element. All data recorded by a run is escaped this way.
pub(super) struct Text<'t>(pub(super) &'t str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => f.write_char(character)?,
                // HTML allows no other control characters. Characters that override the text
                // direction would also affect the text that follows.
                _ if is_hidden(character) => f.write_char('\u{fffd}')?,
                _ => f.write_char(character)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Text;

    #[test]
    fn text_cannot_end_an_element_or_an_attribute() {
        let hostile = "<script>alert('1')</script>\" onload=\"x\" &amp; \u{0}\u{1b}[2J\u{202e}\n";
        assert_eq!(
            Text(hostile).to_string(),
            "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&quot; onload=&quot;x&quot; &amp;amp; \u{fffd}\u{fffd}[2J\u{fffd}\n"
        );
    }
}
