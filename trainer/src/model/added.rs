//! Variables that hooks add to the model when the trainer is built.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::PoisonError;

use tch::{Tensor, nn};

use super::vars::Vars;
use crate::error::{Error, Result};
use crate::libtorch::identity;

/// Adds variables to the model when the trainer is built, before the optimizers are created.
/// Enabled by `#[hook(variables)] impl MyHook { … }`.
///
/// The variables belong to the task from then on: optimizers update them, checkpoints, averages and
/// [`save_weights`](crate::Trainer::save_weights) include them, and a resume restores them.
/// [`load_weights`](crate::Trainer::load_weights) accepts a file that contains none of them, such
/// as the weights of the model that the hook extends.
///
/// A hook can also freeze variables, with `set_requires_grad(false)`. An optimizer keeps no state
/// for a [group](crate::optim::ParamGroup) whose parameters are all frozen when the trainer is
/// built. [`hooks::Lora`](crate::hooks::Lora) both adds and freezes variables.
///
/// ```standalone_crate
/// use trainer::modules::Patterns;
/// use trainer::prelude::*;
/// use trainer::{AddVariables, NewVariables};
///
/// /// Multiplies the output of a module by a learned number, which is 1 at first.
/// struct Gain {
///     module: String,
///     gain: Option<Tensor>,
/// }
///
/// impl AddVariables for Gain {
///     fn add_variables(&mut self, model: &NewVariables<'_>) -> Result<()> {
///         let one = Tensor::ones([1], (Kind::Float, model.store().device()));
///         self.gain = Some(model.add_parameter(&format!("{}.gain", self.module), &one, 0)?);
///         Ok(())
///     }
/// }
///
/// #[hook(variables)]
/// impl Gain {
///     #[hook(of = self.module)]
///     fn after_module_forward(&mut self, cx: &mut Cx<AfterModuleForward>) -> Result<()> {
///         let gain = self.gain.as_ref().expect("it was added when the trainer was built");
///         let output = cx.output() * gain;
///         cx.set_output(output)
///     }
/// }
///
/// fn main() -> Result<()> {
///     let vs = nn::VarStore::new(Device::Cpu);
///     let net = nn::linear(vs.root() / "fc", 4, 2, Default::default()).named("fc");
///     let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
///     let gain = Gain { module: "fc".into(), gain: None };
///     let trainer = Trainer::builder(task).optimizer(Sgd::new(0.1)).hook(gain).build()?;
///     assert!(trainer.vars().get("fc.gain")?.requires_grad());
///     Ok(())
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`#[hook(variables)]` adds variables to the model, but `{Self}` does not implement `AddVariables`",
    label = "needs `trainer::AddVariables`",
    note = "implement `trainer::AddVariables` for `{Self}`, or remove `variables`"
)]
pub trait AddVariables {
    /// Adds the variables. The model is already on its device. Hooks are called in the order in
    /// which they were added.
    ///
    /// # Errors
    ///
    /// Returns an error if the hook cannot extend this model;
    /// [`build`](crate::TrainerBuilder::build) returns it with the name of the hook.
    fn add_variables(&mut self, model: &NewVariables<'_>) -> Result<()>;
}

/// The variables of a model whose trainer is being built: see [`AddVariables`].
pub struct NewVariables<'a> {
    store: &'a nn::VarStore,
    seed: Option<u64>,
    added: RefCell<Added>,
}

/// The variables that hooks have added to a model.
#[derive(Debug, Default)]
pub(crate) struct Added {
    /// The names of the variables that hooks created.
    pub(crate) created: BTreeSet<String>,
    /// The names of the model's own variables whose values hooks set.
    pub(crate) set: BTreeSet<String>,
}

impl<'a> NewVariables<'a> {
    pub(crate) fn new(store: &'a nn::VarStore, seed: Option<u64>) -> Self {
        NewVariables { store, seed, added: RefCell::default() }
    }

    /// Returns the variables that hooks have added or set. `before` contains the names of all
    /// variables that existed before the hooks were called.
    pub(crate) fn into_added(self, before: &BTreeSet<String>) -> Added {
        let vars = self.vars();
        let names = vars.iter().map(|var| &var.name);
        let created = names.filter(|name| !before.contains(*name)).cloned().collect();
        Added { created, ..self.added.into_inner() }
    }

    /// The task's `VarStore`, including the variables that earlier hooks have added.
    #[must_use]
    pub fn store(&self) -> &nn::VarStore {
        self.store
    }

    /// The variables by name, including those that earlier hooks have added.
    #[must_use]
    pub fn vars(&self) -> Vars {
        Vars::from_store(self.store)
    }

    /// The [seed](crate::TrainerBuilder::seed) of the run, for initial values; `None` if the
    /// program sets no seed. libtorch's generator has not been seeded with it yet.
    #[must_use]
    pub fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// Adds a parameter that is initialized with a copy of `value`, and returns it. The name may
    /// contain dots, as in `encoder.fc.gain`. `group` is a group number, as in
    /// `nn::Path::set_group`: optimizers keep parameters with different numbers in separate groups.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - the model has a variable of this name;
    /// - the value is not of a floating-point dtype;
    /// - libtorch fails.
    pub fn add_parameter(&self, name: &str, value: &Tensor, group: usize) -> Result<Tensor> {
        if self.vars().iter().any(|var| var.name == name) {
            return Err(Error::usage(format!(
                "the model already has a variable `{name}`: choose another name"
            )));
        }
        let (path, last) = match name.rsplit_once('.') {
            Some((path, last)) => (path.split('.').fold(self.store.root(), |path, part| path / part), last),
            None => (self.store.root(), name),
        };
        let value = value.f_detach()?.f_to_device(self.store.device())?.copy();
        Ok(path.set_group(group).add(last, value.f_set_requires_grad(true)?, true))
    }

    /// Sets a variable of the model to a value that belongs with the added variables, such as the
    /// weight of a head that was trained and saved together with them.
    /// [`load_weights`](crate::Trainer::load_weights) keeps this value if the file contains none of
    /// the variables that hooks add.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - the model has no variable of this name;
    /// - the variable has a different shape;
    /// - libtorch fails.
    pub fn set(&self, name: &str, value: &Tensor) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        let mut own = self.vars().get(name)?;
        if own.size() != value.size() {
            return Err(Error::usage(format!(
                "`{name}` has the shape {:?} in the model, but its new value has {:?}",
                own.size(),
                value.size()
            )));
        }
        own.f_copy_(value)?;
        self.added.borrow_mut().set.insert(name.to_owned());
        Ok(())
    }

    /// Moves a parameter of the model into a different group.
    ///
    /// # Errors
    ///
    /// Returns an error if the model has no parameter of this name.
    pub fn set_group(&self, name: &str, group: usize) -> Result<()> {
        let tensor = self.vars().get(name)?;
        let mut variables = self.store.variables_.lock().unwrap_or_else(PoisonError::into_inner);
        let mut own = variables.trainable_variables.iter_mut();
        match own.find(|var| identity(&var.tensor) == identity(&tensor)) {
            Some(var) => var.group = group,
            None => {
                return Err(Error::usage(format!("`{name}` is a buffer, and only parameters have a group")));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for NewVariables<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewVariables").field("seed", &self.seed).finish_non_exhaustive()
    }
}

/// Type-erased access to the [`AddVariables`] implementation of a hook value.
#[derive(Clone, Copy, Debug)]
pub struct VariablesOf {
    pub(crate) add: fn(&mut (dyn Any + Send), &NewVariables<'_>) -> Result<()>,
}

impl VariablesOf {
    /// Provides access to the implementation of the type `H`.
    #[must_use]
    pub const fn of<H: AddVariables + 'static>() -> Self {
        VariablesOf {
            add: |value, model| value.downcast_mut::<H>().map_or(Ok(()), |hook| hook.add_variables(model)),
        }
    }
}
