//! Everything that a trainer is told before it is frozen.

use std::any::{TypeId, type_name};
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;

use crate::Cx;
use crate::counters::StepState;
use crate::data::Batch;
use crate::error::{BuildError, Error, Result, suggestion};
use crate::hook::definition::{Hook, HookDef, Hooks, Origin};
use crate::hook::discovery::{Discover, discover, of_generic_task, of_task};
use crate::hook::shim::{Outcome, lend, outcome};
use crate::hook::table::{Range, Table};
use crate::hook::{check, describe};
use crate::metrics::Log;
use crate::moment::{AtPoint, Moment};
use crate::next::Frame;
use crate::optim::{Optimizer, Optimizers};
use crate::phase::Phase;
use crate::run::{Instance, Requests, Run, Slot, TASK};
use crate::task::Task;
use crate::training::{Trainer, step};
use crate::vars::Vars;

/// Builds a [`Trainer`]: [`Trainer::builder`].
#[must_use = "`.build()` makes a trainer of it"]
pub struct TrainerBuilder<T> {
    task: T,
    optimizers: Optimizers,
    epochs: u64,
    rank: Option<u32>,
    instances: Vec<Instance>,
    hooks: Vec<Hook>,
    task_hooks: &'static [HookDef],
    /// Types of which there is to be one value.
    single: Vec<(TypeId, &'static str)>,
    discover: Discover,
    required: Vec<String>,
    without: Vec<String>,
}

impl<T: Task> TrainerBuilder<T> {
    pub(super) fn new(task: T) -> Self {
        TrainerBuilder {
            task,
            optimizers: Optimizers::default(),
            epochs: 1,
            rank: None,
            instances: Vec::new(),
            hooks: Vec::new(),
            task_hooks: of_task::<T>(),
            single: Vec::new(),
            discover: Discover::All,
            required: Vec::new(),
            without: Vec::new(),
        }
    }

    /// What updates the parameters.
    pub fn optimizer(self, optimizer: impl Optimizer + 'static) -> Self {
        self.optimizer_of("", optimizer)
    }

    /// What updates the parameters of one part of the model: those whose names begin with it, as
    /// `generator.fc1.weight` does with `generator`.
    ///
    /// The task says in its [`train_step`](Task::train_step) for which part the gradients are computed:
    /// [`backward_of`](crate::TrainStep::backward_of).
    pub fn optimizer_of(mut self, part: impl Into<String>, optimizer: impl Optimizer + 'static) -> Self {
        self.optimizers.insert(part.into(), Box::new(optimizer));
        self
    }

    /// The number of this process among those that train together, from 0; unless set, what the environment
    /// variable `RANK` says, else 0. Hooks with `main_only` run in the process of rank 0 alone.
    pub fn rank(mut self, rank: u32) -> Self {
        self.rank = Some(rank);
        self
    }

    /// How many epochs a call of `fit` trains; 1 unless set.
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.epochs = epochs;
        self
    }

    /// Adds a hook with a state of its own: a value whose type has a `#[hook] impl` block.
    pub fn hook<H: Hooks>(mut self, hook: H) -> Self {
        if H::SINGLE {
            self.single.push((TypeId::of::<H>(), type_name::<H>()));
        }
        let slot = Some(self.add(Instance::new(hook)));
        self.hooks.extend(H::HOOKS.iter().map(|definition| Hook { definition: definition.clone(), slot }));
        self
    }

    /// Adds a closure at a point, under a name and with an `ord` of 0.
    ///
    /// For what is known only at run time. `describe_hooks` shows it with the line of this call.
    #[track_caller]
    pub fn on<P: AtPoint>(
        self,
        name: impl Into<String>,
        closure: impl FnMut(&mut Cx<P>) + Send + 'static,
    ) -> Self {
        self.add_closure::<P, (), _>(name, 0, closure)
    }

    /// As [`on`](TrainerBuilder::on), for a closure that can fail, with an `ord`.
    #[track_caller]
    pub fn try_on<P: AtPoint, R: Outcome + 'static>(
        self,
        name: impl Into<String>,
        ord: i32,
        closure: impl FnMut(&mut Cx<P>) -> R + Send + 'static,
    ) -> Self {
        self.add_closure::<P, R, _>(name, ord, closure)
    }

    #[track_caller]
    fn add_closure<P, R, F>(mut self, name: impl Into<String>, ord: i32, closure: F) -> Self
    where
        P: AtPoint,
        R: Outcome + 'static,
        F: FnMut(&mut Cx<P>) -> R + Send + 'static,
    {
        let place = Location::caller();
        let origin = Origin {
            module: "",
            path: name.into().into(),
            method: None,
            version: None,
            file: place.file(),
            line: place.line(),
            docs: "A closure",
        };
        let slot = Some(self.add(Instance::new(closure)));
        let definition = HookDef::at::<P>(origin, TypeId::of::<F>(), ord, |run, slot| {
            lend::<F>(run, slot, |closure, run| outcome(closure(Cx::of(run))))
        });
        self.hooks.push(Hook { definition, slot });
        self
    }

    /// Which of the hooks that are linked into the program run; all unless set.
    pub fn discover(mut self, discover: Discover) -> Self {
        self.discover = discover;
        self
    }

    /// Fails at [`build`](TrainerBuilder::build) if no hook of this crate is linked into the program.
    pub fn require_crate(mut self, name: impl Into<String>) -> Self {
        self.required.push(name.into());
        self
    }

    /// Leaves out the hook of this path, `my_crate::my_hook`, or every hook of a type, or a method of it.
    pub fn without(mut self, path: impl Into<String>) -> Self {
        self.without.push(path.into());
        self
    }

    fn add(&mut self, instance: Instance) -> u32 {
        self.instances.push(instance);
        slot_after(self.instances.len() - 1)
    }

    /// Resolves discovery, order and filters, and freezes the tables.
    ///
    /// With the environment variable `TRAINER_DESCRIBE` it then prints them and ends the program: `markdown`, `tree`,
    /// `json` or `mermaid`, as [`HookTable`](crate::HookTable) has them.
    ///
    /// # Errors
    ///
    /// All mistakes at once: names that match nothing, crates that are not linked, constraints without an
    /// order, hooks that can never fire, settings that cannot work.
    pub fn build(mut self) -> Result<Trainer<T>> {
        let mut mistakes = Vec::new();
        if self.epochs == 0 {
            mistakes.push(
                "`.epochs(0)` would train nothing: ask for at least 1, or call `validate` or `test`".into(),
            );
        }
        let rank = self.rank.map_or_else(rank_of_environment, Ok).unwrap_or_else(|mistake| {
            mistakes.push(mistake);
            0
        });
        let (hooks, instances) = self.all_hooks(&mut mistakes);
        let hooks = check::checked(hooks, TypeId::of::<T>(), rank, &mut mistakes);

        let store = self.task.vars();
        let (vars, device) = (Vars::of(store), store.device());
        self.optimizers.bind(&vars, &mut mistakes);
        let table = Table::freeze(hooks).map_err(|cycles| mistakes.extend(cycles));
        let Some(table) = table.ok().filter(|_| mistakes.is_empty()) else {
            return Err(Error::Build(Box::new(BuildError { mistakes })));
        };
        describe::if_asked(&table)?;

        let mut all = vec![Instance::new(self.task)];
        all.extend(instances);
        let run = Run {
            table,
            phase: Phase::Train,
            operation: crate::lifecycle::Fit::INFO,
            step: StepState::default(),
            ordinal: 0,
            batches: None,
            epochs_begun: 0,
            epochs: 0,
            hooks: all,
            batch: Box::new(None::<T::Batch>),
            batch_type: type_name::<T::Batch>(),
            batch_text: describe_batch::<T>,
            empty_slots: step::empty_slots::<T>,
            batch_len: None,
            pred: Box::new(None::<T::Pred>),
            pred_type: type_name::<T::Pred>(),
            loss: None,
            vars,
            device,
            optimizers: self.optimizers,
            rank,
            log: Log::default(),
            loss_scale: 1.0,
            requests: Requests::default(),
            frame: Frame::default(),
            frames: 0,
            innermost: 0,
            rest: Range::default(),
            made: false,
            reaching: Vec::new(),
            passing: false,
            panicked: None,
            error: None,
        };
        Ok(Trainer { run, epochs: self.epochs, task: PhantomData })
    }

    /// The explicit hooks, the discovered ones and the task's, without those that are left out; and their values.
    fn all_hooks(&mut self, mistakes: &mut Vec<String>) -> (Vec<Hook>, Vec<Instance>) {
        let (mut hooks, mut instances) =
            (std::mem::take(&mut self.hooks), std::mem::take(&mut self.instances));
        for (nth, (id, name)) in self.single.iter().enumerate() {
            if self.single[..nth].iter().any(|(other, _)| other == id) {
                mistakes.push(format!("two hooks `{name}` were added, and one is all that there may be"));
            }
        }
        // A value that the program adds takes the place of the one that would be made.
        let explicit: Vec<TypeId> = instances.iter().map(|instance| instance.type_id).collect();
        let task = TypeId::of::<T>();
        let mut automatic: Vec<Automatic> = Vec::new();
        for (definition, block) in discover(&self.discover, &self.required, mistakes) {
            let slot = match block.and_then(|block| Some((block.id?, block.make?))) {
                None => None,
                Some((id, _)) if explicit.contains(&id) || id == task => continue,
                Some((id, make)) => Some(match automatic.iter().find(|known| known.id == id) {
                    Some(known) => known.slot,
                    None => {
                        let slot = slot_after(instances.len() + automatic.len());
                        automatic.push(Automatic { id, slot, make });
                        slot
                    }
                }),
            };
            hooks.push(Hook { definition, slot });
        }
        if self.task_hooks.is_empty()
            && let Some(path) = of_generic_task::<T>()
        {
            mistakes.push(format!(
                "the task's type `{path}` is generic, so that its hooks are not found by themselves: say `.task_hooks()`"
            ));
        }
        hooks.extend(self.task_hooks.iter().map(|it| Hook { definition: it.clone(), slot: Some(TASK_SLOT) }));
        leave_out(&mut hooks, &self.without, mistakes);
        for Automatic { slot, make, .. } in automatic {
            let used = hooks.iter().any(|hook| hook.slot == Some(slot));
            instances.push(if used { make() } else { Instance::absent() });
        }
        (hooks, instances)
    }
}

impl<T: Task + Hooks> TrainerBuilder<T> {
    /// Takes the hooks of the task's own type, `#[hook] impl<N> MyTask<N> { … }`.
    ///
    /// For a generic type only: those of any other are found by themselves.
    pub fn task_hooks(mut self) -> Self {
        self.task_hooks = T::HOOKS;
        self
    }
}

/// A value that is made because its type says `#[hook(auto)]`.
struct Automatic {
    id: TypeId,
    slot: u32,
    make: fn() -> Instance,
}

/// Where the task lies among the run's instances.
const TASK_SLOT: u32 = TASK as u32;

/// The slot of the instance after so many; the task is the first of all.
fn slot_after(instances: usize) -> u32 {
    u32::try_from(instances + 1).expect("fewer than 2³² hooks")
}

fn rank_of_environment() -> Result<u32, String> {
    match std::env::var("RANK") {
        Err(_) => Ok(0),
        Ok(rank) => rank.parse().map_err(|_| {
            format!(
                "the environment variable `RANK` is `{rank}`: expected the number of this process, from 0"
            )
        }),
    }
}

fn describe_batch<T: Task>(batch: &Slot) -> String {
    let mut text = String::new();
    if let Some(Some(batch)) = batch.downcast_ref::<Option<T::Batch>>() {
        text.push_str(" on a batch of ");
        batch.describe(&mut text);
    }
    text
}

fn leave_out(hooks: &mut Vec<Hook>, without: &[String], mistakes: &mut Vec<String>) {
    for path in without {
        let names: Vec<_> = (hooks.iter().map(|hook| &hook.definition.origin))
            .flat_map(|origin| [origin.path.to_string(), origin.name()])
            .collect();
        if !names.contains(path) {
            let is_crate = hooks.iter().any(|hook| hook.definition.origin.krate() == path);
            let similar = if is_crate {
                "; to leave out a whole crate, say `.discover(Discover::crates([…]))` with the others".into()
            } else {
                suggestion(path, names.iter().map(String::as_str))
            };
            mistakes.push(format!("`.without(\"{path}\")` matches no hook of this trainer{similar}"));
        }
        hooks.retain(|hook| {
            let origin = &hook.definition.origin;
            origin.path != *path && origin.name() != *path
        });
    }
}

impl<T> fmt::Debug for TrainerBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrainerBuilder").field("epochs", &self.epochs).finish_non_exhaustive()
    }
}
