//! The state of a run: everything that hooks and the loop share.

use std::any::{Any, TypeId, type_name};
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::{Deserialize, Serialize};
use tch::{Device, Tensor, nn};

use crate::cancel::{self, CancelledBy};
use crate::checkpoint::{CheckpointState, StateOf};
use crate::counters::Counters;
use crate::error::{BoxError, CancelledError, Error, HookError, OperationError, Place, Result, panic_text};
use crate::hook::definition::{HookResult, Hooks};
use crate::hook::table::{HookId, Range, Table};
use crate::metrics::Log;
use crate::moment::{AtOperation, AtPoint, MomentInfo};
use crate::next::{Body, Done, Frame};
use crate::optim::Optimizers;
use crate::phase::Phase;
use crate::task::Task;
use crate::training::{FitState, Settings};
use crate::tree;
use crate::vars::Vars;

/// What hooks have asked of the loop.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) skip_step: bool,
    pub(crate) end_epoch: bool,
    pub(crate) stop: Option<String>,
    /// The stop is the clock's.
    pub(crate) is_of_clock: bool,
    /// A stop has kept something from being trained or validated.
    pub(crate) is_cut_short: bool,
}

/// The batch and what was made of it, typed as an `Option` of the task's own type.
pub(crate) type Slot = Box<dyn Any + Send>;

/// A task or hook of the user's, and its type, which is known while it is lent out to be called.
pub(crate) struct Instance {
    pub(crate) type_id: TypeId,
    pub(crate) type_name: &'static str,
    pub(crate) value: Option<Slot>,
    /// How its state is kept in a checkpoint, if its type says that it is.
    pub(crate) state: Option<StateOf>,
}

impl Instance {
    pub(crate) fn new<T: Send + 'static>(value: T) -> Self {
        Instance {
            type_id: TypeId::of::<T>(),
            type_name: type_name::<T>(),
            value: Some(Box::new(value)),
            state: None,
        }
    }

    /// A value with hooks.
    pub(crate) fn of<H: Hooks>(value: H) -> Self {
        Instance { state: H::STATE, ..Instance::new(value) }
    }

    /// In the place of one that was left out.
    pub(crate) fn absent() -> Self {
        Instance { type_id: TypeId::of::<Self>(), type_name: type_name::<Self>(), value: None, state: None }
    }
}

/// What an operation makes, and the method of `Cx` that sets it instead.
pub(crate) type Made = (&'static str, &'static str);

/// Where the task lies in [`Run::instances`].
pub(crate) const TASK: usize = 0;

/// What a panic carries.
pub(crate) type Panic = Box<dyn Any + Send>;

/// The state of a run, in parts that each own what belongs together. Hooks see it as a [`Cx`](crate::Cx).
pub struct Run {
    pub(crate) settings: Settings,
    /// The process's index among those that train together.
    pub(crate) rank: u32,
    /// Whether signals cancel the run.
    pub(crate) handles_signals: bool,
    pub(crate) hooks: HookSet,
    pub(crate) model: Model,
    pub(crate) progress: LoopState,
    pub(crate) fit: FitState,
    pub(crate) step: StepData,
    pub(crate) dispatch: Dispatch,
    pub(crate) requests: Requests,
    pub(crate) log: Log,
    pub(crate) checkpoints: CheckpointState,
    /// The error that ended the run, while `after_error` fires.
    pub(crate) error: Option<Error>,
}

/// The hooks of a trainer, and the values that they are called with.
pub(crate) struct HookSet {
    pub(crate) table: Table,
    /// The task, then the values of hooks.
    pub(crate) instances: Vec<Instance>,
}

/// What is trained.
pub(crate) struct Model {
    pub(crate) vars: Vars,
    /// The store that holds the variables; `None` while the task is lent to one of its own hooks.
    pub(crate) store: fn(&Run) -> Option<&nn::VarStore>,
    pub(crate) device: Device,
    pub(crate) optimizers: Optimizers,
}

/// How far the loop has come, over all fits. A checkpoint stores it as it is.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct LoopState {
    pub(crate) phase: Phase,
    pub(crate) counters: Counters,
    /// The number of the current batch in its pass, from 1; while training, among all training batches.
    pub(crate) batch_number: u64,
    /// The number of batches drawn for training, including those that hooks left out.
    pub(crate) train_batches: u64,
    /// The number of batches in the current pass, if it is known.
    pub(crate) batches: Option<u64>,
    /// The number of epochs that have begun.
    pub(crate) epochs_begun: u64,
    /// The number of epochs that are over.
    pub(crate) epochs_done: u64,
    /// The number of fits that have begun.
    pub(crate) fits_begun: u64,
}

impl Default for LoopState {
    fn default() -> Self {
        LoopState {
            phase: Phase::Train,
            counters: Counters::default(),
            batch_number: 0,
            train_batches: 0,
            batches: None,
            epochs_begun: 0,
            epochs_done: 0,
            fits_begun: 0,
        }
    }
}

/// The data of the current step, and what was computed from it.
pub(crate) struct StepData {
    pub(crate) batch: Slot,
    pub(crate) batch_type: &'static str,
    /// Describes the batch, for messages.
    pub(crate) batch_text: fn(&Slot) -> String,
    /// Drops the batch and the prediction.
    pub(crate) empty_slots: fn(&mut Run),
    /// The number of samples in the batch; `None` outside of a step.
    pub(crate) batch_len: Option<u64>,
    /// The number of elements that the loss is the mean over.
    pub(crate) weight: f64,
    /// Whether a hook may have changed the batch since it was weighed.
    pub(crate) is_batch_changed: bool,
    pub(crate) pred: Slot,
    pub(crate) pred_type: &'static str,
    pub(crate) loss: Option<Tensor>,
    /// The product of the factors that hooks scaled the loss by.
    pub(crate) loss_scale: f64,
    /// The number of predictions and losses that were computed: the tokens of a step carry these numbers.
    pub(crate) preds: u64,
    pub(crate) losses: u64,
    /// The number of the optimizer step of the current part of the model, from 1: the one being taken, or the
    /// last one.
    pub(crate) step_number: u64,
}

impl StepData {
    /// Empty, for a task's types.
    pub(crate) fn for_task<T: Task>(batch_text: fn(&Slot) -> String, empty_slots: fn(&mut Run)) -> Self {
        StepData {
            batch: Box::new(None::<T::Batch>),
            batch_type: type_name::<T::Batch>(),
            batch_text,
            empty_slots,
            batch_len: None,
            weight: 1.0,
            is_batch_changed: false,
            pred: Box::new(None::<T::Pred>),
            pred_type: type_name::<T::Pred>(),
            loss: None,
            loss_scale: 1.0,
            preds: 0,
            losses: 0,
            step_number: 0,
        }
    }
}

/// Where hooks are being called from.
pub(crate) struct Dispatch {
    /// The operation that is running, for messages.
    pub(crate) operation: &'static MomentInfo,
    /// The innermost operation that has hooks around it.
    pub(crate) frame: Frame,
    /// The number of times that such an operation ran.
    pub(crate) frames: u64,
    /// The hooks inside of the one that is being called.
    pub(crate) remaining_hooks: Range,
    /// The hook that skipped, replaced or recovered the last operation that had hooks around it.
    pub(crate) responsible: Option<u32>,
    /// Whether a hook set the output of the operation it goes around.
    pub(crate) output_overridden: bool,
    /// The moments of custom lifecycles that hooks have entered, outermost first.
    pub(crate) custom_scopes: Vec<usize>,
    /// Whether an error that is already located was returned to a hook, which may pass it on.
    pub(crate) error_is_located: bool,
    /// The hook that is running; `None` while the task, a loader or the trainer itself is.
    pub(crate) current_hook: Option<HookId>,
}

impl Dispatch {
    /// At the start of an entry.
    pub(crate) fn begin(operation: &'static MomentInfo) -> Self {
        Dispatch {
            operation,
            frame: Frame::default(),
            frames: 0,
            remaining_hooks: Range::default(),
            responsible: None,
            output_overridden: false,
            custom_scopes: Vec::new(),
            error_is_located: false,
            current_hook: None,
        }
    }
}

impl Run {
    /// The values of hooks of this type, in the order in which they were added; not one that is lent out.
    pub(crate) fn values<H: 'static>(&self) -> impl Iterator<Item = &H> {
        self.hooks.instances[TASK + 1..].iter().filter_map(|instance| instance.value.as_ref()?.downcast_ref())
    }

    /// The first of them, to be changed.
    pub(crate) fn value_mut<H: 'static>(&mut self) -> Option<&mut H> {
        self.hooks.instances[TASK + 1..]
            .iter_mut()
            .find_map(|instance| instance.value.as_mut()?.downcast_mut())
    }

    /// Is there a value of this type, lent out or not?
    pub(crate) fn has_value<H: 'static>(&self) -> bool {
        self.hooks.instances[TASK + 1..].iter().any(|instance| instance.type_id == TypeId::of::<H>())
    }

    /// Runs the hooks of a point, in their order, up to the first that fails.
    #[inline]
    pub(crate) fn fire<P: AtPoint>(&mut self) -> Result<()> {
        let range = self.hooks.table.range(P::index(), self.progress.phase);
        if range.is_empty() { Ok(()) } else { self.call(range, P::INFO) }
    }

    #[inline]
    fn call(&mut self, range: Range, at: &'static MomentInfo) -> Result<()> {
        for index in range.indices() {
            self.call_one(index, at)?;
        }
        self.dispatch.current_hook = None;
        Ok(())
    }

    /// Calls the hook of one entry of the table.
    #[inline]
    pub(crate) fn call_one(&mut self, index: u32, at: &'static MomentInfo) -> Result<()> {
        let entry = self.hooks.table.entry(index);
        self.dispatch.current_hook = Some(entry.hook);
        let result = (entry.call)(self, entry.slot);
        if result.is_err() || self.log.failed.is_some() {
            Err(self.failed(entry.hook, at, result))
        } else {
            Ok(())
        }
    }

    /// The error of a hook: its own, or that of what it logged. One for one hook.
    #[cold]
    #[inline(never)]
    fn failed(&mut self, hook: HookId, at: &'static MomentInfo, result: HookResult) -> Error {
        self.dispatch.current_hook = None;
        let logged = self.log.failed.take();
        let source = result.err().or_else(|| Some(Box::new(logged?)));
        self.hook_failed(hook, at, source.expect("one of them was seen"))
    }

    /// Runs every hook of a point, also after one that failed or panicked: for the way out.
    ///
    /// Gives all errors, and the first panic.
    pub(crate) fn fire_all<P: AtPoint>(&mut self) -> (Vec<Error>, Option<Panic>) {
        let (mut errors, mut panic) = (Vec::new(), None);
        for index in self.hooks.table.range(P::index(), self.progress.phase).indices() {
            let entry = self.hooks.table.entry(index);
            let result = match catch_unwind(AssertUnwindSafe(|| self.call_one(index, P::INFO))) {
                Ok(result) => result,
                Err(payload) => {
                    self.log.failed = None;
                    let error = self.hook_failed(entry.hook, P::INFO, panic_text(&*payload).into());
                    panic.get_or_insert(payload);
                    Err(error)
                }
            };
            errors.extend(result.err());
        }
        (errors, panic)
    }

    #[cold]
    pub(crate) fn hook_failed(&mut self, hook: HookId, at: &'static MomentInfo, source: BoxError) -> Error {
        let source = match source.downcast::<Error>() {
            // What failed inside of the hook says so itself.
            Ok(inner) if std::mem::take(&mut self.dispatch.error_is_located) && inner.place().is_some() => {
                return *inner;
            }
            Ok(own) => own,
            Err(other) => other,
        };
        let origin = &self.hooks.table.hook(hook).definition.origin;
        let (hook, file, line) = (origin.name(), origin.file, origin.line);
        Error::Hook(Box::new(HookError {
            hook,
            file,
            line,
            place: self.place(at),
            source,
            cleanup: Vec::new(),
        }))
    }

    /// Runs an operation with its hooks: at the point before it, around it, at the point after it.
    ///
    /// Returns whether it took place; otherwise the point after it did not fire.
    pub(crate) fn operate_with<O: AtOperation>(
        &mut self,
        body: impl FnOnce(&mut Run) -> Result<()>,
    ) -> Result<bool> {
        self.fire::<O::Before>()?;
        let took_place = self.inside_with::<O>(body)?.took_place();
        if took_place {
            self.fire::<O::After>()?;
        }
        Ok(took_place)
    }

    /// As [`inside`](Run::inside), for an operation that makes something: a hook that replaces it, or handles its
    /// error, sets that instead.
    #[inline]
    pub(crate) fn make<O: AtOperation>(&mut self, what: Made, body: Body) -> Result<()> {
        self.dispatch.output_overridden = false;
        let done = self.inside::<O>(body)?;
        self.is_made::<O>(done, what)
    }

    /// As [`make`](Run::make), for a body that captures something.
    pub(crate) fn make_with<O: AtOperation>(
        &mut self,
        what: Made,
        body: impl FnOnce(&mut Run) -> Result<()>,
    ) -> Result<()> {
        self.dispatch.output_overridden = false;
        let done = self.inside_with::<O>(body)?;
        self.is_made::<O>(done, what)
    }

    #[inline]
    pub(crate) fn is_made<O: AtOperation>(&mut self, done: Done, what: Made) -> Result<()> {
        match done {
            Done::Ran => Ok(()),
            Done::Replaced | Done::Failed if self.dispatch.output_overridden => Ok(()),
            _ => Err(self.not_made(done, what, O::INFO)),
        }
    }

    #[cold]
    fn not_made(&mut self, done: Done, (what, setter): Made, operation: &'static MomentInfo) -> Error {
        let name = operation.name;
        let text = match done {
            Done::Replaced => {
                format!(
                    "the hook replaced `{name}` without setting a {what}: call `cx.{setter}(…)` in the replacement"
                )
            }
            Done::Failed => format!(
                "the hook handled the error of `{name}` without setting a {what}: return the error, or call `cx.{setter}(…)`"
            ),
            _ => format!(
                "the hook skipped `{name}`, which has to make a {what}: call `next.run(cx)?`, or \
                 `next.replace(cx, |cx| …)` with `cx.{setter}(…)` in it"
            ),
        };
        self.blame_responsible(operation, text.into())
    }

    /// An error of the hook that skipped, replaced or recovered the last operation that had hooks around it.
    #[cold]
    pub(crate) fn blame_responsible(&mut self, operation: &'static MomentInfo, source: BoxError) -> Error {
        let responsible =
            self.dispatch.responsible.expect("only a hook skips, replaces or recovers an operation");
        let hook = self.hooks.table.entry(responsible).hook;
        self.hook_failed(hook, operation, source)
    }

    /// Says in which operation it happened, and on which batch, if that is not known yet.
    pub(crate) fn locate(&self, source: Error) -> Error {
        if source.place().is_some() {
            return source;
        }
        let (place, on) = (self.place(self.dispatch.operation), self.describe_batch());
        Error::Operation(Box::new(OperationError { place, on, source, cleanup: Vec::new() }))
    }

    /// What the hook that is running could not log: before another is called, which it is not about.
    #[inline]
    pub(crate) fn logged(&mut self) -> Result<()> {
        if self.log.failed.is_none() { Ok(()) } else { self.log.failed.take().map_or(Ok(()), Err) }
    }

    /// Ends the run if it was cancelled.
    #[inline]
    pub(crate) fn check_cancelled(&self) -> Result<()> {
        let by = if self.settings.cancel_token.is_cancelled() {
            Some(CancelledBy::Token)
        } else if self.handles_signals {
            cancel::signal()
        } else {
            None
        };
        by.map_or(Ok(()), |by| Err(self.cancelled(by)))
    }

    #[cold]
    pub(crate) fn cancelled(&self, by: CancelledBy) -> Error {
        let place = self.place(self.dispatch.operation);
        Error::Cancelled(Box::new(CancelledError { by, place, cleanup: Vec::new() }))
    }

    pub(crate) fn place(&self, at: &'static MomentInfo) -> Place {
        let within = self.dispatch.custom_scopes.last().map(|&operation| tree::moments()[operation].name);
        let within = within.filter(|within| !at.name.ends_with(within));
        Place { moment: at.name, within, phase: self.progress.phase, counters: self.progress.counters }
    }
}
