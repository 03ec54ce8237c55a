//! What `#[hook]` and the builder add to the hook engine for a trainer: the types of
//! [`hook`](crate::hook) with [`Run`] as the state of the loop.

use std::any::{TypeId, type_name};
use std::borrow::Cow;
use std::marker::PhantomData;
use std::panic::Location;
use std::path::{Path, PathBuf};

use super::closure::{ClosureHook, HookOptions, ObserverClosure, call, observe};
use crate::checkpoint::{Saved, StateOf};
use crate::error::Result;
use crate::hook::constraint::OrderConstraint;
use crate::hook::constraint::OrderTarget;
use crate::hook::definition::{AroundShim, HookResult, Origin, PointShim, crate_of};
use crate::hook::discovery::{AutoWhen, Automatic, Linked};
use crate::hook::read::Read;
use crate::hook::selected::{AsInterval, Selected, SelectedOf};
use crate::hook::selection::HookSelection;
use crate::hook::set::{HookSet, SetRef};
use crate::lifecycle::{ModuleBegun, ModuleKept, ModuleWithin};
use crate::model::added::{NewVariables, VariablesOf};
use crate::modules::ModulePattern;
use crate::moment::{AtOperation, AtPoint, Counted, Moment, ReachedIn};
use crate::phase::PhaseMarker;
use crate::run::{HookDef, Instance, Rest, Run, Shim};
use crate::values::facts::{SettingList, SettingsOf};
use crate::values::paths::public_path;

/// The definitions of the hooks of a type, in source order.
pub type Definitions = Vec<HookDef>;

/// A builder of the definition of a hook at the moment `At`.
#[must_use]
pub struct Definition<At> {
    hook: HookDef,
    at: PhantomData<fn() -> At>,
}

impl<At: Moment> Definition<At> {
    /// Begins the definition of a hook at a point.
    pub(crate) fn at(origin: Origin, id: TypeId, ord: i32, call: PointShim<Run>) -> Self
    where
        At: AtPoint,
    {
        Definition::new(origin, id, ord, Shim::Point(call))
    }

    /// Begins the definition of a hook around an operation.
    pub(crate) fn around(origin: Origin, id: TypeId, ord: i32, call: AroundShim<Run>) -> Self
    where
        At: AtOperation,
    {
        Definition::new(origin, id, ord, Shim::Around(call))
    }

    fn new(mut origin: Origin, id: TypeId, ord: i32, call: Shim) -> Self {
        if origin.is_own() {
            origin.path = Cow::Owned(public_path(&origin.path).into_owned());
        }
        // The values of this crate's generic types differ in their labels.
        if let Some(name) = origin.of_type.filter(|_| !origin.is_own())
            && let Some((_, arguments)) = name().split_once('<')
        {
            origin.path = Cow::Owned(format!("{}<{}", origin.path, public_path(arguments)));
        }
        Definition { hook: HookDef::new::<At>(origin, id, ord, call), at: PhantomData }
    }
}

// There are no bounds on the moment, so that a mistake in it is reported only once.
impl<At> Definition<At> {
    /// Limits the hook to the phase `Ph`, which must reach the hook's moment. Each further call
    /// adds a phase.
    pub fn only<Ph: PhaseMarker>(mut self) -> Self
    where
        At: ReachedIn<Ph>,
    {
        self.hook.only = self.hook.only.with(Ph::PHASE);
        self
    }

    /// Runs the hook only every `n`-th time; the shim checks this with `is_due`.
    pub fn every(mut self, n: &impl AsInterval) -> Self
    where
        At: Counted,
    {
        self.hook.every = n.interval();
        self
    }

    /// Records the path of the function given as `when`, for `describe_hooks`. The shim calls the
    /// function itself.
    pub fn when(mut self, path: &'static str) -> Self {
        self.hook.when = Some(path);
        self
    }

    /// Limits the hook to the modules whose names match one of these patterns.
    pub fn of(mut self, patterns: &'static [ModulePattern]) -> Self
    where
        At: ModuleWithin + ModuleBegun + ModuleKept,
    {
        self.hook.of = patterns;
        self
    }

    /// Sets the function that reads the modules, the interval or the phases of the hook from its
    /// value.
    pub fn selected(mut self, by_value: SelectedOf) -> Self {
        self.hook.selected = Some(by_value);
        self
    }

    /// Marks the hook as one that takes `&Cx`.
    pub fn observes(mut self) -> Self {
        self.hook.observes = true;
        self
    }

    /// Marks the hook as one that writes something that outlives the process.
    pub fn writes(mut self) -> Self {
        self.hook.writes = true;
        self
    }

    /// Marks the hook as one whose failure is only a warning.
    pub fn may_fail(mut self) -> Self {
        self.hook.may_fail = true;
        self
    }

    /// Sets whether the hook runs in trials.
    pub fn trial(mut self, runs: bool) -> Self {
        self.hook.trial = Some(runs);
        self
    }

    /// Sets the calls such as `cx.batch::<MyBatch>()` that the hook makes every time it runs.
    pub fn reads(mut self, reads: &'static [Read]) -> Self {
        self.hook.reads = reads;
        self
    }

    /// Adds the hook to these sets.
    pub fn sets(mut self, sets: &'static [SetRef]) -> Self {
        self.hook.sets = Cow::Borrowed(sets);
        self
    }

    /// Sets the order constraints.
    pub fn constraints(mut self, constraints: &'static [OrderConstraint]) -> Self {
        self.hook.constraints = constraints;
        self
    }

    /// Returns the definition.
    #[must_use]
    pub fn done(self) -> HookDef {
        self.hook
    }
}

/// A type with hooks. Each block `#[hook] impl MyType { … }` implements it with its own `Block`
/// type, and the block without the key `more` stands for the hook type itself: `Hooks<()>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no hooks",
    label = "has no hooks",
    note = "a type gets hooks from an `impl` block: `#[hook] impl MyHook {{ fn after_step(&mut self, cx: &mut Cx<AfterStep>) {{ … }} }}`",
    note = "a value of a generic type has hooks only if it meets the bounds of that block, and is `Send` and `'static`",
    note = "a closure is added with `.on::<AfterStep>(\"name\", |cx| …)`",
    note = "a function with `#[hook]` is discovered: every trainer has it, without `.hook(…)`"
)]
pub trait Hooks<Block = ()>: Send + 'static {
    /// Returns the hooks of the block, in source order.
    #[doc(hidden)]
    fn __hooks() -> Definitions;
    /// The type that identifies a group of hook types. A trainer accepts at most one value from the
    /// whole group. For `#[hook(single)]`, this is the hook type itself; for
    /// `#[hook(single = Other)]`, it is `Other`.
    #[doc(hidden)]
    const SINGLE: Option<TypeId> = None;
    /// Whether a hook takes `&mut self`, so that the fields of a value may change.
    #[doc(hidden)]
    const CHANGES: bool = false;
    /// The state, the settings and the variables of a value.
    #[doc(hidden)]
    const EXTRAS: Extras = Extras::NONE;
    /// Returns the state of the field in `#[hook(state = self.field)]`.
    #[doc(hidden)]
    fn __save(&self) -> Result<Saved> {
        unreachable!()
    }
    /// Restores the state of the field in `#[hook(state = self.field)]`.
    #[doc(hidden)]
    fn __load(&mut self, _: &Saved) -> Result<()> {
        unreachable!()
    }
    /// Whether a roll-back restores the state of the field in `#[hook(state = self.field)]`.
    #[doc(hidden)]
    fn __rolls_back(&self) -> bool {
        unreachable!()
    }
    /// Returns the modules, interval and phases that the value selects for its hook `NTH`, in
    /// source order.
    #[doc(hidden)]
    fn __selected<const NTH: usize>(&self) -> Selected {
        Selected::all()
    }
    /// Calls the hook with this index in source order, if it is at a point.
    #[doc(hidden)]
    fn __call<const NTH: usize>(&mut self, _: &mut Run) -> HookResult {
        unreachable!()
    }
    /// Calls the hook with this index in source order, if it is around an operation.
    #[doc(hidden)]
    fn __call_around<const NTH: usize>(&mut self, _: &mut Run, _: Rest<'_>) -> HookResult {
        unreachable!()
    }
}

/// A type with a block without the key `more`, whose type is `Block`. rustc reports the name of
/// this trait if a type has two such blocks.
#[doc(hidden)]
pub trait FurtherBlocksNeedHookMore: Hooks<<Self as FurtherBlocksNeedHookMore>::Block> {
    type Block;
}

#[diagnostic::do_not_recommend]
impl<H: FurtherBlocksNeedHookMore> Hooks for H {
    const SINGLE: Option<TypeId> = <H as Hooks<H::Block>>::SINGLE;
    const EXTRAS: Extras = <H as Hooks<H::Block>>::EXTRAS;
    const CHANGES: bool = <H as Hooks<H::Block>>::CHANGES;

    fn __hooks() -> Definitions {
        <H as Hooks<H::Block>>::__hooks()
    }
}

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

/// Marks a value that implements [`Hooks`] itself.
#[derive(Debug)]
pub enum AsHook {}

impl<H: Hooks> IntoHook<AsHook> for H {
    type Hook = H;

    fn into_hook(self) -> H {
        self
    }
}

/// A type that a constraint can name. `Kind` distinguishes hook types from sets and is inferred.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a hook type nor a set of hooks",
    label = "has no hooks",
    note = "`before` and `after` take the path of a function with `#[hook]`, of a type with a `#[hook] impl` block, or of a `HookSet`"
)]
pub trait NamesHooks<Kind>: 'static {
    /// Whether the type is a set.
    const IS_SET: bool;
}

#[diagnostic::do_not_recommend]
impl<H: Hooks> NamesHooks<AsHook> for H {
    const IS_SET: bool = false;
}

/// Marks a type as a set of hooks.
#[derive(Debug)]
pub enum AsSet {}

#[diagnostic::do_not_recommend]
impl<S: HookSet> NamesHooks<AsSet> for S {
    const IS_SET: bool = true;
}

/// Returns the target of a constraint that names a type.
#[must_use]
pub const fn target_type<T: NamesHooks<Kind>, Kind>() -> OrderTarget {
    OrderTarget { id: TypeId::of::<T>(), is_set: T::IS_SET }
}

/// What a value with hooks has in the trainer besides its hooks.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct Extras {
    /// The functions that save and load its state in checkpoints: `#[hook(state)]`.
    pub(crate) state: Option<StateOf>,
    /// The function that returns its settings: `#[hook(settings)]`.
    pub(crate) settings: Option<SettingsOf>,
    /// The function that adds its variables to the model: `#[hook(variables)]`.
    pub(crate) variables: Option<VariablesOf>,
}

impl Extras {
    /// Returns nothing besides the hooks.
    pub const NONE: Extras = Extras { state: None, settings: None, variables: None };

    /// Adds the functions that save and load a state.
    pub const fn state(mut self, state: StateOf) -> Self {
        self.state = Some(state);
        self
    }

    /// Adds the function that returns the settings.
    pub const fn settings(mut self, settings: SettingsOf) -> Self {
        self.settings = Some(settings);
        self
    }

    /// Adds the function that adds variables.
    pub const fn variables(mut self, variables: VariablesOf) -> Self {
        self.variables = Some(variables);
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
        let name = public_path(self.type_name);
        (of.mistakes)(&**value).into_iter().map(|why| format!("hook `{name}`: {why}")).collect()
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
}

/// The registration of a free function with `#[hook]`.
pub struct Discovered(pub fn() -> HookDef);

inventory::collect!(Discovered);

/// The registration of an `impl` block with `#[hook]`.
pub struct HookImpl {
    /// The origin of the block. Its path is the path of the type, without generic parameters.
    pub(crate) origin: Origin,
    /// The ID of the type, or `None` if the type is generic.
    pub(crate) id: Option<TypeId>,
    pub(crate) hooks: fn() -> Definitions,
    /// The function that creates a value for a trainer, if the block has `auto`.
    pub(crate) make: Option<fn() -> Instance>,
    /// When a trainer creates a value with `make`.
    when: AutoWhen,
    /// The type that identifies a group of hook types. A trainer accepts at most one value from the
    /// whole group.
    pub(crate) single: Option<TypeId>,
    pub(crate) extras: Extras,
}

inventory::collect!(HookImpl);

impl HookImpl {
    /// Creates the registration for a block of a generic type. Its hooks are only known once the
    /// type arguments are.
    #[must_use]
    pub const fn generic(origin: Origin) -> Self {
        HookImpl {
            origin,
            id: None,
            hooks: Definitions::new,
            make: None,
            when: AutoWhen::Always,
            single: None,
            extras: Extras::NONE,
        }
    }

    /// Creates the registration for a block of a task type, or for a block of a type whose values
    /// are added with `.hook(…)`.
    #[must_use]
    pub const fn new<H: Hooks>(origin: Origin) -> Self {
        HookImpl {
            origin,
            id: Some(TypeId::of::<H>()),
            hooks: hooks_of::<H>,
            make: None,
            when: AutoWhen::Always,
            single: H::SINGLE,
            extras: H::EXTRAS,
        }
    }

    /// Creates the registration of a block with `auto`.
    #[must_use]
    pub const fn auto<H: Auto>(origin: Origin, when: AutoWhen) -> Self {
        let mut block = HookImpl::new::<H>(origin);
        block.make = Some(|| Instance::with_hooks(H::default()));
        block.when = when;
        block
    }
}

/// The registration of an additional `impl` block of a hook type: `#[hook(more)]`.
pub struct MoreHooks {
    id: TypeId,
    hooks: fn() -> Definitions,
    changes: bool,
}

inventory::collect!(MoreHooks);

impl MoreHooks {
    /// Creates the registration.
    #[must_use]
    pub const fn new<H: HasHooks + Hooks<Block>, Block>() -> Self {
        MoreHooks {
            id: TypeId::of::<H>(),
            hooks: <H as Hooks<Block>>::__hooks,
            changes: <H as Hooks<Block>>::CHANGES,
        }
    }
}

impl StateOf {
    /// Creates the functions that save and load the state of a value of type `H`. The state is that
    /// of one field of the value.
    #[must_use]
    pub const fn of_field<H: Hooks<Block>, Block>() -> Self {
        StateOf {
            name: type_name::<H>,
            save: |slot| slot.downcast_ref::<H>().map_or_else(|| Ok(Saved::new()), H::__save),
            load: |slot, saved| slot.downcast_mut::<H>().map_or(Ok(()), |value| value.__load(saved)),
            rolls_back: |slot| slot.downcast_ref::<H>().is_some_and(H::__rolls_back),
            label: |_| None,
            fields: |_| SettingList::new(),
        }
    }
}

/// A type that has a block with `#[hook]`. Only such a type can have a block with `#[hook(more)]`.
#[diagnostic::on_unimplemented(
    message = "`#[hook(more)]` marks an additional block of a type with hooks, but `{Self}` has no other block with `#[hook]`",
    label = "remove `more`"
)]
pub trait HasHooks {}

#[diagnostic::do_not_recommend]
impl<H: FurtherBlocksNeedHookMore> HasHooks for H {}

/// Returns the hooks of a type: those of its first block, then those of its additional blocks.
pub(crate) fn hooks_of<H: Hooks>() -> Definitions {
    let mut hooks = H::__hooks();
    let further = inventory::iter::<MoreHooks>().filter(|more| more.id == TypeId::of::<H>());
    let mut more: Definitions = further.flat_map(|more| (more.hooks)()).collect();
    // `inventory` does not define an order.
    more.sort_by(|one, other| one.origin.rank().cmp(&other.origin.rank()));
    // An additional block may be in a different module, but the type has only one path.
    if let Some(path) = hooks.first().map(|first| first.origin.path.clone()) {
        more.iter_mut().for_each(|hook| hook.origin.path.clone_from(&path));
    }
    hooks.extend(more);
    hooks
}

impl Instance {
    /// Wraps a value whose type has hook methods.
    pub(crate) fn with_hooks<H: Hooks>(value: H) -> Self {
        Instance {
            extras: H::EXTRAS,
            changes_unsaved: changes::<H>() && H::EXTRAS.state.is_none() && size_of::<H>() > 0,
            ..Instance::new(value)
        }
    }
}

/// Whether a hook in any block of the type takes `&mut self`.
fn changes<H: Hooks>() -> bool {
    let mut more = inventory::iter::<MoreHooks>();
    H::CHANGES || more.any(|more| more.id == TypeId::of::<H>() && more.changes)
}

/// A hook type whose values a trainer can create.
#[diagnostic::on_unimplemented(
    message = "`#[hook(auto)]` creates a value with `Default`, which `{Self}` does not implement",
    label = "needs `Default`",
    note = "derive or implement `Default`, or remove `auto` and add a value with `.hook(…)`"
)]
pub trait Auto: Hooks + Default {}

#[diagnostic::do_not_recommend]
impl<H: Hooks + Default> Auto for H {}

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
    let free = inventory::iter::<Discovered>().map(|discovered| Linked { hook: discovered.0(), auto: None });
    let of_blocks = inventory::iter::<HookImpl>().filter_map(|block| Some((block, block.make?, block.id?)));
    let of_blocks = of_blocks.flat_map(|(block, make, id)| {
        let auto = move || Automatic { id, single: block.single, make, when: block.when };
        (block.hooks)().into_iter().map(move |hook| Linked { hook, auto: Some(auto()) })
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
            task_hooks: block.map_or_else(Definitions::new, |block| (block.hooks)()),
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
