//! [`Cx`]: the context that a hook is called with.

mod checkpoint;
mod modules;
mod recompute;
mod record;

use std::any::{TypeId, type_name};
use std::marker::PhantomData;

use ref_cast::{RefCastCustom, ref_cast_custom};
use tch::{Device, Tensor};

use crate::checkpoint::Slot;
use crate::counters::Counters;
use crate::error::{Error, Result};
use crate::history::Metrics;
use crate::hook::instance::{Instance, TASK};
use crate::lifecycle::{
    BatchBegun, BatchKept, BatchWithin, CanEndEpoch, CanLog, CanScaleLoss, CanSetBatch, CanSetLoss,
    CanSetPred, CanSkipStep, CanStartBackward, CanStop, GradientsBegun, GradientsKept, GradientsWithin,
    HasError, HasMetrics, HasStepLoss, LossBegun, LossKept, LossWithin, PredictionBegun, PredictionKept,
    PredictionWithin, TaskBegun, TaskKept, TaskWithin,
};
use crate::log::{LOSS, Reduce, Value};
use crate::moment::{AtOperation, CustomMoment, Moment};
use crate::optim::Optimizer;
use crate::phase::Phase;
use crate::run::{Model, Run, StepData};
use crate::tree;
use crate::vars::{Grads, Vars};

/// The context of a hook: access to the run at the point, or within the operation, `P`.
///
/// Methods that read something which does not always exist have a bound on `P`, so reading it at a
/// moment where it does not exist is a compile error.
///
/// ```compile_fail
/// use trainer::prelude::*;
///
/// #[hook]
/// fn before_step(cx: &mut Cx<BeforeStep>) {
///     cx.loss(); // no loss yet: it exists from `AfterLoss` to `AfterZeroGrad`
/// }
/// # fn main() {}
/// ```
#[derive(RefCastCustom)]
#[repr(transparent)]
pub struct Cx<P> {
    run: Run,
    at: PhantomData<fn() -> P>,
}

impl<P> Cx<P> {
    #[ref_cast_custom]
    pub(crate) fn from_run(run: &mut Run) -> &mut Self;

    pub(crate) fn as_run(&self) -> &Run {
        &self.run
    }

    pub(crate) fn run_mut(&mut self) -> &mut Run {
        &mut self.run
    }

    /// The current phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.run.progress.phase
    }

    /// The counters of the loop.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.run.progress.counters
    }

    /// The number of batches in the current or most recent pass over data, or `None` if the loader
    /// does not report it.
    #[must_use]
    pub fn batches(&self) -> Option<u64> {
        self.run.progress.batches
    }

    /// The planned total number of epochs, including those of earlier fits, or `None` if only
    /// [`max_steps`](crate::TrainerBuilder::max_steps) or
    /// [`max_time`](crate::TrainerBuilder::max_time) ends training.
    #[must_use]
    pub fn epochs(&self) -> Option<u64> {
        self.run.fit.plan.epochs
    }

    /// The planned total number of optimizer steps, including those of earlier fits: the step at
    /// which a learning-rate schedule ends. `None` if neither the number of batches and epochs nor
    /// [`max_steps`](crate::TrainerBuilder::max_steps) is known.
    ///
    /// Skipped batches and an early stop result in fewer steps.
    #[must_use]
    pub fn planned_steps(&self) -> Option<u64> {
        self.run.fit.plan.planned_steps
    }

    /// Whether the current `fit` is planned to validate: it was given validation data, and
    /// [`validate_every`](crate::TrainerBuilder::validate_every) is due before the planned end.
    /// Known from `before_fit` on. A stop can still end the fit before its first validation.
    #[must_use]
    pub fn validates(&self) -> bool {
        self.run.fit.plan.validates
    }

    /// Whether the next `fit`, or the one that is starting, resumes from a checkpoint (see
    /// [`resume`](crate::TrainerBuilder::resume)).
    #[must_use]
    pub fn is_resuming(&self) -> bool {
        self.run.checkpoints.resume.is_some()
    }

    /// Whether this is a smoke test: [`fast_dev_run`](crate::TrainerBuilder::fast_dev_run).
    #[must_use]
    pub fn is_fast_dev_run(&self) -> bool {
        self.run.settings.is_fast_dev_run()
    }

    /// Whether the optimizer steps at this batch: with
    /// [`accumulate`](crate::TrainerBuilder::accumulate) at the last batch of each accumulation
    /// window, otherwise at every batch. Known from `before_pred` on; `false` earlier in the batch
    /// and outside of training.
    #[must_use]
    pub fn is_boundary(&self) -> bool {
        self.run.progress.phase == Phase::Train && self.run.fit.window.is_last_micro_batch
    }

    /// The learning rates used by the last optimizer step, one per parameter group; empty before
    /// the first step. A schedule may already have set the rates of the next step, which the
    /// [`optimizer`](Cx::optimizer) holds.
    #[must_use]
    pub fn lrs(&self) -> &[f64] {
        self.run.model.optimizers.used_lrs()
    }

    /// The variables of the task, by name. The handle does not borrow from the context, so a loop
    /// over it can call [`log`](Cx::log). Variables that are added in `setup` are included once
    /// `setup` is over.
    #[must_use]
    pub fn vars(&self) -> Vars {
        self.run.model.vars.clone()
    }

    /// Whether the task says where [metrics](crate::metrics) find the prediction and the target:
    /// [`Task::metric_inputs`](crate::Task::metric_inputs).
    #[must_use]
    pub fn has_metric_inputs(&self) -> bool {
        (self.run.step.metric_inputs.0)(&self.run)
    }

    /// The device of the task's variables.
    #[must_use]
    pub fn device(&self) -> Device {
        self.run.model.device
    }

    /// The optimizer. With several, the one that is being used, or was used last.
    ///
    /// # Errors
    ///
    /// Returns an error if the trainer was built without an optimizer.
    pub fn optimizer(&mut self) -> Result<&mut dyn Optimizer> {
        self.run.model.optimizers.current()
    }

    /// The optimizer of a part of the model (see
    /// [`optimizer_of`](crate::TrainerBuilder::optimizer_of)).
    ///
    /// # Errors
    ///
    /// Returns an error if no optimizer is registered for `part`; the message lists the parts that
    /// have one.
    pub fn optimizer_of(&mut self, part: &str) -> Result<&mut dyn Optimizer> {
        self.run.model.optimizers.for_part(part)
    }

    /// The names of the parts of the model that have an optimizer, in the order in which they were
    /// registered. The name is empty for an optimizer of the entire model.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.run.model.optimizers.names()
    }

    /// The name of the part of the model that the current [`optimizer`](Cx::optimizer) updates;
    /// empty if it updates the entire model.
    #[must_use]
    pub fn part(&self) -> &str {
        self.run.model.optimizers.current_name()
    }

    /// The number of steps taken by the optimizer of a part of the model.
    /// [`optimizer_steps`](Counters::optimizer_steps) counts the batches in which any optimizer
    /// stepped.
    ///
    /// # Errors
    ///
    /// Returns an error if no optimizer is registered for `part`.
    pub fn steps_of(&self, part: &str) -> Result<u64> {
        self.run.model.optimizers.steps_of(part)
    }

    /// Whether this is the main process, the one with rank 0, which logs and saves.
    #[must_use]
    pub fn is_main(&self) -> bool {
        self.run.rank == 0
    }

    /// Logs a number, or a one-element tensor, as the metric `phase/name`.
    ///
    /// While a batch is being processed, the value contributes to the mean over the pass, weighted
    /// by the [weight](crate::Task::weight) of the batch, and a tensor on a GPU is not read before
    /// the pass ends. At any other time the value immediately becomes the metric. A value that
    /// cannot be logged, such as a tensor with more than one element, ends the run with an error
    /// that names the hook.
    pub fn log(&mut self, name: impl AsRef<str>, value: impl Into<Value>)
    where
        P: CanLog,
    {
        self.run.log_value(Reduce::Mean, name.as_ref(), value.into());
    }

    /// Logs a mean over `weight` elements like [`log`](Cx::log), for values whose weight differs
    /// from the [weight](crate::Task::weight) of the batch, such as an accuracy over samples in a
    /// task whose loss is a mean over tokens.
    pub fn log_weighted(&mut self, name: impl AsRef<str>, value: impl Into<Value>, weight: f64)
    where
        P: CanLog,
    {
        self.run.log_weighted(Reduce::Mean, name.as_ref(), value.into(), Some(weight));
    }

    /// Logs a value like [`log`](Cx::log), but reduces the values of a pass with `reduce` instead
    /// of the mean. Each name must always be logged with the same reduction. Between batches there
    /// is nothing to reduce: the value immediately becomes the metric.
    pub fn log_as(&mut self, reduce: Reduce, name: impl AsRef<str>, value: impl Into<Value>)
    where
        P: CanLog,
    {
        self.run.log_value(reduce, name.as_ref(), value.into());
    }

    /// Returns the most recently logged value of each metric in the current pass, keyed
    /// `phase/name`: at `after_step`, the values of this batch. Reading tensors on a GPU
    /// synchronizes with it.
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch cannot read a tensor.
    pub fn logged(&self) -> Result<Metrics> {
        self.run.log.latest(self.run.progress.phase)
    }

    /// Whether the hook is running within `O`, an operation of a custom lifecycle. The same
    /// built-in point can be reached from several of them, such as `after_loss` from both halves of
    /// a GAN's step.
    #[must_use]
    pub fn is_within<O: AtOperation + CustomMoment>(&self) -> bool {
        self.run.dispatch.custom_scopes.contains(&O::index())
    }

    /// The task.
    ///
    /// # Errors
    ///
    /// Returns an error if the task is not a `T`, or while one of the task's own hooks is running.
    pub fn task<T: 'static>(&self) -> Result<&T>
    where
        P: TaskWithin + TaskBegun + TaskKept,
    {
        let Instance { type_id, type_name, value, .. } = &self.run.hooks.instances[TASK];
        let task = value.as_ref().and_then(|value| value.downcast_ref());
        task.ok_or_else(|| no_such_task::<T>(*type_id, type_name))
    }

    /// Mutable access to the task.
    ///
    /// # Errors
    ///
    /// Returns an error if the task is not a `T`, or while one of the task's own hooks is running.
    pub fn task_mut<T: 'static>(&mut self) -> Result<&mut T>
    where
        P: TaskWithin + TaskBegun + TaskKept,
    {
        let Instance { type_id, type_name, value, .. } = &mut self.run.hooks.instances[TASK];
        let task = value.as_mut().and_then(|value| value.downcast_mut());
        task.ok_or_else(|| no_such_task::<T>(*type_id, type_name))
    }

    /// Another hook of this trainer, by type: the first hook value of type `H` that is not
    /// currently running.
    ///
    /// # Errors
    ///
    /// Returns an error if the trainer has no hook of type `H`, or if the only one is running.
    pub fn hook<H: Send + 'static>(&self) -> Result<&H> {
        self.run.values().next().ok_or_else(|| no_such_hook::<H>(self.run.has_value::<H>()))
    }

    /// Mutable access to another hook of this trainer, found like [`hook`](Cx::hook) does.
    ///
    /// # Errors
    ///
    /// Returns an error if the trainer has no hook of type `H`, or if the only one is running.
    pub fn hook_mut<H: Send + 'static>(&mut self) -> Result<&mut H> {
        let known = self.run.has_value::<H>();
        self.run.value_mut().ok_or_else(|| no_such_hook::<H>(known))
    }

    /// Every hook of type `H` that is not currently running, in the order in which they were added.
    pub fn hooks<H: Send + 'static>(&self) -> impl Iterator<Item = &H> {
        self.run.values()
    }

    /// The current batch, as the task's `Batch` type.
    ///
    /// # Errors
    ///
    /// Returns an error if `B` is not the task's batch type; the message names both types.
    pub fn batch<B: 'static>(&self) -> Result<&B>
    where
        P: BatchWithin + BatchBegun + BatchKept,
    {
        match self.run.step.batch.downcast_ref::<Option<B>>() {
            Some(batch) => batch.as_ref().ok_or_else(|| missing("batch")),
            None => Err(other_type::<B>("batch", self.run.step.batch_type)),
        }
    }

    /// Mutable access to the current batch. Except in `predict`, the trainer then recomputes the
    /// batch's [weight](crate::Task::weight).
    ///
    /// # Errors
    ///
    /// Returns an error if `B` is not the task's batch type; the message names both types.
    pub fn batch_mut<B: 'static>(&mut self) -> Result<&mut B>
    where
        P: BatchWithin + BatchBegun + BatchKept,
    {
        self.run.step.is_batch_changed = true;
        match self.run.step.batch.downcast_mut::<Option<B>>() {
            Some(batch) => batch.as_mut().ok_or_else(|| missing("batch")),
            None => Err(other_type::<B>("batch", self.run.step.batch_type)),
        }
    }

    /// Replaces the current batch. The new batch must already be on the task's device.
    ///
    /// # Errors
    ///
    /// Returns an error if `B` is not the task's batch type; the message names both types.
    pub fn set_batch<B: 'static>(&mut self, batch: B) -> Result<()>
    where
        P: CanSetBatch,
    {
        let StepData { batch: slot, batch_type, is_batch_changed, .. } = &mut self.run.step;
        *is_batch_changed = true;
        set(slot, batch, "batch", batch_type)?;
        self.run.dispatch.output_overridden = true;
        Ok(())
    }

    /// The prediction: the output of the forward pass, as the task's `Pred` type.
    ///
    /// # Errors
    ///
    /// Returns an error if `T` is not the task's prediction type; the message names both types.
    pub fn pred<T: 'static>(&self) -> Result<&T>
    where
        P: PredictionWithin + PredictionBegun + PredictionKept,
    {
        match self.run.step.pred.downcast_ref::<Option<T>>() {
            Some(pred) => pred.as_ref().ok_or_else(|| missing("prediction")),
            None => Err(other_type::<T>("prediction", self.run.step.pred_type)),
        }
    }

    /// The prediction and the target of the current batch for [metrics](crate::metrics), where
    /// [`Task::metric_inputs`](crate::Task::metric_inputs) finds them. `None` for a batch without
    /// targets.
    ///
    /// # Errors
    ///
    /// Returns an error if the task does not implement that method, if one of the task's own hooks
    /// is running, or if a hook removed the batch or the prediction.
    pub fn metric_inputs(&self) -> Result<Option<(Tensor, Tensor)>>
    where
        P: PredictionWithin + PredictionBegun + PredictionKept,
    {
        (self.run.step.metric_inputs.1)(&self.run)
    }

    /// The loss of the current batch: a one-element tensor on the task's device. The returned
    /// handle shares its storage with the loss of the step but does not borrow from the context, so
    /// it can be logged: `cx.log("loss_again", cx.loss())`. For a batch of
    /// [weight](crate::Task::weight) 0 that ends an accumulation window, the loss is 0.
    pub fn loss(&self) -> Tensor
    where
        P: LossWithin + LossBegun + LossKept,
    {
        let loss = self.run.step.loss.as_ref();
        loss.expect("the step computes the loss before any moment where it exists").shallow_clone()
    }

    /// Sets the prediction, either instead of the task's forward pass or replacing its output.
    ///
    /// # Errors
    ///
    /// Returns an error if `T` is not the task's prediction type; the message names both types.
    pub fn set_pred<T: 'static>(&mut self, pred: T) -> Result<()>
    where
        P: CanSetPred,
    {
        let StepData { pred: slot, pred_type, .. } = &mut self.run.step;
        set(slot, pred, "prediction", pred_type)?;
        self.run.dispatch.output_overridden = true;
        Ok(())
    }

    /// Sets the loss, either instead of the task's computation or replacing its result. The loss
    /// must have one element, and must require a gradient in training.
    pub fn set_loss(&mut self, loss: Tensor)
    where
        P: CanSetLoss,
    {
        self.run.step.loss = Some(loss);
        self.run.dispatch.output_overridden = true;
    }

    /// Multiplies the tensor that the backward pass starts from, and thereby every gradient, by
    /// `factor`. Neither [`loss`](Cx::loss) nor the metric changes.
    pub fn scale_loss(&mut self, factor: f64)
    where
        P: CanScaleLoss,
    {
        self.run.step.loss_scale *= factor;
    }

    /// The tensor that the backward pass starts from: the [loss](Cx::loss), times the factors
    /// passed to [`scale_loss`](Cx::scale_loss), times the [weight](crate::Task::weight) of the
    /// batch divided by the reference weight of the gradients accumulated so far.
    pub fn scaled_loss(&self) -> Tensor
    where
        P: CanStartBackward,
    {
        let loss = self.run.step.loss.as_ref().expect("`backward` follows `loss`");
        let factor = self.run.loss_factor();
        if factor == 1.0 { loss.shallow_clone() } else { loss * factor }
    }

    /// Runs a backward pass from `loss` and adds its gradients to those of the parameters that the
    /// current optimizer updates. Use it to [replace](crate::Next::replace) the operation
    /// `backward`, or for an additional backward pass.
    ///
    /// The weight of the batch is then counted in the accumulation window, once for any number of
    /// backward passes. Outside of a replacement, gradients computed with `Tensor::backward` are
    /// not counted, because the trainer does not see that call.
    ///
    /// # Errors
    ///
    /// Returns an error if the backward pass fails, for example because `loss` requires no gradient
    /// or has more than one element. The gradients accumulated so far are then dropped. Returns the
    /// error of a hook at `after_module_backward`.
    pub fn backward(&mut self, loss: &Tensor) -> Result<()>
    where
        P: CanStartBackward,
    {
        self.run.forget_module_gradients();
        let Run { model: Model { optimizers, .. }, step: StepData { weight, .. }, .. } = &mut self.run;
        optimizers.reset_if_dropped();
        if let Err(error) = optimizers.backward(loss) {
            let _ = optimizers.drop_grads();
            return Err(error);
        }
        optimizers.gather(*weight)?;
        let run = &mut self.run;
        run.check_logged()?;
        let hook = run.dispatch.current_hook;
        let result = run.fire_module_gradients();
        run.dispatch.current_hook = hook;
        run.dispatch.error_is_located |= result.is_err();
        result
    }

    /// The loss of the batch that was just processed, as [`loss`](Cx::loss) returns it. `None` if
    /// no loss was computed: the task returned none ([`eval_loss`](crate::Task::eval_loss)), the
    /// batch has a [weight](crate::Task::weight) of 0, or a hook replaced the `step` operation.
    #[must_use]
    pub fn step_loss(&self) -> Option<Tensor>
    where
        P: HasStepLoss,
    {
        self.run.step.loss.as_ref().filter(|_| self.run.step.weight > 0.0).map(Tensor::shallow_clone)
    }

    /// The weight of the current batch: the number of elements that its loss is the mean over (see
    /// [`Task::weight`](crate::Task::weight)).
    #[must_use]
    pub fn weight(&self) -> f64
    where
        P: BatchWithin + BatchBegun + BatchKept,
    {
        self.run.step.weight
    }

    /// The gradients of all parameters that have one, with their names. The tensors share their
    /// storage with the parameters' gradients, so an in-place operation such as `clamp_` changes
    /// them.
    ///
    /// ```standalone_crate
    /// use trainer::prelude::*;
    ///
    /// #[hook(every = 100)]
    /// fn after_backward(cx: &mut Cx<AfterBackward>) {
    ///     for (name, grad) in cx.grads() {
    ///         cx.log(name, grad.norm());
    ///     }
    /// }
    /// # fn main() {}
    /// ```
    pub fn grads(&self) -> Grads
    where
        P: GradientsWithin + GradientsBegun + GradientsKept,
    {
        Grads::new(&self.run.model.vars)
    }

    /// The gradient of one parameter.
    ///
    /// # Errors
    ///
    /// Returns an error if no variable has this name, or if the variable has no gradient.
    pub fn grad(&self, name: &str) -> Result<Tensor>
    where
        P: GradientsWithin + GradientsBegun + GradientsKept,
    {
        let grad = self.run.model.vars.get(name)?.grad();
        if grad.defined() {
            return Ok(grad);
        }
        Err(Error::usage(format!(
            "`{name}` has no gradient: the loss does not depend on it, or it is frozen"
        )))
    }

    /// Drops the gradients of the current optimizer's parameters, so that their batches no longer
    /// count in the mean over the accumulation window. In contrast, gradients that are zeroed in
    /// place are kept, and their batches count.
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch fails.
    pub fn drop_grads(&mut self) -> Result<()>
    where
        P: GradientsWithin + GradientsBegun + GradientsKept,
    {
        self.run.model.optimizers.drop_grads()
    }

    /// Multiplies the gradients of the current optimizer's parameters by `factor`, and returns
    /// whether all of them were finite. Waits for the device.
    ///
    /// A gradient scaler calls it with the inverse of its loss scale, and
    /// [drops](Cx::drop_grads) gradients that are not finite.
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch fails, for example on a sparse gradient.
    pub fn unscale_grads(&mut self, factor: f64) -> Result<bool>
    where
        P: GradientsWithin + GradientsBegun + GradientsKept,
    {
        self.run.model.optimizers.unscale_grads(factor)
    }

    /// Scales the gradients of the current optimizer's parameters so that their total L2 norm,
    /// taken over all of them as one vector, is at most `max_norm`, as
    /// `torch.nn.utils.clip_grad_norm_` does (Pascanu et al., *On the difficulty of training
    /// recurrent neural networks*, 2013).
    ///
    /// Returns the norm before clipping as a one-element tensor, without synchronizing with the
    /// device.
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch fails, for example on a sparse gradient.
    pub fn clip_grad_norm(&mut self, max_norm: f64) -> Result<Tensor>
    where
        P: GradientsWithin + GradientsBegun + GradientsKept,
    {
        self.run.model.optimizers.clip_grad_norm(max_norm)
    }

    /// Clamps every element of the gradients of the current optimizer's parameters to
    /// `-max_value..=max_value`.
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch fails.
    pub fn clip_grad_value(&mut self, max_value: f64) -> Result<()>
    where
        P: GradientsWithin + GradientsBegun + GradientsKept,
    {
        self.run.model.optimizers.clip_grad_value(max_value)
    }

    /// The reduced metrics of the most recent passes, keyed `phase/name`.
    #[must_use]
    pub fn metrics(&self) -> &Metrics
    where
        P: HasMetrics,
    {
        &self.run.log.metrics
    }

    /// The error that ended the run.
    #[must_use]
    pub fn error(&self) -> &Error
    where
        P: HasError,
    {
        self.run.error.as_ref().expect("`after_error` only fires for an error")
    }

    /// Skips this batch: no operation of it runs, and only
    /// [`batch_idx`](Counters::batch_idx) advances.
    pub fn skip_step(&mut self)
    where
        P: CanSkipStep,
    {
        self.run.requests.skip_step = true;
    }

    /// Ends the current pass over the training data after this batch. If an accumulation window is
    /// still open then, one more batch is trained to close it.
    pub fn end_epoch(&mut self)
    where
        P: CanEndEpoch,
    {
        self.run.requests.end_epoch = true;
    }

    /// Stops training after this batch: no further pass begins, and the open operations end in
    /// order. An open accumulation window is closed by one more batch, and training continues until
    /// [`min_epochs`](crate::TrainerBuilder::min_epochs) and
    /// [`min_steps`](crate::TrainerBuilder::min_steps) are reached.
    pub fn stop(&mut self, reason: impl Into<String>)
    where
        P: CanStop,
    {
        self.run.requests.stop.get_or_insert(reason.into());
    }
}

impl<P: Moment> std::fmt::Debug for Cx<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("Cx");
        debug.field("at", &P::INFO.name).field("phase", &self.phase()).field("counters", &self.counters());
        debug.finish_non_exhaustive()
    }
}

impl Run {
    /// Implements [`Cx::log`] and [`Cx::log_as`].
    pub(crate) fn log_value(&mut self, reduce: Reduce, name: &str, value: Value) {
        self.log_weighted(reduce, name, value, None);
    }

    /// Implements [`Cx::log_weighted`]. `weight` defaults to that of the current batch.
    pub(crate) fn log_weighted(&mut self, reduce: Reduce, name: &str, value: Value, weight: Option<f64>) {
        let (log, phase) = (&mut self.log, self.progress.phase);
        let weight = weight.unwrap_or(self.step.weight);
        let result = match self.step.batch_len {
            _ if !(weight.is_finite() && weight >= 0.0) => Err(Error::usage(format!(
                "its weight is {weight}: expected the number of elements that the value is the mean over, finite and not negative"
            ))),
            _ if is_loss_name(name) => {
                Err(Error::usage("the trainer logs the loss itself under this name: choose another"))
            }
            Some(_) => log.add(phase, reduce, name, value, weight),
            None => log.set(phase, name, value),
        };
        if let Err(error) = result {
            self.log.cannot_log(name, &error);
        }
    }
}

/// Whether the trainer logs a loss under this name: the loss of the step, or that of an operation
/// of a custom lifecycle.
fn is_loss_name(name: &str) -> bool {
    name == LOSS || name.ends_with("/loss") && tree::moments().iter().any(|moment| moment.loss == name)
}

fn no_such_task<T: 'static>(task: TypeId, task_name: &str) -> Error {
    let name = type_name::<T>();
    Error::usage(if task == TypeId::of::<T>() {
        format!(
            "the task `{name}` is not available while one of its own hooks is running: use `self` in that hook"
        )
    } else {
        format!("the task is a `{task_name}`, not a `{name}`: request that type")
    })
}

fn no_such_hook<H>(known: bool) -> Error {
    let name = type_name::<H>();
    Error::usage(if known {
        format!("the hook `{name}` is not available here, because it is running or wraps a running operation")
    } else {
        format!("this trainer has no hook `{name}`: add it with `.hook(…)`")
    })
}

/// Stores a batch or prediction. Returns an error if `V` is not the task's type, `task_type`.
fn set<V: 'static>(slot: &mut Slot, value: V, what: &str, task_type: &str) -> Result<()> {
    match slot.downcast_mut::<Option<V>>() {
        Some(slot) => {
            *slot = Some(value);
            Ok(())
        }
        None => Err(other_type::<V>(what, task_type)),
    }
}

fn other_type<T>(what: &str, task_type: &str) -> Error {
    Error::usage(format!("the task's {what} is a `{task_type}`, not a `{}`", type_name::<T>()))
}

fn missing(what: &str) -> Error {
    Error::usage(format!("the {what} was removed by a hook"))
}
