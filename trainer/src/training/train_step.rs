//! The methods of [`TrainStep`]: the operations of a training step, with their hooks.

use std::fmt;
use std::marker::PhantomData;

use ref_cast::ref_cast_custom;
use tch::Tensor;

use super::batch_weight::{weigh_again, zero_loss};
use super::erased::{self, LOSS_OUTPUT, PREDICTION, compute_loss, compute_pred};
use super::task::{BackwardDone, ForwardDone, LossDone, Mode, StepDone, Task, TrainStep};
use crate::error::{Error, Result};
use crate::hook::call::Loop;
use crate::hook::frame::Ending;
use crate::libtorch;
use crate::lifecycle::at;
use crate::log::{IntoValue, LOSS, Reduce};
use crate::moment::{AtOperation, FireableFrom, HasPayload, Moment, WithoutPayload};
use crate::moments::counters::Counters;
use crate::moments::tree;
use crate::phase::Phase;
use crate::run::Run;
use crate::run::dispatch::{enter_custom, fire_with, plan_of_pass};

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
        erased::data::<T>(self.run.step()).batch.as_ref().expect("`train_step` has a batch")
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
        let mode = if self.run.phase() == Phase::Train { Mode::Train } else { Mode::Eval };
        self.pred_with(|task, batch| task.pred(batch, mode))
    }

    /// Runs the operation `loss` ([`Task::loss`]) with its hooks. For a batch of
    /// [weight](Task::weight) 0, the loss is 0 and no hook runs.
    ///
    /// # Errors
    ///
    /// Returns the error of the task or of the first hook that fails, or an error if the loss does
    /// not have exactly one element or if `forward` is not the most recent prediction.
    pub fn loss(&mut self, forward: ForwardDone<'s>) -> Result<LossDone<'s>> {
        self.loss_with(forward, |task, pred, batch| task.loss(pred, batch))
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
        self.backward_part(None, loss)
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
        self.backward_part(Some(part), loss)
    }

    /// Runs the operation `opt_step` with its hooks, and `zero_grad` if the optimizer step took
    /// place. It does nothing before the end of an accumulation window, or if there are no
    /// gradients.
    ///
    /// # Errors
    ///
    /// Returns an error if the optimizer fails or if a hook fails.
    pub fn opt_step(&mut self, gradients: BackwardDone<'s>) -> Result<StepDone<'s>> {
        let BackwardDone(part, _) = gradients;
        let done = StepDone(PhantomData);
        let run = &mut self.run;
        if !run.fit().window.ends_here() {
            return Ok(done);
        }
        run.optimizers_mut().select_index(part);
        run.optimizers_mut().reset_if_dropped();
        if !run.optimizers().has_accumulated() {
            return Ok(done);
        }
        run.optimizers().complete_gradients()?;
        run.optimizers_mut().make_mean()?;
        let steps = run.optimizers().current_steps();
        let in_batch = run.optimizers().steps_in_batch();
        run.step_mut().step_number = run.counters().optimizer_steps - run.step().steps + in_batch + 1;
        if in_batch >= run.fit().plan.steps_per_batch {
            run.fit_mut().plan.planned_steps = run.fit().plan.max_steps; // the epochs have more steps than planned
        }
        run.fire::<at::before_opt_step>()?;
        let ending = run.inside::<at::opt_step>(|run| {
            if run.optimizers_mut().step()? {
                count_step(run);
            }
            Ok(())
        })?;
        if ending == Ending::Replaced {
            run.optimizers_mut().count_step();
            count_step(run);
        }
        // The built-in step does not take place if a hook dropped the gradients before it.
        if !ending.took_place() || run.optimizers().current_steps() == steps {
            return Ok(done);
        }
        run.fire::<at::after_opt_step>()?;
        run.fire::<at::before_zero_grad>()?;
        let ending = run.inside::<at::zero_grad>(|run| run.optimizers_mut().drop_grads())?;
        if ending == Ending::Replaced {
            run.optimizers_mut().reset_accumulated();
        }
        if ending.took_place() {
            run.fire::<at::after_zero_grad>()?;
        }
        Ok(done)
    }

    /// Ends the `step` operation: without a loss, without an optimizer step, or after several.
    ///
    /// Use this in a `train_step` that only collects data in some batches, that updates in a loop,
    /// or that skips an update. A batch without a loss adds nothing to the metric `loss`, and a
    /// batch without an optimizer step does not advance schedules by steps. Gradients that no step
    /// has used stay in the accumulation window. If every batch has one optimizer step, return the
    /// token of [`opt_step`](TrainStep::opt_step) instead, so that a forgotten step does not
    /// compile.
    pub fn done(&mut self) -> StepDone<'s> {
        StepDone(PhantomData)
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
        let run = &mut self.run;
        run.fire::<at::before_pred>()?;
        run.produce::<at::pred>(PREDICTION, |run| compute_pred(run, compute))?;
        run.step_mut().preds += 1;
        run.fire::<at::after_pred>()?;
        Ok(ForwardDone(run.step().preds, PhantomData))
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
        check_not_stale(forward.0, self.run.step().preds, "prediction")?;
        let loss = self.produce_loss(|task, pred, batch| compute(task, pred, batch).map(Some))?;
        Ok(LossDone(loss, PhantomData))
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
        self.run.check_complaint()
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
        self.run.check_complaint()
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

    /// Runs the operation `loss` outside of training, where the task may return no loss.
    pub(super) fn eval_loss(&mut self) -> Result<()> {
        self.produce_loss(|task, pred, batch| task.eval_loss(pred, batch)).map(drop)
    }

    /// Runs the operation `loss`, checks and logs the loss, if there is one, and fires
    /// `after_loss`. For a batch of weight 0, there is nothing to compute. The name of the metric
    /// is `loss`, or `<operation>/loss` within an operation of a custom lifecycle. Returns the
    /// sequence number of the loss, for the token to hold.
    fn produce_loss(
        &mut self,
        compute: impl FnOnce(&mut T, &T::Pred, &T::Batch) -> Result<Option<Tensor>>,
    ) -> Result<u64> {
        let run = &mut self.run;
        if run.step().weight == 0.0 {
            weigh_again::<T>(run)?;
        }
        if run.step().weight != 0.0 {
            run.fire::<at::before_loss>()?;
            run.produce::<at::loss>(LOSS_OUTPUT, |run| compute_loss(run, compute))?;
            if run.step().loss.is_none() {
                return Ok(run.step().losses);
            }
            weigh_again::<T>(run)?;
        } else if run.phase() != Phase::Train {
            return Ok(run.step().losses);
        }
        if run.step().weight == 0.0 {
            let is_in_ranks = run.phase() == Phase::Train && !run.world().is_solo();
            let loss = zero_loss(run.vars(), run.device(), is_in_ranks);
            run.step_mut().loss = Some(loss);
            return Ok(run.step_mut().count_loss());
        }
        let loss = run.step().loss.as_ref().expect("computed, or set by a hook");
        if let Err(error) = check_loss(loss) {
            // `loss` has ended, but the error concerns its output.
            run.place_mut().operation = at::loss::INFO;
            return Err(run.locate(error));
        }
        let loss = loss.into();
        let name = run.at().scopes().last().map_or(LOSS, |&operation| tree::moments()[operation].loss);
        let name = run.at().metric_name(name);
        let (phase, weight) = (run.phase(), run.step().weight);
        run.logs_mut().add_loss(phase, &name, loss, weight).map_err(|error| run.locate(error))?;
        run.step_mut().count_loss();
        run.fire::<at::after_loss>()?;
        Ok(run.step().losses)
    }

    /// Runs the operation `backward`, for the whole model or for a part of it.
    ///
    /// If the operation fails, the gradients of that part are dropped, because they are incomplete,
    /// even if a hook handles the error.
    fn backward_part(&mut self, part: Option<&str>, loss: LossDone<'s>) -> Result<BackwardDone<'s>> {
        let run = &mut self.run;
        check_not_stale(loss.0, run.step().losses, "loss")?;
        let part = run.optimizers_mut().select(part)?;
        if run.step().total.weight == 0.0 {
            return Ok(BackwardDone(part, PhantomData)); // its gradients are 0
        }
        run.optimizers_mut().reset_if_dropped();
        run.fire::<at::before_backward>()?;
        let done = match run.inside::<at::backward>(compute_gradients) {
            Ok(done) => done,
            Err(error) => {
                let _ = run.optimizers_mut().drop_grads();
                return Err(error);
            }
        };
        match done {
            Ending::Ran => {}
            Ending::Replaced => {
                if !run.optimizers().has_grads() {
                    let text = "the hook replaced `backward` without computing a gradient: in the replacement, call \
                                `cx.backward(&cx.scaled_loss())`, or skip the operation";
                    return Err(run.blame_responsible(at::backward::INFO, text.into()));
                }
            }
            Ending::Open | Ending::Skipped => {
                if run.optimizers().has_uncounted_grads()? {
                    run.optimizers_mut().drop_grads()?;
                    let text = "the hook computed gradients without running `backward`, so they would not count: call \
                                `next.replace(cx, |cx| …)` to replace the operation, or `cx.backward(&loss)`";
                    return Err(run.blame_responsible(at::backward::INFO, text.into()));
                }
            }
            Ending::Failed => run.optimizers_mut().drop_grads()?,
        }
        if done.took_place() {
            let weight = run.ranks().gradient_weight(run.step());
            run.optimizers_mut().accumulate(weight)?;
            run.fire::<at::after_backward>()?;
        }
        Ok(BackwardDone(part, PhantomData))
    }
}

impl<T, P> fmt::Debug for TrainStep<'_, T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrainStep").field("counters", &self.run.counters()).finish_non_exhaustive()
    }
}

/// Returns an error unless the loss is a scalar whose value can be read.
fn check_loss(loss: &Tensor) -> Result<()> {
    libtorch::check_readable(loss, "the loss")?;
    if loss.numel() == 1 {
        return Ok(());
    }
    Err(Error::usage(format!(
        "the loss must be a scalar, but has shape {:?}: reduce it, for example with `.mean(Kind::Float)`",
        loss.size()
    )))
}

/// Returns an error unless a token belongs to the newest prediction or loss, because older ones are
/// not stored.
fn check_not_stale(nth: u64, newest: u64, what: &str) -> Result<()> {
    if nth == newest {
        Ok(())
    } else {
        Err(Error::usage(format!(
            "stale {what}: it was replaced by a newer one; use each {what} before creating the next"
        )))
    }
}

/// Computes the gradients, as the operation `backward` does unless a hook replaces it.
fn compute_gradients(run: &mut Run) -> Result<()> {
    let (ranks, optimizers) = run.gradients();
    ranks.note_own_gradients(optimizers);
    run.optimizers_mut().reset_if_dropped(); // by hooks since the loss
    let factor = run.ranks().loss_factor(run.optimizers(), run.step());
    let loss = run.step().loss.as_ref().expect("the token of `loss` is from this step");
    if !loss.requires_grad() {
        return Err(Error::usage(
            "the loss does not require gradients: check that some parameters are trained, and that the loss is not detached",
        ));
    }
    let scaled = (factor != 1.0).then(|| loss * factor);
    if run.hooks().table.is_watching_backward(run.phase()) {
        let loss = scaled.unwrap_or_else(|| loss.shallow_clone());
        run.backward(&loss)?;
    } else {
        run.optimizers().backward(scaled.as_ref().unwrap_or(loss), plan_of_pass(run.fit(), run.step()))?;
    }
    let has_none = || !run.vars().parameters().any(|var| var.tensor.grad().defined());
    if run.counters().batches_seen == 0 && run.optimizers().divided().is_none() && has_none() {
        return Err(Error::usage(
            "no parameter of the task's `VarStore` has a gradient: check that the network was built on this `VarStore`",
        ));
    }
    run.fire_module_gradients()
}

/// Increments `optimizer_steps`, unless another optimizer has already taken as many steps in this
/// batch as the current one.
fn count_step(run: &mut Run) {
    let in_batch = run.optimizers().steps_in_batch();
    if in_batch > run.step().steps {
        run.step_mut().steps = in_batch;
        run.progress_mut().counters.optimizer_steps += 1;
    }
}
