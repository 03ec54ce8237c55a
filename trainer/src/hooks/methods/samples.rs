//! Helpers for the methods that change a batch: finding inputs and targets, converting class
//! indices to probabilities, and mixing.

use std::fmt;

use crate::hooks::{is_positive, refused};
use crate::prelude::*;

/// Defines the settings of the methods that change a batch.
macro_rules! samples_settings {
    () => {
        /// Sets the number of classes, at least 2. Required if the targets are class indices `[n]`.
        #[must_use]
        pub fn classes(mut self, classes: i64) -> Self {
            self.samples.classes = Some(classes);
            self
        }

        /// Sets how to find the inputs and the targets in a batch of type `B`, the task's batch
        /// type. Defaults to the two tensors of a batch `(inputs, targets)`.
        #[must_use]
        pub fn samples<B: 'static>(
            mut self,
            find: impl Fn(&mut B) -> (&mut Tensor, &mut Tensor) + Send + 'static,
        ) -> Self {
            self.samples.find_by(find);
            self
        }
    };
}
pub(super) use samples_settings;

/// A function that finds the inputs and the targets of a batch.
type Find = Box<dyn for<'a> Fn(&'a mut Cx<AfterTransfer>) -> Result<(&'a mut Tensor, &'a mut Tensor)> + Send>;

/// How to find the inputs and the targets of a batch, and how to convert class indices.
pub(super) struct Samples {
    pub(super) find: Find,
    /// The number of classes, which is needed to convert class indices to probabilities.
    pub(super) classes: Option<i64>,
}

impl Default for Samples {
    /// Expects batches of type `(Tensor, Tensor)`: the inputs and the targets.
    fn default() -> Self {
        Samples {
            find: found_by(|(inputs, targets): &mut (Tensor, Tensor)| (inputs, targets)),
            classes: None,
        }
    }
}

fn found_by<B: 'static>(find: impl Fn(&mut B) -> (&mut Tensor, &mut Tensor) + Send + 'static) -> Find {
    Box::new(move |cx| Ok(find(cx.batch_mut::<B>()?)))
}

impl fmt::Debug for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Samples").field("classes", &self.classes).finish_non_exhaustive()
    }
}

impl Samples {
    /// Sets how to find the inputs and the targets in a batch of type `B`.
    pub(super) fn find_by<B: 'static>(
        &mut self,
        find: impl Fn(&mut B) -> (&mut Tensor, &mut Tensor) + Send + 'static,
    ) {
        self.find = found_by(find);
    }

    /// Returns a message if the number of classes is invalid.
    pub(super) fn mistake(&self) -> Option<String> {
        let classes = self.classes.filter(|classes| *classes < 2)?;
        Some(format!("`.classes({classes})`: expected at least 2"))
    }

    /// Returns the inputs and the targets, after converting class indices to probabilities. Returns
    /// an error if the numbers of inputs and targets differ, if the batch is not of the expected
    /// type, if class indices are out of range or not one-dimensional, or if the number of classes
    /// is needed but not set.
    pub(super) fn find<'a>(&self, cx: &'a mut Cx<AfterTransfer>) -> Result<(&'a mut Tensor, &'a mut Tensor)> {
        let (inputs, targets) = (self.find)(cx)?;
        if targets.is_floating_point() {
            if inputs.size().first() != targets.size().first() {
                return Err(Error::msg(format!(
                    "the inputs have shape {:?}, and the targets {:?}: expected the same first dimension",
                    inputs.size(),
                    targets.size()
                )));
            }
            return Ok((inputs, targets));
        }
        if targets.dim() != 1 || inputs.size().first() != targets.size().first() {
            return Err(Error::msg(format!(
                "the targets have dtype {:?} and shape {:?}, and the inputs have shape {:?}: expected one class index per \
                 input, or floating-point probabilities",
                targets.kind(),
                targets.size(),
                inputs.size()
            )));
        }
        let Some(classes) = self.classes else {
            return Err(Error::msg(
                "the targets are class indices, which must be converted to probabilities: set the number of classes, \
                 such as `.classes(10)`",
            ));
        };
        let kind = if inputs.is_floating_point() { inputs.kind() } else { Kind::Float };
        *targets = targets.to_kind(Kind::Int64).f_one_hot(classes)?.to_kind(kind);
        Ok((inputs, targets))
    }
}

/// Draws the weight of a mixture from the Beta distribution `Beta(alpha, alpha)`.
pub(super) fn beta(alpha: f64) -> Result<f64> {
    Ok(Tensor::from_slice(&[alpha as f32, alpha as f32])
        .f_internal_sample_dirichlet()?
        .f_double_value(&[0])?)
}

/// Returns a random permutation of the indices of the samples.
pub(super) fn permutation(inputs: &Tensor) -> Result<Tensor> {
    Ok(Tensor::f_randperm(inputs.size()[0], (Kind::Int64, inputs.device()))?)
}

/// Returns `lambda * tensor + (1 - lambda) * tensor[order]`.
pub(super) fn mixed(tensor: &Tensor, order: &Tensor, lambda: f64) -> Result<Tensor> {
    Ok(tensor.f_mul_scalar(lambda)? + tensor.f_index_select(0, order)? * (1.0 - lambda))
}

/// Returns the mistakes in the settings of a hook that mixes samples.
pub(super) fn mixing_mistakes(hook: &str, alpha: f64, samples: &Samples) -> Vec<String> {
    let message = format!("`{hook}::new({alpha:?})`: expected a finite number above 0");
    refused([(!is_positive(alpha), message)]).into_iter().chain(samples.mistake()).collect()
}
