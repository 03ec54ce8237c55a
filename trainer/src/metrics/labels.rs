//! [`Classes`]: validation of classification predictions and targets, and their conversion to
//! labels.

use tch::{Device, Kind, Tensor};

use super::state::States;
use super::{StateReduction, is_float, is_int, precise};
use crate::error::{Error, Result};
use crate::libtorch;

/// The name of the state that is used to check the data when the metric is computed.
///
/// The state is a tensor of six elements. The first four are maxima: of the negated targets, of
/// the targets, of the negated predicted labels, and of the predicted labels. The fifth is 1 if any
/// score is NaN, and the last is 1 if any score is outside the range from 0 to 1.
pub(super) const LIMITS: &str = "limits";

/// The kind of the targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kinds {
    /// 0 or 1.
    Binary,
    /// The index of a class. The variant holds the number of classes.
    Multiclass(usize),
    /// 0 or 1 for each label. The variant holds the number of labels.
    Multilabel(usize),
}

/// The classes of a metric, and how a prediction is converted to labels.
#[derive(Clone, Debug)]
pub(super) struct Classes {
    pub(super) kinds: Kinds,
    /// The probability above which a binary or multilabel metric predicts a label.
    pub(super) threshold: f64,
    /// A prediction is correct if the score of the target is among the `top_k` largest scores. Only
    /// a multiclass metric supports more than 1.
    pub(super) top_k: usize,
    /// The target that is ignored.
    pub(super) ignored: Option<i64>,
    /// Whether scores are logits. If `None`, the scores of the whole pass decide.
    pub(super) logits: Option<bool>,
}

/// The labels of a batch, on their device. `pred`, `target` and `counts` have shape `[n]`, or
/// `[n, labels]` for several labels.
pub(super) struct Labels {
    pub(super) pred: Tensor,
    pub(super) target: Tensor,
    /// Whether each element counts. Invalid and ignored elements do not.
    pub(super) counts: Tensor,
    /// The value of the state [`LIMITS`].
    pub(super) limits: Tensor,
}

impl Classes {
    pub(super) fn new(kinds: Kinds) -> Self {
        Classes { kinds, threshold: 0.5, top_k: 1, ignored: None, logits: None }
    }

    /// The number of classes or labels; 1 for a binary metric.
    pub(super) fn len(&self) -> usize {
        match self.kinds {
            Kinds::Binary => 1,
            Kinds::Multiclass(len) | Kinds::Multilabel(len) => len,
        }
    }

    pub(super) fn is_multiclass(&self) -> bool {
        matches!(self.kinds, Kinds::Multiclass(_))
    }

    /// One more than the largest valid target.
    fn limit(&self) -> i64 {
        match self.kinds {
            Kinds::Multiclass(len) => int(len),
            Kinds::Binary | Kinds::Multilabel(_) => 2,
        }
    }

    /// Describes an invalid setting. Returns `None` if all settings are valid.
    pub(super) fn mistake(&self) -> Option<String> {
        let Classes { kinds, threshold, top_k, .. } = *self;
        match kinds {
            Kinds::Multiclass(len) if len < 2 => {
                Some(format!("`multiclass({len})`: expected at least 2 classes"))
            }
            Kinds::Multilabel(len) if len < 2 => {
                Some(format!("`multilabel({len})`: expected at least 2 labels"))
            }
            Kinds::Multiclass(len) if !(1..=len).contains(&top_k) => {
                Some(format!("`.top_k({top_k})`: expected 1 to {len}, the number of classes"))
            }
            Kinds::Binary | Kinds::Multilabel(_) if top_k != 1 => {
                Some(format!("`.top_k({top_k})`: only multiclass metrics support it"))
            }
            _ if !(0.0..=1.0).contains(&threshold) => {
                Some(format!("`.threshold({threshold})`: expected a probability, from 0 to 1"))
            }
            _ => None,
        }
    }

    /// Checks the settings, and the shapes, dtypes and devices of a batch.
    ///
    /// Returns whether the batch is empty.
    pub(super) fn check(&self, name: &str, pred: &Tensor, target: &Tensor) -> Result<bool> {
        if let Some(mistake) = self.mistake() {
            return Err(error(name, &mistake));
        }
        super::check_dtypes(name, pred, target)?;
        let shape = pred.size();
        let targets = target.size();
        let fits = match self.kinds {
            Kinds::Binary => shape == targets,
            Kinds::Multilabel(len) => shape == targets && shape.get(1) == Some(&int(len)),
            Kinds::Multiclass(_) if shape.len() == targets.len() => {
                shape == targets && self.top_k == 1 && is_int(pred)
            }
            Kinds::Multiclass(len) => {
                shape.len() == targets.len() + 1
                    && is_float(pred)
                    && shape[1] == int(len)
                    && shape[0] == targets[0]
                    && shape[2..] == targets[1..]
            }
        };
        let mistake = if !fits {
            let expected = match self.kinds {
                Kinds::Binary => "scores or labels and targets of the same shape".to_owned(),
                Kinds::Multilabel(len) => {
                    format!("scores or labels and targets of the same shape, [n, {len}, …]")
                }
                Kinds::Multiclass(len) if self.top_k == 1 => {
                    format!(
                        "scores of shape [n, {len}, …], or integer labels of the targets' shape, and targets of shape [n, …]"
                    )
                }
                Kinds::Multiclass(len) => {
                    format!("scores of shape [n, {len}, …] and targets of shape [n, …]")
                }
            };
            format!(
                "the prediction has shape {shape:?} ({:?}) and the target {targets:?} ({:?}): expected {expected}",
                pred.kind(),
                target.kind()
            )
        } else if !is_int(target) {
            format!("the target has dtype {:?}: expected an integer dtype or `Bool`", target.kind())
        } else if pred.device() != target.device() {
            let [pred, target] = [pred, target].map(Tensor::device);
            format!("the prediction is on {pred:?} and the target on {target:?}: move both to one device")
        } else {
            return Ok(pred.numel() == 0);
        };
        Err(error(name, &mistake))
    }

    /// Does the same as [`check`](Classes::check), for a metric that needs floating-point scores.
    pub(super) fn check_scores(&self, name: &str, pred: &Tensor, target: &Tensor) -> Result<bool> {
        let is_multiclass = self.is_multiclass();
        if is_float(pred) && !(is_multiclass && pred.dim() == target.dim()) {
            return self.check(name, pred, target);
        }
        let of_shape = if is_multiclass { " of shape [n, classes, …]" } else { "" };
        let shape = pred.size();
        let kind = pred.kind();
        let text = format!(
            "the prediction has shape {shape:?} and dtype {kind:?}: expected floating-point scores{of_shape}"
        );
        Err(error(name, &text))
    }

    /// Calls `each` with the predicted and the true class of each sample that is not ignored.
    ///
    /// Returns `None`, without calling `each`, unless this is a multiclass metric with a `top_k` of
    /// 1, and both tensors are contiguous in main memory and have suitable shapes and dtypes.
    pub(super) fn on_cpu(
        &self,
        name: &str,
        pred: &Tensor,
        target: &Tensor,
        each: impl FnMut(usize, usize),
    ) -> Option<Result<()>> {
        let Kinds::Multiclass(len) = self.kinds else { return None };
        let is_plain = pred.device() == Device::Cpu
            && target.device() == Device::Cpu
            && target.kind() == Kind::Int64
            && self.top_k == 1
            && pred.is_contiguous()
            && target.is_contiguous()
            && (pred.dim() == 2 || pred.dim() == target.dim());
        if !is_plain {
            return None;
        }
        let preds = libtorch::bytes(pred, name).ok()?;
        let targets = libtorch::bytes(target, name).ok()?;
        let targets = targets.as_chunks::<8>().0.iter().map(|bytes| i64::from_ne_bytes(*bytes));
        Some(match pred.kind() {
            Kind::Float => {
                let scores = preds.as_chunks::<4>().0.chunks_exact(len);
                let labels = scores.map(|row| largest(row.iter().map(|bytes| f32::from_ne_bytes(*bytes))));
                self.visit(name, labels, targets, each)
            }
            Kind::Double => {
                let scores = preds.as_chunks::<8>().0.chunks_exact(len);
                let labels = scores.map(|row| largest(row.iter().map(|bytes| f64::from_ne_bytes(*bytes))));
                self.visit(name, labels, targets, each)
            }
            Kind::Int64 => {
                let labels = preds.as_chunks::<8>().0.iter();
                self.visit(name, labels.map(|bytes| Ok(i64::from_ne_bytes(*bytes))), targets, each)
            }
            _ => return None,
        })
    }

    fn visit(
        &self,
        name: &str,
        preds: impl Iterator<Item = Result<i64, ()>>,
        targets: impl Iterator<Item = i64>,
        mut each: impl FnMut(usize, usize),
    ) -> Result<()> {
        let limit = self.limit();
        for (pred, target) in preds.zip(targets) {
            if Some(target) == self.ignored {
                continue;
            }
            let Ok(pred) = pred else { return Err(error(name, NAN)) };
            if !(0..limit).contains(&target) {
                return Err(self.bad_target(name, target));
            }
            if !(0..limit).contains(&pred) {
                return Err(self.bad_label(name, pred));
            }
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
            each(pred as usize, target as usize);
        }
        Ok(())
    }

    /// Converts a batch to labels, without reading it from the device.
    pub(super) fn labels(&self, pred: &Tensor, target: &Tensor) -> Labels {
        let scores = is_float(pred).then(|| pred.detach());
        let target = target.to_kind(Kind::Int64);
        let (pred, target) = match (self.kinds, &scores) {
            (Kinds::Multiclass(_), Some(scores)) if self.top_k == 1 => {
                (scores.argmax(1, false).flatten(0, -1), target.flatten(0, -1))
            }
            (Kinds::Multiclass(len), Some(scores)) => {
                // As in torchmetrics, the label is the target if its score is among the k largest,
                // and otherwise the class with the largest score.
                let (_, largest) = rows(scores, len).topk(int(self.top_k), 1, true, true);
                let target = target.flatten(0, -1);
                let is_found = largest.eq_tensor(&target.unsqueeze(1)).any_dim(1, false);
                (target.where_self(&is_found, &largest.select(1, 0)), target)
            }
            (Kinds::Multiclass(_), None) => (pred.to_kind(Kind::Int64).flatten(0, -1), target.flatten(0, -1)),
            (Kinds::Binary, _) => (self.binary(pred, scores.as_ref()).flatten(0, -1), target.flatten(0, -1)),
            (Kinds::Multilabel(len), _) => {
                (rows(&self.binary(pred, scores.as_ref()), len), rows(&target, len))
            }
        };
        let is_used = is_used(&target, self.ignored);
        let used_pred = used(&pred, &is_used);
        let used_target = used(&target, &is_used);
        let nan = scores.as_ref().map_or_else(|| Tensor::zeros([], (Kind::Int64, pred.device())), is_any_nan);
        let outside = scores.as_ref().map_or_else(|| nan.zeros_like(), is_any_outside);
        let limits = Tensor::stack(
            &[-used_target.min(), used_target.max(), -used_pred.min(), used_pred.max(), nan, outside],
            0,
        );
        let counts =
            in_range(&target, self.limit()).logical_and(&in_range(&pred, self.limit())).logical_and(&is_used);
        Labels { pred, target, counts, limits }
    }

    /// Converts binary scores or labels to the labels 0 and 1.
    fn binary(&self, pred: &Tensor, scores: Option<&Tensor>) -> Tensor {
        match scores {
            Some(scores) => self.probabilities(scores).gt(self.threshold).to_kind(Kind::Int64),
            None => pred.to_kind(Kind::Int64),
        }
    }

    /// Applies the sigmoid function to logits.
    pub(super) fn probabilities(&self, scores: &Tensor) -> Tensor {
        let scores = precise(scores);
        if self.logits == Some(true) { scores.sigmoid() } else { scores }
    }

    /// Converts each row of scores to probabilities: applies softmax if the scores are logits.
    pub(super) fn class_probabilities(&self, scores: &Tensor) -> Tensor {
        let scores = precise(scores);
        if self.logits == Some(true) { scores.softmax(1, scores.kind()) } else { scores }
    }

    /// Computes what a batch adds to a sum. If it is not known whether scores are logits, computes
    /// it for both cases, because a later batch may decide, and stacks the two; [`decided`] then
    /// chooses one of them.
    ///
    /// [`decided`]: Classes::decided
    pub(super) fn for_each_case(&self, mut make: impl FnMut(&Classes) -> Tensor) -> Tensor {
        if self.logits.is_some() {
            return make(self);
        }
        Tensor::stack(&[false, true].map(|logits| make(&Classes { logits: Some(logits), ..self.clone() })), 0)
    }

    /// Returns the part of a sum of [`for_each_case`](Classes::for_each_case) that applies.
    pub(super) fn decided<'v, T>(&self, sums: &'v [T], states: &States) -> Result<&'v [T]> {
        if self.logits.is_some() {
            return Ok(sums);
        }
        let (probabilities, logits) = sums.split_at(sums.len() / 2);
        Ok(if self.are_logits(states)? { logits } else { probabilities })
    }

    /// Returns whether the scores of a pass are logits. By default they are if any of them is
    /// outside the range from 0 to 1, as in torchmetrics, where the scores of a batch decide.
    pub(super) fn are_logits(&self, states: &States) -> Result<bool> {
        match self.logits {
            Some(logits) => Ok(logits),
            None => Ok(states.ints(LIMITS)?.get(5).is_some_and(|outside| *outside > 0)),
        }
    }

    /// Returns an error if the state [`LIMITS`] shows that a batch was invalid.
    pub(super) fn check_limits(&self, name: &str, states: &States) -> Result<()> {
        let limits = states.ints(LIMITS)?;
        let [target_min, target_max, pred_min, pred_max, nan, ..] = limits[..] else { return Ok(()) };
        if nan > 0 {
            return Err(error(name, NAN));
        }
        let [target, label] = [(target_min, target_max), (pred_min, pred_max)].map(|(min, max)| {
            if -min < 0 { Some(-min) } else { Some(max).filter(|max| *max >= self.limit()) }
        });
        if let Some(target) = target {
            return Err(self.bad_target(name, target));
        }
        label.map_or(Ok(()), |label| Err(self.bad_label(name, label)))
    }

    pub(super) fn bad_target(&self, name: &str, target: i64) -> Error {
        // `Dice` has no `ignore_index`.
        let can_ignore = self.ignored.is_none() && name != "dice";
        let ignored = if can_ignore { "; `.ignore_index(…)` leaves out a value" } else { "" };
        error(name, &format!("a target is {target}: expected {}{ignored}", self.expected()))
    }

    fn bad_label(&self, name: &str, label: i64) -> Error {
        error(name, &format!("a predicted label is {label}: expected {}", self.expected()))
    }

    fn expected(&self) -> String {
        match self.kinds {
            Kinds::Multiclass(len) => format!("a class from 0 to {}", len.saturating_sub(1)),
            Kinds::Binary | Kinds::Multilabel(_) => "0 or 1".to_owned(),
        }
    }
}

/// The declaration of the state [`LIMITS`].
pub(super) const LIMITS_STATE: (&str, StateReduction) = (LIMITS, StateReduction::Max);

const NAN: &str = "a score is NaN: check the output of the model";

pub(super) fn error(name: &str, text: &str) -> Error {
    Error::usage(format!("metric `{name}`: {text}"))
}

/// Returns the index of the largest score (the first if several are equal), or an error if any
/// score is NaN.
#[expect(clippy::eq_op, reason = "only NaN differs from itself, for any type of number")]
fn largest<F: PartialOrd + Copy>(row: impl Iterator<Item = F>) -> Result<i64, ()> {
    let mut best: Option<(i64, F)> = None;
    let mut has_nan = false;
    for (index, score) in (0..).zip(row) {
        has_nan |= score != score;
        if best.is_none_or(|(_, best)| score > best) {
            best = Some((index, score));
        }
    }
    best.filter(|_| !has_nan).map(|(index, _)| index).ok_or(())
}

/// Moves the class dimension to the end and flattens all others: `[n, len, …]` to `[n·…, len]`.
pub(super) fn rows(tensor: &Tensor, len: usize) -> Tensor {
    tensor.movedim([1i64], [-1i64]).reshape([-1, int(len)])
}

/// Returns a mask of the targets that are not ignored.
pub(super) fn is_used(target: &Tensor, ignored: Option<i64>) -> Tensor {
    match ignored {
        Some(ignored) => target.ne(ignored),
        None => target.ones_like().to_kind(Kind::Bool),
    }
}

/// Replaces the elements for which `is_used` is false with 0.
fn used(tensor: &Tensor, is_used: &Tensor) -> Tensor {
    tensor * is_used.to_kind(Kind::Int64)
}

fn in_range(labels: &Tensor, limit: i64) -> Tensor {
    labels.ge(0).logical_and(&labels.lt(limit))
}

/// Returns whether any element is NaN, as the integer 0 or 1.
pub(super) fn is_any_nan(scores: &Tensor) -> Tensor {
    scores.isnan().any().to_kind(Kind::Int64)
}

/// Returns whether any element is outside the range from 0 to 1, as the integer 0 or 1.
pub(super) fn is_any_outside(scores: &Tensor) -> Tensor {
    scores.lt(0.0).logical_or(&scores.gt(1.0)).any().to_kind(Kind::Int64)
}

/// Counts how often each index in `0..len` occurs, without reading `indices` from the device. The
/// caller must replace all other indices with `len`.
pub(super) fn histogram(indices: &Tensor, len: usize) -> Tensor {
    let indices = indices.flatten(0, -1);
    let bins = Tensor::zeros([int(len) + 1], (Kind::Int64, indices.device()));
    bins.scatter_add(0, &indices, &indices.ones_like()).narrow(0, 0, int(len))
}

pub(super) fn int(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}
