//! [`Run`]: the state that hooks and the training loop share.

mod checkpoints;
mod folder;
mod frame;
pub(crate) mod modules;
mod place;
mod ranks;
mod records;

use std::any::{TypeId, type_name};

use tch::{Device, Tensor, nn};

use crate::cancel;
use crate::checkpoint::Slot;
use crate::error::{CancelledBy, CancelledError, Error, Location, OperationError, Result};
use crate::hook::instance::{Instance, TASK};
use crate::hook::table::{Range, Table};
use crate::hyperparameter::Hyperparameter;
use crate::log::Log;
use crate::moment::MomentInfo;
use crate::optim::Optimizers;
use crate::progress::{FitState, LoopState};
use crate::record::Records;
use crate::recorder::Recorder;
use crate::settings::Settings;
use crate::terminal;
use crate::tree;
use crate::vars::Vars;
pub(crate) use checkpoints::{BackgroundSave, CheckpointState, ResumeFrom, SaveRequest};
pub(crate) use folder::{FolderState, recorded};
pub(crate) use frame::{Body, Done, Frame};
pub(crate) use modules::Modules;
pub(crate) use place::{Names, Place};
pub(crate) use ranks::{Amount, Ranks};

/// The requests of hooks to the loop: `skip_step`, `end_epoch` and `stop`.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) skip_step: bool,
    pub(crate) end_epoch: bool,
    /// The reason for the stop, if one was requested.
    pub(crate) stop: Option<String>,
    /// Whether `max_time` requested the stop.
    pub(crate) is_of_clock: bool,
    /// Whether a stop prevented training or validation that was planned.
    pub(crate) is_cut_short: bool,
}

/// The state of a trainer. Hooks access it through [`Cx`](crate::Cx).
pub struct Run {
    pub(crate) settings: Settings,
    /// The rank of this process among the processes that train together.
    pub(crate) rank: u32,
    pub(crate) ranks: Ranks,
    /// Whether signals cancel the run.
    pub(crate) handles_signals: bool,
    pub(crate) hooks: HookSet,
    pub(crate) model: Model,
    pub(crate) place: Place,
    pub(crate) names: Names,
    pub(crate) progress: LoopState,
    pub(crate) fit: FitState,
    pub(crate) step: StepData,
    pub(crate) dispatch: Dispatch,
    pub(crate) requests: Requests,
    pub(crate) log: Log,
    pub(crate) records: Records,
    /// The warnings of the current entry point, for its summary. Outside of an entry point, those
    /// since the last one, for the summary of the next.
    pub(crate) warnings: Vec<String>,
    /// The logs from which rows of the current entry point are missing, for its summary.
    pub(crate) incomplete_logs: Vec<String>,
    pub(crate) folder: FolderState,
    /// The hyperparameters that the program has set.
    pub(crate) hyperparameters: Vec<(String, Hyperparameter)>,
    pub(crate) checkpoints: CheckpointState,
    /// Measures the run, if the trainer has a profile.
    pub(crate) recorder: Option<Box<Recorder>>,
    pub(crate) modules: Modules,
    /// The error that ended the run, while `after_cancel` or `after_error` fires.
    pub(crate) error: Option<Error>,
}

/// The hooks of a trainer, and the values on which hook methods are called.
pub(crate) struct HookSet {
    pub(crate) table: Table,
    /// The task, followed by the hook values.
    pub(crate) instances: Vec<Instance>,
}

/// The variables of the task, their device and their optimizers.
pub(crate) struct Model {
    pub(crate) vars: Vars,
    /// Returns the store that holds the variables; `None` while one of the task's own hooks is
    /// running.
    pub(crate) store: fn(&Run) -> Option<&nn::VarStore>,
    pub(crate) device: Device,
    pub(crate) optimizers: Optimizers,
}

/// Returns the prediction and the target of the current batch for metrics.
type MetricInputsOf = fn(&Run) -> Result<Option<(Tensor, Tensor)>>;

/// The current batch, its prediction and its loss.
pub(crate) struct StepData {
    /// An `Option` of the task's batch type.
    pub(crate) batch: Slot,
    pub(crate) batch_type: &'static str,
    /// Describes the batch for error messages.
    pub(crate) batch_text: fn(&Slot) -> String,
    /// Drops the batch and the prediction.
    pub(crate) empty_slots: fn(&mut Run),
    /// A function that returns whether the task provides predictions and targets for metrics, and a
    /// function that returns those of the current batch.
    pub(crate) metric_inputs: (fn(&Run) -> bool, MetricInputsOf),
    /// The number of samples in the batch; `None` between batches.
    pub(crate) batch_len: Option<u64>,
    /// The weight of the batch: the number of elements over which the loss is averaged.
    pub(crate) weight: f64,
    /// The weight and the samples of the batch over all ranks.
    pub(crate) total: Amount,
    /// Whether a hook may have changed the batch since its weight was computed.
    pub(crate) is_batch_changed: bool,
    /// An `Option` of the task's prediction type.
    pub(crate) pred: Slot,
    pub(crate) pred_type: &'static str,
    pub(crate) loss: Option<Tensor>,
    /// The product of the factors passed to `scale_loss`.
    pub(crate) loss_scale: f64,
    /// The number of predictions computed. `ForwardDone` holds the number of its prediction.
    pub(crate) preds: u64,
    /// The number of losses computed. `LossDone` holds the number of its loss.
    pub(crate) losses: u64,
    /// The number of losses computed before the current batch.
    pub(crate) losses_before: u64,
    /// Computes the prediction and the loss of the current batch again.
    pub(crate) recompute_loss: fn(&mut Run) -> Result<Tensor>,
    /// Whether an optimizer has stepped since the batch began.
    pub(crate) has_stepped: bool,
    /// The 1-based number of the optimizer step of the current part of the model: the current or
    /// the most recent one.
    pub(crate) step_number: u64,
}

impl StepData {
    /// The weight and the number of samples of this rank's batch.
    pub(crate) fn own_amount(&self) -> Amount {
        Amount { weight: self.weight, samples: self.batch_len.unwrap_or(1) as f64 }
    }

    /// Creates empty data for the batch type `B` and the prediction type `P`.
    pub(crate) fn new<B: Send + 'static, P: Send + 'static>(
        batch_text: fn(&Slot) -> String,
        empty_slots: fn(&mut Run),
        metric_inputs: (fn(&Run) -> bool, MetricInputsOf),
        recompute_loss: fn(&mut Run) -> Result<Tensor>,
    ) -> Self {
        StepData {
            batch: Box::new(None::<B>),
            batch_type: type_name::<B>(),
            batch_text,
            empty_slots,
            metric_inputs,
            batch_len: None,
            weight: 1.0,
            total: Amount::default(),
            is_batch_changed: false,
            pred: Box::new(None::<P>),
            pred_type: type_name::<P>(),
            loss: None,
            loss_scale: 1.0,
            preds: 0,
            losses: 0,
            losses_before: 0,
            recompute_loss,
            has_stepped: false,
            step_number: 0,
        }
    }
}

/// The state of hook dispatch.
pub(crate) struct Dispatch {
    /// The innermost running operation that has `around` hooks.
    pub(crate) frame: Frame,
    /// The number of frames created so far, from which each frame takes its id.
    pub(crate) frames: u64,
    /// The `around` hooks inside the one that is being called.
    pub(crate) remaining_hooks: Range,
    /// The table index of the hook that skipped or replaced the most recent operation with `around`
    /// hooks, or handled its error.
    pub(crate) responsible: Option<u32>,
    /// Whether a hook set the output of the current operation.
    pub(crate) output_overridden: bool,
    /// Whether an error with a location was returned to a hook, which may return it as its own.
    pub(crate) error_is_located: bool,
}

impl Dispatch {
    /// The state at the start of an entry point.
    pub(crate) fn begin() -> Self {
        Dispatch {
            frame: Frame::default(),
            frames: 0,
            remaining_hooks: Range::default(),
            responsible: None,
            output_overridden: false,
            error_is_located: false,
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

    /// Adds a warning to the summary of the current entry point or, outside of one, of the next,
    /// unless it has this warning already. The process of rank 0 prints it.
    pub(crate) fn warn(&mut self, text: String) {
        if !self.warnings.contains(&text) {
            self.notice(&format!("warning: {text}"));
            self.warnings.push(text);
        }
    }

    /// Prints a line on standard error in the process of rank 0. Not for warnings.
    pub(crate) fn notice(&self, text: &str) {
        if self.rank == 0 {
            terminal::eprint_line(text);
        }
    }

    /// Adds the current operation and batch to an error that has no location.
    pub(crate) fn locate(&self, source: Error) -> Error {
        if source.location().is_some() {
            return source;
        }
        let (location, batch) = (self.location(self.place.operation), self.describe_batch());
        Error::Operation(Box::new(OperationError { location, batch, source, cleanup: Vec::new() }))
    }

    /// Returns the error of an invalid value that the current hook logged, if any. Called before
    /// other hooks run, so that the error is not attributed to one of them.
    #[inline]
    pub(crate) fn check_logged(&mut self) -> Result<()> {
        if self.log.failed.is_none() { Ok(()) } else { self.log.failed.take().map_or(Ok(()), Err) }
    }

    /// Returns the source of a request to cancel the run in this process, if there is one.
    #[inline]
    pub(crate) fn cancel_request(&self) -> Option<CancelledBy> {
        if self.settings.cancel_token.is_cancelled() {
            Some(CancelledBy::Token)
        } else if self.handles_signals {
            cancel::received_signal()
        } else {
            None
        }
    }

    #[cold]
    pub(crate) fn cancelled(&self, by: CancelledBy) -> Error {
        let location = self.location(self.place.operation);
        Error::Cancelled(Box::new(CancelledError { by, location, cleanup: Vec::new() }))
    }

    /// The current location in the run, at the moment `at`.
    pub(crate) fn location(&self, at: &'static MomentInfo) -> Location {
        let within = self.scopes().last().map(|&operation| tree::moments()[operation].name);
        let within = within.filter(|within| !at.name.ends_with(within));
        Location {
            moment: at.name,
            module: self.modules.name_at(at),
            within,
            phase: self.place.phase,
            loader: self.loader().cloned(),
            counters: self.progress.counters,
        }
    }
}
