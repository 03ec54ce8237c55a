//! The learning-rate range test.

use super::curve::{LrCurve, LrPoint};
use crate::data::Loader;
use crate::error::{Error, Result};
use crate::optim::Optimizers;
use crate::training::Trainer;
use crate::training::task::Task;
use crate::training::trial::{Trial, check_loader, trial};

/// The settings of [`Trainer::find_lr`].
///
/// ```
/// use trainer::finders::LearningRateFinder;
/// use trainer::prelude::*;
///
/// # let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
/// # let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// # let mut train = InMemory::new((inputs, labels))?.batch_size(16);
/// # let mut trainer = Trainer::builder(task).optimizer(Sgd::new(0.1)).build()?;
/// let settings = LearningRateFinder::new().from(1e-5).to(1.0).steps(50);
/// let curve = trainer.find_lr(&mut train, &settings)?;
/// assert!(curve.points().len() <= 50);
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LearningRateFinder {
    from: f64,
    to: f64,
    steps: u32,
    smoothing: f64,
    stop_at: f64,
}

impl Default for LearningRateFinder {
    fn default() -> Self {
        LearningRateFinder { from: 1e-7, to: 10.0, steps: 100, smoothing: 0.98, stop_at: 4.0 }
    }
}

impl LearningRateFinder {
    /// Creates the default settings, which are fastai's: 100 steps from 1e-7 to 10.
    #[must_use]
    pub fn new() -> Self {
        LearningRateFinder::default()
    }

    /// Sets the learning rate of the first step. Defaults to 1e-7.
    #[must_use]
    pub fn from(mut self, lr: f64) -> Self {
        self.from = lr;
        self
    }

    /// Sets the learning rate of the last step. Defaults to 10.
    #[must_use]
    pub fn to(mut self, lr: f64) -> Self {
        self.to = lr;
        self
    }

    /// Sets the number of optimizer steps, at least 20. Defaults to 100.
    #[must_use]
    pub fn steps(mut self, steps: u32) -> Self {
        self.steps = steps;
        self
    }

    /// Sets the decay of the moving average of the loss, at least 0 and below 1. Defaults to 0.98.
    #[must_use]
    pub fn smoothing(mut self, smoothing: f64) -> Self {
        self.smoothing = smoothing;
        self
    }

    /// Stops as soon as the smoothed loss exceeds its minimum times this factor, which must be
    /// above 1. Ignored while the minimum is not positive. Defaults to 4.
    #[must_use]
    pub fn stop_at(mut self, factor: f64) -> Self {
        self.stop_at = factor;
        self
    }

    /// Returns an error if a setting is invalid.
    fn check(&self) -> Result<()> {
        let LearningRateFinder { from, to, steps, smoothing, stop_at } = *self;
        let mistake = if !(0.0 < from && from < to && to.is_finite()) {
            format!(
                "`.from({from:?})` and `.to({to:?})`: expected finite numbers above 0.0, the lower one first"
            )
        } else if steps < 20 {
            format!("`.steps({steps})`: expected at least 20")
        } else if !(0.0..1.0).contains(&smoothing) {
            format!("`.smoothing({smoothing:?})`: expected at least 0.0 and below 1.0")
        } else if stop_at.is_nan() || stop_at <= 1.0 {
            format!("`.stop_at({stop_at:?})`: expected a factor above 1.0")
        } else {
            return Ok(());
        };
        Err(Error::usage(format!("`find_lr`: {mistake}")))
    }

    /// The learning rate of a step.
    fn lr(&self, step: u32) -> f64 {
        let fraction = f64::from(step) / f64::from(self.steps - 1);
        self.from * (self.to / self.from).powf(fraction)
    }
}

/// # Finding a learning rate
impl<T: Task> Trainer<T> {
    /// Runs a learning-rate range test (Smith, *Cyclical Learning Rates for Training Neural
    /// Networks*, 2017): trains for a number of steps with an exponentially growing learning rate,
    /// and returns the losses, with a [suggestion](LrCurve::suggestion) and a
    /// [plot](LrCurve::to_svg).
    ///
    /// ```
    /// # use trainer::prelude::*;
    /// use trainer::finders::LearningRateFinder;
    ///
    /// # fn main() -> Result<()> {
    /// # let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
    /// # let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
    /// # let mut train = InMemory::new((inputs, labels))?.batch_size(16);
    /// # let vs = nn::VarStore::new(Device::Cpu);
    /// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
    /// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
    /// # let mut trainer = Trainer::builder(task).optimizer(Sgd::new(0.1)).build()?;
    /// let curve = trainer.find_lr(&mut train, &LearningRateFinder::new())?;
    /// if let Some(lr) = curve.suggestion() {
    ///     trainer.optimizer_mut().unwrap().groups_mut()[0].lr = lr;
    /// }
    /// // std::fs::write("lr.svg", curve.to_svg())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Parameter groups keep the ratios of their learning rates; the curve shows the highest rate.
    /// If an epoch has too few batches for all steps, further epochs follow. Each step trains on as
    /// many batches as the trainer [accumulates](crate::TrainerBuilder::accumulate).
    ///
    /// Afterwards, the variables, their gradients, the optimizers, the random state and the
    /// counters are restored bit for bit, even after an error, a panic or a cancellation. Nothing
    /// is recorded.
    ///
    /// The only hooks that run are those whose value has a [state](crate::language::state), which
    /// is restored, and those with [`trial`](crate::language::trial), such as gradient clipping,
    /// [`MixUp`](crate::hooks::MixUp) and [`Sam`](crate::hooks::Sam). Neither learning-rate
    /// schedules nor hooks that are called only on rank 0 run. A warning names any other hooks that
    /// do not run and may change training. For the hooks that run, the test begins like the next
    /// fit: `before_fit` and `before_epoch` fire, followed by the moments within a step.
    ///
    /// A task that changes its own fields in training must save them with `#[hook(state)]`, so that
    /// they can be restored.
    ///
    /// In several processes, call this method on all ranks. They run the test together, each on its
    /// share of each batch, as in a [`fit`](Trainer::fit), and all of them return the same curve.
    /// An epoch of the test ends when the data of any rank has ended.
    ///
    /// # Errors
    ///
    /// Returns an error
    ///
    /// - if a setting is invalid;
    /// - if the loader is not [deterministic](Loader::is_deterministic), or yields no batch;
    /// - if no batch of an epoch logs a loss;
    /// - if the trainer has no optimizer, several optimizers, or one whose state cannot be read;
    /// - if the trainer resumes from a checkpoint;
    /// - if layers were added after the trainer was built, or hooks at `setup` may still add some;
    /// - if a hook that runs sets a learning rate;
    /// - if the first loss is not finite;
    /// - if the loss diverges too soon for a suggestion;
    /// - for the same reasons as [`fit`](Trainer::fit).
    #[doc(alias = "lr_find")]
    pub fn find_lr(
        &mut self,
        train: &mut dyn Loader<T::Batch>,
        with: &LearningRateFinder,
    ) -> Result<LrCurve> {
        with.check()?;
        check_loader::<T>(train, "find_lr")?;
        if self.run.optimizers().names().count() > 1 {
            return Err(Error::usage(
                "`find_lr` supports only one optimizer, but this trainer has several: build a trainer for a single part of the model",
            ));
        }
        trial(&mut self.run, "find_lr", super::is_replaced, |trial| range_test::<T>(trial, train, with))?
    }
}

/// Returns the ratio of each group's learning rate to the highest one; 1 for each if all are 0.
fn ratios(optimizers: &mut Optimizers) -> Result<Vec<f64>> {
    let lrs: Vec<f64> = optimizers.current_mut()?.groups().iter().map(|group| group.lr).collect();
    let highest = lrs.iter().copied().fold(0.0, f64::max);
    Ok(lrs.iter().map(|lr| if highest > 0.0 { lr / highest } else { 1.0 }).collect())
}

/// Returns an error if a hook changed the learning rates, because the curve would then show the
/// wrong rates.
fn check_rates(optimizers: &mut Optimizers, lr: f64, ratios: &[f64]) -> Result<()> {
    let groups = optimizers.current_mut()?.groups().iter();
    match groups.zip(ratios).find(|(group, ratio)| group.lr != lr * *ratio) {
        None => Ok(()),
        Some((group, ratio)) => Err(Error::usage(format!(
            "`find_lr`: a hook set a learning rate to {}, but the search had set it to {}: give the hook `#[hook(trial = false)]`",
            group.lr,
            lr * ratio
        ))),
    }
}

/// Runs the test. The inner result is the same on all ranks.
fn range_test<T: Task>(
    trial: &mut Trial<'_>,
    train: &mut dyn Loader<T::Batch>,
    with: &LearningRateFinder,
) -> Result<Result<LrCurve>> {
    train.share(trial.run.world().share())?;
    let ratios = ratios(trial.run.optimizers_mut())?;
    let mut curve = Vec::new();
    let mut average = 0.0;
    let mut lowest = f64::INFINITY;
    let mut step = 0;
    let mut diverged = false;
    'epochs: loop {
        let mut is_empty = true;
        let mut has_loss = false;
        let notes = train.notes();
        if let Some(notes) = &notes {
            notes.clear();
        }
        let mut batches = train.batches(trial.run.counters().epoch, 0)?;
        while let Some(batch) = trial.next_batch::<T>(&mut batches, notes.as_ref())? {
            is_empty = false;
            if !trial.run.fit().window.is_open() {
                let lr = with.lr(step);
                for (group, ratio) in
                    trial.run.optimizers_mut().current_mut()?.groups_mut().iter_mut().zip(&ratios)
                {
                    group.lr = lr * ratio;
                }
            }
            let loss = trial.step::<T>(batch, false)?;
            check_rates(trial.run.optimizers_mut(), with.lr(step), &ratios)?;
            let Some(loss) = loss else { continue };
            let Some(loss) = loss else { continue };
            has_loss = true;
            let lr = with.lr(step);
            if !loss.is_finite() {
                if step == 0 {
                    return Ok(Err(Error::usage(format!(
                        "`find_lr`: the loss of the first batch is {loss}, before any step: check the model and the data"
                    ))));
                }
                diverged = true;
                break 'epochs;
            }
            step += 1;
            average = with.smoothing * average + (1.0 - with.smoothing) * loss;
            let smoothed = average / (1.0 - with.smoothing.powf(f64::from(step)));
            curve.push(LrPoint { lr, loss, smoothed });
            lowest = smoothed.min(lowest);
            if smoothed > with.stop_at * lowest && lowest > 0.0 {
                diverged = true;
                break 'epochs;
            }
            if step == with.steps {
                break 'epochs;
            }
        }
        if is_empty {
            return Ok(Err(Error::usage(format!(
                "`find_lr`: the loader yielded no batches in epoch {}: check that it has data",
                trial.run.counters().epoch
            ))));
        }
        if !has_loss && !trial.run.fit().window.is_open() {
            return Ok(Err(Error::usage(format!(
                "`find_lr`: no batch of epoch {} logged a loss: either every batch has a weight of 0, or the task computes its \
                 losses in custom operations; pass batches with a weight above 0, or compute the loss in the `loss` operation",
                trial.run.counters().epoch
            ))));
        }
        trial.run.progress_mut().counters.epoch += 1;
        trial.run.progress_mut().counters.batch_idx = 0;
    }
    Ok(LrCurve::new(curve, with.steps, diverged))
}
