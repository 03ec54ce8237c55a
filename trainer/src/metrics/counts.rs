//! [`Counts`]: the numbers of true and false positives and negatives of each class.

use tch::{Kind, Tensor};

use super::labels::{Classes, LIMITS, LIMITS_STATE, histogram, int};
use super::state::{StateReduction, States};
use crate::error::Result;

/// The name of the state with the numbers of true positives, predicted positives, positives and
/// samples of each class.
const COUNTS: &str = "counts";

/// The counts of one class, or of all classes together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) tp: f64,
    pub(super) fp: f64,
    pub(super) tn: f64,
    pub(super) fn_: f64,
}

pub(super) fn states() -> States {
    States::new([(COUNTS, StateReduction::Sum), LIMITS_STATE])
}

/// Adds a batch to the counts.
pub(super) fn update(
    classes: &Classes,
    name: &str,
    states: &mut States,
    pred: &Tensor,
    target: &Tensor,
) -> Result<()> {
    if classes.check(name, pred, target)? {
        return Ok(());
    }
    let len = classes.len();
    if classes.is_multiclass()
        && let Some(counts) = states.counts_mut(COUNTS, 4 * len)
    {
        let mut samples = 0;
        let done = classes.on_cpu(name, pred, target, |pred, target| {
            samples += 1;
            counts[pred] += i64::from(pred == target);
            counts[len + pred] += 1;
            counts[2 * len + target] += 1;
        });
        if let Some(done) = done {
            counts[3 * len..].iter_mut().for_each(|count| *count += samples);
            return done;
        }
    }
    let mut limits = Tensor::new();
    let mut count = |classes: &Classes| {
        let labels = classes.labels(pred, target);
        limits = labels.limits; // the same in each case
        of_labels(classes, &labels.pred, &labels.target, &labels.counts)
    };
    let counts = if classes.is_multiclass() { count(classes) } else { classes.for_each_case(&mut count) };
    states.update(COUNTS, counts);
    states.update(LIMITS, limits);
    Ok(())
}

/// Counts the labels of a batch on their device. Returns integers of shape `[4, classes]`,
/// flattened.
fn of_labels(classes: &Classes, pred: &Tensor, target: &Tensor, counts: &Tensor) -> Tensor {
    if classes.is_multiclass() {
        let len = classes.len();
        let outside = Tensor::full([], int(4 * len), (Kind::Int64, pred.device()));
        let at = |labels: &Tensor, row: usize, counts: &Tensor| {
            (labels + int(row * len)).where_self(counts, &outside)
        };
        let is_right = pred.eq_tensor(target).logical_and(counts);
        let indices = [at(pred, 0, &is_right), at(pred, 1, counts), at(target, 2, counts)];
        let counted = histogram(&Tensor::cat(&indices, 0), 4 * len);
        let samples = counts.sum(Kind::Int64).expand([int(len)], false);
        return Tensor::cat(&[counted.narrow(0, 0, int(3 * len)), samples], 0);
    }
    let pred = pred.to_kind(Kind::Bool).logical_and(counts);
    let target = target.to_kind(Kind::Bool).logical_and(counts);
    let rows = Tensor::stack(&[pred.logical_and(&target), pred, target, counts.shallow_clone()], 0);
    // `[4, n]`, or `[4, n, labels]`.
    rows.sum_dim_intlist(1i64, false, Kind::Int64).flatten(0, -1)
}

/// Reads the counts of each class. Returns `None` if there was no data, or all of it was ignored.
pub(super) fn read(classes: &Classes, name: &str, states: &States) -> Result<Option<Vec<Counts>>> {
    classes.check_limits(name, states)?;
    let counts = states.ints(COUNTS)?;
    let counts = if classes.is_multiclass() { &counts[..] } else { classes.decided(&counts, states)? };
    let len = classes.len();
    if counts.get(3 * len..).is_none_or(|samples| samples.iter().all(|samples| *samples == 0)) {
        return Ok(None);
    }
    let of_class = (0..len).map(|class| {
        #[expect(clippy::cast_precision_loss, reason = "a count of samples")]
        let [tp, predicted, positive, samples] = std::array::from_fn(|row| counts[row * len + class] as f64);
        Counts { tp, fp: predicted - tp, fn_: positive - tp, tn: samples - predicted - positive + tp }
    });
    Ok(Some(of_class.collect()))
}

impl Counts {
    /// The number of samples, without those that are ignored.
    pub(super) fn samples(&self) -> f64 {
        self.tp + self.fp + self.tn + self.fn_
    }
}

impl std::iter::Sum for Counts {
    fn sum<I: Iterator<Item = Counts>>(counts: I) -> Counts {
        counts.fold(Counts::default(), |sum, it| Counts {
            tp: sum.tp + it.tp,
            fp: sum.fp + it.fp,
            tn: sum.tn + it.tn,
            fn_: sum.fn_ + it.fn_,
        })
    }
}
