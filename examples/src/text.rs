//! The texts that ship with this package, for training language models. Tokens are bytes, with the
//! same IDs as in GPT-2.

use trainer::data::Sequence;

static SONNETS: &str = include_str!("../../trainer/cli/src/new/template/gpt/text.txt");
static PROSE: &str = include_str!("../../README.md");

/// Returns 42 sonnets by William Shakespeare (1609, public domain), split into texts of two lines.
/// The first list is for training; the second contains every tenth sonnet, which is held out.
#[must_use]
pub fn sonnets() -> (Vec<Sequence>, Vec<Sequence>) {
    pairs(|lines| [vec![NEWLINE], tokens(&lines.join("\n")), vec![NEWLINE]].concat().into())
}

/// Returns the texts of [`sonnets`], with the first line as a prompt and the second as the answer.
#[must_use]
pub fn answers() -> (Vec<Sequence>, Vec<Sequence>) {
    pairs(|lines| {
        let answer = lines[1..].join("\n");
        Sequence::answer(&prompt(lines[0]), &[tokens(&answer), vec![NEWLINE]].concat())
    })
}

/// Returns the paragraphs of this project's README, as a different kind of text.
#[must_use]
pub fn prose() -> Vec<Sequence> {
    PROSE.split("\n\n").map(|text| [vec![NEWLINE], tokens(text), vec![NEWLINE]].concat().into()).collect()
}

/// Returns the tokens of a line, surrounded by line feeds.
#[must_use]
pub fn prompt(line: &str) -> Vec<i64> {
    [vec![NEWLINE], tokens(line), vec![NEWLINE]].concat()
}

/// Returns the text of these tokens, up to the first line feed.
#[must_use]
pub fn line_of(tokens: &[i64]) -> String {
    let bytes = (0..=u8::MAX).map(token).collect::<Vec<_>>();
    let byte_of = |token: &i64| bytes.iter().position(|other| other == token).map_or(b'?', |byte| byte as u8);
    let line = tokens.split(|token| *token == NEWLINE).next().unwrap_or_default();
    String::from_utf8_lossy(&line.iter().map(byte_of).collect::<Vec<_>>()).into_owned()
}

const NEWLINE: i64 = token(b'\n');

fn pairs(text: impl Fn(&[&str]) -> Sequence) -> (Vec<Sequence>, Vec<Sequence>) {
    let [mut train, mut valid] = [Vec::new(), Vec::new()];
    for (index, sonnet) in SONNETS.split("\n\n").enumerate() {
        let lines: Vec<&str> = sonnet.lines().collect();
        let texts = if index % 10 == 9 { &mut valid } else { &mut train };
        texts.extend(lines.chunks(2).map(&text));
    }
    (train, valid)
}

fn tokens(text: &str) -> Vec<i64> {
    text.trim().bytes().map(token).collect()
}

/// Returns GPT-2's token ID of a byte. The bytes that are visible characters in Latin-1 come first,
/// followed by the others.
const fn token(byte: u8) -> i64 {
    let byte = byte as i64;
    match byte {
        33..=126 => byte - 33,
        161..=172 => byte - 161 + 94,
        174..=255 => byte - 174 + 106,
        0..=32 => byte + 188,
        127..=160 => byte - 127 + 221,
        _ => 255,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_has_the_same_token_as_in_gpt2() {
        // These are from GPT-2's `vocab.json`: `!`, `A`, a space and a line feed.
        assert_eq!([token(b'!'), token(b'A'), token(b' '), token(b'\n')], [0, 32, 220, 198]);
        let mut all: Vec<i64> = (0..=u8::MAX).map(token).collect();
        all.sort_unstable();
        assert_eq!(all, (0..256).collect::<Vec<_>>());
        assert_eq!(line_of(&tokens("Shall I compare thee – to é?")), "Shall I compare thee – to é?");
    }
}
