//! The definition of a hook: what `#[hook]` expands to.

use std::any::TypeId;
use std::borrow::Cow;
use std::panic::Location;

use super::constraint::OrderConstraint;
use super::frame::Rest;
use super::read::Read;
use super::selected::SelectedOf;
use super::set::{SetRef, Stage};
use super::stages;
use crate::error::BoxError;
use crate::modules::ModulePattern;
use crate::moment::{Index, Moment, MomentInfo, ReachedIn};
use crate::phase::{Phase, PhaseMarker, PhaseSet};

/// The result of a hook. It fits into two registers.
pub type HookResult = std::result::Result<(), BoxError>;

/// The type of the functions that the dispatch table calls for hooks at points. The arguments are
/// the state of the loop and the slot of the hook's value. Hooks without a value ignore the slot.
pub(crate) type PointShim<R> = fn(&mut R, u32) -> HookResult;

/// The type of the functions that the dispatch table calls for hooks around operations. The last
/// argument is the part of the operation that is inside the hook.
pub(crate) type AroundShim<R> = fn(&mut R, u32, Rest<'_, R>) -> HookResult;

/// The function that the dispatch table calls for a hook.
pub(crate) enum Shim<R> {
    /// For a hook at a point.
    Point(PointShim<R>),
    /// For a hook around an operation.
    Around(AroundShim<R>),
}

// Not derived, because `R` need not implement it.
impl<R> Copy for Shim<R> {}

impl<R> Clone for Shim<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Shim<R> {
    /// Replaces the function with the one for hooks of its kind, and returns it.
    pub(crate) fn replace(&mut self, point: PointShim<R>, around: AroundShim<R>) -> Self {
        let other = match self {
            Shim::Point(_) => Shim::Point(point),
            Shim::Around(_) => Shim::Around(around),
        };
        std::mem::replace(self, other)
    }
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
    /// Whether the hook is one of the trainer itself. Its registration says so, because any crate
    /// may have the trainer's name.
    pub(crate) own: bool,
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
            own: false,
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

    /// Marks the hook as one of the trainer itself. Used by built-in hooks only.
    #[must_use]
    pub const fn own(mut self) -> Self {
        self.own = true;
        self
    }

    /// Whether the hook, or the type with hooks, is one of the trainer itself.
    pub(crate) fn is_own(&self) -> bool {
        self.own
    }

    /// Sets the source line and column, and the first paragraph of the doc comment.
    #[must_use]
    pub(crate) const fn written(mut self, line: u32, column: u32, docs: &'static str) -> Self {
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

/// The compile-time definition of a hook of a loop with the state `R`.
pub(crate) struct HookDef<R> {
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
    pub(crate) call: Shim<R>,
}

// Not derived, because `R` need not implement it.
impl<R> Clone for HookDef<R> {
    fn clone(&self) -> Self {
        HookDef { origin: self.origin.clone(), sets: self.sets.clone(), ..*self }
    }
}

impl<R> HookDef<R> {
    /// Returns the definition of a hook at the moment `At`, without any of the keys of `#[hook]`
    /// except `ord`.
    pub(crate) fn new<At: Moment>(origin: Origin, id: TypeId, ord: i32, call: Shim<R>) -> Self {
        HookDef {
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
        }
    }

    /// Returns whether the hook runs around an operation rather than at a point.
    pub(crate) fn goes_around(&self) -> bool {
        matches!(self.call, Shim::Around(_))
    }

    /// Returns the hook's path, with the name of the method if it differs from that of the moment.
    pub(crate) fn shown(&self) -> String {
        match self.origin.method {
            Some(method) if method != self.moment.name => self.origin.name(),
            _ => self.origin.path.to_string(),
        }
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

/// One hook of a loop with the state `R`.
pub(crate) struct Hook<R> {
    pub(crate) definition: HookDef<R>,
    pub(crate) source: Source,
    /// The index of the hook's value among the instances of the run, if the hook has a value.
    pub(crate) slot: Option<u32>,
    /// The patterns for the names of the modules at which the hook runs; empty for all modules.
    pub(crate) modules: Vec<ModulePattern>,
    /// The label that distinguishes the hook's value from other values of the same type.
    pub(crate) label: Option<String>,
    /// The original function of the hook, if a function that tolerates its failures has replaced
    /// it.
    pub(crate) unguarded: Option<Shim<R>>,
    /// The previous function of the hook, if a function that checks the observer has replaced it.
    pub(crate) unchecked: Option<Shim<R>>,
}

impl<R> Clone for Hook<R> {
    fn clone(&self) -> Self {
        let Hook { definition, modules, label, .. } = self;
        Hook { definition: definition.clone(), modules: modules.clone(), label: label.clone(), ..*self }
    }
}

impl<R> Hook<R> {
    pub(crate) fn new(definition: HookDef<R>, slot: Option<u32>) -> Self {
        let modules = definition.of.to_vec();
        Hook {
            definition,
            source: Source::Builder,
            slot,
            modules,
            label: None,
            unguarded: None,
            unchecked: None,
        }
    }
}

/// Returns the phase `Ph`. Does not compile if `Ph` does not reach `At`.
#[must_use]
pub const fn phase_of<At: ReachedIn<Ph>, Ph: PhaseMarker>() -> Phase {
    Ph::PHASE
}
