//! The text that ships with this package for a language model: 42 sonnets by William Shakespeare
//! (1609, public domain).

use std::collections::BTreeSet;

use tch::Tensor;

static EMBEDDED: &str = include_str!("../data/sonnets.txt");

/// The target of positions past the end of a text. The loss ignores them.
pub const PADDING: i64 = 0;
/// The token before the first character of a text, and after its last one.
pub const BOUNDARY: i64 = 1;

/// Texts of two lines each, and the characters in them.
#[derive(Debug)]
pub struct Sonnets {
    /// The texts of nine sonnets out of ten.
    pub train: Vec<String>,
    /// The texts of every tenth sonnet, held out.
    pub valid: Vec<String>,
    /// The characters of all sonnets.
    pub vocabulary: Vocabulary,
}

impl Sonnets {
    /// Reads the embedded text.
    #[must_use]
    pub fn load() -> Sonnets {
        let mut train = Vec::new();
        let mut valid = Vec::new();
        for (index, sonnet) in EMBEDDED.split("\n\n").enumerate() {
            let lines: Vec<&str> = sonnet.lines().collect();
            let texts = if index % 10 == 9 { &mut valid } else { &mut train };
            texts.extend(lines.chunks(2).map(|pair| pair.join("\n")));
        }
        Sonnets { train, valid, vocabulary: Vocabulary::new(EMBEDDED) }
    }
}

/// Maps characters to tokens and back. Tokens 0 and 1 are [`PADDING`] and [`BOUNDARY`].
#[derive(Debug)]
pub struct Vocabulary {
    /// The characters in sorted order: the token of a character is its index plus 2.
    characters: Vec<char>,
}

impl Vocabulary {
    /// Collects the characters of a text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Vocabulary { characters: text.chars().collect::<BTreeSet<_>>().into_iter().collect() }
    }

    /// The number of tokens.
    #[must_use]
    pub fn size(&self) -> i64 {
        2 + self.characters.len() as i64
    }

    /// Returns the token of each character. Characters that are not in the vocabulary are left out.
    #[must_use]
    pub fn encode(&self, text: &str) -> Vec<i64> {
        let found = text.chars().filter_map(|character| self.characters.binary_search(&character).ok());
        found.map(|index| 2 + index as i64).collect()
    }

    /// Returns the characters of these tokens, without [`PADDING`] and [`BOUNDARY`].
    #[must_use]
    pub fn decode(&self, tokens: &[i64]) -> String {
        let index = |token: &i64| usize::try_from(token - 2).ok();
        tokens.iter().filter_map(|token| self.characters.get(index(token)?)).collect()
    }

    /// Encodes texts as inputs and targets, one text per row, each row padded to the longest. The
    /// target of each position is the token that follows it.
    ///
    /// # Panics
    ///
    /// Panics if `texts` is empty.
    pub fn inputs_and_targets(&self, texts: &[String]) -> (Tensor, Tensor) {
        let rows: Vec<Vec<i64>> =
            texts.iter().map(|text| [vec![BOUNDARY], self.encode(text), vec![BOUNDARY]].concat()).collect();
        let length = rows.iter().map(Vec::len).max().unwrap_or(0);
        let padded: Vec<i64> = rows
            .iter()
            .flat_map(|row| row.iter().copied().chain(std::iter::repeat(PADDING)).take(length))
            .collect();
        let tokens = Tensor::from_slice(&padded).view([rows.len() as i64, length as i64]);
        let positions = length as i64 - 1;
        (tokens.narrow(1, 0, positions), tokens.narrow(1, 1, positions))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tenth_sonnet_is_held_out() {
        let Sonnets { train, valid, .. } = Sonnets::load();
        assert_eq!((train.len(), valid.len()), (38 * 7, 4 * 7));
        assert!(train.iter().chain(&valid).all(|text| text.lines().count() == 2));
        assert!(valid.iter().all(|text| !train.contains(text)));
    }

    #[test]
    fn decoding_reverses_encoding() {
        let Sonnets { train, vocabulary, .. } = Sonnets::load();
        for text in &train {
            assert_eq!(&vocabulary.decode(&vocabulary.encode(text)), text);
        }
        assert!(vocabulary.encode("§").is_empty());
        assert_eq!(vocabulary.decode(&[PADDING, BOUNDARY, vocabulary.size(), -1]), "");
    }

    #[test]
    fn targets_are_the_inputs_shifted_by_one() {
        let vocabulary = Vocabulary::new("abc");
        let (inputs, targets) = vocabulary.inputs_and_targets(&["abc".to_owned(), "b".to_owned()]);
        assert_eq!(Vec::<Vec<i64>>::try_from(&inputs).unwrap(), [[1, 2, 3, 4], [1, 3, 1, 0]]);
        assert_eq!(Vec::<Vec<i64>>::try_from(&targets).unwrap(), [[2, 3, 4, 1], [3, 1, 0, 0]]);
    }
}
