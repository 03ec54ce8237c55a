//! Schedules of the learning rate: what it is multiplied by at each step.
//!
//! A schedule is a value, and its closed form: the factor at step n needs no history, so that a run that is resumed goes on
//! as it would have. The factor multiplies the learning rate that the optimizer was made with. The hook
//! [`LrSchedule`](crate::hooks::LrSchedule) sets the product at each optimizer step.
//!
//! ```
//! use trainer::prelude::*;
//! use trainer::schedule::Cosine;
//!
//! # fn main() -> Result<()> {
//! // Up to the optimizer's learning rate in 100 steps, and down to 0 where the run ends.
//! let schedule = Cosine::to(0.0).warm_up(100);
//! assert_eq!(schedule.factor(100, Some(1000))?, 1.0);
//! assert!(schedule.factor(999, Some(1000))? < 1e-5);
//! # Ok(())
//! # }
//! ```
//!
//! # Steps
//!
//! Steps are counted from 0. They are optimizer steps, or epochs [`by_epoch`](crate::hooks::LrSchedule::by_epoch). How long
//! something takes is a [`Length`]: a number of them, `500`, or a share of the run, `0.1`; the whole run unless it is said.
//! Past its end a schedule stays where it ended.
//!
//! # Which there are
//!
//! | | in `torch.optim.lr_scheduler` | |
//! |---|---|---|
//! | [`Constant`] | `ConstantLR` | one factor, for a while or for good |
//! | [`Linear`] | `LinearLR` | a straight line |
//! | [`Cosine`] | `CosineAnnealingLR` | half a cosine wave |
//! | [`CosineRestarts`] | `CosineAnnealingWarmRestarts` | the same again and again |
//! | [`Exponential`] | `ExponentialLR` | multiplied at each step |
//! | [`StepDecay`] | `StepLR` | multiplied at each so many steps |
//! | [`MultiStep`] | `MultiStepLR` | multiplied at the steps that are named |
//! | [`Polynomial`] | `PolynomialLR` | a power of the line down to 0 |
//! | [`OneCycle`] | `OneCycleLR` | up, and down to almost nothing |
//! | a closure, <code>\|step: u64\| …</code> | `LambdaLR` | any other |
//! | [`warm_up`](Schedule::warm_up) | `LinearLR` in a `SequentialLR` | a line up to a schedule |
//! | [`then`](Schedule::then) | `SequentialLR` | one after the other |
//! | [`times`](Schedule::times) | `ChainedScheduler` | one on top of the other |
//!
//! What depends on a metric is a hook of its own: [`ReduceOnPlateau`](crate::hooks::ReduceOnPlateau). All values equal
//! PyTorch's to 1e-12 of the learning rate over 1,000 steps; each page says what differs beside them.
//!
//! One thing differs in all of them. PyTorch takes some ends as learning rates, `eta_min` and `max_lr`; here they are factors,
//! so that each group of parameters keeps its own proportion.

mod constant;
mod cosine;
mod cosine_restarts;
mod exponential;
mod length;
mod linear;
mod multi_step;
mod one_cycle;
mod polynomial;
mod product;
mod sequential;
mod step_decay;
mod warm_up;

pub use constant::Constant;
pub use cosine::Cosine;
pub use cosine_restarts::CosineRestarts;
pub use exponential::Exponential;
pub use length::Length;
pub use linear::Linear;
pub use multi_step::MultiStep;
pub use one_cycle::OneCycle;
pub use polynomial::Polynomial;
pub use product::Product;
pub use sequential::Sequential;
pub use step_decay::StepDecay;
pub use warm_up::WarmUp;

use crate::error::{Error, Result};

/// What the learning rate is multiplied by, as a function of the step alone.
///
/// One of one's own, where a closure `Fn(u64) -> f64` does not do:
///
/// ```
/// use trainer::prelude::*;
///
/// /// The inverse square root of the step, after a rise (Vaswani et al., *Attention is all you need*, 2017).
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
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no schedule",
    label = "no schedule",
    note = "the module `trainer::schedule` has those that there are; a closure is one too, `|step: u64| 0.5_f64.powf(step as f64)`"
)]
pub trait Schedule: Send + 'static {
    /// The factor at a step, from 0, of a run that has so many if that is known.
    ///
    /// # Errors
    ///
    /// A value that cannot be meant, and a share of a run whose length is not known.
    fn factor(&self, step: u64, run: Option<u64>) -> Result<f64>;

    /// Tells what could not work later in a run that has so many steps. Unless it is given, the first step is tried.
    ///
    /// # Errors
    ///
    /// As for [`factor`](Schedule::factor), at any step.
    fn check(&self, run: Option<u64>) -> Result<()> {
        self.factor(0, run).map(drop)
    }

    /// A line up to this schedule, which begins after so many steps: [`WarmUp`].
    fn warm_up(self, over: impl Into<Length>) -> WarmUp<Self>
    where
        Self: Sized,
    {
        WarmUp::new(over.into(), self)
    }

    /// From this step on another schedule, which begins at its own step 0: [`Sequential`].
    fn then(self, at: impl Into<Length>, next: impl Schedule) -> Sequential
    where
        Self: Sized,
    {
        Sequential::new(self).and(at.into(), next)
    }

    /// The product with another schedule: [`Product`].
    fn times<S: Schedule>(self, other: S) -> Product<Self, S>
    where
        Self: Sized,
    {
        Product::new(self, other)
    }
}

/// `LambdaLR`: any function of the step.
impl<F: Fn(u64) -> f64 + Send + 'static> Schedule for F {
    fn factor(&self, step: u64, _: Option<u64>) -> Result<f64> {
        Ok(self(step))
    }
}

/// One that is chosen at run time.
impl Schedule for Box<dyn Schedule> {
    fn factor(&self, step: u64, run: Option<u64>) -> Result<f64> {
        (**self).factor(step, run)
    }

    fn check(&self, run: Option<u64>) -> Result<()> {
        (**self).check(run)
    }
}

/// A negative factor would climb, and one that is no number would spoil the weights.
fn is_factor(what: &str, factor: f64) -> Result<f64> {
    if factor >= 0.0 && factor.is_finite() {
        return Ok(factor);
    }
    Err(Error::usage(format!("{what} is {factor:?}: expected a finite number of at least 0.0")))
}

/// How far from one value to another.
fn between(start: f64, end: f64, share: f64) -> f64 {
    start + (end - start) * share
}

/// From 1 down to 0, as half a cosine wave.
fn half_wave(share: f64) -> f64 {
    f64::midpoint(1.0, (std::f64::consts::PI * share).cos())
}
