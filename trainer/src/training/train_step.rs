//! The methods of [`TrainStep`]: the operations of a training step, with their hooks.

use std::fmt;
use std::marker::PhantomData;

use ref_cast::ref_cast_custom;
use tch::Tensor;

use super::task::{BackwardDone, ForwardDone, LossDone, StepDone, Task, TrainStep};
use super::{erased, operations};
use crate::error::Result;
use crate::log::{IntoValue, Reduce};
use crate::moment::{AtOperation, FireableFrom, HasPayload, WithoutPayload};
use crate::moments::counters::Counters;
use crate::run::Run;
use crate::run::dispatch::{enter_custom, fire_with};

#[expect(clippy::needless_pass_by_value, reason = "a token is consumed, so that it is used once")]
impl<'s, T: Task, P> TrainStep<'s, T, P> {
    #[ref_cast_custom]
    pub(crate) fn from_run(run: &mut Run) -> &mut Self;

    /// The task.
    pub fn task(&mut self) -> &mut T {
        erased::task_mut(self.run.hooks_mut())
    }

    /// The current batch, on the device of the task.
    ///
    /// # Panics
    ///
    /// Panics if called outside of [`Task::train_step`], for which the API offers no way.
    #[must_use]
    pub fn batch(&self) -> &T::Batch {
        erased::data::<T>(&self.run.step()).batch.as_ref().expect("`train_step` has a batch")
    }

    /// The counters of the loop.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.run.counters()
    }

    /// Runs the operation `pred` ([`Task::pred`]) with its hooks.
    ///
    /// # Errors
    ///
    /// Returns the error of the task or of the first hook that fails.
    pub fn pred(&mut self) -> Result<ForwardDone<'s>> {
        operations::pred::<T>(&mut self.run).map(|id| ForwardDone(id, PhantomData))
    }

    /// Runs the operation `loss` ([`Task::loss`]) with its hooks. For a batch of
    /// [weight](Task::weight) 0, the loss is 0 and no hook runs.
    ///
    /// # Errors
    ///
    /// Returns the error of the task or of the first hook that fails, or an error if the loss does
    /// not have exactly one element or if `forward` is not the most recent prediction.
    pub fn loss(&mut self, forward: ForwardDone<'s>) -> Result<LossDone<'s>> {
        let ForwardDone(id, brand) = forward;
        operations::loss_with(&mut self.run, id, |task: &mut T, pred, batch| task.loss(pred, batch))
            .map(|id| LossDone(id, brand))
    }

    /// Runs the operation `backward` with its hooks. It does nothing for a batch of
    /// [weight](Task::weight) 0; if several processes train together, it does nothing only if the
    /// batches of all ranks have weight 0.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - the loss requires no gradient;
    /// - `loss` is not the most recent one;
    /// - the trainer has several optimizers, each for one part of the model (use
    ///   [`backward_of`](TrainStep::backward_of));
    /// - no parameter receives a gradient in the first batch;
    /// - a hook or libtorch fails.
    pub fn backward(&mut self, loss: LossDone<'s>) -> Result<BackwardDone<'s>> {
        let LossDone(id, brand) = loss;
        operations::backward(&mut self.run, id, None).map(|part| BackwardDone(part, brand))
    }

    /// Runs the operation `backward` for one part of the model that has [its own
    /// optimizer](crate::TrainerBuilder::optimizer_of). Only the parameters of this part receive
    /// gradients, and the next [`opt_step`](TrainStep::opt_step) updates only them.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - no optimizer is registered for `part`;
    /// - the loss requires no gradient;
    /// - `loss` is not the most recent one;
    /// - no parameter receives a gradient in the first batch;
    /// - a hook or libtorch fails.
    pub fn backward_of(&mut self, part: &str, loss: LossDone<'s>) -> Result<BackwardDone<'s>> {
        let LossDone(id, brand) = loss;
        operations::backward(&mut self.run, id, Some(part)).map(|part| BackwardDone(part, brand))
    }

    /// Runs the operation `opt_step` with its hooks, and `zero_grad` if the optimizer step took
    /// place. It does nothing before the end of an accumulation window, or if there are no
    /// gradients.
    ///
    /// # Errors
    ///
    /// Returns an error if the optimizer fails or if a hook fails.
    pub fn opt_step(&mut self, gradients: BackwardDone<'s>) -> Result<StepDone<'s>> {
        let BackwardDone(part, brand) = gradients;
        operations::opt_step(&mut self.run, part).map(|()| StepDone(brand))
    }

    /// Runs the operation `pred` with its hooks, calling `compute` instead of [`Task::pred`].
    ///
    /// # Errors
    ///
    /// Returns the error of `compute` or of the first hook that fails.
    pub fn pred_with(
        &mut self,
        compute: impl FnOnce(&mut T, &T::Batch) -> Result<T::Pred>,
    ) -> Result<ForwardDone<'s>> {
        operations::pred_with(&mut self.run, compute).map(|id| ForwardDone(id, PhantomData))
    }

    /// Runs the operation `loss` with its hooks, calling `compute` instead of [`Task::loss`]. For a
    /// batch of [weight](Task::weight) 0, the loss is 0 and no hook runs.
    ///
    /// # Errors
    ///
    /// Returns the error of `compute` or of the first hook that fails, or an error if the loss does
    /// not have exactly one element or if `forward` is not the most recent prediction.
    pub fn loss_with(
        &mut self,
        forward: ForwardDone<'s>,
        compute: impl FnOnce(&mut T, &T::Pred, &T::Batch) -> Result<Tensor>,
    ) -> Result<LossDone<'s>> {
        let ForwardDone(id, brand) = forward;
        operations::loss_with(&mut self.run, id, compute).map(|id| LossDone(id, brand))
    }

    /// Logs a number, or a one-element tensor, like [`Cx::log`](crate::Cx::log).
    ///
    /// # Errors
    ///
    /// Returns an error if the value cannot be logged, for example because it is a tensor with more
    /// than one element.
    pub fn log(&mut self, name: impl AsRef<str>, value: impl IntoValue) -> Result<()> {
        self.log_as(name, value, Reduce::Mean)
    }

    /// Logs a mean over `weight` elements, like [`Cx::log_weighted`](crate::Cx::log_weighted).
    ///
    /// # Errors
    ///
    /// Returns an error if the value cannot be logged, or if the weight is negative, infinite or
    /// NaN.
    pub fn log_weighted(&mut self, name: impl AsRef<str>, value: impl IntoValue, weight: f64) -> Result<()> {
        self.run.log(Reduce::Mean, name.as_ref(), value.into_value(), Some(weight));
        self.run.check_logged()
    }

    /// Logs a value. The values that a pass logs under this name are reduced with `reduce`, as in
    /// [`Cx::log_as`](crate::Cx::log_as).
    ///
    /// # Errors
    ///
    /// Returns an error if the value cannot be logged, or if the name was already logged with a
    /// different reduction.
    pub fn log_as(&mut self, name: impl AsRef<str>, value: impl IntoValue, reduce: Reduce) -> Result<()> {
        self.run.log(reduce, name.as_ref(), value.into_value(), None);
        self.run.check_logged()
    }

    /// Runs an operation of a custom lifecycle, with the hooks before, around and after it.
    ///
    /// Returns the value of `body`, or `None` if a hook around the operation skipped or replaced
    /// it, or handled its error. A loss that is computed within the operation is logged as
    /// `<operation>/loss`.
    ///
    /// # Errors
    ///
    /// Returns the error of `body` or of the first hook that fails, or an error if the operation is
    /// already running.
    pub fn run<O: AtOperation + FireableFrom<P>, R>(
        &mut self,
        body: impl FnOnce(&mut TrainStep<'s, T, O>) -> Result<R>,
    ) -> Result<Option<R>> {
        let mut output = None;
        enter_custom::<O, _>(&mut self.run, |run| {
            run.operate::<O>(|run| {
                output = Some(body(TrainStep::from_run(run))?);
                Ok(())
            })
        })?;
        Ok(output)
    }

    /// Fires a point of a custom lifecycle.
    ///
    /// # Errors
    ///
    /// Returns the error of the first hook that fails, or an error if the point is already firing.
    pub fn fire<Q: WithoutPayload + FireableFrom<P>>(&mut self) -> Result<()> {
        enter_custom::<Q, _>(&mut self.run, |run| run.fire::<Q>())
    }

    /// Fires a point of a custom lifecycle with a [payload](HasPayload), and returns the payload
    /// after the hooks of the point have run.
    ///
    /// # Errors
    ///
    /// Returns the error of the first hook that fails, or an error if the point is already firing.
    /// The payload is then lost.
    pub fn fire_with<Q: HasPayload + FireableFrom<P>>(&mut self, payload: Q::Payload) -> Result<Q::Payload> {
        fire_with::<Q>(&mut self.run, payload)
    }
}

impl<T, P> fmt::Debug for TrainStep<'_, T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrainStep").field("counters", &self.run.counters()).finish_non_exhaustive()
    }
}
