//! Reducing the learning rate when a metric stops improving.

use serde::{Deserialize, Serialize};

use super::watched_metric::{is_of, is_of_pass, value_of};
use super::{is_at_least_0, refused, stages};
use crate::checkpoint::{SettingList, Settings};
use crate::lifecycle::HasMetrics;
use crate::prelude::own::*;

/// Reduces the learning rate when a metric has stopped improving, as
/// `torch.optim.lr_scheduler.ReduceLROnPlateau` does.
///
/// Use this when you cannot plan a schedule, because you do not know the length of the run.
/// Otherwise, use a [`HyperparameterSchedule`](super::HyperparameterSchedule).
///
/// ```
/// use trainer::hooks::ReduceOnPlateau;
/// use trainer::prelude::*;
///
/// # fn main() -> Result<()> {
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let trainer = Trainer::builder(task)
///     .optimizer(Sgd::new(0.1))
///     .epochs(100)
///     .hook(ReduceOnPlateau::new("valid/loss", Goal::Minimize).factor(0.5).patience(3))
///     .build()?;
/// # Ok(())
/// # }
/// ```
///
/// A validation metric, `valid/…`, is checked after each validation of a `fit`, and a training
/// metric, `train/…`, after each pass over the training data. When the metric has not improved on
/// its best value in more than [`patience`](ReduceOnPlateau::patience) checks in a row, the
/// learning rate of every parameter group is multiplied by [`factor`](ReduceOnPlateau::factor). A
/// value that is not finite never counts as an improvement. Each `fit` begins anew, with the
/// reduced rate. The name of the metric is checked as for [`EarlyStopping`](super::EarlyStopping):
/// for example, a `fit` without validation returns an error at its start if the metric is a
/// validation metric.
///
/// A [`HyperparameterSchedule`](super::HyperparameterSchedule) of the same trainer continues from
/// the reduced rate.
///
/// The settings have PyTorch's names and defaults; `mode="max"` is [`Goal::Maximize`], and
/// `threshold_mode="abs"` is [`threshold_abs`](ReduceOnPlateau::threshold_abs).
#[doc(alias = "ReduceLROnPlateau")]
#[derive(Clone, Debug, PartialEq)]
pub struct ReduceOnPlateau {
    metric: String,
    part: Option<String>,
    goal: Goal,
    threshold: f64,
    is_absolute: bool,
    factor: f64,
    patience: u64,
    cooldown: u64,
    min_lr: f64,
    eps: f64,
    state: PlateauState,
    /// Whether the entry point is `fit`.
    in_fit: bool,
}

/// The state of a [`ReduceOnPlateau`], which checkpoints save.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PlateauState {
    /// The best value so far; `None` before the first finite one.
    pub best: Option<f64>,
    /// The number of successive values without an improvement. A reduction and the cooldown reset
    /// it to 0.
    pub bad: u64,
    /// The number of upcoming values that do not count toward the patience.
    pub cooldown: u64,
    /// The number of reductions in this fit, including those that
    /// [`min_lr`](ReduceOnPlateau::min_lr) or [`eps`](ReduceOnPlateau::eps) prevented.
    pub reductions: u64,
}

impl ReduceOnPlateau {
    /// Watches the metric with this name, such as `valid/loss`, and reduces the rates of every
    /// optimizer.
    #[must_use]
    #[doc(alias = "monitor")]
    pub fn new(metric: impl Into<String>, goal: Goal) -> Self {
        ReduceOnPlateau {
            metric: metric.into(),
            part: None,
            goal,
            threshold: 1e-4,
            is_absolute: false,
            factor: 0.1,
            patience: 10,
            cooldown: 0,
            min_lr: 0.0,
            eps: 1e-8,
            state: PlateauState::default(),
            in_fit: false,
        }
    }

    /// A reduction multiplies the learning rate by this factor, which must be at least 0 and below
    /// 1. Defaults to 0.1.
    #[must_use]
    pub fn factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// The number of successive values without an improvement that are tolerated. One more such
    /// value reduces the rate. Defaults to 10.
    #[must_use]
    pub fn patience(mut self, values: u64) -> Self {
        self.patience = values;
        self
    }

    /// The minimum improvement, as a fraction of the best value. Defaults to 1e-4. Only meaningful
    /// for metrics above 0.
    #[must_use]
    pub fn threshold(mut self, fraction: f64) -> Self {
        self.threshold = fraction;
        self.is_absolute = false;
        self
    }

    /// The minimum improvement, as a difference from the best value. Replaces
    /// [`threshold`](ReduceOnPlateau::threshold).
    #[must_use]
    pub fn threshold_abs(mut self, difference: f64) -> Self {
        self.threshold = difference;
        self.is_absolute = true;
        self
    }

    /// The number of values after a reduction that do not count toward the patience. Defaults to 0.
    #[must_use]
    pub fn cooldown(mut self, values: u64) -> Self {
        self.cooldown = values;
        self
    }

    /// The lower bound of the learning rate. Defaults to 0.
    #[must_use]
    pub fn min_lr(mut self, lr: f64) -> Self {
        self.min_lr = lr;
        self
    }

    /// A reduction is applied only if it changes the learning rate by more than this difference.
    /// Defaults to 1e-8.
    #[must_use]
    pub fn eps(mut self, difference: f64) -> Self {
        self.eps = difference;
        self
    }

    /// Restricts the hook to the optimizer of this part of the model: see
    /// [`optimizer_of`](crate::TrainerBuilder::optimizer_of).
    #[must_use]
    pub fn part(mut self, part: impl Into<String>) -> Self {
        self.part = Some(part.into());
        self
    }

    /// The part whose optimizer it is restricted to.
    pub(super) fn of_part(&self) -> Option<&str> {
        self.part.as_deref()
    }

    /// The current state.
    #[must_use]
    pub fn state(&self) -> PlateauState {
        self.state
    }

    fn is_better(&self, value: f64) -> bool {
        let sign = if self.goal == Goal::Minimize { -1.0 } else { 1.0 };
        let is_better = self.state.best.is_none_or(|best| {
            let limit = if self.is_absolute {
                best + sign * self.threshold
            } else {
                best * (1.0 + sign * self.threshold)
            };
            self.goal.is_better(value, limit)
        });
        is_better && value.is_finite()
    }

    /// Records a value, and returns whether the learning rate has to be reduced.
    fn has_stalled(&mut self, value: f64) -> bool {
        if self.is_better(value) {
            self.state.best = Some(value);
            self.state.bad = 0;
        } else {
            self.state.bad += 1;
        }
        if self.state.cooldown > 0 {
            self.state.cooldown -= 1;
            self.state.bad = 0;
        }
        let has_stalled = self.state.bad > self.patience;
        if has_stalled {
            self.state.bad = 0;
            self.state.cooldown = self.cooldown;
            self.state.reductions += 1;
        }
        has_stalled
    }

    /// Records the current value of the metric, and returns whether the learning rate has to be
    /// reduced.
    fn judge<P: HasMetrics + OnAllRanks>(&mut self, cx: &Cx<P>) -> Result<bool> {
        value_of(cx, "ReduceOnPlateau", &self.metric).map(|value| self.has_stalled(value))
    }

    /// Reduces the learning rates of the optimizer that [`part`](ReduceOnPlateau::part) selects or,
    /// if no part is selected, of all optimizers. Leaves a rate unchanged if the reduction would be
    /// at most `eps`.
    fn reduce<P: OnAllRanks>(&self, cx: &mut Cx<P>) -> Result<()> {
        let parts: Vec<String> =
            self.part.clone().map_or_else(|| cx.parts().map(str::to_owned).collect(), |part| vec![part]);
        for part in parts {
            for group in cx.optimizer_of_mut(&part)?.groups_mut() {
                let reduced = (group.lr * self.factor).max(self.min_lr);
                if group.lr - reduced > self.eps {
                    group.lr = reduced;
                }
            }
        }
        Ok(())
    }
}

#[hook(in = stages::Decisions, state = self.state, settings)]
impl ReduceOnPlateau {
    /// Records whether a fit is running.
    fn setup(&mut self, cx: &Cx<Setup>) {
        self.in_fit = cx.phase() == Phase::Train;
    }

    /// Forgets the values of an earlier fit. Returns an error if the part has no optimizer, or if
    /// this fit never measures the metric.
    fn before_fit(&mut self, cx: &Cx<BeforeFit>) -> Result<()> {
        self.state = PlateauState::default();
        if let Some(part) = &self.part {
            cx.optimizer_of(part)?;
        }
        cx.check_metric(&self.metric)
    }

    /// Checks a training metric, and reduces the learning rate if it has stalled.
    fn after_train_epoch(&mut self, cx: &mut Cx<AfterTrainEpoch>) -> Result<()> {
        cx.check_metric(&self.metric)?; // a resumed fit has no `before_fit`
        if is_of(&self.metric, "train") && self.judge(cx)? { self.reduce(cx) } else { Ok(()) }
    }

    /// Checks a validation metric, and reduces the learning rate if it has stalled.
    #[hook(only = valid)]
    fn after_valid(&mut self, cx: &mut Cx<AfterValid>) -> Result<()> {
        let is_watched = self.in_fit && is_of_pass(cx, &self.metric);
        if is_watched && self.judge(cx)? { self.reduce(cx) } else { Ok(()) }
    }
}

#[diagnostic::do_not_recommend]
impl Settings for ReduceOnPlateau {
    fn settings(&self) -> SettingList {
        let ReduceOnPlateau {
            metric,
            part,
            goal,
            threshold,
            is_absolute,
            factor,
            patience,
            cooldown,
            min_lr,
            eps,
            state: _,
            in_fit: _,
        } = self;
        SettingList::new()
            .with("metric", metric)
            .with_optional("part", part.as_ref())
            .with("goal", goal)
            .with_optional("threshold", (!is_absolute).then_some(threshold))
            .with_optional("threshold_abs", is_absolute.then_some(threshold))
            .with("factor", factor)
            .with("patience", patience)
            .with("cooldown", cooldown)
            .with("min_lr", min_lr)
            .with("eps", eps)
    }

    fn goals(&self) -> Vec<(String, Goal)> {
        vec![(self.metric.clone(), self.goal)]
    }

    fn mistakes(&self) -> Vec<String> {
        let factor = self.factor;
        let threshold = if self.is_absolute { "threshold_abs" } else { "threshold" };
        let is_valid = (0.0..1.0).contains(&factor);
        let own =
            refused([(!is_valid, format!("`.factor({factor:?})`: expected at least 0.0 and below 1.0"))]);
        let numbers = [(threshold, self.threshold), ("min_lr", self.min_lr), ("eps", self.eps)];
        let others = refused(numbers.map(|(setting, value)| {
            (
                !is_at_least_0(value),
                format!("`.{setting}({value:?})`: expected a finite number of at least 0.0"),
            )
        }));
        own.into_iter().chain(others).collect()
    }
}
