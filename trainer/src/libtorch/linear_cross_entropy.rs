//! The cross-entropy of a linear layer, computed without its logits.

use std::ptr::null_mut;

use tch::Tensor;
use trainer_sys::{LinearCrossEntropy, trainer_linear_cross_entropy};

use super::outcome;
use crate::error::Result;

/// The settings of [`linear_cross_entropy`].
pub(crate) struct HeadLoss<'a> {
    pub(crate) bias: Option<&'a Tensor>,
    pub(crate) class_weights: Option<&'a Tensor>,
    pub(crate) ignored: i64,
    pub(crate) smoothing: f64,
}

/// Returns the mean cross-entropy of a linear layer, and the loss of each row, which has no
/// gradient. The shapes must be `[rows, width]` for `hidden`, `[classes, width]` for `weight`,
/// `[rows]` for `targets`, which are `Int64`, and `[classes]` for the bias and the class weights.
pub(crate) fn linear_cross_entropy(
    hidden: &Tensor,
    weight: &Tensor,
    targets: &Tensor,
    how: &HeadLoss<'_>,
) -> Result<(Tensor, Tensor)> {
    let optional = |tensor: Option<&Tensor>| tensor.map_or(null_mut(), |tensor| tensor.as_ptr().cast_mut());
    let head = LinearCrossEntropy {
        hidden: hidden.as_ptr(),
        weight: weight.as_ptr(),
        targets: targets.as_ptr(),
        bias: optional(how.bias),
        class_weights: optional(how.class_weights),
        ignored: how.ignored,
        smoothing: how.smoothing,
    };
    let (mut loss, mut token_losses) = (null_mut(), null_mut());
    // SAFETY: the handles are alive or null where the shim allows it. It writes two handles, or
    // returns a message.
    outcome(unsafe { trainer_linear_cross_entropy(&raw const head, &raw mut loss, &raw mut token_losses) })?;
    // SAFETY: the shim wrote two handles that nothing else owns.
    Ok(unsafe { (Tensor::from_ptr(loss), Tensor::from_ptr(token_losses)) })
}
