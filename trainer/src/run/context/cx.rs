//! [`Cx`], and its methods for the task, the batch, the prediction and the loss. They are in the
//! module of the type, so that compile errors about them show `Cx::method`.

use std::any::{Any, TypeId, type_name};
use std::marker::PhantomData;

use ref_cast::{RefCastCustom, ref_cast_custom};
use tch::Tensor;

use crate::error::{Error, Result};
use crate::hook::instance::TASK;
use crate::libtorch::stays_on_its_thread;
use crate::lifecycle::{
    BatchBegun, BatchKept, BatchWithin, CanScaleLoss, CanSetBatch, CanSetLoss, CanSetPred, CanStartBackward,
    HasBatch, HasLoss, HasPred, HasStepLoss, HasTask, LossBegun, LossKept, LossWithin, PredictionBegun,
    PredictionKept, PredictionWithin, TaskBegun, TaskKept, TaskWithin, available,
};
use crate::model::leaves::Leaves;
use crate::moment::{AtPoint, Moment, OnAllRanks};
use crate::run::Instance;
use crate::run::{Run, task_is_lent};

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
