//! Testing hooks: a [`Harness`] performs a small real run, in which a hook is tested at its
//! moment, and [`Ranks`] runs a test on several ranks. See also
//! [`guide::testing`](crate::guide::testing).

mod check;
mod memory;
mod processes;
mod rank_harness;

use std::fmt;
use std::panic::Location;

use tch::{Device, Kind, Tensor, nn};

use self::check::{Check, Checks, otherwise};
pub use self::memory::peak_memory;
pub use self::rank_harness::{Ranks, once};
use crate::Cx;
use crate::data::{InMemory, Loader};
use crate::error::{Error, Result};
use crate::hook::discovery::Discover;
use crate::lifecycle::{AfterPredictStep, AfterStep};
use crate::log::history::Summary;
use crate::moment::{AtOperation, AtPoint, Moment, MomentInfo};
use crate::optim::Sgd;
use crate::phase::{Phase, PhaseSet};
use crate::run::cancel::CancelToken;
use crate::run::dispatch::closure::ClosureOutcome;
use crate::run::dispatch::registration::Hooks;
use crate::run::dispatch::{Done, Next};
use crate::run::{Rest, Run};
use crate::training::task::{Supervised, Task};
use crate::training::{Trainer, TrainerBuilder};

/// The task of [`Harness::small`]: a classifier with two linear layers, `fc1` and `fc2`, and a
/// cross-entropy loss.
pub type SmallTask = Supervised<nn::Sequential, fn(&Tensor, &Tensor) -> Tensor>;

/// A small real run, in which closures of a test are called at moments of the lifecycle.
///
/// The trainer itself computes everything that exists at a moment, so nothing has to be mocked. A
/// run of [`Harness::small`] takes about a millisecond.
///
/// - [`at`](Harness::at) calls a closure, or a hook function, once at a point and returns its
///   value; [`around`](Harness::around) calls a closure once around an operation.
/// - [`hook`](Harness::hook) adds the hook under test, and [`run`](Harness::run) returns the
///   trainer and the result of the run, to inspect both.
/// - [`on`](Harness::on) calls a closure whenever a point is reached. The closure may borrow from
///   the test.
/// - [`fail_at`](Harness::fail_at) and [`cancel_after`](Harness::cancel_after) end the run early.
///
/// ```
/// use trainer::prelude::*;
/// use trainer::testing::Harness;
///
/// let norm = Harness::small().at(|cx: &mut Cx<AfterBackward>| Ok(cx.grad("fc1.weight")?.norm()))?;
/// assert!(norm.double_value(&[]) > 0.0);
/// # Ok::<(), trainer::Error>(())
/// ```
#[must_use = "call `at`, `around` or `run`"]
pub struct Harness<'a, T: Task> {
    builder: TrainerBuilder<T>,
    data: Box<dyn Loader<T::Batch> + 'a>,
    validation: Option<Box<dyn Loader<T::Batch> + 'a>>,
    phase: Option<Phase>,
    nth: u64,
    cancel_after: Option<(u64, &'static Location<'static>)>,
    checks: Vec<Check<'a>>,
}

/// The trainer after a run of a [`Harness`], and the result of the run.
#[non_exhaustive]
pub struct Outcome<T> {
    /// The trainer, to inspect its hooks, task and counters.
    pub trainer: Trainer<T>,
    /// The result that the entry point returned.
    pub result: Result<Summary>,
}

impl<T> Outcome<T> {
    /// Returns the error of the run.
    ///
    /// # Panics
    ///
    /// Panics if the run succeeded.
    #[must_use]
    #[track_caller]
    pub fn error(&self) -> &Error {
        match &self.result {
            Ok(_) => panic!("expected the run to fail, but it succeeded"),
            Err(error) => error,
        }
    }

    /// Returns the summary of the run.
    ///
    /// # Panics
    ///
    /// Panics with the error of the run if it failed.
    #[must_use]
    #[track_caller]
    pub fn summary(&self) -> &Summary {
        match &self.result {
            Ok(summary) => summary,
            Err(error) => panic!("expected the run to succeed, but it failed: {error}"),
        }
    }
}

/// The error that [`Harness::fail_at`] causes.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct RequestedFailure(String);

impl Harness<'_, SmallTask> {
    /// Returns a harness with a small task and its data, for testing hooks that work with any task.
    ///
    /// The task maps 4 inputs to 3 classes, with the parameters `fc1.weight` (8 × 4), `fc1.bias`,
    /// `fc2.weight` (3 × 8) and `fc2.bias`, on the CPU. Its weights are the same in every run. It
    /// is trained with SGD at a learning rate of 0.1 for one epoch of 4 batches, and validated on
    /// 2; each batch has inputs of shape `[4, 4]` and labels of shape `[4]`. Discovered hooks are
    /// excluded.
    pub fn small() -> Self {
        let vars = nn::VarStore::new(Device::Cpu);
        let root = vars.root();
        let config = nn::LinearConfig::default();
        let net = nn::seq()
            .add(nn::linear(&root / "fc1", 4, 8, config))
            .add_fn(Tensor::relu)
            .add(nn::linear(&root / "fc2", 8, 3, config));
        tch::no_grad(|| {
            for (name, mut tensor) in vars.variables() {
                let values =
                    Tensor::linspace(0.0, name.len() as f64, tensor.numel() as i64, FLOAT).sin() * 0.5;
                tensor.copy_(&values.view_as(&tensor));
            }
        });
        let loss: fn(&Tensor, &Tensor) -> Tensor = |logits, labels| logits.cross_entropy_for_logits(labels);
        let builder = Trainer::builder(Supervised::new(vars, net, loss));
        let builder = builder.optimizer(Sgd::new(0.1)).discover(Discover::None);
        Harness::new(builder, small_data(16)).validation(small_data(8))
    }
}

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// Returns `rows` samples for the small task, in batches of 4.
fn small_data(rows: i64) -> InMemory<(Tensor, Tensor)> {
    let inputs = Tensor::arange(rows * 4, FLOAT).view([rows, 4]).sin();
    let labels = Tensor::arange(rows, (Kind::Int64, Device::Cpu)).remainder(3);
    InMemory::new((inputs, labels)).expect("both have the same number of rows").batch_size(4)
}

impl<'a, T: Task> Harness<'a, T> {
    /// Returns a harness for a custom task, given the builder of its trainer and the data of the
    /// run.
    ///
    /// The data is used by every entry point: `fit` trains on it, and `validate`, `test` and
    /// `predict` pass over it. Unless the builder has `.discover(Discover::None)`, the hooks that
    /// are linked into the test run as well. Hooks that only observe are
    /// [checked](TrainerBuilder::check_observers).
    pub fn new(mut builder: TrainerBuilder<T>, data: impl Loader<T::Batch> + 'a) -> Self {
        builder.checks_observers.get_or_insert(true);
        Harness {
            builder,
            data: Box::new(data),
            validation: None,
            phase: None,
            nth: 0,
            cancel_after: None,
            checks: Vec::new(),
        }
    }

    /// Sets the validation data of `fit`.
    pub fn validation(mut self, data: impl Loader<T::Batch> + 'a) -> Self {
        self.validation = Some(Box::new(data));
        self
    }

    /// Changes the builder of the trainer: its settings, its optimizer or its hooks.
    pub fn configure(mut self, change: impl FnOnce(TrainerBuilder<T>) -> TrainerBuilder<T>) -> Self {
        self.builder = change(self.builder);
        self
    }

    /// Adds a hook: a value whose type has a `#[hook] impl` block.
    pub fn hook<H: Hooks>(self, hook: H) -> Self {
        self.configure(|builder| builder.hook(hook))
    }

    /// Sets the number of epochs that `fit` trains. Defaults to the setting of the builder, which
    /// is 1 for [`small`](Harness::small).
    pub fn epochs(self, epochs: u64) -> Self {
        self.configure(|builder| builder.epochs(epochs))
    }

    /// Limits the closures to this phase, and selects the entry point: `fit` for [`Phase::Train`]
    /// and [`Phase::Sanity`], otherwise `validate`, `test` or `predict`. With [`Phase::Sanity`],
    /// the sanity check of `fit` runs on one batch.
    ///
    /// By default, the entry point is the first of `fit`, `test` and `predict` that reaches the
    /// moments of all closures, and the closures are called in every phase.
    pub fn phase(mut self, phase: Phase) -> Self {
        self.phase = Some(phase);
        if phase == Phase::Sanity { self.configure(|builder| builder.sanity_batches(1)) } else { self }
    }

    /// Makes [`at`](Harness::at) and [`around`](Harness::around) call their closure the `nth` time
    /// that the moment is reached, counted from 0. Defaults to 0.
    pub fn nth(mut self, nth: u64) -> Self {
        self.nth = nth;
        self
    }

    /// Adds a hook that fails with this message when the point `P` is reached. It runs after all
    /// other hooks at `P`.
    #[track_caller]
    pub fn fail_at<P: AtPoint>(mut self, message: impl Into<String>) -> Self {
        let message = message.into();
        self.checks.push(Check::new::<P>(Location::caller(), move |_, _| {
            Err(RequestedFailure(message.clone()).into())
        }));
        self
    }

    /// Cancels the run after `batches` batches of its entry point, not counting validation within
    /// `fit`. If it has saved a checkpoint, a harness without this call resumes from it.
    #[track_caller]
    pub fn cancel_after(mut self, batches: u64) -> Self {
        self.cancel_after = Some((batches, Location::caller()));
        self
    }

    /// Calls a closure whenever the point `P` is reached, after all other hooks at `P`. The closure
    /// may borrow from the test, and returns `()` or [`Result<()>`](Result).
    ///
    /// ```
    /// use trainer::prelude::*;
    /// use trainer::testing::Harness;
    ///
    /// let mut losses = Vec::new();
    /// let harness = Harness::small().epochs(2);
    /// let run = harness.on::<AfterLoss>(|cx| losses.push(cx.loss().double_value(&[]))).run()?;
    /// assert_eq!(run.summary().counters.optimizer_steps, 8);
    /// assert_eq!(losses.len(), 2 * (4 + 2)); // in training and in validation
    /// # Ok::<(), trainer::Error>(())
    /// ```
    #[track_caller]
    pub fn on<P: AtPoint>(mut self, mut closure: impl CheckClosure<P> + 'a) -> Self {
        self.checks.push(Check::new::<P>(Location::caller(), move |run, _| {
            Ok(closure(Cx::from_run(run)).outcome()?)
        }));
        self
    }

    /// Runs the trainer, calls a closure once at the point `P`, and returns the closure's value.
    ///
    /// The closure is called the first time, or the [`nth`](Harness::nth) time, that `P` is
    /// reached, after all other hooks at `P`. The run then continues to its end.
    ///
    /// A hook function can be passed instead of a closure: `Harness::small().at(my_hook)`.
    ///
    /// # Errors
    ///
    /// Returns
    ///
    /// - the error of the closure, which ends the run like the error of a hook;
    /// - an error for the same reasons as [`run`](Harness::run);
    /// - an error if the point is not reached;
    /// - an error if the run fails for a reason that neither [`fail_at`](Harness::fail_at) nor
    ///   [`cancel_after`](Harness::cancel_after) requested.
    ///
    /// # Panics
    ///
    /// Panics if a hook, the task or a closure panics.
    #[track_caller]
    pub fn at<P: AtPoint, R>(self, closure: impl FnOnce(&mut Cx<P>) -> Result<R>) -> Result<R> {
        self.once::<P, R>(Location::caller(), |run, _| closure(Cx::from_run(run)))
    }

    /// Runs the trainer, calls a closure once around the operation `O`, and returns the closure's
    /// value.
    ///
    /// The closure is called the first time, or the [`nth`](Harness::nth) time, that `O` runs,
    /// inside all other hooks around it. The run then continues to its end.
    ///
    /// # Errors
    ///
    /// Returns an error for the same reasons as [`at`](Harness::at).
    ///
    /// # Panics
    ///
    /// Panics if a hook, the task or a closure panics.
    #[track_caller]
    pub fn around<O: AtOperation, R>(
        self,
        closure: impl FnOnce(&mut Cx<O>, Next<O>) -> Result<(R, Done)>,
    ) -> Result<R> {
        self.once::<O, R>(Location::caller(), |run, rest| {
            let rest = rest.expect("dispatch passes the rest of the operation to a hook around it");
            closure(Cx::from_run(run), Next::new(rest)).map(|(value, _)| value)
        })
    }

    /// Runs the trainer, calls `closure` the `nth` time that the moment `M` is reached, and returns
    /// the closure's value.
    fn once<M: Moment, R>(
        self,
        place: &'static Location<'static>,
        closure: impl FnOnce(&mut Run, Option<Rest<'_>>) -> Result<R>,
    ) -> Result<R> {
        let mut closure = Some(closure);
        let mut value = None;
        let mut left = self.nth;
        let is_failing = self.cancel_after.is_some();
        let mut harness: Harness<'_, T> = self;
        harness.checks.push(Check::new::<M>(place, |run, rest| {
            if left > 0 {
                left -= 1;
                return otherwise(run, rest);
            }
            let Some(closure) = closure.take() else { return otherwise(run, rest) };
            value = Some(closure(run, rest)?);
            Ok(())
        }));
        let outcome = harness.run()?;
        match outcome.result {
            Err(error) if !is_requested(&error, is_failing) => Err(error),
            _ => value.ok_or_else(|| not_reached(M::INFO)),
        }
    }

    /// Runs the trainer, and returns it with the result of the run, even if the run failed.
    ///
    /// # Errors
    ///
    /// Returns an error
    ///
    /// - if no entry point reaches the moments of all closures;
    /// - if the trainer cannot be built;
    /// - if `cancel_after(0)` was called;
    /// - if the run succeeds without reaching a moment of [`on`](Harness::on) or
    ///   [`fail_at`](Harness::fail_at), or the batch of [`cancel_after`](Harness::cancel_after);
    /// - if the run failed before it reached the moments of all closures; the error is then that of
    ///   the run.
    ///
    /// # Panics
    ///
    /// Panics if a hook, the task or a closure panics.
    pub fn run(self) -> Result<Outcome<T>> {
        let phase = self.entry()?;
        if let Some((0, _)) = self.cancel_after {
            return Err(Error::usage("`.cancel_after(0)` never cancels: expected at least 1 batch"));
        }
        let Harness { mut builder, mut data, mut validation, mut checks, .. } = self;
        if phase == Phase::Train && checks.iter().any(|check| check.moment.phases == SANITY) {
            builder = builder.sanity_batches(1);
        }
        if let Some((batches, place)) = self.cancel_after {
            let token = CancelToken::new();
            builder = builder.cancel_token(token.clone());
            checks.push(cancelling(phase, batches, token, place));
        }
        let (checks, builder) = Checks::add(checks, builder, self.phase);
        let mut trainer = builder.build()?;
        let result = checks.during(|| match phase {
            Phase::Train | Phase::Sanity => match &mut validation {
                Some(validation) => trainer.fit(&mut data, Some(validation)),
                None => trainer.fit(&mut data, None),
            },
            Phase::Valid => trainer.validate(&mut data),
            Phase::Test => trainer.test(&mut data),
            Phase::Predict => trainer.predict_each(&mut data, |_| Ok(())),
        });
        match (checks.first_unreached(), result) {
            (Some(moment), Ok(_)) => Err(not_reached(moment)),
            (None, Ok(_)) if let Some((batches, _)) = self.cancel_after => Err(Error::usage(format!(
                "`.cancel_after({batches})`: the run of the harness ended before batch {batches}: lower the number, or \
                 provide more data"
            ))),
            (None, result) => Ok(Outcome { trainer, result }),
            (Some(_), Err(error)) => Err(error),
        }
    }

    /// Returns the phase that [`phase`](Harness::phase) has set, if it was called. Otherwise,
    /// returns the phase of the first entry point that reaches the moments of all closures, or an
    /// error if there is no such entry point.
    fn entry(&self) -> Result<Phase> {
        if let Some(phase) = self.phase {
            return Ok(phase);
        }
        let fit = PhaseSet::from_phases(&[Phase::Train, Phase::Sanity, Phase::Valid]);
        let entry = [Phase::Train, Phase::Test, Phase::Predict].into_iter().find(|entry| {
            let phases = if *entry == Phase::Train { fit } else { PhaseSet::NONE.with(*entry) };
            self.checks.iter().all(|check| check.moment.phases.and(phases) != PhaseSet::NONE)
        });
        entry.ok_or_else(|| {
            let moments: Vec<_> =
                self.checks.iter().map(|check| format!("`{}`", check.moment.path())).collect();
            Error::usage(format!(
                "no entry point reaches all of {}: test them in separate runs",
                moments.join(", ")
            ))
        })
    }
}

const SANITY: PhaseSet = PhaseSet::NONE.with(Phase::Sanity);

/// Returns a check that cancels the run after `batches` batches in the phase of its entry point.
fn cancelling<'a>(
    phase: Phase,
    batches: u64,
    token: CancelToken,
    place: &'static Location<'static>,
) -> Check<'a> {
    let mut seen = 0;
    let call = move |run: &mut Run, _: Option<Rest<'_>>| {
        if run.phase() == phase {
            seen += 1;
            if seen == batches {
                token.cancel();
            }
        }
        Ok(())
    };
    if phase == Phase::Predict {
        Check::new::<AfterPredictStep>(place, call).observing()
    } else {
        Check::new::<AfterStep>(place, call).observing()
    }
}

/// Returns whether the test requested this error with `fail_at` or `cancel_after`. Returns `false`
/// if something also failed during cleanup.
fn is_requested(error: &Error, cancels: bool) -> bool {
    let is_requested = cancels && error.is_cancelled() || error.downcast_ref::<RequestedFailure>().is_some();
    is_requested && error.cleanup().is_empty()
}

fn not_reached(moment: &'static MomentInfo) -> Error {
    Error::usage(format!(
        "the run of the harness did not reach `{}`: check its data and settings, or select another entry point with \
         `.phase(…)`",
        moment.path()
    ))
}

impl<T> fmt::Debug for Outcome<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome").field("result", &self.result).finish_non_exhaustive()
    }
}

impl<T: Task> fmt::Debug for Harness<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Harness").field("builder", &self.builder).finish_non_exhaustive()
    }
}

/// A closure that [`Harness::on`] accepts: it takes `&mut Cx<P>` and returns `()` or
/// [`Result<()>`](Result).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be called at `{P}`",
    label = "not a closure that takes `&mut Cx<{P}>`"
)]
pub trait CheckClosure<P: Moment>: FnMut(&mut Cx<P>) -> <Self as CheckClosure<P>>::Output {
    /// The return type of the closure.
    #[doc(hidden)]
    type Output: ClosureOutcome;
}

impl<P: Moment, R: ClosureOutcome, F: FnMut(&mut Cx<P>) -> R> CheckClosure<P> for F {
    type Output = R;
}
