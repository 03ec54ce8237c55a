//! Losses that need less memory than the formulas that they compute.

use std::cell::RefCell;

use tch::{Kind, Tensor};

use crate::data::IGNORED;
use crate::error::{Error, Result};
use crate::libtorch::{self, HeadLoss};

/// How [`linear_cross_entropy`] counts its rows and classes.
///
/// ```
/// use trainer::losses::LinearCrossEntropy;
///
/// let how = LinearCrossEntropy::new().label_smoothing(0.1).ignore_index(0);
/// ```
#[derive(Debug)]
pub struct LinearCrossEntropy<'a> {
    bias: Option<&'a Tensor>,
    class_weights: Option<&'a Tensor>,
    ignore_index: i64,
    label_smoothing: f64,
}

impl Default for LinearCrossEntropy<'_> {
    fn default() -> Self {
        LinearCrossEntropy { bias: None, class_weights: None, ignore_index: IGNORED, label_smoothing: 0.0 }
    }
}

impl<'a> LinearCrossEntropy<'a> {
    /// Creates the settings of a plain cross-entropy.
    #[must_use]
    pub fn new() -> Self {
        LinearCrossEntropy::default()
    }

    /// Sets the bias of the linear layer, `[classes]`. Defaults to none.
    #[must_use]
    pub fn bias(mut self, bias: &'a Tensor) -> Self {
        self.bias = Some(bias);
        self
    }

    /// Weights the classes, `[classes]`: the loss is then a mean that is weighted by the weights of
    /// the targets. The weights get no gradient. Defaults to 1 for each class.
    #[must_use]
    pub fn class_weights(mut self, weights: &'a Tensor) -> Self {
        self.class_weights = Some(weights);
        self
    }

    /// Leaves out the rows with this target. Defaults to [`IGNORED`], -100.
    #[must_use]
    pub fn ignore_index(mut self, target: i64) -> Self {
        self.ignore_index = target;
        self
    }

    /// Moves this share of the probability of each target to all classes, equally (Szegedy et al.,
    /// 2016, section 7). Defaults to 0.
    #[must_use]
    pub fn label_smoothing(mut self, share: f64) -> Self {
        self.label_smoothing = share;
        self
    }

    /// Returns the mean loss and the loss of each target.
    fn of(&self, hidden: &Tensor, weight: &Tensor, targets: &Tensor) -> Result<(Tensor, Tensor)> {
        let (of_hidden, of_weight, of_targets) = (hidden.size(), weight.size(), targets.size());
        let (Some((width, rows)), &[classes, inputs]) = (of_hidden.split_last(), &of_weight[..]) else {
            return Err(wrong("the hidden states or the weight", &of_hidden, &of_weight));
        };
        if *width != inputs {
            return Err(wrong("the hidden states or the weight", &of_hidden, &of_weight));
        }
        if rows != of_targets
            || !matches!(targets.kind(), Kind::Int64 | Kind::Int | Kind::Int16 | Kind::Uint8)
        {
            return Err(Error::usage(format!(
                "the targets of `linear_cross_entropy` are {:?} of shape {of_targets:?}: expected integers of shape {rows:?}, \
                 because the hidden states have the shape {of_hidden:?}",
                targets.kind()
            )));
        }
        let of_classes = [("bias", self.bias), ("class weights", self.class_weights)];
        for (what, tensor) in of_classes.into_iter().filter_map(|(what, tensor)| Some((what, tensor?))) {
            if tensor.size() != [classes] {
                return Err(Error::usage(format!(
                    "the {what} of `linear_cross_entropy` has the shape {:?}: expected [{classes}], a number for each class",
                    tensor.size()
                )));
            }
        }
        if !(0.0..=1.0).contains(&self.label_smoothing) {
            return Err(Error::usage(format!(
                "`.label_smoothing({})`: expected a number from 0 to 1",
                self.label_smoothing
            )));
        }
        let class_weights = self.class_weights.map(Tensor::f_detach).transpose()?;
        let how = HeadLoss {
            bias: self.bias,
            class_weights: class_weights.as_ref(),
            ignored: self.ignore_index,
            smoothing: self.label_smoothing,
        };
        let targets = targets.f_to_kind(Kind::Int64)?.f_reshape([-1])?;
        let hidden = hidden.f_reshape([targets.numel().try_into().unwrap_or(i64::MAX), inputs])?;
        let (loss, losses) = libtorch::linear_cross_entropy(&hidden, weight, &targets, &how)?;
        Ok((loss, losses.f_reshape(of_targets)?))
    }
}

#[cold]
fn wrong(what: &str, hidden: &[i64], weight: &[i64]) -> Error {
    Error::usage(format!(
        "{what} of `linear_cross_entropy` have the shapes {hidden:?} and {weight:?}: expected [..., width] and [classes, width]"
    ))
}

/// Returns the mean cross-entropy of a linear layer, such as the last one of a language model,
/// without its logits: chunks of rows are multiplied with the weight and their gradients computed
/// at once, so that nothing of the size of all logits is ever held. The value and the gradients are
/// those of `hidden.linear(weight, bias).cross_entropy_loss(targets, …)`.
///
/// Use this when the logits would need much memory: with 50,257 classes, a row needs 0.8 MB of it,
/// with its gradient and the log-probabilities. With few classes it gains little.
///
/// `hidden` has the shape `[..., width]`, `weight` `[classes, width]` as in `nn::Linear`, and the
/// integers in `targets` the shape of `hidden` without its last dimension. Under autocast, as with
/// [`Amp`](crate::hooks::Amp), products are computed in half precision. Sums are computed in `f32`,
/// or in `f64` for hidden states of `f64`. The loss is NaN if no row counts.
///
/// The gradients are computed with the loss, unless gradients are disabled. So the loss has no
/// second derivative, and its backward pass can run only once; either is an error.
///
/// ```
/// use trainer::losses::{LinearCrossEntropy, linear_cross_entropy};
/// use trainer::prelude::*;
///
/// let hidden = Tensor::randn([8, 16], (Kind::Float, Device::Cpu)).set_requires_grad(true);
/// let weight = Tensor::randn([100, 16], (Kind::Float, Device::Cpu)).set_requires_grad(true);
/// let targets = Tensor::randint(100, [8], (Kind::Int64, Device::Cpu));
/// let loss = linear_cross_entropy(&hidden, &weight, &targets, &LinearCrossEntropy::new())?;
/// loss.backward();
/// let logits = hidden.matmul(&weight.tr());
/// let of_logits = logits.cross_entropy_for_logits(&targets);
/// assert!((loss - of_logits).abs().double_value(&[]) < 1e-5);
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// # Errors
///
/// Returns an error if
///
/// - the shapes do not fit, or the targets are not integers;
/// - on a CPU, a target is neither a class nor ignored; the message has its row;
/// - the label smoothing is not from 0 to 1;
/// - libtorch fails.
pub fn linear_cross_entropy(
    hidden: &Tensor,
    weight: &Tensor,
    targets: &Tensor,
    how: &LinearCrossEntropy<'_>,
) -> Result<Tensor> {
    how.of(hidden, weight, targets).map(|(loss, _)| loss)
}

/// The prediction of a task whose last layer is linear, before that layer: hidden states and the
/// layer's weight. The loss of it needs no logits, and hooks can request them.
///
/// Use this as [`Task::Pred`](crate::Task::Pred) of a language model with a large vocabulary.
///
/// ```
/// use trainer::data::Sequences;
/// use trainer::losses::Head;
/// use trainer::prelude::*;
/// # use trainer::MetricInputs;
/// # struct Model { vars: nn::VarStore, embedding: nn::Embedding }
///
/// impl Task for Model {
///     type Batch = Sequences;
///     type Pred = Head;
///
///     fn pred(&mut self, batch: &Sequences, _: Mode) -> Result<Head> {
///         let hidden = batch.tokens.apply(&self.embedding);
///         Ok(Head::new(hidden, &self.embedding.ws))
///     }
///     fn loss(&mut self, head: &Head, batch: &Sequences) -> Result<Tensor> {
///         head.cross_entropy(&batch.targets)
///     }
///     // For `Perplexity::of_token_losses`. Other metrics need `head.logits()?`.
///     fn metric_inputs(&self) -> Option<MetricInputs<Self>> {
///         Some(|_, batch, head| Some((head.token_losses()?, batch.targets.shallow_clone())))
///     }
/// #   fn vars(&self) -> &nn::VarStore {
/// #       &self.vars
/// #   }
/// #   fn weight(&self, batch: &Sequences) -> f64 {
/// #       batch.weight()
/// #   }
/// }
/// ```
#[derive(Debug)]
pub struct Head {
    hidden: Tensor,
    weight: Tensor,
    token_losses: RefCell<Option<Tensor>>,
}

impl Head {
    /// Creates the prediction from hidden states `[..., width]` and the weight `[classes, width]`.
    #[must_use]
    pub fn new(hidden: Tensor, weight: &Tensor) -> Self {
        Head { hidden, weight: weight.shallow_clone(), token_losses: RefCell::new(None) }
    }

    /// The hidden states, `[..., width]`.
    pub fn hidden(&self) -> &Tensor {
        &self.hidden
    }

    /// Computes the logits, `[..., classes]`. They need the memory that the loss saves.
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch fails.
    pub fn logits(&self) -> Result<Tensor> {
        Ok(self.hidden.f_linear::<&Tensor>(&self.weight, None)?)
    }

    /// Returns the mean cross-entropy of the targets that are not [`IGNORED`], and remembers the
    /// loss of each; see [`linear_cross_entropy`].
    ///
    /// # Errors
    ///
    /// As [`linear_cross_entropy`].
    pub fn cross_entropy(&self, targets: &Tensor) -> Result<Tensor> {
        let (loss, losses) = LinearCrossEntropy::new().of(&self.hidden, &self.weight, targets)?;
        self.token_losses.replace(Some(losses));
        Ok(loss)
    }

    /// Returns the cross-entropy of each target, 0 for those that are [`IGNORED`], of the last call
    /// of [`cross_entropy`](Head::cross_entropy); `None` before it. They have no gradient.
    #[must_use]
    pub fn token_losses(&self) -> Option<Tensor> {
        self.token_losses.borrow().as_ref().map(Tensor::shallow_clone)
    }
}

#[cfg(test)]
mod tests;
