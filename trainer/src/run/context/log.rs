//! Converting the values that hooks log to metrics.

use crate::error::Error;
use crate::log::{LOSS, Reduce, Value};
use crate::moments::tree;
use crate::run::Run;

impl Run {
    /// Implements [`Cx::log`] and [`Cx::log_as`].
    pub(crate) fn log_value(&mut self, reduce: Reduce, name: &str, value: Value) {
        self.log_weighted(reduce, name, value, None);
    }

    /// Implements [`Cx::log_weighted`]. `weight` defaults to the weight of the current batch.
    pub(crate) fn log_weighted(&mut self, reduce: Reduce, name: &str, value: Value, weight: Option<f64>) {
        self.note_logging_rank();
        let (full, phase) = (self.metric_name(name), self.place.phase);
        let log = &mut self.log;
        let weight = weight.unwrap_or(self.step.weight);
        let result = match self.step.batch_len {
            _ if !(weight.is_finite() && weight >= 0.0) => Err(Error::usage(format!(
                "its weight is {weight}: expected the number of elements over which the value is averaged, finite and at least 0"
            ))),
            _ if is_loss_name(name) => {
                Err(Error::usage("the trainer logs the loss itself under this name: choose another name"))
            }
            // The row belongs to another rank, which logs its values.
            Some(_) if self.ranks.is_borrowed => Ok(()),
            Some(_) => log.add(phase, reduce, &full, value, weight),
            None => log.set(phase, &full, value),
        };
        if let Err(error) = result {
            self.log.cannot_log(&full, &error);
        }
    }
}

/// Whether the trainer logs a loss under this name: the loss of the step, or the loss of an
/// operation of a custom lifecycle.
fn is_loss_name(name: &str) -> bool {
    name == LOSS || name.ends_with("/loss") && tree::moments().iter().any(|moment| moment.loss == name)
}
