//! [`Cx`], and those of its methods that have a bound on the moment. These methods are in the same
//! module as the type, so that compile errors about them show `Cx::method`.

use std::any::{Any, TypeId, type_name};
use std::marker::PhantomData;

use ref_cast::{RefCastCustom, ref_cast_custom};
use tch::Tensor;

use crate::error::{Error, Result};
use crate::hook::call::Loop;
use crate::hook::instance::TASK;
use crate::libtorch::stays_on_its_thread;
use crate::lifecycle::{
    BatchBegun, BatchKept, BatchWithin, CanEndEpoch, CanLog, CanRollBack, CanRunBackward, CanScaleLoss,
    CanSetBatch, CanSetLoss, CanSetPred, CanSkipBatch, CanStartBackward, CanStop, GradientsBegun,
    GradientsKept, GradientsWithin, HasBatch, HasError, HasGrads, HasLoss, HasMetrics, HasPred, HasStepLoss,
    HasTask, LossBegun, LossKept, LossWithin, PredictionBegun, PredictionKept, PredictionWithin, TaskBegun,
    TaskKept, TaskWithin, available,
};
use crate::log::history::Metrics;
use crate::log::{IntoValue, Reduce};
use crate::model::leaves::Leaves;
use crate::model::vars::Grads;
use crate::moment::{AtPoint, Moment, OnAllRanks};
use crate::run::Instance;
use crate::run::{Run, StoppedBy, task_is_lent};

/// The context of a hook: access to the run at `P`, which is a point or an operation.
///
/// If a value does not always exist, the methods that read it have a bound on `P`, so reading it at
/// a moment where it does not exist is a compile error.
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
///
/// # Observers
///
/// A hook that takes `&Cx<P>` observes: it can read, log, warn, add values to a checkpoint and
/// request checkpoints. A hook that takes `&mut Cx<P>` may also change training.
/// [`describe_hooks`](crate::Trainer::describe_hooks) shows the difference, which determines:
///
/// - what a [resume](mod@crate::checkpoint) compares: hooks that observe may differ from those of
///   the interrupted run, unless they list [`settings`](crate::language::settings);
/// - what the [ranks](crate::distributed) agree on: a hook at `before_step` that may skip the batch
///   costs an exchange in each batch, and a hook that observes does not;
/// - what a trial of [`find_lr`](crate::Trainer::find_lr) needs: hooks that observe do not run in
///   it.
///
/// The compiler checks calls of the methods of `Cx`. It cannot check tensors, because they share
/// their memory: `clamp_` on a gradient from `cx.grads()` changes the gradient of the parameter.
/// Nor can it detect that a hook draws random numbers from libtorch, which changes the numbers that
/// dropout draws next. A run-time check finds both. Before and after each hook that observes, it
/// compares everything that a [tape](crate::guide::tape) records, except the states of hooks that
/// only observe, and values other than tensors in the states of other hooks. If anything has
/// changed, the run ends with an error that names the hook and the changed values. The check is on
/// in [`Harness`](crate::testing::Harness) and in [smoke
/// tests](crate::TrainerBuilder::fast_dev_run);
/// [`check_observers`](crate::TrainerBuilder::check_observers) and the environment variable
/// `TRAINER_CHECK=observers` turn it on for a run.
///
/// A hook around an operation takes `&mut Cx<O>`, which `next` needs. If it only measures, give it
/// the key [`observes`](crate::language::observes), and the same check applies.
#[doc(alias = "TrainerControl")]
#[derive(RefCastCustom)]
#[repr(transparent)]
pub struct Cx<P> {
    pub(super) run: Run,
    at: PhantomData<fn() -> P>,
}

stays_on_its_thread!(Cx<P>);

impl<P> Cx<P> {
    #[ref_cast_custom]
    pub(crate) fn from_run(run: &mut Run) -> &mut Self;

    #[ref_cast_custom]
    pub(crate) fn from_shared(run: &Run) -> &Self;

    pub(crate) fn as_run(&self) -> &Run {
        &self.run
    }

    pub(crate) fn run_mut(&mut self) -> &mut Run {
        &mut self.run
    }
}

/// # The hook itself
impl<P> Cx<P> {
    /// Does not call this hook again before the next pass over data of this phase. Until then, the
    /// hook costs nothing. Use this in a hook that only looks at the first batches.
    ///
    #[doc = available!(HasBatch)]
    pub fn rest(&self)
    where
        P: AtPoint + HasBatch,
    {
        if let Some(hook) = self.run.at.place.hook {
            self.run.hooks.table.rest(hook, self.run.at.place.phase);
        }
    }
}

/// # The task and the batch
impl<P> Cx<P> {
    /// The task.
    ///
    #[doc = available!(HasTask)]
    ///
    /// # Errors
    ///
    /// Returns an error if the task is not a `T`, or while one of the task's own hooks is running.
    pub fn task<T: 'static>(&self) -> Result<&T>
    where
        P: TaskWithin + TaskBegun + TaskKept + HasTask,
    {
        let Instance { type_id, type_name, value, .. } = &self.run.hooks.instances[TASK];
        let task = value.as_ref().and_then(|value| value.downcast_ref());
        task.ok_or_else(|| no_such_task::<T>(*type_id, type_name))
    }

    /// Mutable access to the task.
    ///
    #[doc = available!(HasTask)]
    #[doc = available!(OnAllRanks)]
    ///
    /// # Errors
    ///
    /// Returns an error if the task is not a `T`, or while one of the task's own hooks is running.
    pub fn task_mut<T: 'static>(&mut self) -> Result<&mut T>
    where
        P: TaskWithin + TaskBegun + TaskKept + HasTask + OnAllRanks,
    {
        let Instance { type_id, type_name, value, is_touched, .. } = &mut self.run.hooks.instances[TASK];
        is_touched.set(true);
        let task = value.as_mut().and_then(|value| value.downcast_mut());
        task.ok_or_else(|| no_such_task::<T>(*type_id, type_name))
    }

    /// The current batch, as the task's `Batch` type.
    ///
    #[doc = available!(HasBatch)]
    ///
    /// `build` reports a hook that calls `cx.batch::<B>()?` with a different type, if the call
    /// comes before the first branch in the hook's body and the hook has no `when`. The same
    /// applies to the task and the prediction.
    ///
    /// # Errors
    ///
    /// Returns an error if `B` is not the task's batch type; the message names both types.
    pub fn batch<B: 'static>(&self) -> Result<&B>
    where
        P: BatchWithin + BatchBegun + BatchKept + HasBatch,
    {
        stored(self.run.step.data.as_ref().map(|data| data.batch()), "batch")
    }

    /// Mutable access to the current batch. Except in `predict`, the trainer then recomputes the
    /// batch's [weight](crate::Task::weight).
    ///
    #[doc = available!(HasBatch)]
    #[doc = available!(OnAllRanks)]
    ///
    /// # Errors
    ///
    /// Returns an error if `B` is not the task's batch type; the message names both types.
    pub fn batch_mut<B: 'static>(&mut self) -> Result<&mut B>
    where
        P: BatchWithin + BatchBegun + BatchKept + HasBatch + OnAllRanks,
    {
        self.run.step.is_batch_changed = true;
        let batch = slot(self.run.step.data.as_mut().map(|data| data.batch_mut()), "batch")?;
        batch.as_mut().ok_or_else(|| missing("batch"))
    }

    /// Replaces the current batch. The new batch must already be on the task's device.
    ///
    #[doc = available!(CanSetBatch)]
    #[doc = available!(OnAllRanks)]
    ///
    /// # Errors
    ///
    /// Returns an error if `B` is not the task's batch type; the message names both types.
    pub fn set_batch<B: 'static>(&mut self, batch: B) -> Result<()>
    where
        P: CanSetBatch + OnAllRanks,
    {
        self.run.step.is_batch_changed = true;
        *slot(self.run.step.data.as_mut().map(|data| data.batch_mut()), "batch")? = Some(batch);
        self.run.dispatch.output_overridden = true;
        Ok(())
    }

    /// Calls `visit` with each tensor of the current batch, as [`Batch::tensors`] does. Visits
    /// nothing while one of the task's own hooks at a module is running.
    ///
    #[doc = available!(HasBatch)]
    ///
    /// [`Batch::tensors`]: crate::data::Batch::tensors
    pub fn visit_batch(&self, mut visit: impl FnMut(&Tensor))
    where
        P: BatchWithin + BatchBegun + BatchKept + HasBatch,
    {
        if let Some(data) = &self.run.step.data {
            data.visit_batch(&mut visit);
        }
    }

    /// The weight of the current batch: the number of elements over which its loss is averaged (see
    /// [`Task::weight`](crate::Task::weight)).
    ///
    #[doc = available!(HasBatch)]
    #[must_use]
    pub fn weight(&self) -> f64
    where
        P: BatchWithin + BatchBegun + BatchKept + HasBatch,
    {
        self.run.step.weight
    }
}

/// # The prediction and the loss
impl<P> Cx<P> {
    /// The prediction: the output of the forward pass, as the task's `Pred` type.
    ///
    #[doc = available!(HasPred)]
    ///
    /// # Errors
    ///
    /// Returns an error if `T` is not the task's prediction type; the message names both types.
    /// Also returns an error if a hook replaced the operation that computes the prediction.
    pub fn pred<T: 'static>(&self) -> Result<&T>
    where
        P: PredictionWithin + PredictionBegun + PredictionKept + HasPred,
    {
        stored(self.run.step.data.as_ref().map(|data| data.pred()), "prediction")
    }

    /// Calls `visit` with each tensor of the prediction, as
    /// [`Task::pred_tensors`](crate::Task::pred_tensors) does.
    ///
    #[doc = available!(HasPred)]
    pub fn visit_pred(&self, mut visit: impl FnMut(&Tensor))
    where
        P: PredictionWithin + PredictionBegun + PredictionKept + HasPred,
    {
        if let Some(data) = &self.run.step.data {
            data.visit_pred(&mut visit);
        }
    }

    /// Sets the prediction, either instead of running the task's forward pass or to replace its
    /// output.
    ///
    #[doc = available!(CanSetPred)]
    #[doc = available!(OnAllRanks)]
    ///
    /// # Errors
    ///
    /// Returns an error if `T` is not the task's prediction type; the message names both types.
    pub fn set_pred<T: 'static>(&mut self, pred: T) -> Result<()>
    where
        P: CanSetPred + OnAllRanks,
    {
        *slot(self.run.step.data.as_mut().map(|data| data.pred_mut()), "prediction")? = Some(pred);
        self.run.dispatch.output_overridden = true;
        Ok(())
    }

    /// The prediction and the target of the current batch for [metrics](crate::metrics), as
    /// [`Task::metric_inputs`](crate::Task::metric_inputs) returns them. `None` for a batch without
    /// targets.
    ///
    #[doc = available!(HasPred)]
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - the task does not implement that method;
    /// - one of the task's own hooks is running;
    /// - a hook replaced the operation that computes the prediction.
    pub fn metric_inputs(&self) -> Result<Option<(Tensor, Tensor)>>
    where
        P: PredictionWithin + PredictionBegun + PredictionKept + HasPred,
    {
        self.run.step.metric_inputs(self.run.hooks.task())
    }

    /// The loss of the current batch: a one-element tensor on the task's device. The returned
    /// handle shares its storage with the loss of the step but does not borrow from the context, so
    /// it can be logged: `cx.log("loss_again", cx.loss())`. For a batch of
    /// [weight](crate::Task::weight) 0 that ends an accumulation window, the loss is 0.
    ///
    #[doc = available!(HasLoss)]
    pub fn loss(&self) -> Tensor
    where
        P: LossWithin + LossBegun + LossKept + HasLoss,
    {
        let loss = self.run.step.loss.as_ref();
        loss.expect("the step computes the loss before any moment where it exists").shallow_clone()
    }

    /// The tensors that require gradients and that the loss depends on: the leaves of its graph.
    ///
    #[doc = available!(HasLoss)]
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch fails.
    pub fn loss_leaves(&self) -> Result<Leaves>
    where
        P: LossWithin + LossBegun + LossKept + HasLoss,
    {
        Leaves::of(&self.loss(), &self.run.model.vars)
    }

    /// The loss of the batch that was just processed, as [`loss`](Cx::loss) returns it. `None` if
    /// no loss was computed: [`Task::eval_loss`](crate::Task::eval_loss) returned `None`, the batch
    /// has a [weight](crate::Task::weight) of 0, or a hook replaced the `step` operation.
    ///
    #[doc = available!(HasStepLoss)]
    #[must_use]
    pub fn step_loss(&self) -> Option<Tensor>
    where
        P: HasStepLoss,
    {
        self.run.step.loss.as_ref().filter(|_| self.run.step.weight > 0.0).map(Tensor::shallow_clone)
    }

    /// The loss that the operation `loss` has computed or that an inner hook has set. Call this in
    /// a hook around `loss` after [`next.run`](crate::Next::run) has returned, for example to add a
    /// term to the loss with [`set_loss`](Cx::set_loss). Outside of training, `None` if the task
    /// returned no loss.
    ///
    #[doc = available!(CanSetLoss)]
    pub fn computed_loss(&self) -> Option<Tensor>
    where
        P: CanSetLoss,
    {
        self.run.step.loss.as_ref().map(Tensor::shallow_clone)
    }

    /// Sets the loss, either instead of computing the task's loss or to replace it. The loss must
    /// have one element, and must require a gradient in training.
    ///
    #[doc = available!(CanSetLoss)]
    #[doc = available!(OnAllRanks)]
    pub fn set_loss(&mut self, loss: Tensor)
    where
        P: CanSetLoss + OnAllRanks,
    {
        self.run.step.loss = Some(loss);
        self.run.dispatch.output_overridden = true;
    }

    /// Multiplies the tensor that the backward pass starts from, and thereby every gradient, by
    /// `factor`. Neither [`loss`](Cx::loss) nor the metric changes.
    ///
    #[doc = available!(CanScaleLoss)]
    #[doc = available!(OnAllRanks)]
    pub fn scale_loss(&mut self, factor: f64)
    where
        P: CanScaleLoss + OnAllRanks,
    {
        self.run.step.loss_scale *= factor;
    }

    /// The tensor that the backward pass starts from: the [loss](Cx::loss), times the factors
    /// passed to [`scale_loss`](Cx::scale_loss), times the [weight](crate::Task::weight) of the
    /// batch divided by a reference weight. The reference weight is the first non-zero weight among
    /// the accumulated batches or, once their gradients have been scaled to their mean, the sum of
    /// the weights at that time. In several processes, the tensor is also scaled so that the mean
    /// of the gradients over all ranks is the gradient of the mean loss.
    ///
    #[doc = available!(CanStartBackward)]
    pub fn scaled_loss(&self) -> Tensor
    where
        P: CanStartBackward,
    {
        let loss = self.run.step.loss.as_ref().expect("`backward` follows `loss`");
        let factor = self.run.ranks.loss_factor(&self.run.model.optimizers, &self.run.step);
        if factor == 1.0 { loss.shallow_clone() } else { loss * factor }
    }
}

/// # The gradients
impl<P> Cx<P> {
    /// Runs a backward pass from `loss` and adds its gradients to the gradients of the parameters
    /// that the current optimizer updates. Use it to [replace](crate::Next::replace) the operation
    /// `backward`, or for an additional backward pass.
    ///
    #[doc = available!(CanRunBackward)]
    #[doc = available!(OnAllRanks)]
    ///
    /// The weight of the batch is then counted in the accumulation window, but only once, however
    /// many backward passes run. Outside of a replacement, gradients computed with
    /// `Tensor::backward` are not counted, because the trainer does not see that call.
    ///
    /// # Errors
    ///
    /// Returns an error if the backward pass fails, for example because `loss` requires no gradient
    /// or has more than one element. The gradients accumulated so far are then dropped. Also
    /// returns the error of a hook at `after_module_backward`.
    pub fn backward(&mut self, loss: &Tensor) -> Result<()>
    where
        P: CanRunBackward + OnAllRanks,
    {
        self.run.modules.forget_gradients(&self.run.hooks.table, self.run.at.place.phase);
        self.run.ranks.note_own_gradients(&self.run.model.optimizers);
        let weight = self.run.ranks.gradient_weight(&self.run.step);
        let optimizers = &mut self.run.model.optimizers;
        optimizers.reset_if_dropped();
        if let Err(error) = optimizers.backward(loss) {
            let _ = optimizers.drop_grads();
            return Err(error);
        }
        optimizers.accumulate(weight)?;
        let run = &mut self.run;
        run.check_complaint()?;
        run.returning(Run::fire_module_gradients)
    }

    /// The gradients of all parameters that have one, with their names. The tensors share their
    /// storage with the parameters' gradients, so an in-place operation such as `clamp_` changes
    /// them.
    ///
    #[doc = available!(HasGrads)]
    ///
    /// At `after_backward`, the gradients are those of all batches of the [accumulation
    /// window](crate::TrainerBuilder::accumulate) so far, as a running sum.
    /// [`OnGrad`](crate::OnGrad) on a parameter observes the gradient of each batch alone.
    ///
    /// ```standalone_crate
    /// use trainer::prelude::*;
    ///
    /// #[hook(every = 100)]
    /// fn after_backward(cx: &Cx<AfterBackward>) {
    ///     for (name, grad) in cx.grads() {
    ///         cx.log(name, grad.norm());
    ///     }
    /// }
    /// # fn main() {}
    /// ```
    pub fn grads(&self) -> Grads
    where
        P: GradientsWithin + GradientsBegun + GradientsKept + HasGrads,
    {
        Grads::new(&self.run.model.vars)
    }

    /// The gradient of one parameter.
    ///
    #[doc = available!(HasGrads)]
    ///
    /// # Errors
    ///
    /// Returns an error if no variable has this name, or if the variable has no gradient.
    pub fn grad(&self, name: &str) -> Result<Tensor>
    where
        P: GradientsWithin + GradientsBegun + GradientsKept + HasGrads,
    {
        let grad = self.run.model.vars.get(name)?.grad();
        if grad.defined() {
            return Ok(grad);
        }
        Err(Error::usage(format!(
            "the variable `{name}` has no gradient, because the loss does not depend on it or it is frozen: choose another \
             variable, or read the gradients that exist with `cx.grads()`"
        )))
    }

    /// Multiplies the gradients of the current optimizer's parameters by `factor`, and returns
    /// whether all of them were finite. Synchronizes with the device.
    ///
    #[doc = available!(HasGrads)]
    #[doc = available!(OnAllRanks)]
    ///
    /// A gradient scaler calls this method with the inverse of its loss scale, and
    /// [drops](Cx::drop_grads) gradients that are not finite.
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch fails, for example on a sparse gradient.
    pub fn unscale_grads(&mut self, factor: f64) -> Result<bool>
    where
        P: GradientsWithin + GradientsBegun + GradientsKept + HasGrads + OnAllRanks,
    {
        self.run.model.optimizers.unscale_grads(factor)
    }

    /// Scales the gradients of the current optimizer's parameters so that their total L2 norm,
    /// taken over all of them as one vector, is at most `max_norm`, as
    /// `torch.nn.utils.clip_grad_norm_` does (Pascanu et al., *On the difficulty of training
    /// recurrent neural networks*, 2013).
    ///
    #[doc = available!(HasGrads)]
    #[doc = available!(OnAllRanks)]
    ///
    /// Returns the norm before clipping as a one-element tensor, without synchronizing with the
    /// device.
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch fails, for example on a sparse gradient.
    #[doc(alias = "clip_grad_norm_")]
    pub fn clip_grad_norm(&mut self, max_norm: f64) -> Result<Tensor>
    where
        P: GradientsWithin + GradientsBegun + GradientsKept + HasGrads + OnAllRanks,
    {
        self.run.model.optimizers.clip_grad_norm(max_norm)
    }

    /// Clamps every element of the gradients of the current optimizer's parameters to
    /// `-max_value..=max_value`.
    ///
    #[doc = available!(HasGrads)]
    #[doc = available!(OnAllRanks)]
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch fails.
    #[doc(alias = "clip_grad_value_")]
    pub fn clip_grad_value(&mut self, max_value: f64) -> Result<()>
    where
        P: GradientsWithin + GradientsBegun + GradientsKept + HasGrads + OnAllRanks,
    {
        self.run.model.optimizers.clip_grad_value(max_value)
    }

    /// Drops the gradients of the current optimizer's parameters, so that their batches no longer
    /// count in the mean over the accumulation window. In contrast, gradients that are zeroed in
    /// place are kept, and their batches count.
    ///
    #[doc = available!(HasGrads)]
    #[doc = available!(OnAllRanks)]
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch fails.
    pub fn drop_grads(&mut self) -> Result<()>
    where
        P: GradientsWithin + GradientsBegun + GradientsKept + HasGrads + OnAllRanks,
    {
        self.run.model.optimizers.drop_grads()
    }
}

/// # Logging
///
/// Histograms, images and texts have [methods of their own](Cx::log_histogram).
impl<P> Cx<P> {
    /// Logs a number, or a one-element tensor, as the metric `phase/name`, or as
    /// `phase/loader/name` in a pass over a named [loader](Cx::loader).
    ///
    #[doc = available!(CanLog)]
    ///
    /// While a batch is being processed, the value contributes to the mean over the pass, weighted
    /// by the [weight](crate::Task::weight) of the batch, and logging a tensor on a GPU does not
    /// synchronize with it. At any other time the value immediately becomes the metric. A value
    /// that cannot be logged, such as a tensor with more than one element, ends the run with an
    /// error that names the hook.
    #[doc(alias("log_dict", "add_scalar"))]
    pub fn log(&self, name: impl AsRef<str>, value: impl IntoValue)
    where
        P: CanLog,
    {
        self.run.log(Reduce::Mean, name.as_ref(), value.into_value(), None);
    }

    /// Logs a mean over `weight` elements like [`log`](Cx::log). Use this for values whose weight
    /// differs from the [weight](crate::Task::weight) of the batch, such as an accuracy over
    /// samples in a task whose loss is a mean over tokens. A weight that is negative, infinite or
    /// NaN ends the run with an error that names the hook.
    ///
    #[doc = available!(CanLog)]
    pub fn log_weighted(&self, name: impl AsRef<str>, value: impl IntoValue, weight: f64)
    where
        P: CanLog,
    {
        self.run.log(Reduce::Mean, name.as_ref(), value.into_value(), Some(weight));
    }

    /// Logs a value like [`log`](Cx::log), but reduces the values of a pass with `reduce` instead
    /// of averaging them. Each name must always be logged with the same reduction. Between batches
    /// there is nothing to reduce: the value immediately becomes the metric.
    ///
    #[doc = available!(CanLog)]
    pub fn log_as(&self, name: impl AsRef<str>, value: impl IntoValue, reduce: Reduce)
    where
        P: CanLog,
    {
        self.run.log(reduce, name.as_ref(), value.into_value(), None);
    }
}

/// # Control of the loop
impl<P> Cx<P> {
    /// Skips this batch: none of its operations run, and only
    /// [`batch_idx`](crate::Counters::batch_idx) advances.
    ///
    #[doc(alias = "CancelBatchException")]
    #[doc = available!(CanSkipBatch)]
    #[doc = available!(OnAllRanks)]
    pub fn skip_batch(&mut self)
    where
        P: CanSkipBatch + OnAllRanks,
    {
        self.run.requests.skip_batch(true);
    }

    /// Ends the current pass over data, in training or evaluation, after this batch. If an
    /// accumulation window is still open at that time, one more batch is trained to close it.
    ///
    #[doc(alias("CancelEpochException", "should_epoch_stop"))]
    #[doc = available!(CanEndEpoch)]
    pub fn end_epoch(&mut self)
    where
        P: CanEndEpoch,
    {
        self.run.requests.end_pass(self.run.ranks.world.is_solo());
    }

    /// Stops training after this batch: no further pass begins, and the points after the running
    /// operations fire. A validation that is running is completed. An open accumulation window is
    /// closed by one more batch, and training continues until
    /// [`min_epochs`](crate::TrainerBuilder::min_epochs) and
    /// [`min_steps`](crate::TrainerBuilder::min_steps) are reached.
    ///
    /// If the run ends earlier than planned, the reason is printed on standard error, and is in
    /// [`Summary::stopped`](crate::Summary::stopped). If several hooks stop training, the first
    /// reason counts.
    ///
    #[doc(alias("should_stop", "should_training_stop", "CancelFitException"))]
    #[doc = available!(CanStop)]
    pub fn stop(&mut self, reason: impl Into<String>)
    where
        P: CanStop,
    {
        let is_solo = self.run.ranks.world.is_solo();
        self.run.requests.stop(reason.into(), StoppedBy::Hook, is_solo);
    }

    /// Keeps a copy of the state of the run, so that [`roll_back`](Cx::roll_back) can return to it:
    /// weights, optimizers, gradients, random numbers, counters, logged values, and the
    /// [state](crate::checkpoint::State) of the task and of hooks. The copy is made before the next
    /// batch of training, and replaces the previous one. It is kept in CPU memory, included in
    /// checkpoints, and dropped when the next pass over the training data begins.
    ///
    #[doc = available!(CanRollBack)]
    pub fn keep_state(&mut self)
    where
        P: CanRollBack,
    {
        self.run.requests.keep_state(true);
    }

    /// Before the next batch of training, returns to the state that [`keep_state`](Cx::keep_state)
    /// kept, and continues with the batch after this one. The batches since that state, including
    /// this one, are skipped. If several processes train together, all of them roll back.
    ///
    #[doc = available!(CanRollBack)]
    ///
    /// Only [`batch_idx`](crate::Counters::batch_idx) keeps its value, as for batches that
    /// [`skip_batch`](Cx::skip_batch) skips; the other counters, and with them learning-rate
    /// schedules, return to the kept state. As on a resume, rows that were added to the history and
    /// to log files after the state was kept are removed; rows of a file are moved to
    /// `<file>.before-resume-<n>`. The tape of the run keeps all its records. A warning, which
    /// `run.json` lists in `roll_backs`, reports the skipped batches and the `reason`. Checkpoints
    /// that were requested after this batch, and validations that are due after it, are omitted.
    /// Requests to stop remain in effect.
    ///
    /// A hook that must remember its roll-backs, for example to limit their number, implements
    /// [`State::rolls_back`](crate::checkpoint::State::rolls_back).
    ///
    /// The run ends with an error if no state was kept in the current pass over the training data.
    pub fn roll_back(&mut self, reason: impl Into<String>)
    where
        P: CanRollBack,
    {
        self.run.requests.roll_back(reason.into());
    }
}

/// # Results
impl<P> Cx<P> {
    /// The reduced metrics of the most recent passes, keyed `phase/name`.
    ///
    #[doc = available!(HasMetrics)]
    #[must_use]
    pub fn metrics(&self) -> Metrics
    where
        P: HasMetrics,
    {
        self.run.log.borrow().metrics()
    }

    /// The error that ended the run.
    ///
    #[doc = available!(HasError)]
    #[must_use]
    pub fn error(&self) -> &Error
    where
        P: HasError,
    {
        self.run.occasion.error.as_ref().expect("`after_error` only fires for an error")
    }
}

impl<P: Moment> std::fmt::Debug for Cx<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("Cx");
        debug.field("at", &P::INFO.name).field("phase", &self.phase()).field("counters", &self.counters());
        debug.finish_non_exhaustive()
    }
}

pub(super) fn no_such_task<T: 'static>(task: TypeId, task_name: &str) -> Error {
    let name = type_name::<T>();
    Error::usage(if task == TypeId::of::<T>() {
        format!(
            "the task `{name}` is not available while one of its own hooks is running: use `self` in that hook"
        )
    } else {
        format!("the task is a `{task_name}`, not a `{name}`: use `{task_name}`")
    })
}

/// Returns the batch or the prediction of the current step. Returns an error if the task uses a
/// type other than `V` for it.
fn stored<'d, V: 'static>(data: Option<(&'d dyn Any, &str)>, what: &str) -> Result<&'d V> {
    let (stored, task_type) = data.ok_or_else(task_is_lent)?;
    match stored.downcast_ref::<Option<V>>() {
        Some(value) => value.as_ref().ok_or_else(|| missing(what)),
        None => Err(other_type::<V>(what, task_type)),
    }
}

/// Returns the slot that holds the batch or the prediction of the current step. Returns an error if
/// the task uses a type other than `V` for it.
fn slot<'d, V: 'static>(data: Option<(&'d mut dyn Any, &str)>, what: &str) -> Result<&'d mut Option<V>> {
    let (slot, task_type) = data.ok_or_else(task_is_lent)?;
    slot.downcast_mut().ok_or_else(|| other_type::<V>(what, task_type))
}

fn other_type<T>(what: &str, task_type: &str) -> Error {
    Error::usage(format!(
        "the task's {what} is a `{task_type}`, not a `{}`: use `{task_type}`",
        type_name::<T>()
    ))
}

/// Builds the error for a batch or a prediction that is missing because a hook replaced the
/// operation that produces it.
#[cold]
pub(crate) fn missing(what: &str) -> Error {
    Error::usage(format!(
        "there is no {what}: a hook replaced the operation that produces it; run the operation with `next.run(cx)`, or do not \
         use the {what} for this batch"
    ))
}
