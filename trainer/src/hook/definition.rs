//! The definition of a hook: what `#[hook]` expands to.

use std::any::TypeId;
use std::borrow::Cow;
use std::marker::PhantomData;
use std::panic::Location;

use super::constraint::OrderConstraint;
use super::read::Read;
use super::selected::{AsInterval, Selected, SelectedOf};
use super::set::{SetRef, Stage};
use super::stages;
use crate::checkpoint::{Saved, StateOf};
use crate::error::{BoxError, Result};
use crate::lifecycle::{ModuleBegun, ModuleKept, ModuleWithin};
use crate::model::added::VariablesOf;
use crate::modules::ModulePattern;
use crate::moment::{AtOperation, AtPoint, Counted, Index, Moment, MomentInfo, ReachedIn, Unit};
use crate::phase::{Phase, PhaseMarker, PhaseSet};
use crate::run::{Rest, Run};
use crate::values::facts::SettingsOf;

/// The result of a hook. It fits into two registers.
pub type HookResult = std::result::Result<(), BoxError>;

/// The type of the functions that the dispatch table calls for hooks at points. The arguments are
/// the run and the slot of the hook's value. Hooks without a value ignore the slot.
pub(crate) type PointShim = fn(&mut Run, u32) -> HookResult;

/// The type of the functions that the dispatch table calls for hooks around operations. The last
/// argument is the part of the operation that is inside the hook.
pub(crate) type AroundShim = fn(&mut Run, u32, Rest<'_>) -> HookResult;

/// The function that the dispatch table calls for a hook.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shim {
    Point(PointShim),
    Around(AroundShim),
}

/// Returns the name of the crate, which is the first segment of a module path.
pub(crate) fn crate_of(module: &str) -> &str {
    module.split("::").next().unwrap_or_default()
}

/// The name and source location of a hook.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The module that contains the hook; empty for a closure.
    pub module: &'static str,
    /// The path of the function or, for a method, of its type. For a closure, this is its name.
    pub path: Cow<'static, str>,
    /// The name of the method, if the hook is a method.
    pub method: Option<&'static str>,
    /// The version of the package that contains the hook.
    pub version: Option<&'static str>,
    /// Whether the hook is in a binary crate, which may have the same name as the library crate of
    /// its package.
    pub binary: bool,
    /// The path of the file, as given to rustc.
    pub file: &'static str,
    /// The line of the hook's name in `file`; for a closure, the line of the `.on(…)` call.
    pub line: u32,
    /// The column of the hook's name.
    pub column: u32,
    /// The line and column of the attribute or of the outermost macro call that contains it, and
    /// those of the attribute itself. Both are 0 for a closure.
    pub attribute: [(u32, u32); 2],
    /// The function that returns the name of the hook's type, if the type is generic.
    pub of_type: Option<fn() -> &'static str>,
    /// The first paragraph of the hook's doc comment.
    pub docs: &'static str,
}

impl Origin {
    /// Returns the origin of a function, or of a block.
    #[must_use]
    pub const fn new(
        module: &'static str,
        path: &'static str,
        version: Option<&'static str>,
        file: &'static str,
        attribute: [(u32, u32); 2],
    ) -> Self {
        Origin {
            module,
            path: Cow::Borrowed(path),
            method: None,
            version,
            binary: false,
            file,
            line: 0,
            column: 0,
            attribute,
            of_type: None,
            docs: "",
        }
    }

    /// Returns the origin of a closure, with the location of the call that adds it.
    pub(crate) fn closure(name: String, place: &'static Location<'static>, docs: &'static str) -> Self {
        let origin = Origin::new("", "", None, place.file(), [(0, 0); 2]);
        Origin { path: name.into(), line: place.line(), docs, ..origin }
    }

    /// Marks the hook as part of a binary.
    #[must_use]
    pub const fn in_binary(mut self) -> Self {
        self.binary = true;
        self
    }

    /// Sets the name of the method, for a hook that is a method of the block.
    #[must_use]
    pub const fn method(mut self, name: &'static str) -> Self {
        self.method = Some(name);
        self
    }

    /// Sets the function that returns the name of the hook's type, for a generic type.
    #[must_use]
    pub const fn of_type(mut self, name: fn() -> &'static str) -> Self {
        self.of_type = Some(name);
        self
    }

    /// Sets the source line and column, and the first paragraph of the doc comment.
    #[must_use]
    pub const fn written(mut self, line: u32, column: u32, docs: &'static str) -> Self {
        self.line = line;
        self.column = column;
        self.docs = docs;
        self
    }

    /// Returns the name of the hook's crate; empty for a closure.
    pub(crate) fn krate(&self) -> &'static str {
        crate_of(self.module)
    }

    /// Returns the hook's full name: `my_crate::clip`, `my_crate::GradientMonitor::after_step`.
    pub(crate) fn name(&self) -> String {
        let Some(method) = self.method else { return self.path.to_string() };
        format!("{}::{method}", self.path)
    }

    /// Returns the path of the type without the arguments of a generic type.
    pub(crate) fn bare_path(&self) -> &str {
        self.path.split('<').next().unwrap_or_default()
    }

    /// Returns whether a path names the hook. The path can be that of a function, a type or a
    /// method (`my_crate::clip`), and can select one version of the crate (`my_crate@1.2.0::clip`).
    /// It can leave out the arguments of a generic type, and then names all such types.
    pub(crate) fn is_called(&self, path: &str) -> bool {
        let (spec, rest) = path.split_once("::").map_or((path, None), |(spec, rest)| (spec, Some(rest)));
        let unversioned = match (spec.split_once('@'), rest) {
            (Some((krate, version)), Some(rest)) if self.version == Some(version) => {
                format!("{krate}::{rest}")
            }
            _ => path.to_owned(),
        };
        let bare = self.bare_path();
        let is_method = |path: &str| {
            let method = unversioned.strip_prefix(path).and_then(|rest| rest.strip_prefix("::"));
            method.is_some_and(|method| Some(method) == self.method)
        };
        [&*self.path, bare].into_iter().any(|path| *path == *unversioned || is_method(path))
    }

    /// Formats the hook's name and location for messages: `` `my_crate::clip` (src/clip.rs:12) ``.
    pub(crate) fn placed(&self) -> String {
        format!("`{}` ({}:{})", self.name(), self.file, self.line)
    }

    /// Returns the key by which discovered hooks are sorted, to break ties.
    pub(crate) fn rank(&self) -> impl Ord + '_ {
        (self.krate(), &self.path, self.method, self.file, self.line)
    }
}

/// The public modules of this crate whose types are defined in private modules below them.
const OPEN: [&str; 3] = ["hooks", "loggers", "metrics"];

/// Replaces each type of this crate in a path or type name with its public path:
/// `trainer::metrics::MetricHook` instead of `trainer::metrics::hook::MetricHook`. The macro, like
/// rustc, only knows where a type is defined.
pub(crate) fn public_path(path: &str) -> Cow<'_, str> {
    let mut public = String::new();
    let mut rest = path;
    while !rest.is_empty() {
        let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_' && letter != ':');
        let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
        match word.split("::").collect::<Vec<_>>()[..] {
            [krate, open, _, .., name] if krate == env!("CARGO_CRATE_NAME") && OPEN.contains(&open) => {
                public.extend([krate, "::", open, "::", name]);
            }
            _ => public.push_str(word),
        }
        let separator = after.chars().next();
        public.extend(separator);
        rest = &after[separator.map_or(0, char::len_utf8)..];
    }
    if public == path { Cow::Borrowed(path) } else { Cow::Owned(public) }
}

/// The compile-time definition of a hook.
#[derive(Clone, Debug)]
pub struct HookDef {
    pub(crate) origin: Origin,
    /// The type of the hook's function, or the type that its method belongs to. Order constraints
    /// refer to it.
    pub(crate) id: TypeId,
    pub(crate) ord: i32,
    /// The point at which the hook runs, or the operation around which it runs.
    pub(crate) moment: &'static MomentInfo,
    /// The row of the hook's moment in the dispatch table.
    pub(crate) row: Index,
    /// The phases that the key `only` lists; empty for all phases.
    pub(crate) only: PhaseSet,
    /// The value of the key `every`. `build` returns an error if it is 0.
    pub(crate) every: Option<u64>,
    /// The path of the function given as `when`, as written.
    pub(crate) when: Option<&'static str>,
    /// The patterns in the key `of`, which select modules by name; empty for all modules.
    pub(crate) of: &'static [ModulePattern],
    /// The function that reads the settings of keys such as `every = self.every` from the hook's
    /// value.
    pub(crate) selected: Option<SelectedOf>,
    /// Whether the hook runs in the process of rank 0 only.
    pub(crate) main_only: bool,
    /// Whether the hook takes `&Cx`, and therefore only observes.
    pub(crate) observes: bool,
    /// Whether the hook writes something that outlives the process.
    pub(crate) writes: bool,
    /// Whether a failure of the hook is only a warning.
    pub(crate) may_fail: bool,
    /// Whether the hook runs in trials. If `None`, the hook runs in trials if it runs on all ranks
    /// and its value has a state and may change training.
    pub(crate) trial: Option<bool>,
    /// The calls such as `cx.batch::<MyBatch>()` that the hook makes every time it runs.
    pub(crate) reads: &'static [Read],
    /// The sets that the key `in` lists.
    pub(crate) sets: Cow<'static, [SetRef]>,
    pub(crate) constraints: &'static [OrderConstraint],
    pub(crate) call: Shim,
}

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
    pub(crate) fn at(origin: Origin, id: TypeId, ord: i32, call: PointShim) -> Self
    where
        At: AtPoint,
    {
        Definition::new(origin, id, ord, Shim::Point(call))
    }

    /// Begins the definition of a hook around an operation.
    pub(crate) fn around(origin: Origin, id: TypeId, ord: i32, call: AroundShim) -> Self
    where
        At: AtOperation,
    {
        Definition::new(origin, id, ord, Shim::Around(call))
    }

    fn new(origin: Origin, id: TypeId, ord: i32, call: Shim) -> Self {
        let hook = HookDef {
            origin,
            id,
            ord,
            moment: At::INFO,
            row: At::index,
            only: PhaseSet::NONE,
            every: None,
            when: None,
            of: &[],
            selected: None,
            main_only: At::IS_MAIN_ONLY,
            observes: false,
            writes: false,
            may_fail: false,
            trial: None,
            reads: &[],
            sets: Cow::Borrowed(&[]),
            constraints: &[],
            call,
        };
        Definition { hook, at: PhantomData }
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

    /// Runs the hook only every `n`-th time; the shim checks this with [`is_due`].
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

impl HookDef {
    /// Returns whether the hook runs around an operation rather than at a point.
    pub(crate) fn goes_around(&self) -> bool {
        matches!(self.call, Shim::Around(_))
    }

    /// Returns the stage that the hook is in, or the default stage if it is in none.
    pub(crate) fn stage(&self) -> Stage {
        self.sets.iter().find_map(|set| set.stage).unwrap_or(stages::DEFAULT)
    }

    /// Returns whether a constraint names the hook, by its type or by one of its sets.
    pub(crate) fn is_target_of(&self, constraint: &OrderConstraint) -> bool {
        let target = constraint.target.id;
        self.id == target || self.sets.iter().any(|set| set.id == target)
    }

    /// Returns the phases in which the hook runs.
    pub(crate) fn phases(&self) -> PhaseSet {
        if self.only == PhaseSet::NONE { self.moment.phases } else { self.only }
    }
}

/// Where a hook comes from. The order of the variants breaks ties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// The program added the hook to the builder.
    Builder,
    /// The hook was discovered.
    Discovery,
    /// The task type defines the hook.
    Task,
}

/// One hook of a trainer.
#[derive(Clone, Debug)]
pub(crate) struct Hook {
    pub(crate) definition: HookDef,
    pub(crate) source: Source,
    /// The index of the hook's value among the instances of the run, if the hook has a value.
    pub(crate) slot: Option<u32>,
    /// The patterns for the names of the modules at which the hook runs; empty for all modules.
    pub(crate) modules: Vec<ModulePattern>,
    /// The label that distinguishes the hook's value from other values of the same type.
    pub(crate) label: Option<String>,
    /// The original function of the hook, if a function that tolerates its failures has replaced
    /// it.
    pub(crate) unguarded: Option<Shim>,
    /// The previous function of the hook, if a function that checks the observer has replaced it.
    pub(crate) unchecked: Option<Shim>,
    /// The previous function of the hook, if the tape has replaced it with a function that records
    /// changes.
    pub(crate) unrecorded: Option<Shim>,
}

impl Hook {
    pub(crate) fn new(mut definition: HookDef, slot: Option<u32>) -> Self {
        let origin = &mut definition.origin;
        if let Cow::Owned(public) = public_path(&origin.path) {
            origin.path = Cow::Owned(public);
        }
        // The values of this crate's generic types differ in their labels.
        if let Some(name) = origin.of_type.filter(|_| origin.krate() != env!("CARGO_CRATE_NAME"))
            && let Some((_, arguments)) = name().split_once('<')
        {
            origin.path = Cow::Owned(format!("{}<{}", origin.path, public_path(arguments)));
        }
        let modules = definition.of.to_vec();
        Hook {
            definition,
            source: Source::Builder,
            slot,
            modules,
            label: None,
            unguarded: None,
            unchecked: None,
            unrecorded: None,
        }
    }
}

/// Returns the phase `Ph`. Does not compile if `Ph` does not reach `At`.
#[must_use]
pub const fn phase_of<At: ReachedIn<Ph>, Ph: PhaseMarker>() -> Phase {
    Ph::PHASE
}

/// Returns whether the hook that is being called is due. Its key `every` counts batches, optimizer
/// steps, epochs or records.
#[inline]
pub fn is_due(run: &Run) -> bool {
    let Some(id) = run.place().hook else { return true };
    let hook = &run.hooks().table.hook(id).definition;
    let Some(every) = hook.every else { return true };
    let count = match hook.moment.counts {
        Some(Unit::Epochs) => run.counters().epoch + 1,
        Some(Unit::Steps) => run.step().step_number,
        Some(Unit::Records) => run.logs().records.number,
        Some(Unit::Batches) | None => run.progress().batch_number,
    };
    let is_due = count.is_multiple_of(every);
    if is_due {
        run.dispatch().mark_due(id);
    }
    is_due
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
    /// The functions that save and load the state of a value: `#[hook(state)]`.
    #[doc(hidden)]
    const STATE: Option<StateOf> = None;
    /// Whether a hook takes `&mut self`, so that the fields of a value may change.
    #[doc(hidden)]
    const CHANGES: bool = false;
    /// The function that returns the settings of a value: `#[hook(settings)]`.
    #[doc(hidden)]
    const SETTINGS: Option<SettingsOf> = None;
    /// The function that adds a value's variables to the model: `#[hook(variables)]`.
    #[doc(hidden)]
    const VARIABLES: Option<VariablesOf> = None;
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
    const STATE: Option<StateOf> = <H as Hooks<H::Block>>::STATE;
    const CHANGES: bool = <H as Hooks<H::Block>>::CHANGES;
    const SETTINGS: Option<SettingsOf> = <H as Hooks<H::Block>>::SETTINGS;
    const VARIABLES: Option<VariablesOf> = <H as Hooks<H::Block>>::VARIABLES;

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
