//! How a hook's values become metrics.

use crate::error::Error;
use crate::log::{LOSS, Reduce, Value};
use crate::run::Run;
use crate::tree;

impl Run {
    /// Implements [`Cx::log`] and [`Cx::log_as`].
    pub(crate) fn log_value(&mut self, reduce: Reduce, name: &str, value: Value) {
        self.log_weighted(reduce, name, value, None);
    }

    /// Implements [`Cx::log_weighted`]. `weight` defaults to that of the current batch.
    pub(crate) fn log_weighted(&mut self, reduce: Reduce, name: &str, value: Value, weight: Option<f64>) {
        let (log, phase) = (&mut self.log, self.progress.phase);
        let weight = weight.unwrap_or(self.step.weight);
        let result = match self.step.batch_len {
            _ if !(weight.is_finite() && weight >= 0.0) => Err(Error::usage(format!(
                "its weight is {weight}: expected the number of elements that the value is the mean over, finite and not negative"
            ))),
            _ if is_loss_name(name) => {
                Err(Error::usage("the trainer logs the loss itself under this name: choose another"))
            }
            Some(_) => log.add(phase, reduce, name, value, weight),
            None => log.set(phase, name, value),
        };
        if let Err(error) = result {
            self.log.cannot_log(name, &error);
        }
    }
}

/// Whether the trainer logs a loss under this name: the loss of the step, or that of an operation
/// of a custom lifecycle.
fn is_loss_name(name: &str) -> bool {
    name == LOSS || name.ends_with("/loss") && tree::moments().iter().any(|moment| moment.loss == name)
}
