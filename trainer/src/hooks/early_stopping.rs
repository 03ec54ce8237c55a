//! The end of a run that does not get better.

use serde::{Deserialize, Serialize};

use super::better::{check_watched, is_of, value_of};
use super::ord;
use crate::checkpoint::{Saved, State};
use crate::lifecycle::{CanStop, HasMetrics};
use crate::prelude::*;

/// Stops a run whose metric has stopped improving, as Lightning's `EarlyStopping` does.
///
/// A metric of validation, `valid/…`, is judged after each validation of a `fit`, also in the middle of an epoch
/// ([`Every::Steps`]). A metric of training, `train/…`, is judged at the end of each epoch, after its
/// validation. [`patience`](EarlyStopping::patience) counts these judgements. A `fit` that does not
/// validate is refused at its start if the metric is one of validation; a metric that does not exist is
/// an error at the first judgement.
///
/// ```
/// use trainer::hooks::EarlyStopping;
/// use trainer::prelude::*;
///
/// let stopping = EarlyStopping::new("valid/loss", Goal::Minimize).patience(5).min_delta(1e-3);
/// ```
#[derive(Debug)]
pub struct EarlyStopping {
    metric: String,
    better: Goal,
    patience: u64,
    min_delta: f64,
    check_finite: bool,
    stop_at: Option<f64>,
    diverge_at: Option<f64>,
    seen: Seen,
    /// A `fit` is running, not `validate`.
    in_fit: bool,
}

/// What it has seen so far.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
struct Seen {
    best: Option<f64>,
    /// Judgements since then.
    waited: u64,
}

impl EarlyStopping {
    /// Watches this metric, `valid/loss` for example.
    pub fn new(metric: impl Into<String>, better: Goal) -> Self {
        EarlyStopping {
            metric: metric.into(),
            better,
            patience: 3,
            min_delta: 0.0,
            check_finite: true,
            stop_at: None,
            diverge_at: None,
            seen: Seen::default(),
            in_fit: false,
        }
    }

    /// Stops after `judgements` judgements in a row without a better value. Defaults to 3.
    #[must_use]
    pub fn patience(mut self, judgements: u64) -> Self {
        self.patience = judgements;
        self
    }

    /// How much better than the best a value must be to count; 0 unless set.
    #[must_use]
    pub fn min_delta(mut self, delta: f64) -> Self {
        self.min_delta = delta;
        self
    }

    /// Stops at once when the value is NaN or infinite? It does unless set.
    #[must_use]
    pub fn check_finite(mut self, check: bool) -> Self {
        self.check_finite = check;
        self
    }

    /// Stops at once when the value is at least as good as this.
    #[must_use]
    pub fn stop_at(mut self, threshold: f64) -> Self {
        self.stop_at = Some(threshold);
        self
    }

    /// Stops at once when the value is worse than this.
    #[must_use]
    pub fn diverge_at(mut self, threshold: f64) -> Self {
        self.diverge_at = Some(threshold);
        self
    }

    /// The best value so far.
    #[must_use]
    pub fn best(&self) -> Option<f64> {
        self.seen.best
    }

    /// Stops the run if the current value of the metric is reason enough.
    fn judge<P: HasMetrics + CanStop>(&mut self, cx: &mut Cx<P>) -> Result<()> {
        let value = value_of(cx.metrics(), &self.metric)?;
        if let Some(reason) = self.look(value) {
            cx.stop(reason);
        }
        Ok(())
    }

    /// Why to stop, after this value.
    fn look(&mut self, value: f64) -> Option<String> {
        let EarlyStopping { metric, better, .. } = self;
        if self.check_finite && !value.is_finite() {
            return Some(format!("`{metric}` is {value}"));
        }
        if let Some(threshold) = self.stop_at
            && !better.is_better(threshold, value)
        {
            return Some(format!("`{metric}` is {value}, and {threshold} was to be reached"));
        }
        if let Some(threshold) = self.diverge_at
            && better.is_better(threshold, value)
        {
            return Some(format!("`{metric}` is {value}, and worse than {threshold}"));
        }
        let delta = if *better == Goal::Minimize { -self.min_delta } else { self.min_delta };
        if self.seen.best.is_none_or(|best| better.is_better(value, best + delta)) {
            self.seen = Seen { best: Some(value), waited: 0 };
            return None;
        }
        self.seen.waited = self.seen.waited.saturating_add(1);
        let best = self.seen.best.unwrap_or(value);
        (self.seen.waited >= self.patience).then(|| {
            format!("`{metric}` has not improved on {best} in {} judgements in a row", self.seen.waited)
        })
    }
}

#[hook(ord = ord::EARLY_STOPPING, state)]
impl EarlyStopping {
    /// Notes whether a fit is running.
    fn setup(&mut self, cx: &mut Cx<Setup>) {
        self.in_fit = cx.phase() == Phase::Train;
    }

    /// Refuses a metric that this fit never measures.
    fn before_fit(&mut self, cx: &mut Cx<BeforeFit>) -> Result<()> {
        check_watched(cx, &self.metric)
    }

    /// Refuses it in a resumed fit, in which `before_fit` does not run again.
    fn after_train_epoch(&mut self, cx: &mut Cx<AfterTrainEpoch>) -> Result<()> {
        check_watched(cx, &self.metric)
    }

    /// Judges a metric of validation.
    #[hook(only = valid)]
    fn after_valid(&mut self, cx: &mut Cx<AfterValid>) -> Result<()> {
        if self.in_fit && is_of(&self.metric, "valid") { self.judge(cx) } else { Ok(()) }
    }

    /// Judges a metric of training.
    fn after_epoch(&mut self, cx: &mut Cx<AfterEpoch>) -> Result<()> {
        if is_of(&self.metric, "train") { self.judge(cx) } else { Ok(()) }
    }
}

#[diagnostic::do_not_recommend]
impl State for EarlyStopping {
    fn save(&self) -> Result<Saved> {
        let mut saved = Saved::new();
        saved.value("seen", &self.seen)?;
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        self.seen = saved.get("seen")?;
        Ok(())
    }
}
