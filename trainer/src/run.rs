//! [`Run`]: the state that hooks and the training loop share.

use std::any::{Any, TypeId, type_name};
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::{Deserialize, Serialize};
use tch::{Device, Tensor, nn};

use crate::cancel::{self, CancelledBy};
use crate::checkpoint::{CheckpointState, StateOf};
use crate::counters::Counters;
use crate::error::{
    BoxError, CancelledError, Error, HookError, Location, OperationError, Result, panic_text,
};
use crate::hook::definition::{HookResult, Hooks};
use crate::hook::table::{HookId, Range, Table};
use crate::metrics::Log;
use crate::moment::{AtOperation, AtPoint, MomentInfo};
use crate::next::{Body, Done, Frame};
use crate::optim::Optimizers;
use crate::phase::Phase;
use crate::record::Records;
use crate::task::Task;
use crate::training::{FitState, Settings};
use crate::tree;
use crate::vars::Vars;

/// What hooks have requested of the loop, with `skip_step`, `end_epoch` and `stop`.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) skip_step: bool,
    pub(crate) end_epoch: bool,
    /// The reason of the stop, if one was requested.
    pub(crate) stop: Option<String>,
    /// Whether `max_time` requested the stop.
    pub(crate) is_of_clock: bool,
    /// Whether a stop prevented training or validation that was planned.
    pub(crate) is_cut_short: bool,
}

/// A value whose type is erased: a task, a hook, or an `Option` of the task's batch or prediction.
pub(crate) type Slot = Box<dyn Any + Send>;

/// The task or a hook value. Its type is also known while the value is lent to one of its methods.
pub(crate) struct Instance {
    pub(crate) type_id: TypeId,
    pub(crate) type_name: &'static str,
    /// The value; `None` while it is lent to one of its methods.
    pub(crate) value: Option<Slot>,
    /// How checkpoints save and load its state, if they do.
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

    /// Wraps a value whose type has hook methods.
    pub(crate) fn with_hooks<H: Hooks>(value: H) -> Self {
        Instance { state: H::STATE, ..Instance::new(value) }
    }

    /// A placeholder for a discovered value none of whose hooks is used.
    pub(crate) fn absent() -> Self {
        Instance { type_id: TypeId::of::<Self>(), type_name: type_name::<Self>(), value: None, state: None }
    }
}

/// The output of an operation, and the method of `Cx` with which a hook sets it.
#[derive(Clone, Copy)]
pub(crate) struct OperationOutput {
    pub(crate) name: &'static str,
    pub(crate) setter: &'static str,
}

/// The index of the task in [`HookSet::instances`].
pub(crate) const TASK: usize = 0;

/// The payload of a panic.
pub(crate) type Panic = Box<dyn Any + Send>;

/// The state of a trainer. Hooks access it through [`Cx`](crate::Cx).
pub struct Run {
    pub(crate) settings: Settings,
    /// The index of this process among those that train together.
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
    pub(crate) records: Records,
    /// The warnings of hooks in the current entry point.
    pub(crate) warnings: Vec<String>,
    pub(crate) checkpoints: CheckpointState,
    /// The error that ended the run, while `after_error` fires.
    pub(crate) error: Option<Error>,
}

/// The hooks of a trainer, and the values on which hook methods are called.
pub(crate) struct HookSet {
    pub(crate) table: Table,
    /// The task, followed by the hook values.
    pub(crate) instances: Vec<Instance>,
}

/// The variables that are trained, and their optimizers.
pub(crate) struct Model {
    pub(crate) vars: Vars,
    /// Returns the store that holds the variables; `None` while one of the task's own hooks is
    /// running.
    pub(crate) store: fn(&Run) -> Option<&nn::VarStore>,
    pub(crate) device: Device,
    pub(crate) optimizers: Optimizers,
}

/// The position of the loop, over all fits. Checkpoints store it unchanged.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct LoopState {
    pub(crate) phase: Phase,
    pub(crate) counters: Counters,
    /// The 1-based number of the current batch: over all epochs in training, otherwise in its pass.
    pub(crate) batch_number: u64,
    /// The number of batches drawn for training, including skipped ones.
    pub(crate) train_batches: u64,
    /// The number of batches in the current pass, if known.
    pub(crate) batches: Option<u64>,
    /// The number of epochs that have begun.
    pub(crate) epochs_begun: u64,
    /// The number of epochs that have ended.
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

/// The current batch, and what was computed from it.
pub(crate) struct StepData {
    /// An `Option` of the task's batch type.
    pub(crate) batch: Slot,
    pub(crate) batch_type: &'static str,
    /// Describes the batch for error messages.
    pub(crate) batch_text: fn(&Slot) -> String,
    /// Drops the batch and the prediction.
    pub(crate) empty_slots: fn(&mut Run),
    /// The number of samples in the batch; `None` between batches.
    pub(crate) batch_len: Option<u64>,
    /// The weight of the batch: the number of elements that the loss is the mean over.
    pub(crate) weight: f64,
    /// Whether a hook may have changed the batch since its weight was computed.
    pub(crate) is_batch_changed: bool,
    /// An `Option` of the task's prediction type.
    pub(crate) pred: Slot,
    pub(crate) pred_type: &'static str,
    pub(crate) loss: Option<Tensor>,
    /// The product of the factors passed to `scale_loss`.
    pub(crate) loss_scale: f64,
    /// The number of predictions computed. `ForwardDone` holds the number of its
    /// own.
    pub(crate) preds: u64,
    /// The number of losses computed. `LossDone` holds the number of its own.
    pub(crate) losses: u64,
    /// The 1-based number of the optimizer step of the current part of the model: the current or
    /// the most recent one.
    pub(crate) step_number: u64,
}

impl StepData {
    /// Creates empty data for the types of the task `T`.
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

/// The state of hook dispatch.
pub(crate) struct Dispatch {
    /// The current operation, for error messages.
    pub(crate) operation: &'static MomentInfo,
    /// The innermost running operation that has `around` hooks.
    pub(crate) frame: Frame,
    /// The number of frames created so far, from which each frame takes its id.
    pub(crate) frames: u64,
    /// The `around` hooks inside the one that is being called.
    pub(crate) remaining_hooks: Range,
    /// The table index of the hook that skipped, replaced or recovered the most recent operation
    /// with `around` hooks.
    pub(crate) responsible: Option<u32>,
    /// Whether a hook set the output of the current operation.
    pub(crate) output_overridden: bool,
    /// The indices of the custom moments that are being reached, outermost first.
    pub(crate) custom_scopes: Vec<usize>,
    /// Whether an error with a location was returned to a hook, which may return it in turn.
    pub(crate) error_is_located: bool,
    /// The running hook; `None` while the task, a loader or the trainer itself runs.
    pub(crate) current_hook: Option<HookId>,
}

impl Dispatch {
    /// The state at the start of an entry.
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
    /// Returns the hook values of type `H` in the order in which they were added, except those that
    /// are lent to one of their methods.
    pub(crate) fn values<H: 'static>(&self) -> impl Iterator<Item = &H> {
        self.hooks.instances[TASK + 1..].iter().filter_map(|instance| instance.value.as_ref()?.downcast_ref())
    }

    /// Returns the first of the [`values`](Run::values) of type `H` mutably.
    pub(crate) fn value_mut<H: 'static>(&mut self) -> Option<&mut H> {
        self.hooks.instances[TASK + 1..]
            .iter_mut()
            .find_map(|instance| instance.value.as_mut()?.downcast_mut())
    }

    /// Whether there is a hook value of type `H`, lent to one of its methods or not.
    pub(crate) fn has_value<H: 'static>(&self) -> bool {
        self.hooks.instances[TASK + 1..].iter().any(|instance| instance.type_id == TypeId::of::<H>())
    }

    /// Calls the hooks of the point `P` in order, and returns the first error.
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

    /// Calls the hook at one index of the table.
    #[inline]
    pub(crate) fn call_one(&mut self, index: u32, at: &'static MomentInfo) -> Result<()> {
        let entry = self.hooks.table.entry(index);
        self.dispatch.current_hook = Some(entry.hook);
        let result = (entry.call)(self, entry.slot);
        if result.is_err() || self.log.failed.is_some() {
            Err(self.call_failed(entry.hook, at, result))
        } else {
            Ok(())
        }
    }

    /// Builds the error of a hook that returned an error or logged an invalid value. The returned
    /// error takes precedence.
    #[cold]
    #[inline(never)]
    fn call_failed(&mut self, hook: HookId, at: &'static MomentInfo, result: HookResult) -> Error {
        self.dispatch.current_hook = None;
        let logged = self.log.failed.take();
        let source = result.err().or_else(|| Some(Box::new(logged?)));
        self.hook_failed(hook, at, source.expect("the hook failed in one of two ways"))
    }

    /// Calls every hook of the point `P`, even after one fails or panics. Used for cleanup.
    ///
    /// Returns all errors, and the payload of the first panic.
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

    /// Builds the error of a hook. An error that the hook received from within an operation, and
    /// returned, keeps its own location.
    #[cold]
    pub(crate) fn hook_failed(&mut self, hook: HookId, at: &'static MomentInfo, source: BoxError) -> Error {
        let source = match source.downcast::<Error>() {
            Ok(error)
                if std::mem::take(&mut self.dispatch.error_is_located) && error.location().is_some() =>
            {
                return *error;
            }
            Ok(error) => error,
            Err(other) => other,
        };
        let origin = &self.hooks.table.hook(hook).definition.origin;
        let (hook, file, line) = (origin.name(), origin.file, origin.line);
        Error::Hook(Box::new(HookError {
            hook,
            file,
            line,
            location: self.location(at),
            source,
            cleanup: Vec::new(),
        }))
    }

    /// Runs an operation with the hooks before, around and after it.
    ///
    /// Returns whether the operation took place. If not, the hooks after it were not called.
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

    /// Runs an operation that produces an output, with the hooks around it.
    ///
    /// Returns an error if a hook skips the operation, or replaces it or handles its error without
    /// setting the output.
    #[inline]
    pub(crate) fn produce<O: AtOperation>(&mut self, output: OperationOutput, body: Body) -> Result<()> {
        self.dispatch.output_overridden = false;
        let done = self.inside::<O>(body)?;
        self.check_output::<O>(done, output)
    }

    /// Does the same as [`produce`](Run::produce) for a body that captures variables.
    pub(crate) fn produce_with<O: AtOperation>(
        &mut self,
        output: OperationOutput,
        body: impl FnOnce(&mut Run) -> Result<()>,
    ) -> Result<()> {
        self.dispatch.output_overridden = false;
        let done = self.inside_with::<O>(body)?;
        self.check_output::<O>(done, output)
    }

    /// Returns an error if neither the operation nor a hook produced the output.
    #[inline]
    pub(crate) fn check_output<O: AtOperation>(&mut self, done: Done, output: OperationOutput) -> Result<()> {
        match done {
            Done::Ran => Ok(()),
            Done::Replaced | Done::Failed if self.dispatch.output_overridden => Ok(()),
            _ => Err(self.missing_output(done, output, O::INFO)),
        }
    }

    #[cold]
    fn missing_output(
        &mut self,
        done: Done,
        OperationOutput { name: output, setter }: OperationOutput,
        operation: &'static MomentInfo,
    ) -> Error {
        let name = operation.name;
        let text = match done {
            Done::Replaced => {
                format!(
                    "the hook replaced `{name}` without setting a {output}: call `cx.{setter}(…)` in the replacement"
                )
            }
            Done::Failed => format!(
                "the hook handled the error of `{name}` without setting a {output}: return the error, or call `cx.{setter}(…)`"
            ),
            _ => format!(
                "the hook skipped `{name}`, which must produce a {output}: call `next.run(cx)?`, or \
                 `next.replace(cx, |cx| …)` with `cx.{setter}(…)` in it"
            ),
        };
        self.blame_responsible(operation, text.into())
    }

    /// Builds an error of the hook that skipped, replaced or recovered the most recent operation
    /// with `around` hooks.
    #[cold]
    pub(crate) fn blame_responsible(&mut self, operation: &'static MomentInfo, source: BoxError) -> Error {
        let responsible =
            self.dispatch.responsible.expect("only a hook skips, replaces or recovers an operation");
        let hook = self.hooks.table.entry(responsible).hook;
        self.hook_failed(hook, operation, source)
    }

    /// Adds the current operation and batch to an error that has no location.
    pub(crate) fn locate(&self, source: Error) -> Error {
        if source.location().is_some() {
            return source;
        }
        let (location, batch) = (self.location(self.dispatch.operation), self.describe_batch());
        Error::Operation(Box::new(OperationError { location, batch, source, cleanup: Vec::new() }))
    }

    /// Returns the error of an invalid value that the current hook logged, if any. Called before
    /// other hooks run, so that the error is not attributed to one of them.
    #[inline]
    pub(crate) fn check_logged(&mut self) -> Result<()> {
        if self.log.failed.is_none() { Ok(()) } else { self.log.failed.take().map_or(Ok(()), Err) }
    }

    /// Returns an error if the run was cancelled.
    #[inline]
    pub(crate) fn check_cancelled(&self) -> Result<()> {
        let by = if self.settings.cancel_token.is_cancelled() {
            Some(CancelledBy::Token)
        } else if self.handles_signals {
            cancel::received_signal()
        } else {
            None
        };
        by.map_or(Ok(()), |by| Err(self.cancelled(by)))
    }

    #[cold]
    pub(crate) fn cancelled(&self, by: CancelledBy) -> Error {
        let location = self.location(self.dispatch.operation);
        Error::Cancelled(Box::new(CancelledError { by, location, cleanup: Vec::new() }))
    }

    /// The current location in the run, at the moment `at`.
    fn location(&self, at: &'static MomentInfo) -> Location {
        let within = self.dispatch.custom_scopes.last().map(|&operation| tree::moments()[operation].name);
        let within = within.filter(|within| !at.name.ends_with(within));
        Location { moment: at.name, within, phase: self.progress.phase, counters: self.progress.counters }
    }
}
