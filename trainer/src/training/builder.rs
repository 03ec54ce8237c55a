//! [`TrainerBuilder`]: collects the task, optimizers, hooks and settings of a trainer.

use std::any::type_name;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

use tch::nn;

use super::device::check_available;
use super::erased::Erased;
use super::layout;
use super::live::LiveFile;
use super::modules;
use super::ranks;
use super::run_folder::check_hyperparameters;
use super::tape::{Recording, Tape};
use super::task::Task;
use super::trainer::Trainer;
use crate::checkpoint::Resume;
use crate::distributed::Share;
use crate::distributed::World;
use crate::error::{BuildError, Error, Result};
use crate::hook::check;
use crate::hook::discovery::Discover;
use crate::hook::instance::TASK;
use crate::hook::read::TaskTypes;
use crate::hook::selection::HookSelection;
use crate::lifecycle::at;
use crate::log::history::wrong_goal;
use crate::log::{Goal, Log, own_goal};
use crate::model::added::{Added, NewVariables};
use crate::model::vars::Vars;
use crate::moment::{AtPoint, Moment};
use crate::optim::{Optimizer, Optimizers};
use crate::run::Instance;
use crate::run::Table;
use crate::run::Values;
use crate::run::dispatch::added::{IntoHook, linked};
use crate::run::dispatch::registration::{Hooks, hooks_of};
use crate::run::dispatch::{ClosureHook, HookOptions, ObserverClosure};
use crate::run::dispatch::{guard, observers, of_task_variables};
use crate::run::layers::{Layer, Layers, SHIMS};
use crate::run::recorder::ProfileSettings;
use crate::run::settings::Settings;
use crate::run::{CheckpointState, FolderState, Model, Modules, NewRun, Run, RunHooks, StepData, recorded};
use crate::run::{Hook, HookDef};
use crate::values::hyperparameter::Given;
use crate::values::paths::public_path;

/// Builds a [`Trainer`]. Returned by [`Trainer::builder`].
///
/// ```
/// use std::time::Duration;
/// use trainer::hooks::{EarlyStopping, Progress};
/// use trainer::prelude::*;
///
/// # let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
/// # let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let trainer = Trainer::builder(task)
///     .optimizer(AdamW::new(1e-3))
///     .epochs(100)
///     .max_time(Duration::from_secs(3600))
///     .clip_grad_norm(1.0)
///     .seed(42)
///     .hook(EarlyStopping::new("valid/loss", Goal::Minimize).patience(5))
///     .hook(Progress::new())
///     .build()?;
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "TrainingArguments")]
#[must_use = "call `.build()` to get a trainer"]
pub struct TrainerBuilder<T> {
    task: T,
    optimizers: Optimizers,
    pub(crate) settings: Settings,
    pub(super) rank: Option<u32>,
    pub(super) world: Option<World>,
    pub(crate) resume: Option<Resume>,
    pub(super) profile: ProfileSettings,
    pub(super) hooks: HookSelection<Run>,
    /// Whether to check that hooks that only observe change nothing. `None` if the program does not
    /// set this.
    pub(crate) checks_observers: Option<bool>,
    pub(crate) tape: Option<Tape>,
    layers: Vec<Arc<dyn Layer>>,
    pub(crate) folder: FolderState,
    pub(crate) hyperparameters: Vec<Given>,
}

impl<T: Task> TrainerBuilder<T> {
    pub(super) fn new(task: T) -> Self {
        TrainerBuilder {
            task,
            optimizers: Optimizers::default(),
            settings: Settings::default(),
            rank: None,
            world: None,
            resume: None,
            profile: ProfileSettings::default(),
            hooks: HookSelection::for_task::<T>(),
            checks_observers: None,
            tape: None,
            layers: Vec::new(),
            folder: FolderState::default(),
            hyperparameters: Vec::new(),
        }
    }
}

/// # Optimizers
///
/// A learning-rate schedule is a hook:
/// [`HyperparameterSchedule`](crate::hooks::HyperparameterSchedule).
impl<T: Task> TrainerBuilder<T> {
    /// Sets the optimizer of the whole model. If parts of it have their own, use
    /// [`optimizer_of`](TrainerBuilder::optimizer_of).
    #[doc(alias = "configure_optimizers")]
    pub fn optimizer(self, optimizer: impl Optimizer + 'static) -> Self {
        self.optimizer_of("", optimizer)
    }

    /// Sets the optimizer of one part of the model: the parameters whose path begins with `part`,
    /// such as `generator.fc1.weight` for `generator`.
    ///
    /// The task's [`train_step`](Task::train_step) selects the part for each backward pass with
    /// [`backward_of`](crate::TrainStep::backward_of).
    pub fn optimizer_of(mut self, part: impl Into<String>, optimizer: impl Optimizer + 'static) -> Self {
        self.optimizers.insert(part.into(), Box::new(optimizer));
        self
    }
}

/// # Hooks
impl<T: Task> TrainerBuilder<T> {
    /// Adds a stateful hook: a value whose type has a `#[hook] impl` block, or a
    /// [metric](crate::metrics::Metric).
    #[doc(alias("callbacks", "add_callback"))]
    pub fn hook<K>(mut self, hook: impl IntoHook<K>) -> Self {
        self.hooks.add(hook.into_hook());
        self
    }

    /// Adds a closure as a hook at the point `P`. Use this for a hook that captures values of the
    /// program or belongs to one trainer. A `#[hook]` function is found in every program that links
    /// it, and a hook with a state or several points is a type, added by
    /// [`hook`](TrainerBuilder::hook).
    ///
    /// The first argument is the hook's name, or [`HookOptions`] with the keys of `#[hook]`. The
    /// closure returns `()` or [`Result<()>`](Result). `describe_hooks` shows the hook with the
    /// source location of this call. With [`Main<P>`](crate::Main) instead of `P`, the hook runs on
    /// rank 0 only.
    ///
    /// ```
    /// use trainer::TrainerBuilder;
    /// use trainer::prelude::*;
    ///
    /// fn watch(builder: TrainerBuilder<impl Task>) -> TrainerBuilder<impl Task> {
    ///     builder
    ///         .on::<AfterEpoch>("print", |cx| println!("{} epochs", cx.counters().epoch + 1))
    ///         .on::<AfterBackward>(HookOptions::named("norm").ord(10).every(100), |cx| {
    ///             let norm = cx.grad("fc1.weight")?.norm();
    ///             cx.log("norm", norm);
    ///             Ok(())
    ///         })
    /// }
    /// ```
    #[track_caller]
    pub fn on<P: AtPoint>(mut self, options: impl Into<HookOptions>, closure: impl ClosureHook<P>) -> Self {
        self.hooks.add_closure(options.into(), closure, Location::caller());
        self
    }

    /// Adds a closure that only [observes](crate::Cx#observers) at the point `P`, like
    /// [`on`](Self::on). Use this whenever the closure changes nothing: a resume then need not have
    /// it, and ranks need not agree about it.
    ///
    /// ```
    /// use trainer::TrainerBuilder;
    /// use trainer::prelude::*;
    ///
    /// fn watch(builder: TrainerBuilder<impl Task>) -> TrainerBuilder<impl Task> {
    ///     builder.observe::<AfterEpoch>("print", |cx| println!("{:?}", cx.metrics()))
    /// }
    /// ```
    #[track_caller]
    pub fn observe<P: AtPoint>(
        mut self,
        options: impl Into<HookOptions>,
        closure: impl ObserverClosure<P>,
    ) -> Self {
        self.hooks.add_observer(options.into(), closure, Location::caller());
        self
    }

    /// Excludes hooks by the path that [`describe_hooks`](Trainer::describe_hooks) shows: a single
    /// function such as `my_crate::my_hook`, all hooks of a type, or one method of a type. If a
    /// program links several versions of a crate, the path can name one of them:
    /// `my_crate@1.2.0::my_hook`.
    pub fn without(mut self, path: impl Into<String>) -> Self {
        self.hooks.without.push(path.into());
        self
    }

    /// Sets which of the hooks that are linked into the program are used. Defaults to all.
    pub fn discover(mut self, discover: Discover) -> Self {
        self.hooks.discover = discover;
        self
    }

    /// Makes [`build`](TrainerBuilder::build) return an error if no hook of this library crate is
    /// linked into the program. `name@version` requires a specific version.
    pub fn require_crate(mut self, name: impl Into<String>) -> Self {
        self.hooks.required.push(name.into());
        self
    }

    /// Adds a [`Layer`], which runs around each call of a hook, an operation, a module or
    /// a loader. A layer that is added later is further inside. Without layers, they cost nothing.
    pub fn layer(mut self, layer: impl Layer) -> Self {
        self.layers.push(Arc::new(layer));
        self
    }

    /// Whether to check at run time that hooks that only [observe](crate::Cx#observers) change
    /// nothing. The check reads everything that such a hook could change, before and after each
    /// call of the hook. If the hook has changed anything, the run ends with an error that names
    /// the hook and the change. Defaults to `true` in a smoke test
    /// ([`fast_dev_run`](Self::fast_dev_run)), in a [`Harness`](crate::testing::Harness), or if the
    /// environment variable `TRAINER_CHECK` is `observers`, and otherwise to `false`.
    ///
    /// The check reads all variables, their gradients and the state of the optimizers twice per
    /// call, which takes about 0.1 s per gigabyte on a CPU. Use it for a few batches only.
    pub fn check_observers(mut self, check: bool) -> Self {
        self.checks_observers = Some(check);
        self
    }
}

impl<T: Task> TrainerBuilder<T> {
    /// Adds a single hook together with its value.
    pub(crate) fn hook_with<V: Send + 'static>(mut self, value: V, definition: HookDef) -> Self {
        self.hooks.add_value(value, definition);
        self
    }
}

/// # Hooks of a generic task
impl<T: Task + Hooks> TrainerBuilder<T> {
    /// Adds the hooks of the task's own type, `#[hook] impl<N> MyTask<N> { … }`.
    ///
    /// Only a generic type needs this: the hooks of any other task are discovered.
    pub fn task_hooks(mut self) -> Self {
        self.hooks.task_hooks = hooks_of::<T>();
        self.hooks.task_extras = T::EXTRAS;
        self.hooks.generic_task = None;
        if T::EXTRAS.variables.is_some() {
            self.hooks.mistakes.push(of_task_variables(type_name::<T>()));
        }
        self
    }
}

/// # Building the trainer
impl<T: Task> TrainerBuilder<T> {
    /// Builds the trainer: moves the task to its device, passes the parameters to the optimizers,
    /// and discovers, filters and orders the hooks.
    ///
    /// # Errors
    ///
    /// Returns an error that lists all mistakes, such as
    ///
    /// - names that match nothing;
    /// - crates that are not linked;
    /// - cyclic order constraints;
    /// - hooks that can never fire;
    /// - invalid settings.
    pub fn build(mut self) -> Result<Trainer<T>> {
        let mut mistakes = Vec::new();
        self.settings.check(&mut mistakes);
        let (rank, share) = ranks::rank(self.world.as_ref(), self.rank).unwrap_or_else(|mistake| {
            mistakes.push(mistake);
            (0, Share { rank: 0, of: 1 })
        });
        self.move_task(&mut mistakes);
        if self.settings.channels_last {
            layout::change_weights(self.task.vars());
        }
        let extras = self.hooks.task_extras;
        let (mut hooks, mut instances) = self.hooks.resolve(&self.task, linked(), share.of, &mut mistakes);
        check::check(&hooks, &TaskTypes::of::<T, T::Batch, T::Pred>(), &mut mistakes);
        let added =
            add_variables(self.task.vars(), self.settings.seed, &hooks, &mut instances, &mut mistakes);
        let may_grow = may_add_variables(&hooks);
        let store = self.task.vars();
        let vars = Vars::from_store(store).shared_with(share);
        if !may_grow {
            modules::unmatched(hooks.iter(), &vars, &mut mistakes);
        }
        let device = store.device();
        self.optimizers.bind(&vars, may_grow, &mut mistakes);
        modules::in_the_pass(device, self.optimizers.divide(), hooks.iter(), &mut mistakes);
        let recorded = recorded(&self.optimizers, &self.settings, &instances);
        check_hyperparameters(&mut self.hyperparameters, &recorded, &mut mistakes);
        let goals = goals(&instances, &mut mistakes);
        self.profile.complete(device, &mut mistakes);
        hooks.iter_mut().for_each(guard::guard);
        match observers::is_on(self.checks_observers, self.settings.is_fast_dev_run()) {
            Ok(true) => hooks.iter_mut().for_each(observers::check),
            Ok(false) => {}
            Err(mistake) => mistakes.push(mistake),
        }
        match Tape::requested() {
            Ok(requested) => self.tape = self.tape.or(requested),
            Err(mistake) => mistakes.push(mistake),
        }
        mistakes.extend(self.tape.as_ref().and_then(Tape::mistake));
        let table = Table::freeze(hooks, rank).map_err(|cycles| mistakes.extend(cycles));
        let Some(table) = table.ok().filter(|_| mistakes.is_empty()) else {
            return Err(Error::Build(Box::new(BuildError { mistakes })));
        };
        // From the outside in: the time of a call includes what the tape reads.
        let mut layers = self.profile.layers(table.hooks().len(), device);
        let records_calls = self.tape.as_ref().is_some_and(Tape::is_full);
        let has_layers = records_calls || !layers.is_empty() || !self.layers.is_empty();
        layers.extend(self.tape.map(|tape| -> Arc<dyn Layer> { Arc::new(Recording::new(tape)) }));
        layers.extend(self.layers);
        if self.folder.setting.is_some() {
            layers.push(Arc::new(LiveFile::default()));
        }
        let table = if has_layers { table.wrapped(&SHIMS) } else { table };

        let mut all = vec![Instance { extras, ..Instance::new(self.task) }];
        all.extend(instances);
        let watched = table.watched(at::after_record::index());
        let log = Log::recorded(goals, watched, self.settings.record_every().is_some());
        let mut model = Model { vars, added, values: Values::default(), device, optimizers: self.optimizers };
        model.note_values();
        model.note_masks()?;
        let run = Run::new(NewRun {
            settings: self.settings,
            rank,
            world: self.world,
            hooks: RunHooks { table, instances: all, switched_off: Vec::new() },
            model,
            step: StepData::new(Erased::<T>::boxed()),
            log,
            folder: self.folder.or_requested(),
            hyperparameters: self.hyperparameters,
            checkpoints: CheckpointState::new(self.resume),
            layers: Layers(layers),
            modules: Modules::new(may_grow),
        });
        Ok(Trainer { run, task: PhantomData })
    }

    /// Moves the task to the requested device.
    fn move_task(&mut self, mistakes: &mut Vec<String>) {
        let Some(device) = self.settings.device else { return };
        if let Err(mistake) = check_available(device) {
            return mistakes.push(format!("`.device({device:?})`: {mistake}"));
        }
        if self.task.vars().device() == device {
            return;
        }
        match self.task.vars_mut() {
            Some(store) => store.set_device(device),
            None => mistakes.push(format!(
                "`.device({device:?})`: the task's `VarStore` is on {:?} and cannot be moved, because `Task::vars_mut` returns \
                 `None`: create it on that device, or implement `Task::vars_mut`",
                self.task.vars().device()
            )),
        }
    }
}

/// Checks the settings of the hooks, lets the hooks that are in use add their variables to the
/// model, and returns the added variables.
fn add_variables(
    store: &nn::VarStore,
    seed: Option<u64>,
    hooks: &[Hook],
    instances: &mut [Instance],
    mistakes: &mut Vec<String>,
) -> Added {
    let before = Vars::from_store(store).iter().map(|var| var.name.clone()).collect();
    let model = NewVariables::new(store, seed);
    let mut is_used = vec![false; TASK + 1 + instances.len()];
    for slot in hooks.iter().filter_map(|hook| hook.slot) {
        is_used[slot as usize] = true;
    }
    for (instance, is_used) in instances.iter_mut().zip(&is_used[TASK + 1..]) {
        let invalid = instance.mistakes();
        if invalid.is_empty() && *is_used {
            mistakes.extend(instance.add_variables(&model));
        }
        mistakes.extend(invalid);
    }
    model.into_added(&before)
}

/// Returns the goals of the metrics that the hooks watch and measure. Adds a mistake for each hook
/// that watches a metric the other way round.
fn goals(instances: &[Instance], mistakes: &mut Vec<String>) -> BTreeMap<String, Goal> {
    let each: Vec<_> = instances.iter().map(|instance| (instance.type_name, instance.goals())).collect();
    let all: BTreeMap<_, _> = each.iter().flat_map(|(_, goals)| goals.iter().cloned()).collect();
    for (name, goals) in &each {
        let wrong = goals.iter().filter_map(|(metric, goal)| {
            let own = own_goal(&all, metric).filter(|own| own != goal)?;
            Some(format!("hook `{}`: {}", public_path(name), wrong_goal(metric, own)))
        });
        mistakes.extend(wrong);
    }
    all
}

/// Whether a hook could add variables to the task before training begins. The hooks of this crate,
/// such as `DataParallel`, do not.
fn may_add_variables(hooks: &[Hook]) -> bool {
    let may_add = |hook: &Hook| {
        let definition = &hook.definition;
        (definition.row)() == at::setup::index() && !definition.observes && !definition.origin.is_own()
    };
    hooks.iter().any(may_add)
}

impl<T> fmt::Debug for TrainerBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrainerBuilder").field("settings", &self.settings).finish_non_exhaustive()
    }
}
