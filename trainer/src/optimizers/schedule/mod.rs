//! Learning-rate schedules: factors for the learning rate, as functions of the step.
//!
//! Schedules are closed forms: the factor at step n does not depend on earlier steps, so a resumed
//! run continues exactly. The factor multiplies the learning rate that the optimizer was created
//! with. The hook [`HyperparameterSchedule`](crate::hooks::HyperparameterSchedule) sets the product
//! at each optimizer step.
//!
//! ```
//! use trainer::prelude::*;
//! use trainer::schedule::Cosine;
//!
//! # fn main() -> Result<()> {
//! // Up to the optimizer's learning rate in 100 steps, then down to 0 at the end of the run.
//! let schedule = Cosine::to(0.0).warm_up(100);
//! assert_eq!(schedule.factor(100, Some(1000))?, 1.0);
//! assert!(schedule.factor(999, Some(1000))? < 1e-5);
//! # Ok(())
//! # }
//! ```
//!
//! # Steps
//!
//! Steps are counted from 0. They are optimizer steps, or epochs with
//! [`by_epoch`](crate::hooks::HyperparameterSchedule::by_epoch). Lengths are [`Amount`]s: a number
//! of steps, `500`, or a fraction of the run, `0.1`. The length of a schedule defaults to the whole
//! run. After its end, a schedule keeps its last value, except [`Constant`], whose factor is then
//! 1.
//!
//! # Available schedules
//!
//! | schedule | in `torch.optim.lr_scheduler` | factor |
//! |---|---|---|
//! | [`Constant`] | `ConstantLR` | constant, for some steps or for the whole run |
//! | [`Linear`] | `LinearLR` | a straight line |
//! | [`Cosine`] | `CosineAnnealingLR` | half a cosine wave |
//! | [`CosineRestarts`] | `CosineAnnealingWarmRestarts` | half a cosine wave, repeated |
//! | [`Exponential`] | `ExponentialLR` | multiplied by gamma at every step |
//! | [`StepDecay`] | `StepLR` | multiplied by gamma every N steps |
//! | [`MultiStep`] | `MultiStepLR` | multiplied by gamma at given steps |
//! | [`Polynomial`] | `PolynomialLR` | polynomial decay from 1 to 0: `(1 - n / N)^power` |
//! | [`OneCycle`] | `OneCycleLR` | up to 1, then down to almost 0 |
//! | a closure, <code>\|step: u64\| …</code> | `LambdaLR` | any function of the step |
//! | [`warm_up`](Schedule::warm_up) | `LinearLR` in a `SequentialLR` | linear warm-up to the first factor of a schedule |
//! | [`then`](Schedule::then) | `SequentialLR` | one schedule after another |
//! | [`times`](Schedule::times) | `ChainedScheduler` | the product of two schedules |
//!
//! For a learning rate that depends on a metric, use the hook
//! [`ReduceOnPlateau`](crate::hooks::ReduceOnPlateau). All values agree with PyTorch's to within
//! 1e-12 of the learning rate over 1,000 steps; the documentation of each schedule lists other
//! differences.
//!
//! One difference applies to all of them: some of PyTorch's settings, such as `eta_min` and
//! `max_lr`, are learning rates. Here they are factors, so parameter groups keep the ratio of their
//! learning rates.
//!
//! # Other hyperparameters
//!
//! [`HyperparameterSchedule`](crate::hooks::HyperparameterSchedule) schedules any hyperparameter of
//! an optimizer, by factors or by values. [`FieldSchedule`](crate::hooks::FieldSchedule) schedules
//! a field of another hook.

mod constant;
mod cosine;
mod cosine_restarts;
mod exponential;
mod linear;
mod multi_step;
mod one_cycle;
mod polynomial;
mod product;
mod sequence;
mod step_decay;
mod steps;
mod warm_up;

pub use constant::Constant;
pub use cosine::Cosine;
pub use cosine_restarts::CosineRestarts;
pub use exponential::Exponential;
pub use linear::Linear;
pub use multi_step::MultiStep;
pub use one_cycle::{OneCycle, OneCycleMomentum};
pub use polynomial::Polynomial;
pub use product::Product;
pub use sequence::Sequence;
pub use step_decay::StepDecay;
pub use warm_up::WarmUp;

use std::any::type_name;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Error, Result};
use crate::values::amount::Amount;
use crate::values::facts::SettingList;

/// A factor for the learning rate, as a function of the step and of the length of the run.
///
/// Implement this trait for a custom schedule if a closure `Fn(u64) -> f64` is not enough:
///
/// ```
/// use trainer::prelude::*;
///
/// /// The inverse square root of the step, after a linear warm-up (Vaswani et al., *Attention is
/// /// all you need*, 2017).
/// struct InverseRoot {
///     rise: u64,
/// }
///
/// impl Schedule for InverseRoot {
///     fn factor(&self, step: u64, _: Option<u64>) -> Result<f64> {
///         let (step, rise) = (step as f64 + 1.0, self.rise as f64);
///         Ok((step / rise).min((rise / step).sqrt()))
///     }
/// }
/// ```
#[doc(alias("LambdaLR", "LRScheduler"))]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a schedule",
    label = "not a schedule",
    note = "the module `trainer::schedule` lists the built-in ones; a closure is a schedule too, `|step: u64| 0.5_f64.powf(step as f64)`"
)]
pub trait Schedule: Send + 'static {
    /// Returns the factor at a step, counted from 0. `run` is the number of steps in the run, if it
    /// is known.
    ///
    /// # Errors
    ///
    /// Returns an error if a setting is invalid, or is a fraction of a run whose length is unknown.
    fn factor(&self, step: u64, run: Option<u64>) -> Result<f64>;

    /// Checks, before the run begins, that the schedule works at every step of the run. The default
    /// implementation only computes the factor of the first step.
    ///
    /// # Errors
    ///
    /// Returns an error if [`factor`](Schedule::factor) would return an error, or if steps in the
    /// settings are out of order or exceed the run.
    fn check(&self, run: Option<u64>) -> Result<()> {
        self.factor(0, run).map(drop)
    }

    /// Returns a message for each setting that is invalid whatever the length of the run. `build`
    /// returns an error that lists them. Defaults to none.
    fn mistakes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the settings. A resume compares them with those of the interrupted run, and they
    /// must be equal on all ranks. The default implementation returns only the type and the factors
    /// at the first two steps, as does the implementation for closures. If a type has settings,
    /// implement this method and return all of them.
    fn settings(&self) -> SettingList {
        with_first_factors(SettingList::of(type_name::<Self>()), |step| self.factor(step, Some(1000)))
    }

    /// Adds a linear warm-up of length `over`, after which this schedule starts: see [`WarmUp`].
    #[doc(alias("warmup_ratio", "warmup_steps"))]
    fn warm_up(self, over: impl Into<Amount>) -> WarmUp<Self>
    where
        Self: Sized,
    {
        WarmUp::new(over.into(), self)
    }

    /// Continues with the schedule `next` at step `at`, which is step 0 of `next`: see
    /// [`Sequence`].
    fn then(self, at: impl Into<Amount>, next: impl Schedule) -> Sequence
    where
        Self: Sized,
    {
        Sequence::new(self).and(at.into(), next)
    }

    /// Multiplies the factors of this schedule and `other`: see [`Product`].
    fn times<S: Schedule>(self, other: S) -> Product<Self, S>
    where
        Self: Sized,
    {
        Product::new(self, other)
    }
}

/// Any function of the step, like PyTorch's `LambdaLR`.
impl<F: Fn(u64) -> f64 + Send + 'static> Schedule for F {
    fn factor(&self, step: u64, _: Option<u64>) -> Result<f64> {
        Ok(self(step))
    }

    fn settings(&self) -> SettingList {
        with_first_factors(SettingList::of("a closure"), |step| Ok(self(step)))
    }
}

/// Adds the factors at the first two steps to `list`. Nothing else about an unknown schedule can be
/// compared, because it may have no factor at later steps.
fn with_first_factors(list: SettingList, factor: impl Fn(u64) -> Result<f64>) -> SettingList {
    [0, 1].into_iter().fold(list, |list, step| {
        let found = catch_unwind(AssertUnwindSafe(|| factor(step))).ok().and_then(Result::ok);
        list.with_optional(&format!("factor({step})"), found)
    })
}

/// A schedule chosen at run time.
impl Schedule for Box<dyn Schedule> {
    fn factor(&self, step: u64, run: Option<u64>) -> Result<f64> {
        (**self).factor(step, run)
    }

    fn check(&self, run: Option<u64>) -> Result<()> {
        (**self).check(run)
    }

    fn mistakes(&self) -> Vec<String> {
        (**self).mistakes()
    }

    fn settings(&self) -> SettingList {
        (**self).settings()
    }
}

/// Returns the mistake in a schedule that no length of the run mends.
fn mistake(schedule: &impl Schedule) -> Vec<String> {
    const LONGEST: u64 = 1 << 52; // an exact f64
    schedule.check(Some(LONGEST)).err().iter().map(ToString::to_string).collect()
}

/// Returns the factor, or an error if it is invalid: a negative factor would turn descent into
/// ascent, and NaN would corrupt the weights.
fn check_factor(what: &str, factor: f64) -> Result<f64> {
    if factor >= 0.0 && factor.is_finite() {
        return Ok(factor);
    }
    Err(Error::usage(format!("{what} is {factor:?}: expected a finite number of at least 0.0")))
}

/// Interpolates linearly between two values.
fn between(start: f64, end: f64, fraction: f64) -> f64 {
    start + (end - start) * fraction
}

/// Returns the value of half a cosine wave, which falls from 1 at fraction 0 to 0 at fraction 1.
fn half_wave(fraction: f64) -> f64 {
    f64::midpoint(1.0, (std::f64::consts::PI * fraction).cos())
}
