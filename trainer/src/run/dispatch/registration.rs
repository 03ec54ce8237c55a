//! What `#[hook]` expands to: the definitions of hooks, and their registration, for
//! [`Run`] as the state of the loop.

use std::any::{TypeId, type_name};
use std::borrow::Cow;
use std::marker::PhantomData;

use crate::checkpoint::{Saved, StateOf};
use crate::error::Result;
use crate::hook::constraint::OrderConstraint;
use crate::hook::constraint::OrderTarget;
use crate::hook::definition::{HookResult, Origin};
use crate::hook::discovery::AutoWhen;
use crate::hook::read::Read;
use crate::hook::selected::{AsInterval, Selected, SelectedOf};
use crate::hook::set::{HookSet, SetRef};
use crate::lifecycle::{ModuleBegun, ModuleKept, ModuleWithin};
use crate::model::added::VariablesOf;
use crate::modules::ModulePattern;
use crate::moment::{Counted, Moment, ReachedIn};
use crate::phase::PhaseMarker;
use crate::run::{HookDef, Instance, Rest, Run, Shim};
use crate::values::facts::{SettingList, SettingsOf};
use crate::values::paths::public_path;

/// The definition of the hook of a function, or of the hooks of a block in source order.
#[must_use]
pub struct Definitions {
    /// The origin of the block, or of the function, whose path is still empty.
    origin: Origin,
    /// The type of the block or of the function.
    id: TypeId,
    hooks: Vec<HookDef>,
}

// The crate of a user compiles generic code again for each of its hooks, hook types or moments, so
// that the generic functions here only pass on what they know about a type.
impl Definitions {
    /// Begins the definition of a function.
    pub fn of_function<F: 'static>(origin: Origin, _: &F) -> Self {
        Definitions::new(origin, TypeId::of::<F>())
    }

    /// Begins the definitions of a block.
    pub fn of_block<H: 'static>(origin: Origin) -> Self {
        Definitions::new(origin, TypeId::of::<H>())
    }

    /// Begins the definitions of a block of a generic type.
    pub fn of_generic_block<H: 'static>(mut origin: Origin) -> Self {
        origin.of_type = Some(type_name::<H>);
        Definitions::new(origin, TypeId::of::<H>())
    }

    fn new(mut origin: Origin, id: TypeId) -> Self {
        // The values of this crate's generic types differ in their labels.
        if let Some(name) = origin.of_type.filter(|_| !origin.is_own())
            && let Some((_, arguments)) = name().split_once('<')
        {
            origin.path = Cow::Owned(format!("{}<{}", origin.path, public_path(arguments)));
        }
        Definitions { origin, id, hooks: Vec::new() }
    }

    /// Adds a hook at the moment `At`, with the name of its function or method, where the name is
    /// written, and the first paragraph of its doc comment.
    pub(crate) fn add<At: Moment>(
        &mut self,
        name: &'static str,
        (line, column): (u32, u32),
        docs: &'static str,
        call: Shim,
    ) -> Definition<'_, At> {
        let origin = self.origin.clone().written(line, column, docs);
        Definition { hook: self.push(name, HookDef::new::<At>(origin, self.id, 0, call)), at: PhantomData }
    }

    fn push(&mut self, name: &'static str, mut hook: HookDef) -> &mut HookDef {
        let origin = &mut hook.origin;
        if origin.path.is_empty() {
            origin.path = Cow::Owned(format!("{}::{name}", origin.module));
        } else {
            origin.method = Some(name);
        }
        if origin.is_own() {
            origin.path = Cow::Owned(public_path(&origin.path).into_owned());
        }
        self.hooks.push(hook);
        let last = self.hooks.len() - 1;
        &mut self.hooks[last]
    }

    /// Returns the definitions.
    pub(crate) fn into_hooks(self) -> Vec<HookDef> {
        self.hooks
    }
}

/// The definition of a hook at the moment `At`, whose methods set what the keys of `#[hook]` say.
pub struct Definition<'a, At> {
    hook: &'a mut HookDef,
    at: PhantomData<fn() -> At>,
}

// There are no bounds on the moment, so that a mistake in it is reported only once.
impl<At> Definition<'_, At> {
    /// Sets the order among the hooks of the moment.
    pub fn ord(self, ord: i32) -> Self {
        self.hook.ord = ord;
        self
    }

    /// Limits the hook to the phase `Ph`, which must reach the hook's moment. Each further call
    /// adds a phase.
    pub fn only<Ph: PhaseMarker>(self) -> Self
    where
        At: ReachedIn<Ph>,
    {
        self.hook.only = self.hook.only.with(Ph::PHASE);
        self
    }

    /// Runs the hook only every `n`-th time; the shim checks this with `is_due`.
    pub fn every(self, n: &impl AsInterval) -> Self
    where
        At: Counted,
    {
        self.hook.every = n.interval();
        self
    }

    /// Records the path of the function given as `when`, for `describe_hooks`. The shim calls the
    /// function itself.
    pub fn when(self, path: &'static str) -> Self {
        self.hook.when = Some(path);
        self
    }

    /// Limits the hook to the modules whose names match one of these patterns.
    pub fn of(self, patterns: &'static [ModulePattern]) -> Self
    where
        At: ModuleWithin + ModuleBegun + ModuleKept,
    {
        self.hook.of = patterns;
        self
    }

    /// Sets the function that reads the modules, the interval or the phases of the hook from its
    /// value.
    pub fn selected(self, by_value: SelectedOf) -> Self {
        self.hook.selected = Some(by_value);
        self
    }

    /// Marks the hook as one that takes `&Cx`.
    pub fn observes(self) -> Self {
        self.hook.observes = true;
        self
    }

    /// Marks the hook as one that writes something that outlives the process.
    pub fn writes(self) -> Self {
        self.hook.writes = true;
        self
    }

    /// Marks the hook as one whose failure is only a warning.
    pub fn may_fail(self) -> Self {
        self.hook.may_fail = true;
        self
    }

    /// Sets whether the hook runs in trials.
    pub fn trial(self, runs: bool) -> Self {
        self.hook.trial = Some(runs);
        self
    }

    /// Sets the calls such as `cx.batch::<MyBatch>()` that the hook makes every time it runs.
    pub fn reads(self, reads: &'static [Read]) -> Self {
        self.hook.reads = reads;
        self
    }

    /// Adds the hook to these sets.
    pub fn sets(self, sets: &'static [SetRef]) -> Self {
        self.hook.sets = Cow::Borrowed(sets);
        self
    }

    /// Sets the order constraints.
    pub fn constraints(self, constraints: &'static [OrderConstraint]) -> Self {
        self.hook.constraints = constraints;
        self
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
    /// Returns the modules, interval and phases that the value selects for the hook with this index
    /// in source order.
    #[doc(hidden)]
    fn __selected(&self, _: usize) -> Selected {
        Selected::all()
    }
    /// Calls the hook with this index in source order, if it is at a point.
    #[doc(hidden)]
    fn __call(&mut self, _: usize, _: &mut Run) -> HookResult {
        unreachable!()
    }
    /// Calls the hook with this index in source order, if it is around an operation.
    #[doc(hidden)]
    fn __call_around(&mut self, _: usize, _: &mut Run, _: Rest<'_>) -> HookResult {
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

/// Marks a value that implements [`Hooks`] itself.
#[derive(Debug)]
pub enum AsHook {}

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

/// The registration of a free function with `#[hook]`.
pub struct Discovered(pub fn() -> Definitions);

inventory::collect!(Discovered);

/// The registration of an `impl` block with `#[hook]`.
pub struct HookImpl {
    /// The origin of the block. Its path is the path of the type, without generic parameters.
    pub(crate) origin: Origin,
    /// The ID of the type, or `None` if the type is generic.
    pub(crate) id: Option<TypeId>,
    hooks: fn() -> Definitions,
    /// The function that creates a value for a trainer, if the block has `auto`.
    pub(crate) make: Option<fn() -> Instance>,
    /// When a trainer creates a value with `make`.
    pub(crate) when: AutoWhen,
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
            hooks: || unreachable!("the hooks of a generic type are those of a value"),
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
            hooks: <H as Hooks>::__hooks,
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

    /// Returns the hooks of the type, if it is not generic.
    pub(crate) fn hooks(&self) -> Vec<HookDef> {
        self.id.map_or_else(Vec::new, |id| with_more((self.hooks)(), id))
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
pub(crate) fn hooks_of<H: Hooks>() -> Vec<HookDef> {
    with_more(H::__hooks(), TypeId::of::<H>())
}

/// Adds the hooks of the additional blocks of a type to those of its first block.
fn with_more(first: Definitions, id: TypeId) -> Vec<HookDef> {
    let mut hooks = first.into_hooks();
    let further = inventory::iter::<MoreHooks>().filter(|more| more.id == id);
    let mut more: Vec<HookDef> = further.flat_map(|more| (more.hooks)().into_hooks()).collect();
    // `inventory` does not define an order.
    more.sort_by(|one, other| one.origin.rank().cmp(&other.origin.rank()));
    // An additional block may be in a different module, but the type has only one path.
    if let Some(path) = hooks.first().map(|first| first.origin.path.clone()) {
        more.iter_mut().for_each(|hook| hook.origin.path.clone_from(&path));
    }
    hooks.extend(more);
    hooks
}

/// Returns whether a hook in any block of the type takes `&mut self`.
pub(crate) fn changes<H: Hooks>() -> bool {
    H::CHANGES || more_change(TypeId::of::<H>())
}

fn more_change(id: TypeId) -> bool {
    inventory::iter::<MoreHooks>().any(|more| more.id == id && more.changes)
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
