//! Wrappers of metrics: the value over the last batches, the best value so far, and a value for
//! each group.

use tch::{Kind, Tensor};

use super::labels::int;
use super::regression::state_of;
use super::state::{StateReduction, States};
use super::{Metric, is_int, scalar};
use crate::error::Result;
use crate::log::Goal;
use crate::log::history::wrong_goal;

/// Swaps `states` into the metric, calls `body` with the metric, and swaps the states back.
fn with<M: Metric, R>(metric: &mut M, states: &mut States, body: impl FnOnce(&mut M) -> R) -> R {
    std::mem::swap(metric.states_mut(), states);
    let result = body(metric);
    std::mem::swap(metric.states_mut(), states);
    result
}

/// The value of a metric over the last batches. Corresponds to torchmetrics' `Running`.
///
/// Use this when a pass is long, such as a training epoch, and you want a recent value.
///
/// ```
/// use trainer::metrics::{MeanAbsoluteError, Metric, Running};
/// use trainer::tch::Tensor;
///
/// let mut running = Running::new(MeanAbsoluteError::new(), 2);
/// for error in [9.0, 1.0, 3.0] {
///     running.update(&Tensor::from_slice(&[error]), &Tensor::from_slice(&[0.0]))?;
/// }
/// assert_eq!(running.compute()?.double_value(&[]), 2.0); // the mean of the last two batches
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Running<M> {
    metric: M,
    window: usize,
    /// The state [`SEEN`], which counts batches, and one child for each batch in the window, with
    /// the states of `metric` for that batch.
    states: States,
}

/// The name of the state that counts the batches since the last reset.
const SEEN: &str = "seen";

impl<M: Metric> Running<M> {
    /// Creates the metric, which computes `metric` over the last `window` batches and is logged as
    /// `running_<name>`.
    #[must_use]
    pub fn new(metric: M, window: usize) -> Self {
        let children = (0..window).map(|_| metric.states().blank());
        let states = States::new([(SEEN, StateReduction::Sum)]).with_children(children);
        Running { metric, window, states }
    }

    /// Clears the states of the oldest batch, and calls `update` with the metric to fill them with
    /// the next batch.
    fn update_next(&mut self, update: impl FnOnce(&mut M) -> Result<()>) -> Result<()> {
        self.check()?;
        let seen = match self.states.counts_mut(SEEN, 1) {
            Some([seen]) => {
                *seen += 1;
                *seen - 1
            }
            _ => 0,
        };
        let oldest = &mut self.states.children_mut()[usize::try_from(seen).unwrap_or(0) % self.window];
        oldest.reset();
        with(&mut self.metric, oldest, update)
    }
}

impl<M: Metric> Metric for Running<M> {
    fn name(&self) -> String {
        format!("running_{}", self.metric.name())
    }

    fn goal(&self) -> Option<Goal> {
        self.metric.goal()
    }

    fn check(&self) -> Result<()> {
        if self.window == 0 {
            return Err(self.error("`Running::new(…, 0)`: expected a window of at least 1 batch"));
        }
        self.metric.check()
    }

    fn update(&mut self, pred: &Tensor, target: &Tensor) -> Result<()> {
        self.update_next(|metric| metric.update(pred, target))
    }

    fn needs_groups(&self) -> bool {
        self.metric.needs_groups()
    }

    fn update_groups(&mut self, pred: &Tensor, target: &Tensor, groups: &Tensor) -> Result<()> {
        self.update_next(|metric| metric.update_groups(pred, target, groups))
    }

    fn compute(&mut self) -> Result<Tensor> {
        let mut all = self.metric.states().blank();
        self.states.children().iter().try_for_each(|batch| all.merge(batch))?;
        with(&mut self.metric, &mut all, Metric::compute)
    }

    fn compute_per_class(&mut self) -> Result<Option<Tensor>> {
        let mut all = self.metric.states().blank();
        self.states.children().iter().try_for_each(|batch| all.merge(batch))?;
        with(&mut self.metric, &mut all, Metric::compute_per_class)
    }

    fn image(&mut self) -> Result<Option<Tensor>> {
        let mut all = self.metric.states().blank();
        self.states.children().iter().try_for_each(|batch| all.merge(batch))?;
        with(&mut self.metric, &mut all, Metric::image)
    }

    /// Always returns an error: two parts of the data have no order, so their last batches are
    /// undefined.
    fn merge(&mut self, _: &Self) -> Result<()> {
        Err(self.error(
            "the last batches of two parts of the data cannot be merged, because the parts have no order: \
             compute this metric in one process",
        ))
    }

    state_of!();
}

/// The best value of a metric so far, which a reset keeps. Corresponds to `min` or `max` of
/// torchmetrics' `MinMaxMetric`.
///
/// Use this when you want the best value of a run in addition to the last one.
///
/// ```
/// use trainer::metrics::{BestSoFar, MeanAbsoluteError, Metric};
/// use trainer::prelude::*;
///
/// let mut best = BestSoFar::new(MeanAbsoluteError::new(), Goal::Minimize);
/// for (error, expected) in [(3.0, 3.0), (1.0, 1.0), (2.0, 1.0)] {
///     best.reset(); // at the start of a pass
///     best.update(&Tensor::from_slice(&[error]), &Tensor::from_slice(&[0.0]))?;
///     assert_eq!(best.compute()?.double_value(&[]), expected);
/// }
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias("MinMaxMetric", "MaxMetric", "MinMetric"))]
#[derive(Clone, Debug)]
pub struct BestSoFar<M> {
    metric: M,
    goal: Goal,
    states: States,
}

const BEST: &str = "best";

impl<M: Metric> BestSoFar<M> {
    /// Creates the metric, which computes the best value of `metric` over all passes and is logged
    /// as `best_<name>`. The value of `metric` must be a scalar.
    #[must_use]
    pub fn new(metric: M, goal: Goal) -> Self {
        let reduction = if goal == Goal::Minimize { StateReduction::Min } else { StateReduction::Max };
        let states = States::new([(BEST, reduction)]).keep(BEST).with_children([metric.states().blank()]);
        BestSoFar { metric, goal, states }
    }
}

impl<M: Metric> Metric for BestSoFar<M> {
    fn name(&self) -> String {
        format!("best_{}", self.metric.name())
    }

    fn goal(&self) -> Option<Goal> {
        Some(self.goal)
    }

    fn check(&self) -> Result<()> {
        if let Some(goal) = self.metric.goal()
            && goal != self.goal
        {
            return Err(self.error(&wrong_goal(&self.metric.name(), goal)));
        }
        self.metric.check()
    }

    fn update(&mut self, pred: &Tensor, target: &Tensor) -> Result<()> {
        with(&mut self.metric, &mut self.states.children_mut()[0], |metric| metric.update(pred, target))
    }

    fn needs_groups(&self) -> bool {
        self.metric.needs_groups()
    }

    fn update_groups(&mut self, pred: &Tensor, target: &Tensor, groups: &Tensor) -> Result<()> {
        with(&mut self.metric, &mut self.states.children_mut()[0], |metric| {
            metric.update_groups(pred, target, groups)
        })
    }

    /// Computes the value of the current pass, and returns the best value so far. NaN is never
    /// better than another value.
    fn compute(&mut self) -> Result<Tensor> {
        let value = with(&mut self.metric, &mut self.states.children_mut()[0], Metric::compute)?;
        if value.numel() != 1 {
            return Err(self.error(&format!(
                "the value of `{}` has shape {:?}: expected a scalar",
                self.metric.name(),
                value.size()
            )));
        }
        let value = value.double_value(&[]);
        let best = match self.states.floats(BEST)?[..] {
            [best, ..] if !best.is_nan() && !self.goal.is_better(value, best) => best,
            _ => value,
        };
        self.states.set(BEST, scalar(best));
        Ok(scalar(best))
    }

    state_of!();
}

/// The value of a metric for each group of samples, such as the accuracy for each data source.
///
/// Use this when a mean over all samples could hide that the model is worse for some groups.
///
/// All predictions, targets and groups are kept. They are split by group when the metric is
/// computed. The value of a group without samples is NaN.
///
/// ```
/// use trainer::metrics::{MeanAbsoluteError, Metric, PerGroup};
/// use trainer::prelude::*;
///
/// let mut errors = PerGroup::new(MeanAbsoluteError::new(), 2);
/// let (pred, target) = (Tensor::from_slice(&[1.0, 2.0, 3.0]), Tensor::from_slice(&[1.0, 1.0, 0.0]));
/// errors.update_groups(&pred, &target, &Tensor::from_slice(&[0i64, 1, 1]))?;
/// assert_eq!(Vec::<f64>::try_from(errors.compute()?)?, [0.0, 2.0]);
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PerGroup<M> {
    metric: M,
    groups: usize,
    states: States,
}

impl<M: Metric> PerGroup<M> {
    /// Creates the metric, which computes `metric` for each of `groups` groups, numbered from 0. In
    /// a trainer, [`groups`](Metric::groups) determines the group of each sample, and the values
    /// are logged as `<name>/<group>`.
    #[must_use]
    pub fn new(metric: M, groups: usize) -> Self {
        let states = ["preds", "targets", "groups"].map(|name| (name, StateReduction::Concat));
        PerGroup { metric, groups, states: States::new(states) }
    }
}

impl<M: Metric> Metric for PerGroup<M> {
    fn name(&self) -> String {
        self.metric.name()
    }

    fn goal(&self) -> Option<Goal> {
        self.metric.goal()
    }

    fn check(&self) -> Result<()> {
        if self.groups == 0 {
            return Err(self.error("`PerGroup::new(…, 0)`: expected at least 1 group"));
        }
        self.metric.check()
    }

    fn needs_groups(&self) -> bool {
        true
    }

    fn update(&mut self, _: &Tensor, _: &Tensor) -> Result<()> {
        Err(self.error(
            "it needs the group of each sample: call `update_groups`, or in a trainer `.groups(|batch: &MyBatch| …)`",
        ))
    }

    fn update_groups(&mut self, pred: &Tensor, target: &Tensor, groups: &Tensor) -> Result<()> {
        self.check()?;
        let rows = groups.size();
        if rows.len() != 1 || [pred, target].iter().any(|tensor| tensor.size().first() != rows.first()) {
            return Err(self.error(&format!(
                "the prediction has shape {:?}, the target {:?} and the groups {rows:?}: expected groups of shape [n], and n rows in \
                 the prediction and in the target",
                pred.size(),
                target.size()
            )));
        }
        if !is_int(groups) {
            let groups = groups.kind();
            return Err(self.error(&format!("the groups have dtype {groups:?}: expected an integer dtype")));
        }
        if pred.numel() > 0 {
            self.states.update("preds", pred.detach());
            self.states.update("targets", target.detach());
            self.states.update("groups", groups.to_kind(Kind::Int64));
        }
        Ok(())
    }

    fn compute(&mut self) -> Result<Tensor> {
        let all = ["preds", "targets", "groups"].map(|name| self.states.get(name));
        let [Some(preds), Some(targets), Some(groups)] = all else { return Err(self.no_data()) };
        let mut values = Vec::new();
        if let Some(other) =
            self.states.ints("groups")?.into_iter().find(|group| !(0..int(self.groups)).contains(group))
        {
            return Err(self.error(&format!(
                "a sample is in group {other}: expected a group of at least 0 and below {}",
                self.groups
            )));
        }
        for group in 0..int(self.groups) {
            let rows = groups.eq(group).nonzero().squeeze_dim(1);
            if rows.numel() == 0 {
                values.push(None);
                continue;
            }
            let mut states = self.metric.states().blank();
            values.push(Some(with(&mut self.metric, &mut states, |metric| {
                metric.update(&preds.index_select(0, &rows), &targets.index_select(0, &rows))?;
                metric.compute()
            })?));
        }
        let Some(shape) = values.iter().flatten().next().map(Tensor::size) else {
            return Err(self.no_data());
        };
        let values = values.into_iter().map(|value| {
            value.unwrap_or_else(|| Tensor::full(&shape[..], f64::NAN, (Kind::Double, tch::Device::Cpu)))
        });
        Ok(Tensor::stack(&values.collect::<Vec<_>>(), 0))
    }

    state_of!();
}
