//! [`Cx`]: the run as a hook sees it, and what exists when.

use std::any::{TypeId, type_name};
use std::marker::PhantomData;

use ref_cast::{RefCastCustom, ref_cast_custom};
use tch::{Device, Tensor};

use crate::counters::Counters;
use crate::error::{Error, Result};
use crate::lifecycle::{
    BatchBegun, BatchKept, BatchWithin, CanEndEpoch, CanScaleLoss, CanSetBatch, CanSetLoss, CanSetPred,
    CanSkipStep, CanStartBackward, CanStop, GradientsBegun, GradientsKept, GradientsWithin, HasError,
    HasMetrics, HasStepLoss, LossBegun, LossKept, LossWithin, PredictionBegun, PredictionKept,
    PredictionWithin,
};
use crate::metrics::{LOSS, Metrics, Reduce, Value};
use crate::moment::{AtOperation, CustomMoment, Moment};
use crate::optim::Optimizer;
use crate::phase::Phase;
use crate::run::{Instance, Run, Slot, TASK};
use crate::tree;
use crate::vars::{Grads, Vars};

/// The run as a hook sees it at the point (or in the operation) `P`.
///
/// Methods that need something carry a bound on `P`: what does not exist at a moment cannot be
/// read there, because it does not compile.
///
/// ```compile_fail
/// use trainer::prelude::*;
///
/// #[hook]
/// fn before_step(cx: &mut Cx<BeforeStep>) {
///     cx.loss(); // there is no loss yet at `BeforeStep`; it exists from `AfterLoss` to `AfterZeroGrad`
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
    pub(crate) fn of(run: &mut Run) -> &mut Self;

    pub(crate) fn as_run(&self) -> &Run {
        &self.run
    }

    pub(crate) fn run_mut(&mut self) -> &mut Run {
        &mut self.run
    }

    /// The phase that is running.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.run.phase
    }

    /// The counters of the loop.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.run.counters
    }

    /// How many batches the current or last pass over data has, where its loader knows.
    #[must_use]
    pub fn batches(&self) -> Option<u64> {
        self.run.batches
    }

    /// How many epochs there are when training ends, those of earlier fits included; `None` where only
    /// [`max_steps`](crate::TrainerBuilder::max_steps) or [`max_time`](crate::TrainerBuilder::max_time) ends it.
    #[must_use]
    pub fn epochs(&self) -> Option<u64> {
        self.run.plan.epochs
    }

    /// How many optimizer steps there are when training ends, those of earlier fits included: what a schedule of the learning
    /// rate reaches its end at. `None` where the loader does not say how many batches it has, or there is no number of epochs.
    ///
    /// It is what the loop plans with: a batch that is left out, and a stop, make it fewer; and where there is more than one
    /// optimizer, each steps with every batch.
    #[must_use]
    pub fn planned_steps(&self) -> Option<u64> {
        self.run.plan.planned_steps
    }

    /// Whether the current `fit` validates: it was given validation data, and
    /// [`validate_every`](crate::TrainerBuilder::validate_every) comes due before the planned end. Known from `before_fit` on. A stop
    /// can still end the fit before its first validation.
    #[must_use]
    pub fn validates(&self) -> bool {
        self.run.plan.validates
    }

    /// Whether the next `fit`, or the one that begins, resumes from a checkpoint:
    /// [`resume`](crate::TrainerBuilder::resume).
    #[must_use]
    pub fn is_resuming(&self) -> bool {
        self.run.checkpoints.resume.is_some()
    }

    /// Is this only to see whether the program runs to its end: [`fast_dev_run`](crate::TrainerBuilder::fast_dev_run)?
    #[must_use]
    pub fn is_fast_dev_run(&self) -> bool {
        self.run.settings.is_fast_dev_run()
    }

    /// Does the optimizer step with this batch? Under [`accumulate`](crate::TrainerBuilder::accumulate) it does with the last
    /// batch of each window, else with every batch. Known from `after_transfer` on; `false` before it, and outside of training.
    #[must_use]
    pub fn is_boundary(&self) -> bool {
        self.run.phase == Phase::Train && self.run.window.closes
    }

    /// The learning rates that the last optimizer step used, one for each parameter group; none before the first. A schedule may
    /// have set those of the next step already: they are the [`optimizer`](Cx::optimizer)'s.
    #[must_use]
    pub fn lrs(&self) -> &[f64] {
        self.run.optimizers.used_lrs()
    }

    /// The variables of the task, by name: a handle that borrows nothing, so that a loop over it can log. What `setup` adds is in
    /// it once `setup` is over.
    #[must_use]
    pub fn vars(&self) -> Vars {
        self.run.vars.clone()
    }

    /// The device of the task's variables.
    #[must_use]
    pub fn device(&self) -> Device {
        self.run.device
    }

    /// The optimizer; where there is more than one, the one that steps now, or that stepped last.
    ///
    /// # Errors
    ///
    /// When the trainer was built without one.
    pub fn optimizer(&mut self) -> Result<&mut dyn Optimizer> {
        self.run.optimizers.current()
    }

    /// The optimizer of a part of the model: [`optimizer_of`](crate::TrainerBuilder::optimizer_of).
    ///
    /// # Errors
    ///
    /// When there is none for it; the message names those that there are.
    pub fn optimizer_of(&mut self, part: &str) -> Result<&mut dyn Optimizer> {
        self.run.optimizers.of(part)
    }

    /// The parts of the model that have an optimizer each, in the order in which the builder was given them; one without a name
    /// where there is one optimizer for the whole model.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.run.optimizers.names()
    }

    /// The part of the model that the [`optimizer`](Cx::optimizer) is for: without a name where it is for the whole.
    #[must_use]
    pub fn part(&self) -> &str {
        self.run.optimizers.current_name()
    }

    /// How many steps the optimizer of a part of the model has taken; [`optimizer_steps`](Counters::optimizer_steps) counts those of all.
    ///
    /// # Errors
    ///
    /// As for [`optimizer_of`](Cx::optimizer_of).
    pub fn steps_of(&self, part: &str) -> Result<u64> {
        self.run.optimizers.steps_of(part)
    }

    /// Is this the process that logs and saves: that of rank 0?
    #[must_use]
    pub fn is_main(&self) -> bool {
        self.run.rank == 0
    }

    /// Logs a number, or a tensor of one element, under a name; it becomes the metric `phase/name`.
    ///
    /// Within a step it counts towards the mean over the epoch, weighted by the
    /// [weights](crate::Task::weight) of the batches, and a tensor on a GPU is not read before the epoch ends. Outside of one it is the
    /// metric, at once. What cannot be logged, a tensor of more than one element, say, ends the run
    /// with an error that names the hook.
    pub fn log(&mut self, name: impl AsRef<str>, value: impl Into<Value>) {
        self.run.log_value(Reduce::Mean, name.as_ref(), value.into());
    }

    /// As [`log`](Cx::log), for a mean over `weight` elements where that is not the [weight](crate::Task::weight) of the
    /// batch: an accuracy over samples, say, in a task whose loss is a mean over tokens.
    pub fn log_weighted(&mut self, name: impl AsRef<str>, value: impl Into<Value>, weight: f64) {
        self.run.log_weighted(Reduce::Mean, name.as_ref(), value.into(), Some(weight));
    }

    /// As [`log`](Cx::log), with another way to make one number of a pass over data than the mean. A name has one. Outside of a step
    /// there is nothing to reduce: it is the metric, at once.
    pub fn log_as(&mut self, reduce: Reduce, name: impl AsRef<str>, value: impl Into<Value>) {
        self.run.log_value(reduce, name.as_ref(), value.into());
    }

    /// What was logged last under each name in the pass over data that is running, by `phase/name`: the values of this step, at
    /// `after_step`. Tensors on a GPU are read, and waited for.
    ///
    /// # Errors
    ///
    /// Those of libtorch.
    pub fn logged(&self) -> Result<Metrics> {
        self.run.log.latest(self.run.phase)
    }

    /// Is an operation of another lifecycle running, in which this moment comes? A built-in point may lie in more than one:
    /// `after_loss` in both halves of a GAN's step.
    #[must_use]
    pub fn is_within<O: AtOperation + CustomMoment>(&self) -> bool {
        self.run.custom_scopes.contains(&O::index())
    }

    /// The task.
    ///
    /// # Errors
    ///
    /// When it is of another type than `T`, or when the hook is one of its own.
    pub fn task<T: 'static>(&self) -> Result<&T> {
        let Instance { type_id, type_name, value, .. } = &self.run.instances[TASK];
        let task = value.as_ref().and_then(|value| value.downcast_ref());
        task.ok_or_else(|| no_such_task::<T>(*type_id, type_name))
    }

    /// The task, to be changed.
    ///
    /// # Errors
    ///
    /// As for [`task`](Cx::task).
    pub fn task_mut<T: 'static>(&mut self) -> Result<&mut T> {
        let Instance { type_id, type_name, value, .. } = &mut self.run.instances[TASK];
        let task = value.as_mut().and_then(|value| value.downcast_mut());
        task.ok_or_else(|| no_such_task::<T>(*type_id, type_name))
    }

    /// Another hook of this trainer, by its type: the first that was added with `.hook(value)` and is not
    /// the one that is running.
    ///
    /// # Errors
    ///
    /// When there is none, or when it is the one that is running.
    pub fn hook<H: Send + 'static>(&self) -> Result<&H> {
        self.run.values().next().ok_or_else(|| no_such_hook::<H>(self.run.has_value::<H>()))
    }

    /// Another hook of this trainer, to be changed.
    ///
    /// # Errors
    ///
    /// As for [`hook`](Cx::hook).
    pub fn hook_mut<H: Send + 'static>(&mut self) -> Result<&mut H> {
        let known = self.run.has_value::<H>();
        self.run.value_mut().ok_or_else(|| no_such_hook::<H>(known))
    }

    /// Every hook of this type but the one that is running, in the order in which they were added.
    pub fn hooks<H: Send + 'static>(&self) -> impl Iterator<Item = &H> {
        self.run.values()
    }

    /// The current batch, as the task's `Batch` type.
    ///
    /// # Errors
    ///
    /// When `B` is not the task's batch type; the message names both.
    pub fn batch<B: 'static>(&self) -> Result<&B>
    where
        P: BatchWithin + BatchBegun + BatchKept,
    {
        match self.run.batch.downcast_ref::<Option<B>>() {
            Some(batch) => batch.as_ref().ok_or_else(|| missing("batch")),
            None => Err(other_type::<B>("batch", self.run.batch_type)),
        }
    }

    /// The current batch, to be changed.
    ///
    /// # Errors
    ///
    /// As for [`batch`](Cx::batch).
    pub fn batch_mut<B: 'static>(&mut self) -> Result<&mut B>
    where
        P: BatchWithin + BatchBegun + BatchKept,
    {
        self.run.is_batch_changed = true;
        match self.run.batch.downcast_mut::<Option<B>>() {
            Some(batch) => batch.as_mut().ok_or_else(|| missing("batch")),
            None => Err(other_type::<B>("batch", self.run.batch_type)),
        }
    }

    /// Puts a batch in the place of the current one. It is on the device already.
    ///
    /// # Errors
    ///
    /// When `B` is not the task's batch type; the message names both.
    pub fn set_batch<B: 'static>(&mut self, batch: B) -> Result<()>
    where
        P: CanSetBatch,
    {
        let Run { batch: slot, batch_type, made, is_batch_changed, .. } = &mut self.run;
        *is_batch_changed = true;
        set(slot, batch, "batch", batch_type).map(|()| *made = true)
    }

    /// What the forward pass gave, as the task's `Pred` type.
    ///
    /// # Errors
    ///
    /// When `T` is not the task's prediction type; the message names both.
    pub fn pred<T: 'static>(&self) -> Result<&T>
    where
        P: PredictionWithin + PredictionBegun + PredictionKept,
    {
        match self.run.pred.downcast_ref::<Option<T>>() {
            Some(pred) => pred.as_ref().ok_or_else(|| missing("prediction")),
            None => Err(other_type::<T>("prediction", self.run.pred_type)),
        }
    }

    /// The loss of the current batch: one element, on the task's device. It shares its storage with the step's, and
    /// borrows nothing: `cx.log("loss_again", cx.loss())`. At an optimizer step with a batch of
    /// [weight](crate::Task::weight) 0, it is 0.
    pub fn loss(&self) -> Tensor
    where
        P: LossWithin + LossBegun + LossKept,
    {
        let loss = self.run.loss.as_ref();
        loss.expect("the step sets it before the points at which it can be read").shallow_clone()
    }

    /// Gives the prediction, in the place of the task or after it.
    ///
    /// # Errors
    ///
    /// When `T` is not the task's prediction type; the message names both.
    pub fn set_pred<T: 'static>(&mut self, pred: T) -> Result<()>
    where
        P: CanSetPred,
    {
        let Run { pred: slot, pred_type, made, .. } = &mut self.run;
        set(slot, pred, "prediction", pred_type).map(|()| *made = true)
    }

    /// Gives the loss, in the place of the task or after it: one element, with a gradient while training.
    pub fn set_loss(&mut self, loss: Tensor)
    where
        P: CanSetLoss,
    {
        self.run.loss = Some(loss);
        self.run.made = true;
    }

    /// Multiplies what the backward pass starts from, and with it every gradient. [`loss`](Cx::loss) itself and the
    /// metric stay as they are.
    pub fn scale_loss(&mut self, factor: f64)
    where
        P: CanScaleLoss,
    {
        self.run.loss_scale *= factor;
    }

    /// The tensor that the backward pass starts from: the [loss](Cx::loss), times the factors of
    /// [`scale_loss`](Cx::scale_loss), times the [weight](crate::Task::weight) of the batch relative to the first of
    /// its accumulation window.
    pub fn scaled_loss(&self) -> Tensor
    where
        P: CanStartBackward,
    {
        let loss = self.run.loss.as_ref().expect("there is one before each backward");
        let factor = self.run.loss_factor();
        if factor == 1.0 { loss.shallow_clone() } else { loss * factor }
    }

    /// Adds the gradients of `loss` to those of the parameters that the current optimizer updates: in a
    /// [replacement](crate::Next::replace) of the operation `backward`, or as an additional backward pass.
    ///
    /// The batch then counts in the accumulation window, once for any number of backward passes. The method
    /// `backward` of a tensor computes gradients without the trainer's knowledge: outside of a replacement they do
    /// not count.
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch refuses: a loss without a gradient, or with more than one element. The gradients
    /// that there were are then dropped.
    pub fn backward(&mut self, loss: &Tensor) -> Result<()>
    where
        P: CanStartBackward,
    {
        let Run { optimizers, weight, .. } = &mut self.run;
        optimizers.forget_dropped();
        if let Err(error) = optimizers.backward(loss) {
            let _ = optimizers.drop_grads();
            return Err(error);
        }
        optimizers.gather(*weight)
    }

    /// The loss of the step that is done, as [`loss`](Cx::loss): `None` if there is none, because the task
    /// [declined](crate::Task::eval_loss), the batch has a [weight](crate::Task::weight) of 0, or a hook replaced the step.
    #[must_use]
    pub fn step_loss(&self) -> Option<Tensor>
    where
        P: HasStepLoss,
    {
        self.run.loss.as_ref().filter(|_| self.run.weight > 0.0).map(Tensor::shallow_clone)
    }

    /// The number of elements that the loss of the current batch is the mean over: [`Task::weight`](crate::Task::weight).
    #[must_use]
    pub fn weight(&self) -> f64
    where
        P: BatchWithin + BatchBegun + BatchKept,
    {
        self.run.weight
    }

    /// The gradients of all parameters that have one, by name. They share their storage with the parameters', so
    /// that `clamp_` on one clips it.
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
        Grads::new(&self.run.vars)
    }

    /// The gradient of one parameter.
    ///
    /// # Errors
    ///
    /// When there is no parameter of that name, or when it took no part in the loss.
    pub fn grad(&self, name: &str) -> Result<Tensor>
    where
        P: GradientsWithin + GradientsBegun + GradientsKept,
    {
        let grad = self.run.vars.get(name)?.grad();
        if grad.defined() {
            return Ok(grad);
        }
        Err(Error::usage(format!("`{name}` has no gradient: it took no part in the loss, or it is frozen")))
    }

    /// Drops the gradients that the current optimizer is about to use, and with them the batches that they are the mean over.
    /// Gradients that are filled with zeros in place are kept, and their batches count in the mean.
    ///
    /// # Errors
    ///
    /// Returns the errors of libtorch.
    pub fn drop_grads(&mut self) -> Result<()>
    where
        P: GradientsWithin + GradientsBegun + GradientsKept,
    {
        self.run.optimizers.drop_grads()
    }

    /// Clips the gradients that the current optimizer is about to use so that the norm of all of them, as one vector, is
    /// `max_norm` at most (Pascanu et al., *On the difficulty of training recurrent neural networks*, 2013), as
    /// `torch.nn.utils.clip_grad_norm_` does. Gives the norm before, a tensor of one element that nobody has waited for.
    ///
    /// # Errors
    ///
    /// Those of libtorch: a sparse gradient, say.
    pub fn clip_grad_norm(&mut self, max_norm: f64) -> Result<Tensor>
    where
        P: GradientsWithin + GradientsBegun + GradientsKept,
    {
        self.run.optimizers.clip_grad_norm(max_norm)
    }

    /// Clips every element of the gradients that the current optimizer is about to use to `-max_value..=max_value`.
    ///
    /// # Errors
    ///
    /// Those of libtorch.
    pub fn clip_grad_value(&mut self, max_value: f64) -> Result<()>
    where
        P: GradientsWithin + GradientsBegun + GradientsKept,
    {
        self.run.optimizers.clip_grad_value(max_value)
    }

    /// The means over the passes that ended last, by `phase/name`.
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
        self.run.error.as_ref().expect("after_error is fired for an error")
    }

    /// Leaves this batch out: nothing of the step runs, and only its place in the epoch counts.
    pub fn skip_step(&mut self)
    where
        P: CanSkipStep,
    {
        self.run.requests.skip_step = true;
    }

    /// Ends the current pass over the data after this step; where that is within an accumulation window, after one more batch, which
    /// closes it.
    pub fn end_epoch(&mut self)
    where
        P: CanEndEpoch,
    {
        self.run.requests.end_epoch = true;
    }

    /// Ends training after this step: no further pass begins, what is open is closed in order. An open accumulation window is closed
    /// by one more batch, and what must be trained ([`min_epochs`](crate::TrainerBuilder::min_epochs)) is trained first.
    pub fn stop(&mut self, reason: impl Into<String>)
    where
        P: CanStop,
    {
        self.run.requests.stop.get_or_insert(reason.into());
    }
}

impl<P: Moment> std::fmt::Debug for Cx<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Cx");
        shown.field("at", &P::INFO.name).field("phase", &self.phase()).field("counters", &self.counters());
        shown.finish_non_exhaustive()
    }
}

impl Run {
    /// See [`Cx::log`].
    pub(crate) fn log_value(&mut self, reduce: Reduce, name: &str, value: Value) {
        self.log_weighted(reduce, name, value, None);
    }

    /// See [`Cx::log_weighted`].
    pub(crate) fn log_weighted(&mut self, reduce: Reduce, name: &str, value: Value, weight: Option<f64>) {
        let Run { log, phase, batch_len, weight: of_batch, .. } = self;
        let weight = weight.unwrap_or(*of_batch);
        let result = match *batch_len {
            _ if !(weight.is_finite() && weight >= 0.0) => Err(Error::usage(format!(
                "its weight is {weight}: expected the number of elements that it is the mean over, finite and not negative"
            ))),
            _ if is_of_a_loss(name) => {
                Err(Error::usage("the trainer logs the loss itself, under this name: take another"))
            }
            Some(_) => log.add(*phase, reduce, name, value, weight),
            None => log.set(*phase, name, value),
        };
        if let Err(error) = result {
            self.cannot_log(name, &error);
        }
    }

    #[cold]
    fn cannot_log(&mut self, name: &str, error: &Error) {
        let error = Error::usage(format!("cannot log `{name}`: {error}"));
        self.log.failed.get_or_insert(error);
    }
}

/// The name of the loss, or of the loss in an operation of another lifecycle.
fn is_of_a_loss(name: &str) -> bool {
    name == LOSS || name.ends_with("/loss") && tree::moments().iter().any(|moment| moment.loss == name)
}

fn no_such_task<T: 'static>(own: TypeId, own_name: &str) -> Error {
    let name = type_name::<T>();
    Error::usage(if own == TypeId::of::<T>() {
        format!("the task `{name}` cannot be reached from here: the hook is one of its own, take `self`")
    } else {
        format!("the task is a `{own_name}`, not a `{name}`: ask for that type")
    })
}

fn no_such_hook<H>(known: bool) -> Error {
    let name = type_name::<H>();
    Error::usage(if known {
        format!("`{name}` cannot be reached from here: it is running, or waits for the hook that is")
    } else {
        format!("this trainer has no hook `{name}`: add it with `.hook(…)`")
    })
}

/// Fills one of the slots whose types are the task's.
fn set<V: 'static>(slot: &mut Slot, value: V, what: &str, own: &str) -> Result<()> {
    match slot.downcast_mut::<Option<V>>() {
        Some(place) => {
            *place = Some(value);
            Ok(())
        }
        None => Err(other_type::<V>(what, own)),
    }
}

fn other_type<T>(what: &str, own: &str) -> Error {
    Error::usage(format!("the task's {what} is a `{own}`, not a `{}`", type_name::<T>()))
}

fn missing(what: &str) -> Error {
    Error::usage(format!("the {what} was taken away by a hook"))
}
