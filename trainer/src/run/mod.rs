//! [`Run`]: the state that hooks and the training loop share.

pub(crate) mod cancel;
pub(crate) mod changes;
mod checkpoints;
pub(crate) mod circumstances;
pub(crate) mod context;
pub(crate) mod dispatch;
mod folder;
pub(crate) mod layers;
mod log;
pub(crate) mod module_calls;
mod place;
pub mod profile;
mod rank_state;
pub(crate) mod recorder;
pub(crate) mod reports;
mod requests;
pub(crate) mod run_folder;
pub(crate) mod settings;
mod step;
mod surroundings;
mod weights;

use std::any::{Any, TypeId, type_name};
use std::cell::{Cell, Ref, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use tch::Device;

use crate::checkpoint::States;
use crate::checkpoint::progress::{FitState, LoopState};
use crate::distributed::World;
use crate::error::{CancelledBy, CancelledError, Error, Location, Origin, Result};
use crate::hook::frame::HookId;
use crate::hook::instance::TASK;
use crate::hook::{definition, frame, instance, table};
use crate::lifecycle::Fit;
use crate::log::Log;
use crate::log::history::History;
use crate::log::record::Record;
use crate::model::added::Added;
use crate::model::vars::Vars;
use crate::moment::{Moment, MomentInfo};
use crate::moments::counters::Counters;
use crate::moments::tree;
use crate::optim::Optimizers;
use crate::phase::Phase;
use crate::run::cancel::Cancellation;
use crate::run::layers::Layers;
use crate::run::reports::Reports;
use crate::run::settings::Settings;
use crate::values::hyperparameter::Given;
use crate::values::paths::public_path;
pub(crate) use checkpoints::{BackgroundSave, CheckpointState, SaveMode, SaveRequest, SaveStage};
pub(crate) use folder::{FolderState, recorded};
pub(crate) use module_calls::Modules;
pub(crate) use place::{Place, Whereabouts};
pub(crate) use rank_state::{Amount, Ranks, SavesOfRanks};
pub(crate) use requests::{Requests, SavedRequests, StoppedBy};
pub(crate) use step::{AnyTask, StepData, task_is_lent};
pub(crate) use weights::{Values, listed};

/// The hook engine, with [`Run`] as the state of its loop.
pub(crate) type HookDef = definition::HookDef<Run>;
pub(crate) type Hook = definition::Hook<Run>;
pub(crate) type Shim = definition::Shim<Run>;
pub(crate) type Instance = instance::Instance<Run>;
pub(crate) type Table = table::Table<Run>;
/// The part of a running operation that is inside the `around` hook that is being called: the inner
/// hooks and the body. [`Next`](crate::Next) borrows it.
pub type Rest<'a> = frame::Rest<'a, Run>;

/// A copy of the state of a run. The run can return to it in the same pass over the training data.
pub(crate) struct KeptState {
    pub(crate) states: States,
    /// The number of rows of the history.
    pub(crate) rows: usize,
    pub(crate) epoch: u64,
    /// The number of batches completed in the pass.
    pub(crate) batch_idx: u64,
}

/// The state of a trainer. Hooks access it through [`Cx`](crate::Cx).
pub struct Run {
    settings: Settings,
    reports: Reports,
    ranks: Ranks,
    cancellation: Cancellation,
    hooks: RunHooks,
    model: Model,
    /// Where the run is.
    at: Whereabouts,
    progress: LoopState,
    fit: FitState,
    step: StepData,
    dispatch: Dispatch,
    requests: Requests,
    /// The state that a roll-back returns to.
    kept: Option<KeptState>,
    /// The values that hooks have logged. In a `RefCell`, because observers can log as well: see
    /// [`log`].
    log: RefCell<Log>,
    history: History,
    occasion: Occasion,
    folder: FolderState,
    /// The hyperparameters that the program has set.
    hyperparameters: Vec<Given>,
    checkpoints: CheckpointState,
    layers: Layers,
    modules: Modules,
}

/// Why a point fires.
#[derive(Default)]
pub(crate) struct Occasion {
    /// The record for which `after_record` is firing.
    pub(crate) record: Option<Record>,
    /// The error that ended the run, while `after_cancel` or `after_error` fires.
    pub(crate) error: Option<Error>,
}

/// What a trainer is built of.
pub(crate) struct NewRun {
    pub(crate) settings: Settings,
    pub(crate) rank: u32,
    /// The world that the program passed to the builder.
    pub(crate) world: Option<World>,
    pub(crate) hooks: RunHooks,
    pub(crate) model: Model,
    pub(crate) step: StepData,
    pub(crate) log: Log,
    pub(crate) folder: FolderState,
    pub(crate) hyperparameters: Vec<Given>,
    pub(crate) checkpoints: CheckpointState,
    pub(crate) layers: Layers,
    pub(crate) modules: Modules,
}

/// Writes the methods that lend the parts of a run.
macro_rules! lend {
    ($($(#[$docs:meta])* $name:ident, $name_mut:ident: $($field:ident).+: $kind:ty;)*) => {
        impl Run {
            $(
                $(#[$docs])*
                #[inline]
                pub(crate) fn $name(&self) -> &$kind {
                    &self.$($field).+
                }

                #[inline]
                pub(crate) fn $name_mut(&mut self) -> &mut $kind {
                    &mut self.$($field).+
                }
            )*
        }
    };
}

lend! {
    reports, reports_mut: reports: Reports;
    cancellation, cancellation_mut: cancellation: Cancellation;
    ranks, ranks_mut: ranks: Ranks;
    hooks, hooks_mut: hooks: RunHooks;
    model, model_mut: model: Model;
    optimizers, optimizers_mut: model.optimizers: Optimizers;
    at, at_mut: at: Whereabouts;
    place, place_mut: at.place: Place;
    progress, progress_mut: progress: LoopState;
    fit, fit_mut: fit: FitState;
    step, step_mut: step: StepData;
    dispatch, dispatch_mut: dispatch: Dispatch;
    requests, requests_mut: requests: Requests;
    kept, kept_mut: kept: Option<KeptState>;
    occasion, occasion_mut: occasion: Occasion;
    layers, layers_mut: layers: Layers;
    history, history_mut: history: History;
    folder_state, folder_state_mut: folder: FolderState;
    checkpoints, checkpoints_mut: checkpoints: CheckpointState;
    modules, modules_mut: modules: Modules;
}

/// The hooks of a trainer, and the values on which hook methods are called.
pub(crate) struct RunHooks {
    pub(crate) table: Table,
    /// The task, followed by the hook values.
    pub(crate) instances: Vec<Instance>,
    /// The hooks that may fail, have panicked in this entry point and are no longer called: the
    /// slot of the value and the type.
    pub(crate) switched_off: Vec<(Option<u32>, TypeId)>,
}

impl RunHooks {
    /// Returns the hook values of type `H` in the order in which they were added, except values
    /// that are lent to one of their own methods.
    pub(crate) fn values<H: 'static>(&self) -> impl Iterator<Item = &H> {
        self.instances[TASK + 1..].iter().filter_map(|instance| instance.value.as_ref()?.downcast_ref())
    }

    /// Returns the first of the [`values`](Self::values) of type `H`.
    pub(crate) fn value<H: 'static>(&self) -> Result<&H> {
        self.values().next().ok_or_else(|| no_such_hook::<H>(self.has_value::<H>()))
    }

    /// Returns the first of the [`values`](Self::values) of type `H` mutably.
    pub(crate) fn value_mut<H: 'static>(&mut self) -> Result<&mut H> {
        let known = self.has_value::<H>();
        let mut instances = self.instances.iter_mut().skip(TASK + 1);
        let first = instances.find_map(|instance| {
            let value = instance.value.as_mut()?.downcast_mut()?;
            instance.is_touched.set(true);
            Some(value)
        });
        first.ok_or_else(|| no_such_hook::<H>(known))
    }

    /// Whether there is a hook value of type `H`, even if it is lent to one of its methods.
    pub(crate) fn has_value<H: 'static>(&self) -> bool {
        self.instances[TASK + 1..].iter().any(|instance| instance.type_id == TypeId::of::<H>())
    }
}

/// The variables of the task, their device and their optimizers.
pub(crate) struct Model {
    pub(crate) vars: Vars,
    /// The variables that hooks added when the trainer was built.
    pub(crate) added: Added,
    pub(crate) values: Values,
    pub(crate) device: Device,
    pub(crate) optimizers: Optimizers,
}

/// The state of hook dispatch.
pub(crate) struct Dispatch {
    /// The hook that skipped or replaced the most recent operation that has `around` hooks, or
    /// handled the error of that operation.
    pub(crate) responsible: Option<HookId>,
    /// Whether a hook set the output of the current operation.
    pub(crate) output_overridden: bool,
    /// The origin of errors that are created now.
    pub(crate) origin: Origin,
    /// The payloads of the custom points that are being fired, by the index of the point.
    pub(crate) payloads: BTreeMap<usize, Box<dyn Any + Send>>,
    /// The custom points that were fired, and the custom operations that were run, by their index.
    pub(crate) entered: BTreeSet<usize>,
    /// For each hook of the table, whether its key `every` was due.
    due: Vec<Cell<bool>>,
}

impl Dispatch {
    /// The state at the start of an entry point, for a table with this number of hooks.
    pub(crate) fn begin(hooks: usize) -> Self {
        Dispatch {
            entered: BTreeSet::new(),
            due: vec![Cell::new(false); hooks],
            responsible: None,
            output_overridden: false,
            origin: Origin::begin(),
            payloads: BTreeMap::new(),
        }
    }

    /// Whether an error that the run returns already names its location.
    pub(crate) fn has_located(&self, error: &Error) -> bool {
        error.origin() == Some(self.origin)
    }

    /// Notes that the key `every` of a hook is due.
    #[inline]
    pub(crate) fn mark_due(&self, hook: HookId) {
        self.due[hook.index()].set(true);
    }

    /// Returns whether the key `every` of the hook with this index was ever due.
    pub(crate) fn was_due(&self, hook: usize) -> bool {
        self.due[hook].get()
    }
}

/// Writes methods that return a value of a part.
macro_rules! value {
    ($($(#[$docs:meta])* $name:ident: $($field:ident).+ => $kind:ty;)*) => {
        impl Run {
            $(
                $(#[$docs])*
                #[inline]
                pub(crate) fn $name(&self) -> $kind {
                    self.$($field).+
                }
            )*
        }
    };
}

value! {
    counters: progress.counters => Counters;
    phase: at.place.phase => Phase;
    /// Whether the run repeats a part of a recorded run, or rehearses the first steps of a fit, and
    /// writes nothing.
    is_replay: folder.is_replay => bool;
    device: model.device => Device;
}

/// Writes methods that lend a value of a part.
macro_rules! shared {
    ($($(#[$docs:meta])* $name:ident: $($field:ident).+ => $kind:ty;)*) => {
        impl Run {
            $(
                $(#[$docs])*
                #[inline]
                pub(crate) fn $name(&self) -> &$kind {
                    &self.$($field).+
                }
            )*
        }
    };
}

shared! {
    settings: settings => Settings;
    /// The hyperparameters that the program has set.
    hyperparameters: hyperparameters => [Given];
    /// The world of the current entry point.
    world: ranks.world => World;
    vars: model.vars => Vars;
}

impl Run {
    /// The rank of this process among the processes that train together.
    #[inline]
    pub(crate) fn rank(&self) -> u32 {
        self.reports.rank()
    }

    /// Creates the state of a new trainer.
    pub(crate) fn new(new: NewRun) -> Self {
        Run {
            cancellation: Cancellation::new(new.settings.cancel_token.clone()),
            settings: new.settings,
            reports: Reports::new(new.rank),
            ranks: Ranks::begin(World::solo(), new.world),
            dispatch: Dispatch::begin(new.hooks.table.hooks().len()),
            hooks: new.hooks,
            model: new.model,
            at: Whereabouts::begin(Place::begin(Fit::INFO, Phase::Train)),
            progress: LoopState::default(),
            fit: FitState::default(),
            step: new.step,
            requests: Requests::default(),
            kept: None,
            log: RefCell::new(new.log),
            history: History::default(),
            occasion: Occasion::default(),
            folder: new.folder,
            hyperparameters: new.hyperparameters,
            checkpoints: new.checkpoints,
            layers: new.layers,
            modules: new.modules,
        }
    }

    #[inline]
    pub(crate) fn logs_mut(&mut self) -> &mut Log {
        self.log.get_mut()
    }

    #[inline]
    pub(crate) fn logs(&self) -> Ref<'_, Log> {
        self.log.borrow()
    }

    #[cold]
    pub(crate) fn cancelled(&self, by: CancelledBy) -> Error {
        let location = self.location(self.at.place.operation);
        let origin = self.dispatch.origin;
        Error::Cancelled(Box::new(CancelledError { by, location, origin, cleanup: Vec::new() }))
    }

    /// The current location in the run, at the moment `at`.
    pub(crate) fn location(&self, at: &'static MomentInfo) -> Location {
        let within = self.at.scopes().last().map(|&operation| tree::moments()[operation].name);
        let within = within.filter(|within| !at.name.ends_with(within));
        Location {
            moment: at.name,
            module: self.modules.name_at(at),
            within,
            phase: self.at.place.phase,
            loader: self.at.loader().cloned(),
            counters: self.progress.counters,
        }
    }
}

fn no_such_hook<H>(known: bool) -> Error {
    let name = public_path(type_name::<H>());
    Error::usage(if known {
        format!(
            "the hook `{name}` is not available here, because it is running or wraps a running operation: \
             use `self` in its own methods"
        )
    } else {
        format!("this trainer has no hook `{name}`: add it with `.hook(…)`")
    })
}
