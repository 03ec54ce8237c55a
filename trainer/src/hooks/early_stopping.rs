//! Early stopping.

use serde::{Deserialize, Serialize};

use super::watched_metric::{is_of, is_of_pass, value_of};
use super::{is_at_least_0, refused, stages};
use crate::checkpoint::{SettingList, Settings};
use crate::lifecycle::{CanStop, HasMetrics};
use crate::prelude::own::*;
use crate::values::float::exact;

/// Stops a run when a metric stops improving, like Lightning's `EarlyStopping`.
///
/// Use this when you do not know how many epochs a run needs. If only the learning rate should fall
/// when the metric stops improving, use [`ReduceOnPlateau`](super::ReduceOnPlateau).
///
/// A validation metric, `valid/…`, is checked after each validation of a `fit`, including
/// validations in the middle of an epoch ([`Every::Steps`]). A training metric, `train/…`, is
/// checked at the end of each epoch, after its validation. [`patience`](EarlyStopping::patience)
/// counts these checks, and begins anew in each `fit`.
///
/// `fit` returns an error at its start if the name is neither `train/…` nor `valid/…`. For a name
/// `valid/…`, it also returns an error if the name looks misspelled, or if no validation of the fit
/// measures the metric. Any other unknown name is an error only at the first check, because a hook
/// may still log the metric before that check.
///
/// ```
/// use trainer::hooks::EarlyStopping;
/// use trainer::prelude::*;
///
/// let stopping = EarlyStopping::new("valid/loss", Goal::Minimize).patience(5).min_delta(1e-3);
/// ```
#[doc(alias = "EarlyStoppingCallback")]
#[derive(Debug)]
pub struct EarlyStopping {
    metric: String,
    goal: Goal,
    patience: u64,
    min_delta: f64,
    check_finite: bool,
    stop_at: Option<f64>,
    diverge_at: Option<f64>,
    progress: Progress,
    /// Whether the entry point is `fit`.
    in_fit: bool,
}

/// The best value so far, and the number of checks since then. Checkpoints save both.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
struct Progress {
    best: Option<f64>,
    /// The number of checks since the best value.
    waited: u64,
}

impl EarlyStopping {
    /// Watches this metric, for example `valid/loss`.
    #[doc(alias = "monitor")]
    pub fn new(metric: impl Into<String>, goal: Goal) -> Self {
        EarlyStopping {
            metric: metric.into(),
            goal,
            patience: 3,
            min_delta: 0.0,
            check_finite: true,
            stop_at: None,
            diverge_at: None,
            progress: Progress::default(),
            in_fit: false,
        }
    }

    /// The number of successive checks without an improvement after which the run stops. Defaults
    /// to 3.
    #[must_use]
    pub fn patience(mut self, checks: u64) -> Self {
        self.patience = checks;
        self
    }

    /// The difference from the best value that an improvement must exceed. Defaults to 0.
    #[must_use]
    pub fn min_delta(mut self, delta: f64) -> Self {
        self.min_delta = delta;
        self
    }

    /// Whether to stop immediately when the metric is NaN or infinite. Defaults to `true`. If
    /// `false`, such a value counts as a check without an improvement.
    #[must_use]
    pub fn check_finite(mut self, check: bool) -> Self {
        self.check_finite = check;
        self
    }

    /// Stops immediately when the metric is at least as good as this target.
    #[must_use]
    pub fn stop_at(mut self, threshold: f64) -> Self {
        self.stop_at = Some(threshold);
        self
    }

    /// Stops immediately when the metric is worse than this limit.
    #[must_use]
    pub fn diverge_at(mut self, threshold: f64) -> Self {
        self.diverge_at = Some(threshold);
        self
    }

    /// The best value of the current or last fit; `None` before the first finite one.
    #[must_use]
    pub fn best(&self) -> Option<f64> {
        self.progress.best
    }

    /// Checks the current value of the metric, and stops the run if the value is a reason to stop.
    fn judge<P: HasMetrics + CanStop + OnAllRanks>(&mut self, cx: &mut Cx<P>) -> Result<()> {
        let value = value_of(cx, "EarlyStopping", &self.metric)?;
        if let Some(reason) = self.reason_to_stop(value) {
            cx.stop(reason);
        }
        Ok(())
    }

    /// Records a value, and returns the reason to stop, if there is one.
    fn reason_to_stop(&mut self, value: f64) -> Option<String> {
        let EarlyStopping { metric, goal, .. } = self;
        if self.check_finite && !value.is_finite() {
            return Some(format!("`{metric}` is {}", exact(value)));
        }
        if let Some(threshold) = self.stop_at
            && (value == threshold || goal.is_better(value, threshold))
        {
            return Some(format!(
                "`{metric}` reached the target {} (value {})",
                exact(threshold),
                exact(value)
            ));
        }
        if let Some(threshold) = self.diverge_at
            && goal.is_better(threshold, value)
        {
            return Some(format!(
                "`{metric}` is {}, which is worse than the limit {}",
                exact(value),
                exact(threshold)
            ));
        }
        let delta = if *goal == Goal::Minimize { -self.min_delta } else { self.min_delta };
        if value.is_finite() && self.progress.best.is_none_or(|best| goal.is_better(value, best + delta)) {
            self.progress = Progress { best: Some(value), waited: 0 };
            return None;
        }
        self.progress.waited = self.progress.waited.saturating_add(1);
        let best = exact(self.progress.best.unwrap_or(value));
        (self.progress.waited >= self.patience).then(|| match self.progress.waited {
            1 => format!("`{metric}` has not improved on {best} in the last check"),
            waited => format!("`{metric}` has not improved on {best} in {waited} checks in a row"),
        })
    }
}

#[hook(in = stages::Decisions, state = self.progress, settings)]
impl EarlyStopping {
    /// Records whether a fit is running.
    fn setup(&mut self, cx: &Cx<Setup>) {
        self.in_fit = cx.phase() == Phase::Train;
    }

    /// Forgets the best value and the checks of an earlier fit. Returns an error if this fit never
    /// measures the metric.
    fn before_fit(&mut self, cx: &Cx<BeforeFit>) -> Result<()> {
        self.progress = Progress::default();
        cx.check_metric(&self.metric)
    }

    /// Repeats the check of `before_fit` for a resumed fit, in which `before_fit` does not fire
    /// again.
    fn after_train_epoch(&mut self, cx: &Cx<AfterTrainEpoch>) -> Result<()> {
        cx.check_metric(&self.metric)
    }

    /// Checks a validation metric.
    #[hook(only = valid)]
    fn after_valid(&mut self, cx: &mut Cx<AfterValid>) -> Result<()> {
        if self.in_fit && is_of_pass(cx, &self.metric) { self.judge(cx) } else { Ok(()) }
    }

    /// Checks a training metric.
    fn after_epoch(&mut self, cx: &mut Cx<AfterEpoch>) -> Result<()> {
        if is_of(&self.metric, "train") { self.judge(cx) } else { Ok(()) }
    }
}

#[diagnostic::do_not_recommend]
impl Settings for EarlyStopping {
    fn settings(&self) -> SettingList {
        let EarlyStopping {
            metric,
            goal,
            patience,
            min_delta,
            check_finite,
            stop_at,
            diverge_at,
            progress: _,
            in_fit: _,
        } = self;
        SettingList::new()
            .with("metric", metric)
            .with("goal", goal)
            .with("patience", patience)
            .with("min_delta", min_delta)
            .with("check_finite", check_finite)
            .with_optional("stop_at", stop_at.as_ref())
            .with_optional("diverge_at", diverge_at.as_ref())
    }

    fn goals(&self) -> Vec<(String, Goal)> {
        vec![(self.metric.clone(), self.goal)]
    }

    fn mistakes(&self) -> Vec<String> {
        let is_nan = |threshold: Option<f64>| threshold.is_some_and(f64::is_nan);
        refused([
            (
                !is_at_least_0(self.min_delta),
                format!("`.min_delta({:?})`: expected a finite number of at least 0.0", self.min_delta),
            ),
            (is_nan(self.stop_at), "`.stop_at(NaN)`: expected a number".to_owned()),
            (is_nan(self.diverge_at), "`.diverge_at(NaN)`: expected a number".to_owned()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::{EarlyStopping, Goal};

    #[test]
    fn the_first_finite_value_after_nan_is_the_best() {
        let stopping = EarlyStopping::new("valid/loss", Goal::Minimize).check_finite(false);
        let mut stopping = stopping.patience(2).stop_at(0.1);
        assert_eq!(stopping.reason_to_stop(f64::NAN), None);
        assert_eq!(stopping.best(), None);
        assert_eq!(stopping.reason_to_stop(2.0), None);
        assert_eq!(stopping.best(), Some(2.0));
        assert_eq!(stopping.reason_to_stop(f64::NAN), None);
        let reason = "`valid/loss` has not improved on 2 in 2 checks in a row";
        assert_eq!(stopping.reason_to_stop(f64::NAN).as_deref(), Some(reason));
        let reason = "`valid/loss` reached the target 0.1 (value 0.1)";
        assert_eq!(stopping.reason_to_stop(0.1).as_deref(), Some(reason));
    }
}
