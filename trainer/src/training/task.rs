//! [`Task`]: a model plus its forward pass and loss. [`Supervised`]: the implementation that most
//! programs use.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;

use ref_cast::RefCastCustom;
use tch::{Tensor, nn};

use crate::data::Batch;
use crate::error::Result;
use crate::lifecycle;
use crate::run::Run;

/// Whether the model is trained or evaluated. Layers such as dropout and batch norm behave
/// differently in the two modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Training: dropout is active, and batch norm uses the statistics of the batch.
    Train,
    /// Evaluation: dropout is inactive, batch norm uses its running statistics, and gradients are
    /// not recorded.
    Eval,
}

/// A model plus its forward pass and loss.
///
/// The batches passed to [`pred`](Task::pred) and [`loss`](Task::loss) are already on the device of
/// the model. In [`Mode::Eval`], gradients are not recorded.
///
/// ```
/// use trainer::prelude::*;
///
/// /// An autoencoder. Its batches are images without labels.
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
#[doc(alias("LightningModule", "training_step"))]
pub trait Task: Send + Sized + 'static {
    /// The type of the batches that the loader yields.
    type Batch: Batch;
    /// The output of the forward pass.
    type Pred: Send + 'static;

    /// The store that holds every variable of the model.
    ///
    /// The trainer reads it when it is built, and again at the end of `setup` in each entry point,
    /// so variables that a hook adds or replaces in `setup` are trained. A later change is reported
    /// as an error at the end of the pass over the training data.
    fn vars(&self) -> &nn::VarStore;

    /// Mutable access to the store, used by the builder's [`device`](crate::TrainerBuilder::device)
    /// to move the model. Defaults to `None`: the model then stays on the device where it was
    /// created, and a request for another device is an error.
    fn vars_mut(&mut self) -> Option<&mut nn::VarStore> {
        None
    }

    /// Runs the forward pass.
    ///
    /// # Errors
    ///
    /// Returns an error if the forward pass fails; this ends the run.
    #[doc(alias("forward", "predict_step"))]
    fn pred(&mut self, batch: &Self::Batch, mode: Mode) -> Result<Self::Pred>;

    /// Computes the loss of a prediction: a one-element tensor, which must require a gradient in
    /// training.
    ///
    /// # Errors
    ///
    /// Returns an error if the loss cannot be computed; this ends the run.
    fn loss(&mut self, pred: &Self::Pred, batch: &Self::Batch) -> Result<Tensor>;

    /// Computes the loss of a prediction outside of training, or returns `None` for a batch without
    /// a loss, such as an unlabeled batch. Defaults to [`loss`](Task::loss).
    ///
    /// Without a loss, `after_loss` does not fire and the metric `loss` is not logged.
    ///
    /// # Errors
    ///
    /// Returns an error if the loss cannot be computed; this ends the run.
    #[doc(alias("validation_step", "test_step"))]
    fn eval_loss(&mut self, pred: &Self::Pred, batch: &Self::Batch) -> Result<Option<Tensor>> {
        self.loss(pred, batch).map(Some)
    }

    /// Returns the number of elements over which the loss of this batch is averaged. Defaults to
    /// the number of samples; a language model returns the number of non-padding tokens.
    ///
    /// With these weights, the metrics of a pass and the gradients of an [accumulation
    /// window](crate::TrainerBuilder::accumulate) are means over elements, so they equal those of
    /// one large batch, whatever the sizes of the batches. A task whose loss is a sum must divide
    /// it by this number.
    ///
    /// The method is called on the batch as loaded, before `transfer`. If a hook changes the batch
    /// ([`set_batch`](crate::Cx::set_batch), [`batch_mut`](crate::Cx::batch_mut)), the method is
    /// called again after `transfer` and after `loss`, where reading a tensor may synchronize with
    /// the device. It is not called in `predict`.
    ///
    /// A batch of weight 0 contributes nothing: its loss is not computed, its metrics do not enter
    /// the means, and its backward pass does not run, unless several processes train together and
    /// the batch of another rank has a weight above 0. An accumulation window that contains only
    /// such batches takes no optimizer step. A negative, infinite or NaN weight is an error.
    fn weight(&self, batch: &Self::Batch) -> f64 {
        batch.samples().map_or(1.0, |samples| samples as f64)
    }

    /// Returns the function that extracts the inputs of [metrics](crate::metrics), a prediction and
    /// a target, from the task, a batch and the output of [`pred`](Task::pred). Defaults to `None`.
    /// For [`Supervised`], the function returns the prediction of the network and the targets of
    /// the batch.
    ///
    /// The function can use the fields of the task, for example the scale of its targets. It
    /// returns `None` for a batch without targets, which metrics then leave out.
    ///
    /// ```
    /// # use trainer::prelude::*;
    /// # struct Model { vars: nn::VarStore, net: nn::Linear, scale: f64 }
    /// use trainer::MetricInputs;
    ///
    /// impl Task for Model {
    ///     type Batch = (Tensor, Tensor);
    ///     type Pred = Tensor;
    ///
    ///     fn metric_inputs(&self) -> Option<MetricInputs<Self>> {
    ///         // The network predicts targets that are divided by `scale`.
    ///         Some(|task, (_, targets), pred| Some((pred * task.scale, targets.shallow_clone())))
    ///     }
    /// #   fn vars(&self) -> &nn::VarStore {
    /// #       &self.vars
    /// #   }
    /// #   fn pred(&mut self, batch: &(Tensor, Tensor), _: Mode) -> Result<Tensor> {
    /// #       Ok(batch.0.apply(&self.net))
    /// #   }
    /// #   fn loss(&mut self, pred: &Tensor, batch: &(Tensor, Tensor)) -> Result<Tensor> {
    /// #       Ok(pred.mse_loss(&(&batch.1 / self.scale), Reduction::Mean))
    /// #   }
    ///     // …
    /// }
    /// ```
    fn metric_inputs(&self) -> Option<MetricInputs<Self>> {
        None
    }

    /// Calls `visit` with every tensor of a prediction. The check of
    /// [observers](crate::Cx#observers) reads these tensors. The default supports a `Pred` that is
    /// a tensor, a tuple of two or three tensors, an `Option` of a tensor, or a `Vec` of tensors,
    /// and visits nothing for any other type. If `Pred` is a struct, derive
    /// [`Batch`](macro@crate::data::Batch) for it, and call `pred.tensors(visit)`.
    fn pred_tensors(pred: &Self::Pred, visit: &mut dyn FnMut(&Tensor)) {
        let pred: &dyn Any = pred;
        if let Some(tensor) = pred.downcast_ref::<Tensor>() {
            tensor.tensors(visit);
        } else if let Some(pair) = pred.downcast_ref::<(Tensor, Tensor)>() {
            pair.tensors(visit);
        } else if let Some(three) = pred.downcast_ref::<(Tensor, Tensor, Tensor)>() {
            three.tensors(visit);
        } else if let Some(optional) = pred.downcast_ref::<Option<Tensor>>() {
            optional.tensors(visit);
        } else if let Some(list) = pred.downcast_ref::<Vec<Tensor>>() {
            list.tensors(visit);
        }
    }

    /// Runs the operations of one training batch, in order. Defaults to `pred`, `loss`, `backward`
    /// and `opt_step`.
    ///
    /// Each operation consumes the token returned by the previous one, so a step in the wrong
    /// order, or without a loss, does not compile, unless it says so with
    /// [`done`](TrainStep::done). A `train_step` that takes several optimizer steps for a batch
    /// needs [`steps_per_batch`](Task::steps_per_batch) too.
    ///
    /// # Errors
    ///
    /// Returns the first error of an operation or of a hook.
    #[doc(alias("training_step", "manual_backward"))]
    fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
        let forward = step.pred()?;
        let loss = step.loss(forward)?;
        let gradients = step.backward(loss)?;
        step.opt_step(gradients)
    }

    /// Returns the number of optimizer steps that [`train_step`](Task::train_step) takes for a
    /// batch, or for the last batch of an accumulation window. Defaults to 1. With several
    /// optimizers, the number is that of the optimizer that steps most often: 1 for a GAN whose
    /// generator and discriminator each step once.
    ///
    /// The length of the run in steps is computed from it, and so are schedules over the whole run.
    /// If `train_step` takes more steps, that length is not known
    /// ([`Plan::steps`](crate::Plan::steps)), and a schedule that needs it ends the run
    /// with an error. If the number of steps differs between batches, return the largest.
    ///
    /// ```
    /// # use trainer::prelude::*;
    /// # struct Ppo { vars: nn::VarStore, policy: nn::Linear, updates: u64 }
    /// impl Task for Ppo {
    ///     fn steps_per_batch(&self) -> u64 {
    ///         self.updates // `train_step` repeats the batch
    ///     }
    ///     // …
    /// #   type Batch = Tensor;
    /// #   type Pred = Tensor;
    /// #   fn vars(&self) -> &nn::VarStore {
    /// #       &self.vars
    /// #   }
    /// #   fn pred(&mut self, batch: &Tensor, _: Mode) -> Result<Tensor> {
    /// #       Ok(batch.apply(&self.policy))
    /// #   }
    /// #   fn loss(&mut self, pred: &Tensor, _: &Tensor) -> Result<Tensor> {
    /// #       Ok(pred.mean(Kind::Float))
    /// #   }
    /// }
    /// ```
    fn steps_per_batch(&self) -> u64 {
        1
    }
}

/// A function that extracts the inputs of metrics, a prediction and a target, from the task, a
/// batch and the output of [`Task::pred`]; see [`Task::metric_inputs`].
pub type MetricInputs<T> = fn(&T, &<T as Task>::Batch, &<T as Task>::Pred) -> Option<(Tensor, Tensor)>;

/// Ties a token to the step that returned it, so that it cannot be used in a later step.
pub(super) type Brand<'s> = PhantomData<fn(&'s ()) -> &'s ()>;

/// Runs the operations of one training batch, with their hooks. `P` is the enclosing operation.
#[derive(RefCastCustom)]
#[repr(transparent)]
pub struct TrainStep<'s, T, P = lifecycle::Step> {
    pub(super) run: Run,
    types: PhantomData<fn() -> (T, P)>,
    // This is `Brand<'s>`, written out because the derive macro recognizes the name `PhantomData`.
    brand: PhantomData<fn(&'s ()) -> &'s ()>,
}

/// Proof that the forward pass ran: the token that [`TrainStep::loss`] consumes.
#[derive(Debug)]
#[must_use = "pass it to `loss`"]
pub struct ForwardDone<'s>(pub(super) u64, pub(super) Brand<'s>);

/// Proof that the loss was computed: the token that [`TrainStep::backward`] consumes.
#[derive(Debug)]
#[must_use = "pass it to `backward`"]
pub struct LossDone<'s>(pub(super) u64, pub(super) Brand<'s>);

/// Proof that the gradients were computed: the token that [`TrainStep::opt_step`] consumes. The
/// token holds the index of the optimizer that uses these gradients.
#[derive(Debug)]
#[must_use = "pass it to `opt_step`; otherwise the parameters are not updated"]
pub struct BackwardDone<'s>(pub(super) usize, pub(super) Brand<'s>);

/// Proof that the step is complete: the token that [`Task::train_step`] returns.
#[derive(Debug)]
#[must_use = "return it from `train_step`"]
pub struct StepDone<'s>(pub(super) Brand<'s>);

/// Ends the `step` operation without an optimizer step, to accumulate gradients over several
/// batches.
impl<'s> From<BackwardDone<'s>> for StepDone<'s> {
    fn from(BackwardDone(_, brand): BackwardDone<'s>) -> Self {
        StepDone(brand)
    }
}

/// A supervised task: a network that maps inputs to predictions, and a loss function that compares
/// predictions with targets.
///
/// The batches are pairs `(inputs, targets)`.
///
/// ```
/// use trainer::prelude::*;
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let net = nn::seq()
///     .add(nn::linear(vs.root() / "fc1", 4, 16, Default::default()))
///     .add_fn(Tensor::relu)
///     .add(nn::linear(vs.root() / "fc2", 16, 2, Default::default()));
/// let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// ```
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
    /// Creates a task from a network, the store that holds its variables, and a loss function that
    /// maps predictions and targets to a one-element tensor. The loss can weight
    /// [classes](crate::guide::recipes#class-weights) or
    /// [samples](crate::guide::recipes#a-weight-for-each-sample).
    #[doc(alias("criterion", "CrossEntropyLoss", "MSELoss", "class_weight", "sample_weight"))]
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

    fn metric_inputs(&self) -> Option<MetricInputs<Self>> {
        Some(|_, (_, targets), pred| Some((pred.shallow_clone(), targets.shallow_clone())))
    }
}

impl<N: fmt::Debug, L> fmt::Debug for Supervised<N, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervised").field("net", &self.net).finish_non_exhaustive()
    }
}
