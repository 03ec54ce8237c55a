//! The one-cycle schedule, for learning rate and momentum.

use super::{Schedule, between, half_wave, mistake};
use crate::error::{Error, Result};
use crate::values::amount::Amount;
use crate::values::facts::SettingList;

/// One cycle over N steps: up from `1 / div_factor` to 1, then down to
/// `1 / (div_factor · final_div_factor)`. By default, each phase follows half a cosine wave. The
/// peak is the optimizer's learning rate.
///
/// Use this when the run is short and you want a large learning rate in the middle of it.
///
/// Introduced in Smith and Topin, *Super-Convergence: Very Fast Training of Neural Networks Using
/// Large Learning Rates*, 2018. Corresponds to `torch.optim.lr_scheduler.OneCycleLR` and uses the
/// names of its settings, except that the optimizer's learning rate takes the place of PyTorch's
/// `max_lr`. Beyond the end, PyTorch raises an error, whereas this schedule keeps its last value.
///
/// By default, PyTorch also cycles the momentum between 0.95 and 0.85. Here, a second hook does
/// this:
///
/// ```
/// use trainer::hooks::HyperparameterSchedule;
/// use trainer::prelude::*;
/// use trainer::schedule::OneCycle;
///
/// fn one_cycle<T: Task>(builder: trainer::TrainerBuilder<T>) -> trainer::TrainerBuilder<T> {
///     let cycle = OneCycle::new();
///     builder
///         .hook(HyperparameterSchedule::lr(cycle))
///         .hook(HyperparameterSchedule::momentum(cycle.momentum(0.85, 0.95)))
/// }
/// ```
///
/// For a linear warm-up followed by a cosine, use `Cosine::to(0.0).warm_up(0.1)`.
#[doc(alias = "OneCycleLR")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OneCycle {
    over: Amount,
    pct_start: f64,
    div_factor: f64,
    final_div_factor: f64,
    is_linear: bool,
    is_three_phase: bool,
}

impl Default for OneCycle {
    fn default() -> Self {
        OneCycle {
            over: Amount::WHOLE,
            pct_start: 0.3,
            div_factor: 25.0,
            final_div_factor: 1e4,
            is_linear: false,
            is_three_phase: false,
        }
    }
}

impl OneCycle {
    /// Creates the schedule with PyTorch's default settings, over the whole run.
    #[must_use]
    pub fn new() -> Self {
        OneCycle::default()
    }

    /// Sets the length of the schedule. Defaults to the whole run.
    #[must_use]
    pub fn over(mut self, length: impl Into<Amount>) -> Self {
        self.over = length.into();
        self
    }

    /// Sets the fraction of the steps in which the factor rises. Defaults to 0.3.
    #[must_use]
    pub fn pct_start(mut self, fraction: f64) -> Self {
        self.pct_start = fraction;
        self
    }

    /// Sets the initial factor to `1 / divisor`. Defaults to a divisor of 25.
    #[must_use]
    pub fn div_factor(mut self, divisor: f64) -> Self {
        self.div_factor = divisor;
        self
    }

    /// Sets the final factor to the initial factor divided by `divisor`. Defaults to a divisor of
    /// 10,000.
    #[must_use]
    pub fn final_div_factor(mut self, divisor: f64) -> Self {
        self.final_div_factor = divisor;
        self
    }

    /// Sets whether the factor follows straight lines instead of cosine waves, like PyTorch's
    /// `anneal_strategy="linear"`. Defaults to `false`.
    #[must_use]
    pub fn linear(mut self, linear: bool) -> Self {
        self.is_linear = linear;
        self
    }

    /// Sets whether there are three phases: up to the peak, down to the initial factor in the same
    /// number of steps, and down to the final factor in the remaining steps. Defaults to `false`.
    #[must_use]
    pub fn three_phase(mut self, three_phase: bool) -> Self {
        self.is_three_phase = three_phase;
        self
    }

    /// Returns an error if a setting is invalid.
    fn check_values(&self) -> Result<()> {
        let most = if self.is_three_phase { 0.5 } else { 1.0 };
        if !(self.pct_start > 0.0 && self.pct_start <= most && self.pct_start < 1.0) {
            let upper = if self.is_three_phase { "at most 0.5 with three phases" } else { "below 1.0" };
            let given = self.pct_start;
            return Err(Error::usage(format!(
                "`OneCycle::new().pct_start({given:?})`: expected a fraction above 0.0 and {upper}"
            )));
        }
        let divisors = [("div_factor", self.div_factor), ("final_div_factor", self.final_div_factor)];
        for (setting, divisor) in divisors {
            if !(divisor > 0.0 && divisor.is_finite()) {
                return Err(Error::usage(format!(
                    "`OneCycle::new().{setting}({divisor:?})`: expected a finite number above 0.0"
                )));
            }
        }
        Ok(())
    }

    /// Returns the momentum schedule for this cycle: from `max` down to `base` while the learning
    /// rate rises, and back up to `max` while the learning rate falls. PyTorch's defaults are 0.85
    /// for `base` and 0.95 for `max`.
    #[must_use]
    pub fn momentum(self, base: f64, max: f64) -> OneCycleMomentum {
        OneCycleMomentum { cycle: self, base, max }
    }

    /// Interpolates between two values, linearly or along half a cosine wave.
    fn anneal(&self, start: f64, end: f64, fraction: f64) -> f64 {
        if self.is_linear { between(start, end, fraction) } else { between(end, start, half_wave(fraction)) }
    }

    /// Returns the value at a step of a cycle through four values: `first` at the start, `peak`
    /// when the learning rate peaks, `second` at the end of the second phase if there are three,
    /// and `last` at the end.
    fn value(&self, step: u64, run: Option<u64>, [first, peak, second, last]: [f64; 4]) -> Result<f64> {
        let steps = self.over.steps_at_least_1(run, "OneCycle::new().over({})")?;
        let end = steps as f64 - 1.0;
        let step = (step as f64).min(end);
        // As in PyTorch, the peak may be between two steps.
        let rise = self.pct_start * steps as f64 - 1.0;
        let fall = 2.0 * rise;
        let (phase, (from, to)) = match self.is_three_phase {
            _ if step <= rise => ((0.0, rise), (first, peak)),
            true if step <= fall => ((rise, fall), (peak, second)),
            true => ((fall, end), (second, last)),
            false => ((rise, end), (peak, last)),
        };
        let length = phase.1 - phase.0;
        // In a very short run, a phase may be empty. Then use its final value.
        let fraction = if length > 0.0 { (step - phase.0) / length } else { 1.0 };
        Ok(self.anneal(from, to, fraction))
    }
}

impl Schedule for OneCycle {
    fn factor(&self, step: u64, run: Option<u64>) -> Result<f64> {
        self.check_values()?;
        let first = 1.0 / self.div_factor;
        self.value(step, run, [first, 1.0, first, first / self.final_div_factor])
    }

    fn mistakes(&self) -> Vec<String> {
        mistake(self)
    }

    fn settings(&self) -> SettingList {
        let OneCycle { over, pct_start, div_factor, final_div_factor, is_linear, is_three_phase } = self;
        SettingList::of("OneCycle")
            .with("over", over)
            .with("pct_start", pct_start)
            .with("div_factor", div_factor)
            .with("final_div_factor", final_div_factor)
            .with("linear", is_linear)
            .with("three_phase", is_three_phase)
    }
}

/// The momentum schedule of a one-cycle schedule, created by [`OneCycle::momentum`].
///
/// It returns the momentum itself instead of a factor, so use it with
/// [`HyperparameterSchedule::momentum`](crate::hooks::HyperparameterSchedule::momentum).
///
/// ```
/// use trainer::hooks::HyperparameterSchedule;
/// use trainer::prelude::*;
/// use trainer::schedule::OneCycle;
///
/// let momentum = OneCycle::new().momentum(0.85, 0.95);
/// assert!((momentum.factor(0, Some(1000))? - 0.95).abs() < 1e-9);
/// let hook = HyperparameterSchedule::momentum(momentum);
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OneCycleMomentum {
    cycle: OneCycle,
    base: f64,
    max: f64,
}

impl Schedule for OneCycleMomentum {
    fn factor(&self, step: u64, run: Option<u64>) -> Result<f64> {
        self.cycle.check_values()?;
        let OneCycleMomentum { base, max, .. } = *self;
        if !(0.0 <= base && base <= max && max < 1.0) {
            return Err(Error::usage(format!(
                "`OneCycle::new().momentum({base:?}, {max:?})`: expected the lower momentum first, both at least 0.0 and below 1.0"
            )));
        }
        self.cycle.value(step, run, [max, base, max, max])
    }

    fn mistakes(&self) -> Vec<String> {
        mistake(self)
    }

    fn settings(&self) -> SettingList {
        let OneCycleMomentum { cycle, base, max } = self;
        let list = SettingList::of("OneCycleMomentum").with("base", base).with("max", max);
        list.with_all("cycle", cycle.settings())
    }
}
