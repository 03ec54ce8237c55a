//! Losses that skip ignored labels.

pub use trainer::data::IGNORED;
use trainer::prelude::*;

/// Returns the mean cross-entropy over all labels that are not [`IGNORED`]. `logits` has one more
/// dimension than `labels`: the last dimension, for the classes. Returns NaN if all labels are
/// ignored.
///
/// Labels of a floating-point dtype are probabilities with the shape of `logits`, like those that
/// [`MixUp`](trainer::hooks::MixUp) creates.
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Tensor {
    let classes = logits.size()[logits.dim() - 1];
    let labels =
        if labels.is_floating_point() { labels.reshape([-1, classes]) } else { labels.reshape([-1]) };
    let logits = logits.reshape([-1, classes]);
    logits.cross_entropy_loss::<Tensor>(&labels, None, Reduction::Mean, IGNORED, 0.0)
}

/// Returns the mean cross-entropy of predicting each token from the previous tokens: the logits
/// `[batch, time, tokens]` at a position predict the label at the next position. The labels,
/// `[batch, time]`, are the tokens themselves, or [`IGNORED`] for tokens that should not be
/// learned: padding, and the first token of each packed sequence. `transformers` computes the same
/// loss.
pub fn next_token(logits: &Tensor, labels: &Tensor) -> Tensor {
    cross_entropy(&logits.slice(1, 0, -1, 1), &labels.slice(1, 1, None, 1))
}

/// Returns the number of labels over which [`next_token`] averages, for [`Task::weight`]. With this
/// weight, accumulated batches, validation and several ranks yield exact means over tokens.
#[must_use]
pub fn next_tokens(labels: &Tensor) -> f64 {
    labels.slice(1, 1, None, 1).ne(IGNORED).sum(Kind::Int64).double_value(&[])
}
