//! What a builder adds to a trainer: values with hooks, closures, and what is linked into the
//! program.

use std::any::{TypeId, type_name};
use std::panic::Location;
use std::path::{Path, PathBuf};

use super::closure::{ClosureHook, HookOptions, ObserverClosure, call, observe};
use super::registration::{AsHook, Discovered, Extras, HookImpl, Hooks, changes, hooks_of};
use crate::hook::definition::{Origin, PointShim, crate_of};
use crate::hook::discovery::{Automatic, Linked};
use crate::hook::selection::HookSelection;
use crate::log::Goal;
use crate::model::added::NewVariables;
use crate::moment::AtPoint;
use crate::run::{HookDef, Instance, Run};
use crate::values::facts::SettingList;
use crate::values::paths::public_path;

/// A value that [`.hook(…)`](crate::TrainerBuilder::hook) accepts: a value with [`Hooks`], or a
/// [metric](crate::metrics::Metric). `Kind` distinguishes the two and is inferred.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no hooks",
    label = "has no hooks",
    note = "a type gets hooks from an `impl` block: `#[hook] impl MyHook {{ fn after_step(&mut self, cx: &mut Cx<AfterStep>) {{ … }} }}`",
    note = "a value of a generic type has hooks only if it meets the bounds of that block, and is `Send` and `'static`",
    note = "a closure is added with `.on::<AfterStep>(\"name\", |cx| …)`",
    note = "a function with `#[hook]` is discovered: every trainer has it, without `.hook(…)`"
)]
pub trait IntoHook<Kind> {
    /// The type of the converted value, which has hooks.
    type Hook: Hooks;

    /// Converts the value to one with hooks.
    fn into_hook(self) -> Self::Hook;
}

impl<H: Hooks> IntoHook<AsHook> for H {
    type Hook = H;

    fn into_hook(self) -> H {
        self
    }
}

impl Instance {
    /// The label that distinguishes the value from others of its type.
    pub(crate) fn label(&self) -> Option<String> {
        (self.extras.state?.label)(self.value.as_ref()?)
    }

    /// Returns the settings of the value: those that it lists, or else the fields that serde saves.
    pub(crate) fn settings(&self) -> SettingList {
        let (Some(value), fields) = (&self.value, self.extras.state.map(|state| state.fields)) else {
            return SettingList::new();
        };
        match (self.extras.settings, fields) {
            (Some(of), _) => (of.settings)(&**value),
            (None, Some(fields)) => fields(value),
            (None, None) => SettingList::new(),
        }
    }

    /// Returns a message for each setting of the value that is invalid.
    pub(crate) fn mistakes(&self) -> Vec<String> {
        let (Some(of), Some(value)) = (self.extras.settings, &self.value) else { return Vec::new() };
        let named = |why| format!("hook `{}`: {why}", public_path(self.type_name));
        (of.mistakes)(&**value).into_iter().map(named).collect()
    }

    /// Returns the metrics that the value watches or measures, with their goals.
    pub(crate) fn goals(&self) -> Vec<(String, Goal)> {
        let (Some(of), Some(value)) = (self.extras.settings, &self.value) else { return Vec::new() };
        (of.goals)(&**value)
    }

    /// Adds the variables of the value to the model. Returns a message if that fails.
    pub(crate) fn add_variables(&mut self, model: &NewVariables<'_>) -> Option<String> {
        let why = (self.extras.variables?.add)(&mut **self.value.as_mut()?, model).err()?;
        Some(format!("hook `{}`: {why}", public_path(self.type_name)))
    }

    /// Returns the folder to which the value writes checkpoints, if it writes any.
    pub(crate) fn checkpoints(&self, run_folder: Option<&Path>) -> Option<PathBuf> {
        (self.extras.settings?.checkpoints)(&**self.value.as_ref()?, run_folder)
    }

    /// Whether a resume ignores the value. This is the case if the value only observes and lists no
    /// settings.
    pub(crate) fn is_left_out(&self) -> bool {
        self.observes && (self.extras.settings.is_none() || self.settings().is_empty())
    }

    /// Wraps a value whose type has hook methods.
    pub(crate) fn with_hooks<H: Hooks>(value: H) -> Self {
        Instance {
            extras: H::EXTRAS,
            changes_unsaved: changes::<H>() && H::EXTRAS.state.is_none() && size_of::<H>() > 0,
            ..Instance::new(value)
        }
    }
}

/// Returns the hook block of a task type, if the type has one.
pub(crate) fn of_task<T: 'static>() -> Option<&'static HookImpl> {
    let id = Some(TypeId::of::<T>());
    inventory::iter::<HookImpl>().find(|block| block.id == id)
}

/// Returns the path of the hook block of a generic task type. `of_task` cannot find such a block.
pub(crate) fn of_generic_task<T: 'static>() -> Option<&'static str> {
    let (name, _) = std::any::type_name::<T>().split_once('<')?;
    // The block may be in a different module than the type.
    let same =
        |path: &str| crate_of(path) == crate_of(name) && path.rsplit("::").next() == name.rsplit("::").next();
    let block = inventory::iter::<HookImpl>().find(|block| block.id.is_none() && same(&block.origin.path));
    block.map(|block| &*block.origin.path)
}

/// Returns the hooks that are linked into the program and have no value or an automatic one, and
/// the origins of all blocks.
pub(crate) fn linked() -> (Vec<Linked<Run>>, impl Iterator<Item = &'static Origin>) {
    let free = inventory::iter::<Discovered>().flat_map(|discovered| discovered.0().into_hooks());
    let free = free.map(|hook| Linked { hook, auto: None });
    let of_blocks = inventory::iter::<HookImpl>().filter_map(|block| Some((block, block.make?, block.id?)));
    let of_blocks = of_blocks.flat_map(|(block, make, id)| {
        let auto = move || Automatic { id, single: block.single, make, when: block.when };
        block.hooks().into_iter().map(move |hook| Linked { hook, auto: Some(auto()) })
    });
    (free.chain(of_blocks).collect(), origins())
}

/// Returns the origins of all blocks with hooks that are linked into the program.
pub(crate) fn origins() -> impl Iterator<Item = &'static Origin> {
    inventory::iter::<HookImpl>().map(|block| &block.origin)
}

impl HookSelection<Run> {
    /// Creates a selection of every discovered hook and of the hooks of the task.
    pub(crate) fn for_task<T: 'static>() -> Self {
        let block = of_task::<T>();
        let extras = block.map_or(Extras::NONE, |block| block.extras);
        HookSelection {
            task_hooks: block.map_or_else(Vec::new, HookImpl::hooks),
            task_extras: extras,
            generic_task: of_generic_task::<T>(),
            mistakes: extras.variables.map(|_| of_task_variables(type_name::<T>())).into_iter().collect(),
            ..HookSelection::new()
        }
    }

    /// Adds a value and the hooks of its type.
    pub(crate) fn add<H: Hooks>(&mut self, value: H) {
        if let Some(of) = H::SINGLE {
            self.single.push((of, public_path(type_name::<H>()).into_owned()));
        }
        let instance = Instance::with_hooks(value);
        let label = instance.label();
        self.add_instance(instance, label.as_deref(), hooks_of::<H>());
    }

    /// Adds a closure, with the location of the call that adds it.
    pub(crate) fn add_closure<P: AtPoint, F: ClosureHook<P>>(
        &mut self,
        options: HookOptions,
        closure: F,
        place: &'static Location<'static>,
    ) {
        self.add_called::<P, F>(options, closure, call::<P, F>, false, place);
    }

    /// Adds a closure that only observes, with the location of the call that adds it.
    pub(crate) fn add_observer<P: AtPoint, F: ObserverClosure<P>>(
        &mut self,
        options: HookOptions,
        closure: F,
        place: &'static Location<'static>,
    ) {
        self.add_called::<P, F>(options, closure, observe::<P, F>, true, place);
    }

    fn add_called<P: AtPoint, F: Send + 'static>(
        &mut self,
        options: HookOptions,
        closure: F,
        call: PointShim<Run>,
        observes: bool,
        place: &'static Location<'static>,
    ) {
        let modules = options.modules();
        let hook = options.define::<P, F>(call, observes, place, &mut self.mistakes);
        self.add_instance(Instance::new(closure), None, [hook]);
        if let Some(hook) = self.hooks.last_mut() {
            hook.modules = modules;
        }
    }

    /// Adds a value and one hook that is called with it.
    pub(crate) fn add_value<V: Send + 'static>(&mut self, value: V, hook: HookDef) {
        self.add_instance(Instance::new(value), None, [hook]);
    }
}

/// Builds the error message for a task that wrongly has `variables` in its own `#[hook]` block.
pub(crate) fn of_task_variables(task: &str) -> String {
    format!(
        "the block of the task `{}` has `variables`, which is only for hooks other than the task: create the variables together with the task",
        public_path(task)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise, every hook would seem to be written by a macro.
    #[test]
    fn the_macro_and_rustc_agree_on_the_position_of_an_attribute() {
        let own: Vec<_> = origins().filter(|origin| origin.file.contains("hooks")).collect();
        assert!(own.len() > 10, "{}", own.len());
        for origin in own {
            // A macro writes the averages, each with one attribute.
            let is_in_macro = origin.file.ends_with("averaging.rs");
            assert_eq!(origin.attribute[0] != origin.attribute[1], is_in_macro, "{}", origin.path);
        }
    }
}
