//! Losses over labels of which some are ignored.

pub use trainer::data::IGNORED;
use trainer::prelude::*;

/// Returns the mean cross-entropy over all labels that are not [`IGNORED`]. `logits` has one more
/// dimension than `labels`, the classes, which is the last. NaN if all labels are ignored.
///
/// Labels of a floating-point dtype are probabilities, with the shape of `logits`, as
/// [`MixUp`](trainer::hooks::MixUp) makes them.
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Tensor {
    let classes = logits.size()[logits.dim() - 1];
    let labels =
        if labels.is_floating_point() { labels.reshape([-1, classes]) } else { labels.reshape([-1]) };
    let logits = logits.reshape([-1, classes]);
    logits.cross_entropy_loss::<Tensor>(&labels, None, Reduction::Mean, IGNORED, 0.0)
}

/// Returns the mean cross-entropy of predicting each token from those before it: the logits
/// `[batch, time, tokens]` at a position belong to the label at the next one. The labels,
/// `[batch, time]`, are the tokens themselves, or [`IGNORED`] where nothing is to be learned: in
/// padding, and at the first token of each packed sequence. This is the loss of `transformers`.
pub fn next_token(logits: &Tensor, labels: &Tensor) -> Tensor {
    cross_entropy(&logits.slice(1, 0, -1, 1), &labels.slice(1, 1, None, 1))
}

/// Returns the number of labels over which [`next_token`] is a mean, for [`Task::weight`]: with it,
/// windows of accumulated batches, validation and several ranks are exact means over tokens.
#[must_use]
pub fn next_tokens(labels: &Tensor) -> f64 {
    labels.slice(1, 1, None, 1).ne(IGNORED).sum(Kind::Int64).double_value(&[])
}
