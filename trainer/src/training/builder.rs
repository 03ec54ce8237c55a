//! Everything that a trainer is told before it is frozen.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;

use crate::Cx;
use crate::counters::StepState;
use crate::data::Batch;
use crate::error::{BuildError, Error, Result, suggestion};
use crate::hook::definition::{Hook, HookDef, Hooks, Origin, Outcome, lend, outcome};
use crate::hook::discovery::{Discover, discover};
use crate::hook::table::Table;
use crate::metrics::Log;
use crate::moment::{AtPoint, Moment};
use crate::optim::Optimizer;
use crate::phase::Phase;
use crate::run::{Instance, Requests, Run, Slot};
use crate::task::Task;
use crate::training::{Trainer, step};
use crate::vars::Vars;

/// Builds a [`Trainer`]: [`Trainer::builder`].
#[must_use = "`.build()` makes a trainer of it"]
pub struct TrainerBuilder<T> {
    task: T,
    optimizer: Option<Box<dyn Optimizer>>,
    epochs: u64,
    instances: Vec<Instance>,
    hooks: Vec<Hook>,
    discover: Discover,
    required: Vec<String>,
    without: Vec<String>,
}

impl<T: Task> TrainerBuilder<T> {
    pub(super) fn new(task: T) -> Self {
        TrainerBuilder {
            task,
            optimizer: None,
            epochs: 1,
            instances: Vec::new(),
            hooks: Vec::new(),
            discover: Discover::All,
            required: Vec::new(),
            without: Vec::new(),
        }
    }

    /// What updates the parameters.
    pub fn optimizer(mut self, optimizer: impl Optimizer + 'static) -> Self {
        self.optimizer = Some(Box::new(optimizer));
        self
    }

    /// How many epochs a call of `fit` trains; 1 unless set.
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.epochs = epochs;
        self
    }

    /// Adds a hook with a state of its own: a value whose type has a `#[hook] impl` block.
    pub fn hook<H: Hooks>(mut self, hook: H) -> Self {
        let slot = self.add(Instance::new(hook));
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
        let slot = self.add(Instance::new(closure));
        let definition = HookDef::new::<P>(origin, ord, |run, slot| {
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
        // The task is the first of the run's instances.
        u32::try_from(self.instances.len()).expect("fewer than 2³² hooks")
    }

    /// Resolves discovery, order and filters, and freezes the tables.
    ///
    /// # Errors
    ///
    /// All mistakes at once: names that match nothing, crates that are not linked, settings that
    /// cannot work.
    pub fn build(self) -> Result<Trainer<T>> {
        let mut mistakes = Vec::new();
        if self.epochs == 0 {
            mistakes.push(
                "`.epochs(0)` would train nothing: ask for at least 1, or call `validate` or `test`".into(),
            );
        }
        let mut hooks = self.hooks;
        let found = discover(&self.discover, &self.required, &mut mistakes);
        hooks.extend(found.into_iter().map(|definition| Hook { definition, slot: 0 }));
        leave_out(&mut hooks, &self.without, &mut mistakes);

        let store = self.task.vars();
        let (vars, device) = (Vars::of(store), store.device());
        let mut optimizer = self.optimizer;
        if let Some(optimizer) = &mut optimizer {
            if vars.parameters().next().is_none() {
                mistakes.push(
                    "the task's `VarStore` holds no parameter: build the network on its root, `net(&vs.root())`".into(),
                );
            } else if let Err(error) = optimizer.bind(&vars) {
                mistakes.push(error.to_string());
            }
        }
        if !mistakes.is_empty() {
            return Err(Error::Build(Box::new(BuildError { mistakes })));
        }

        let mut instances = vec![Instance::new(self.task)];
        instances.extend(self.instances);
        let run = Run {
            table: Table::freeze(hooks),
            phase: Phase::Train,
            operation: crate::lifecycle::Fit::INFO,
            step: StepState::default(),
            ordinal: 0,
            batches: None,
            epochs_begun: 0,
            epochs: 0,
            hooks: instances,
            batch: Box::new(None::<T::Batch>),
            batch_type: type_name::<T::Batch>(),
            batch_text: describe::<T>,
            empty_slots: step::empty_slots::<T>,
            batch_len: None,
            pred: Box::new(None::<T::Pred>),
            pred_type: type_name::<T::Pred>(),
            loss: None,
            vars,
            device,
            optimizer,
            log: Log::default(),
            loss_scale: 1.0,
            requests: Requests::default(),
            panicked: None,
            error: None,
        };
        Ok(Trainer { run, epochs: self.epochs, task: PhantomData })
    }
}

fn describe<T: Task>(batch: &Slot) -> String {
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
