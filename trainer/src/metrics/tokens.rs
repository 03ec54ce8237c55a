//! Storage and comparison of token sequences.

use std::collections::HashMap;
use std::hash::Hash;

use tch::{Kind, Tensor};

use super::Metric;
use super::labels::int;
use super::state::{StateReduction, States};
use crate::error::Result;

/// The states for batches of predicted and target sequences: all tokens, and the length of each
/// row.
pub(super) const STATES: [(&str, StateReduction); 4] = [
    ("preds", StateReduction::Concat),
    ("pred_lens", StateReduction::Concat),
    ("targets", StateReduction::Concat),
    ("target_lens", StateReduction::Concat),
];

/// Adds a batch of predicted and target sequences, each of shape `[n, length]`, without reading
/// them from the device.
pub(super) fn update(metric: &mut impl Metric, pred: &Tensor, target: &Tensor) -> Result<()> {
    let preds = pred.size();
    let targets = target.size();
    let are_ints = [pred, target].into_iter().all(|tokens| {
        matches!(tokens.kind(), Kind::Int64 | Kind::Int | Kind::Int16 | Kind::Int8 | Kind::Uint8)
    });
    if preds.len() != 2 || targets.len() != 2 || preds[0] != targets[0] || !are_ints {
        return Err(metric.error(&format!(
            "the prediction has shape {preds:?} ({:?}) and the target {targets:?} ({:?}): expected integers of shape [n, length], with the same n",
            pred.kind(),
            target.kind()
        )));
    }
    for (tokens, name, lens) in [(pred, "preds", "pred_lens"), (target, "targets", "target_lens")] {
        let [rows, len] = tokens.size()[..] else { continue };
        let states = metric.states_mut();
        states.update(name, tokens.to_kind(Kind::Int64).reshape([-1]));
        states.update(lens, Tensor::full([rows], len, (Kind::Int64, tokens.device())));
    }
    Ok(())
}

/// A predicted sequence of tokens and its target.
pub(super) type Pair = [Vec<i64>; 2];

/// Reads all sequences and removes their padding.
pub(super) fn read(states: &States, padding: Option<i64>) -> Result<Vec<Pair>> {
    let preds = rows(states, "preds", "pred_lens", padding)?.into_iter();
    let targets = rows(states, "targets", "target_lens", padding)?;
    Ok(preds.zip(targets).map(|(pred, target)| [pred, target]).collect())
}

fn rows(states: &States, name: &str, lens: &str, padding: Option<i64>) -> Result<Vec<Vec<i64>>> {
    let mut tokens = states.ints(name)?.into_iter();
    let rows = states.ints(lens)?.into_iter().map(|len| {
        let row = tokens.by_ref().take(usize::try_from(len).unwrap_or(0));
        row.filter(|token| Some(*token) != padding).collect()
    });
    Ok(rows.collect())
}

/// Returns the Levenshtein distance between two sequences.
pub(super) fn edit_distance<T: PartialEq>(pred: &[T], target: &[T]) -> i64 {
    let mut row: Vec<i64> = (0..=int(target.len())).collect();
    for (nth, token) in pred.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = int(nth) + 1;
        for (column, expected) in target.iter().enumerate() {
            let substituted = diagonal + i64::from(token != expected);
            diagonal = row[column + 1];
            row[column + 1] = substituted.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[target.len()]
}

/// Counts how often each sequence of 1 to `n` tokens occurs.
pub(super) fn n_grams<T: Eq + Hash>(tokens: &[T], n: usize) -> HashMap<&[T], i64> {
    let mut counts = HashMap::new();
    for len in 1..=n {
        tokens.windows(len).for_each(|n_gram| *counts.entry(n_gram).or_insert(0) += 1);
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_distance_counts_insertions_deletions_and_substitutions() {
        let distance =
            |a: &str, b: &str| edit_distance(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>());
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(distance("abc", "abc"), 0);
    }
}
