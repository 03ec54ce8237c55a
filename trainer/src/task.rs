//! [`Task`]: a model with its way of computing, and [`Supervised`], the one that most need.

use std::fmt;
use std::marker::PhantomData;

use ref_cast::{RefCastCustom, ref_cast_custom};
use tch::{Tensor, nn};

use crate::counters::Counters;
use crate::data::Batch;
use crate::error::Result;
use crate::lifecycle;
use crate::metrics::{Reduce, Value};
use crate::moment::{AtOperation, AtPoint, FireableFrom};
use crate::reach::enter_custom;
use crate::run::Run;
use crate::training::step;

/// Whether a model trains or is evaluated: dropout and batch norm differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Dropout drops, batch norm uses the batch.
    Train,
    /// Dropout passes, batch norm uses its running statistics; no gradients are recorded.
    Eval,
}

/// A model with its way of computing.
///
/// The batch is on the device already, and under [`Mode::Eval`] no gradients are recorded.
///
/// ```
/// use trainer::prelude::*;
///
/// /// An autoencoder: its batches are images alone.
/// struct Autoencoder {
///     vars: nn::VarStore,
///     net: nn::Sequential,
/// }
///
/// impl Task for Autoencoder {
///     type Batch = Tensor;
///     type Pred = Tensor;
///
///     fn vars(&self) -> &nn::VarStore {
///         &self.vars
///     }
///     fn pred(&mut self, images: &Tensor, _: Mode) -> Result<Tensor> {
///         Ok(images.apply(&self.net))
///     }
///     fn loss(&mut self, pred: &Tensor, images: &Tensor) -> Result<Tensor> {
///         Ok(pred.mse_loss(images, Reduction::Mean))
///     }
/// }
/// ```
pub trait Task: Send + Sized + 'static {
    /// What a loader yields.
    type Batch: Batch;
    /// What the forward pass gives.
    type Pred: Send + 'static;

    /// The store that holds every variable of the model. It is read when the trainer is built, and again at the end of `setup` of each
    /// entry: what a hook adds or replaces there is trained. A change after that is an error at the end of the epoch's pass over the
    /// training data.
    fn vars(&self) -> &nn::VarStore;

    /// The same, to be moved to another device by the builder's [`device`](crate::TrainerBuilder::device); a task that does
    /// not give it stays where it is.
    fn vars_mut(&mut self) -> Option<&mut nn::VarStore> {
        None
    }

    /// The forward pass.
    ///
    /// # Errors
    ///
    /// What keeps the batch from being computed; it ends the run.
    fn pred(&mut self, batch: &Self::Batch, mode: Mode) -> Result<Self::Pred>;

    /// The loss of a prediction: one element, which carries a gradient while training.
    ///
    /// # Errors
    ///
    /// What keeps the loss from being computed; it ends the run.
    fn loss(&mut self, pred: &Self::Pred, batch: &Self::Batch) -> Result<Tensor>;

    /// The loss of a prediction outside of training. Defaults to [`loss`](Task::loss); returns `None` for a batch that
    /// cannot be judged, one without labels, say.
    ///
    /// Without a loss `after_loss` does not fire and no metric `loss` is logged.
    ///
    /// # Errors
    ///
    /// Returns an error if the loss cannot be computed; it ends the run.
    fn eval_loss(&mut self, pred: &Self::Pred, batch: &Self::Batch) -> Result<Option<Tensor>> {
        self.loss(pred, batch).map(Some)
    }

    /// The number of elements that the loss of this batch is the mean over. Defaults to the number of samples; a language
    /// model returns the number of tokens that are not padding.
    ///
    /// By these weights the metrics of a pass, and the gradients of an [accumulation
    /// window](crate::TrainerBuilder::accumulate), are means over elements: over batches of any size they equal those
    /// of one large batch. A task whose loss is a sum divides it by this number itself.
    ///
    /// It is called on the batch as it was loaded, before `transfer`, and again if a hook changed the batch
    /// ([`set_batch`](crate::Cx::set_batch), [`batch_mut`](crate::Cx::batch_mut)): after `transfer` and after
    /// `loss`, where reading a tensor may have to wait for the device. It is not called in `predict`.
    ///
    /// With a weight of 0 there is nothing to learn from the batch: no loss is computed, no metric logged and no
    /// backward pass run; an accumulation window of such batches alone takes no optimizer step. A weight that is
    /// negative, infinite or NaN is an error.
    fn weight(&self, batch: &Self::Batch) -> f64 {
        batch.samples().map_or(1.0, |samples| samples as f64)
    }

    /// One training step: which operations run, and in which order.
    ///
    /// Each operation wants what the one before it made, and the step gives back that it came to an
    /// end, so a wrong order, or a step without a loss, does not compile.
    ///
    /// # Errors
    ///
    /// Those of the operations and of the hooks at their points.
    fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
        let predicted = step.pred()?;
        let scored = step.loss(predicted)?;
        let differentiated = step.backward(scored)?;
        step.opt_step(differentiated)
    }
}

/// Ties what a step made to that step: it cannot be kept for the next.
type Brand<'s> = PhantomData<fn(&'s ()) -> &'s ()>;

/// The operations of one training step, with their hooks; seen from within the operation `P`.
#[derive(RefCastCustom)]
#[repr(transparent)]
pub struct TrainStep<'s, T, P = lifecycle::Step> {
    run: Run,
    of: PhantomData<fn() -> (T, P)>,
    step: PhantomData<fn(&'s ()) -> &'s ()>,
}

/// There is a prediction: which one, and in which step.
#[derive(Debug)]
#[must_use = "`loss` takes it"]
pub struct ForwardDone<'s>(u64, Brand<'s>);

/// There is a loss: which one.
#[derive(Debug)]
#[must_use = "`backward` takes it"]
pub struct LossDone<'s>(u64, Brand<'s>);

/// There are gradients: for which of the optimizers.
#[derive(Debug)]
#[must_use = "`opt_step` takes it; without, nothing is learned"]
pub struct BackwardDone<'s>(usize, Brand<'s>);

/// The step came to its end: what [`Task::train_step`] gives back.
#[derive(Debug)]
#[must_use = "`train_step` gives it back"]
pub struct StepDone<'s>(Brand<'s>);

/// A step that leaves out the optimizer, to gather gradients over more than one.
impl<'s> From<BackwardDone<'s>> for StepDone<'s> {
    fn from(BackwardDone(_, step): BackwardDone<'s>) -> Self {
        StepDone(step)
    }
}

impl<'s, T: Task, P> TrainStep<'s, T, P> {
    #[ref_cast_custom]
    pub(crate) fn of(run: &mut Run) -> &mut Self;

    /// The task.
    pub fn task(&mut self) -> &mut T {
        step::task_mut(&mut self.run)
    }

    /// The counters of the loop.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.run.counters
    }

    /// Runs the operation `pred`: [`Task::pred`], and the hooks before and after it.
    ///
    /// # Errors
    ///
    /// Those of the task and of the hooks.
    pub fn pred(&mut self) -> Result<ForwardDone<'s>> {
        step::pred::<T>(&mut self.run).map(|nth| ForwardDone(nth, PhantomData))
    }

    /// Runs the operation `loss`: [`Task::loss`], and the hooks before and after it. A batch of [weight](Task::weight) 0
    /// has none.
    ///
    /// # Errors
    ///
    /// Those of the task and of the hooks.
    pub fn loss(&mut self, ForwardDone(nth, step): ForwardDone<'s>) -> Result<LossDone<'s>> {
        step::loss::<T>(&mut self.run, nth).map(|nth| LossDone(nth, step))
    }

    /// Runs the operation `backward`, and the hooks before and after it. A batch of [weight](Task::weight) 0 has none.
    ///
    /// # Errors
    ///
    /// A loss without a gradient or of more than one element, and the errors of the hooks.
    pub fn backward(&mut self, LossDone(nth, step): LossDone<'s>) -> Result<BackwardDone<'s>> {
        step::backward(&mut self.run, nth, None).map(|part| BackwardDone(part, step))
    }

    /// As [`backward`](TrainStep::backward), for one part of the model that has an
    /// [optimizer of its own](crate::TrainerBuilder::optimizer_of). Only its parameters get a gradient, and it is they that
    /// [`opt_step`](TrainStep::opt_step) then updates.
    ///
    /// # Errors
    ///
    /// A part without an optimizer, and those of [`backward`](TrainStep::backward).
    pub fn backward_of(&mut self, part: &str, LossDone(nth, step): LossDone<'s>) -> Result<BackwardDone<'s>> {
        step::backward(&mut self.run, nth, Some(part)).map(|part| BackwardDone(part, step))
    }

    /// Runs the operation `opt_step`, and `zero_grad` if it took place, with their hooks: at the end of an accumulation window
    /// that has gradients.
    ///
    /// # Errors
    ///
    /// A trainer without an optimizer, and the errors of the hooks.
    pub fn opt_step(&mut self, BackwardDone(part, step): BackwardDone<'s>) -> Result<StepDone<'s>> {
        step::opt_step(&mut self.run, part).map(|()| StepDone(step))
    }

    /// As [`pred`](TrainStep::pred), computed in this way instead of by [`Task::pred`].
    ///
    /// # Errors
    ///
    /// Those of the closure and of the hooks.
    pub fn pred_with(
        &mut self,
        compute: impl FnOnce(&mut T, &T::Batch) -> Result<T::Pred>,
    ) -> Result<ForwardDone<'s>> {
        step::pred_with(&mut self.run, compute).map(|nth| ForwardDone(nth, PhantomData))
    }

    /// As [`loss`](TrainStep::loss), computed in this way instead of by [`Task::loss`].
    ///
    /// # Errors
    ///
    /// Those of the closure and of the hooks.
    pub fn loss_with(
        &mut self,
        ForwardDone(nth, step): ForwardDone<'s>,
        compute: impl FnOnce(&mut T, &T::Pred, &T::Batch) -> Result<Tensor>,
    ) -> Result<LossDone<'s>> {
        step::loss_with(&mut self.run, nth, compute).map(|nth| LossDone(nth, step))
    }

    /// Logs a number, or a tensor of one element, as [`Cx::log`](crate::Cx::log) does.
    ///
    /// # Errors
    ///
    /// What cannot be logged: a tensor of more than one element, say.
    pub fn log(&mut self, name: impl AsRef<str>, value: impl Into<Value>) -> Result<()> {
        self.log_as(Reduce::Mean, name, value)
    }

    /// As [`log`](TrainStep::log), for a mean over `weight` elements, as [`Cx::log_weighted`](crate::Cx::log_weighted) does.
    ///
    /// # Errors
    ///
    /// As for [`log`](TrainStep::log).
    pub fn log_weighted(&mut self, name: &str, value: impl Into<Value>, weight: f64) -> Result<()> {
        self.run.log_weighted(Reduce::Mean, name, value.into(), Some(weight));
        self.run.logged()
    }

    /// As [`log`](TrainStep::log), with another way to make one number of a pass over data than the mean.
    ///
    /// # Errors
    ///
    /// As for [`log`](TrainStep::log).
    pub fn log_as(&mut self, reduce: Reduce, name: impl AsRef<str>, value: impl Into<Value>) -> Result<()> {
        self.run.log_value(reduce, name.as_ref(), value.into());
        self.run.logged()
    }

    /// Runs an operation of a lifecycle of one's own, with the hooks before, around and after it.
    ///
    /// Returns what the body returned, or `None` if a hook around the operation skipped or replaced it. The metric of a loss in there
    /// is `<operation>/loss`.
    ///
    /// # Errors
    ///
    /// Those of the body and of the hooks.
    pub fn run<O: AtOperation + FireableFrom<P>, R>(
        &mut self,
        body: impl FnOnce(&mut TrainStep<'s, T, O>) -> Result<R>,
    ) -> Result<Option<R>> {
        let mut made = None;
        enter_custom::<O, _>(&mut self.run, |run| {
            run.operate_with::<O>(|run| {
                made = Some(body(TrainStep::of(run))?);
                Ok(())
            })
        })?;
        Ok(made)
    }

    /// Fires a point of a lifecycle of one's own.
    ///
    /// # Errors
    ///
    /// That of the first hook that fails.
    pub fn fire<Q: AtPoint + FireableFrom<P>>(&mut self) -> Result<()> {
        enter_custom::<Q, _>(&mut self.run, |run| run.fire::<Q>())
    }
}

impl<T, P> fmt::Debug for TrainStep<'_, T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrainStep").field("step", &self.run.counters).finish_non_exhaustive()
    }
}

/// A network that maps inputs to predictions, and a function that judges them against targets.
///
/// Its batches are `(inputs, targets)`.
pub struct Supervised<N, L> {
    vars: nn::VarStore,
    net: N,
    loss: L,
}

impl<N, L> Supervised<N, L>
where
    N: nn::ModuleT + 'static,
    L: Fn(&Tensor, &Tensor) -> Tensor + Send + 'static,
{
    /// `loss` maps predictions and targets to a tensor of one element.
    pub fn new(vars: nn::VarStore, net: N, loss: L) -> Self {
        Supervised { vars, net, loss }
    }

    /// The network.
    pub fn net(&self) -> &N {
        &self.net
    }
}

impl<N, L> Task for Supervised<N, L>
where
    N: nn::ModuleT + 'static,
    L: Fn(&Tensor, &Tensor) -> Tensor + Send + 'static,
{
    type Batch = (Tensor, Tensor);
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }

    fn vars_mut(&mut self) -> Option<&mut nn::VarStore> {
        Some(&mut self.vars)
    }

    fn pred(&mut self, (inputs, _): &Self::Batch, mode: Mode) -> Result<Tensor> {
        Ok(self.net.forward_t(inputs, mode == Mode::Train))
    }

    fn loss(&mut self, pred: &Tensor, (_, targets): &Self::Batch) -> Result<Tensor> {
        Ok((self.loss)(pred, targets))
    }
}

impl<N: fmt::Debug, L> fmt::Debug for Supervised<N, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervised").field("net", &self.net).finish_non_exhaustive()
    }
}
