//! The running reduction of logged values.

use tch::Tensor;

use super::{Reduce, Value};

/// A running reduction of the values of one name.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    /// The reduction of the numbers so far; for a mean, their weighted sum.
    pub(crate) known: Option<f64>,
    /// The reduction of the unread tensors so far, on their device.
    pub(crate) unread: Option<Tensor>,
    /// For a mean, the sum of the weights so far.
    pub(crate) weight: f64,
}

impl Sum {
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_none() && self.unread.is_none()
    }

    /// Adds the term of a batch with this weight. The caller has multiplied the term of a mean by
    /// the weight.
    pub(super) fn add(&mut self, reduce: Reduce, term: &Value, weight: f64) {
        if reduce == Reduce::Mean {
            self.weight += weight;
        }
        match term {
            Value::Number(number) => {
                self.known = Some(reduce.join(self.known, *number));
                if reduce == Reduce::Last {
                    self.unread = None;
                }
            }
            Value::Tensor(tensor) => {
                self.unread = Some(match self.unread.take() {
                    None => tensor.shallow_clone(),
                    Some(before) => match reduce {
                        Reduce::Mean | Reduce::Sum => before + tensor,
                        Reduce::Last => tensor.shallow_clone(),
                        Reduce::Min => before.minimum(tensor),
                        Reduce::Max => before.maximum(tensor),
                    },
                });
                if reduce == Reduce::Last {
                    self.known = None;
                }
            }
        }
    }

    /// Returns the result, given the value of the unread tensors; `None` if nothing was added.
    pub(crate) fn result(&self, reduce: Reduce, read: Option<f64>) -> Option<f64> {
        let value = read.map(|read| reduce.join(self.known, read)).or(self.known)?;
        Some(if reduce == Reduce::Mean { value / self.weight } else { value })
    }
}

impl Reduce {
    /// Reduces the result so far and the next number to one number; without a result, returns the
    /// number.
    pub(super) fn join(self, before: Option<f64>, next: f64) -> f64 {
        let Some(before) = before else { return next };
        match self {
            Reduce::Mean | Reduce::Sum => before + next,
            Reduce::Last => next,
            Reduce::Min if next < before || next.is_nan() => next,
            Reduce::Max if next > before || next.is_nan() => next,
            Reduce::Min | Reduce::Max => before,
        }
    }
}

/// The values logged since the last record.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// The values by name; NaN in place of those in `late`.
    pub(crate) scalars: Vec<(String, f64)>,
    pub(crate) late: Vec<LateScalar>,
}

/// A scalar that is still on a device.
#[derive(Debug)]
pub(crate) struct LateScalar {
    /// Its index among the scalars.
    pub(crate) index: usize,
    pub(crate) reduce: Reduce,
    /// The reduction of the numbers, without the tensors.
    pub(crate) sum: Sum,
    /// The reduction of the tensors, not yet read.
    pub(crate) tensor: Tensor,
}
