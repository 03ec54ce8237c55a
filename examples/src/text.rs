//! The texts that ship with this package for a language model, whose tokens are bytes.

use trainer::data::Sequence;

static SONNETS: &str = include_str!("../data/sonnets.txt");
static PROSE: &str = include_str!("../../README.md");

/// Returns 42 sonnets by William Shakespeare (1609, public domain), in texts of two lines: those
/// for training, and every tenth sonnet, which is held out.
#[must_use]
pub fn sonnets() -> (Vec<Sequence>, Vec<Sequence>) {
    let [mut train, mut valid] = [Vec::new(), Vec::new()];
    for (index, sonnet) in SONNETS.split("\n\n").enumerate() {
        let lines: Vec<&str> = sonnet.lines().collect();
        let texts = if index % 10 == 9 { &mut valid } else { &mut train };
        texts.extend(lines.chunks(2).map(|pair| tokens(&pair.join("\n"))));
    }
    (train, valid)
}

/// Returns the paragraphs of another kind of text, the README of this project.
#[must_use]
pub fn prose() -> Vec<Sequence> {
    PROSE.split("\n\n").map(tokens).collect()
}

/// Returns the bytes of a text between two line feeds, which begin and end it.
fn tokens(text: &str) -> Sequence {
    let bytes = text.trim().bytes().map(i64::from);
    [10].into_iter().chain(bytes).chain([10]).collect::<Vec<_>>().into()
}
