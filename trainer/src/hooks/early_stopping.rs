//! The end of a run that does not get better.

use serde::{Deserialize, Serialize};

use super::better::of_epoch;
use super::ord;
use crate::checkpoint::{Saved, State};
use crate::prelude::*;

/// Stops a run whose metric has not become better for a while, as Lightning's `EarlyStopping` does.
///
/// It looks at the end of each epoch, at that epoch's own metric; an epoch without validation is passed over for a metric of it.
///
/// ```
/// use trainer::hooks::EarlyStopping;
/// use trainer::prelude::*;
///
/// let stopping = EarlyStopping::new("valid/loss", Better::Lower).patience(5).min_delta(1e-3);
/// ```
#[derive(Debug)]
pub struct EarlyStopping {
    metric: String,
    better: Better,
    patience: u64,
    min_delta: f64,
    check_finite: bool,
    stop_at: Option<f64>,
    diverge_at: Option<f64>,
    seen: Seen,
}

/// What it has seen so far.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
struct Seen {
    best: Option<f64>,
    /// Epochs since.
    waited: u64,
}

impl EarlyStopping {
    /// By this metric, `valid/loss`; stops after three epochs without a better value.
    pub fn new(metric: impl Into<String>, better: Better) -> Self {
        EarlyStopping {
            metric: metric.into(),
            better,
            patience: 3,
            min_delta: 0.0,
            check_finite: true,
            stop_at: None,
            diverge_at: None,
            seen: Seen::default(),
        }
    }

    /// Stops after so many epochs without a better value; 3 unless set.
    #[must_use]
    pub fn patience(mut self, epochs: u64) -> Self {
        self.patience = epochs;
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
        let delta = if *better == Better::Lower { -self.min_delta } else { self.min_delta };
        if self.seen.best.is_none_or(|best| better.is_better(value, best + delta)) {
            self.seen = Seen { best: Some(value), waited: 0 };
            return None;
        }
        self.seen.waited = self.seen.waited.saturating_add(1);
        let best = self.seen.best.unwrap_or(value);
        (self.seen.waited >= self.patience)
            .then(|| format!("`{metric}` has not been better than {best} for {} epochs", self.seen.waited))
    }
}

#[hook(ord = ord::EARLY_STOPPING, state)]
impl EarlyStopping {
    /// Looks at the epoch's metric, and stops the run if that is enough.
    fn after_epoch(&mut self, cx: &mut Cx<AfterEpoch>) -> Result<()> {
        let Some(value) = of_epoch(cx.metrics(), &self.metric)? else { return Ok(()) };
        if let Some(reason) = self.look(value) {
            cx.stop(reason);
        }
        Ok(())
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
