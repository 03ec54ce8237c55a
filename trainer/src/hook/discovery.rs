//! Discovery: finding the hooks linked into a program, and selecting the ones that a trainer uses.

use std::any::{TypeId, type_name};
use std::collections::BTreeSet;

use super::definition::{Definitions, FurtherBlocksNeedHookMore, HookDef, Hooks, Origin, crate_of};
use super::instance::Instance;
use crate::checkpoint::{Saved, StateOf};
use crate::error::suggestion;
use crate::model::added::VariablesOf;
use crate::values::facts::{SettingList, SettingsOf};

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
    pub(crate) state: Option<StateOf>,
    pub(crate) settings: Option<SettingsOf>,
    pub(crate) variables: Option<VariablesOf>,
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
            state: None,
            settings: None,
            variables: None,
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
            state: H::STATE,
            settings: H::SETTINGS,
            variables: H::VARIABLES,
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

/// When a trainer creates the value of a block with `auto`.
#[derive(Clone, Copy, Debug)]
pub enum AutoWhen {
    /// If the trainer discovers the hooks of the crate.
    Always,
    /// If the trainer has several ranks, regardless of which crates it discovers.
    OnRanks,
    /// If the trainer discovers the hooks of the crate, and this function returns `true`.
    If(fn() -> bool),
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
            state: H::STATE,
            settings: H::SETTINGS,
            variables: H::VARIABLES,
            changes_unsaved: changes::<H>() && H::STATE.is_none() && size_of::<H>() > 0,
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

/// The selection of linked hooks that a trainer uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Discover {
    /// All linked hooks.
    #[default]
    All,
    /// No linked hooks, only those added to the builder. Useful in tests.
    None,
    /// The hooks of these crates; `name@version` selects one of several linked versions.
    Crates(Vec<String>),
}

impl Discover {
    /// Selects the hooks of these crates.
    pub fn crates(names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Discover::Crates(names.into_iter().map(Into::into).collect())
    }
}

/// Converts the name of a package to the name of its crate.
fn as_crate(name: &str) -> String {
    name.replace('-', "_")
}

/// A discovered hook and, if the hook is a method, its block.
pub(crate) type Found = (HookDef, Option<&'static HookImpl>);

/// A crate with hooks in this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Linked {
    name: &'static str,
    version: Option<&'static str>,
    binary: bool,
}

impl Linked {
    fn of(origin: &Origin) -> Self {
        Linked { name: origin.krate(), version: origin.version, binary: origin.binary }
    }

    /// Returns whether `spec` refers to this crate, as in `my_hooks`, `my-hooks` or
    /// `my_hooks@1.2.0`.
    fn is_called(&self, spec: &str) -> bool {
        let (name, version) =
            spec.split_once('@').map_or((spec, None), |(name, version)| (name, Some(version)));
        self.name == as_crate(name) && (version.is_none() || version == self.version)
    }
}

/// Returns the linked hooks that a trainer with this number of ranks uses, sorted by crate, path
/// and name. Reports names that match nothing.
pub(crate) fn discover(
    selection: &Discover,
    ranks: u32,
    required: &[String],
    mistakes: &mut Vec<String>,
) -> Vec<Found> {
    let mut linked: Vec<Found> =
        inventory::iter::<Discovered>().map(|discovered| (discovered.0(), None)).collect();
    let blocks: Vec<&'static HookImpl> = inventory::iter::<HookImpl>().collect();
    for block in blocks.iter().filter(|block| block.make.is_some()) {
        linked.extend((block.hooks)().into_iter().map(|hook| (hook, Some(*block))));
    }
    // `inventory` does not define an order.
    linked.sort_by(|(one, _), (other, _)| one.origin.rank().cmp(&other.origin.rank()));
    let of_blocks = blocks.iter().map(|block| &block.origin);
    let crates: BTreeSet<Linked> =
        linked.iter().map(|(hook, _)| &hook.origin).chain(of_blocks).map(Linked::of).collect();
    missing(&crates, selection, required, mistakes);
    let is_selected = |hook: &HookDef| match selection {
        Discover::All => true,
        Discover::None => false,
        Discover::Crates(names) => names.iter().any(|name| Linked::of(&hook.origin).is_called(name)),
    };
    linked.retain(|(hook, block)| match block {
        Some(HookImpl { when: AutoWhen::OnRanks, .. }) => ranks > 1,
        Some(HookImpl { when: AutoWhen::If(is_on), .. }) => is_selected(hook) && is_on(),
        _ => is_selected(hook),
    });
    linked
}

/// Reports crates that the program names but that have no hooks linked into it.
fn missing(crates: &BTreeSet<Linked>, selection: &Discover, required: &[String], mistakes: &mut Vec<String>) {
    // This crate has blocks too. If even they are missing, the linker dropped all registrations.
    if !crates.iter().any(|linked| linked.is_called(env!("CARGO_PKG_NAME"))) {
        mistakes.push(format!(
            "the linker dropped every `#[hook]` of this program, including those of `trainer` itself: \
             link the whole static library ({WHOLE_LIBRARY})"
        ));
        return;
    }
    for spec in required {
        // The binary's hooks do not count: the requirement refers to a library, which may have the
        // same name as the binary.
        if crates.iter().any(|linked| linked.is_called(spec) && !linked.binary) {
            continue;
        }
        let name = as_crate(spec.split('@').next().unwrap_or_default());
        let of_binary = crates.iter().any(|linked| linked.is_called(&name));
        let similar = similar(&name, crates);
        let help = match versions(spec, crates) {
            Some(versions) => versions,
            None if of_binary => format!(
                "; only hooks of the binary `{name}` are linked, not those of its library: write `use {name} as _;` in the binary"
            ),
            None if !similar.is_empty() => similar,
            None => not_linked(&name),
        };
        let spec = if spec.contains('@') { spec } else { &name };
        mistakes.push(format!("no hook of the required crate `{spec}` is linked into this program{help}"));
    }
    let Discover::Crates(names) = selection else { return };
    for spec in names.iter().filter(|spec| !crates.iter().any(|linked| linked.is_called(spec))) {
        let name = as_crate(spec.split('@').next().unwrap_or_default());
        let help = match versions(spec, crates).unwrap_or_else(|| similar(spec, crates)) {
            help if help.is_empty() => not_linked(&name),
            help => help,
        };
        mistakes.push(format!(
            "`.discover(…)` names the crate `{spec}`, but no hook of that crate is linked into this program{help}"
        ));
    }
}

/// Lists the linked crates whose names are similar to this name.
fn similar(name: &str, crates: &BTreeSet<Linked>) -> String {
    suggestion(&as_crate(name), crates.iter().map(|linked| linked.name))
}

/// Lists the linked versions of a library.
fn versions(spec: &str, crates: &BTreeSet<Linked>) -> Option<String> {
    let name = spec.split('@').next().unwrap_or_default();
    let linked = crates.iter().filter(|linked| linked.is_called(name) && !linked.binary);
    let versions: Vec<_> =
        linked.filter_map(|linked| Some(format!("`{}@{}`", linked.name, linked.version?))).collect();
    (!versions.is_empty()).then(|| format!("; linked: {}", versions.join(" and ")))
}

/// Returns advice for the case that no hook of a crate is linked into the program. The advice
/// covers all possible reasons, because the actual reason cannot be determined at run time.
fn not_linked(name: &str) -> String {
    format!(
        "; Rust links a crate only if the program names it: write `use {name} as _;` in the program. If that line is there, \
         check that a hook of the crate is compiled (its `cfg` and features), and that a program that links Rust code as a static \
         library links all of it ({WHOLE_LIBRARY}). A library that is loaded at run time cannot add hooks"
    )
}

/// The linker options that link the whole of a static library. Otherwise, the linker would drop the
/// registrations of hooks, because no code refers to them.
const WHOLE_LIBRARY: &str = "`-Wl,--whole-archive`; on macOS `-Wl,-force_load`";

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

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Linked = Linked { name: "trainer", version: Some("1.0.0"), binary: false };

    fn report(crates: &[Linked], choice: &Discover, required: &[&str]) -> String {
        let mut mistakes = Vec::new();
        let required: Vec<_> = required.iter().map(ToString::to_string).collect();
        missing(&crates.iter().copied().collect(), choice, &required, &mut mistakes);
        mistakes.join("\n")
    }

    #[test]
    fn hooks_of_a_binary_do_not_satisfy_a_requirement_for_its_library() {
        let binary = Linked { name: "my_run", version: Some("0.1.0"), binary: true };
        assert_eq!(
            report(&[OWN, binary], &Discover::All, &["my-run"]),
            "no hook of the required crate `my_run` is linked into this program; only hooks of the binary `my_run` are linked, not those of its library: write `use my_run as _;` in the binary"
        );
        assert_eq!(
            report(&[OWN, binary, Linked { binary: false, ..binary }], &Discover::All, &["my-run"]),
            ""
        );
    }

    #[test]
    fn each_version_of_a_crate_can_be_required_and_discovered() {
        let old = Linked { name: "plugin", version: Some("0.1.0"), binary: false };
        let new = Linked { version: Some("0.2.0"), ..old };
        let choice = Discover::crates(["plugin@0.1.0"]);
        assert_eq!(report(&[OWN, old, new], &choice, &["plugin@0.2.0", "plugin"]), "");
        assert_eq!(
            report(&[OWN, new], &choice, &["plugin@0.1.0"]),
            "no hook of the required crate `plugin@0.1.0` is linked into this program; linked: `plugin@0.2.0`\n\
             `.discover(…)` names the crate `plugin@0.1.0`, but no hook of that crate is linked into this program; \
             linked: `plugin@0.2.0`"
        );
    }

    #[test]
    fn every_reason_for_missing_hooks_of_one_crate_is_named() {
        let other = Linked { name: "other", version: Some("0.1.0"), binary: false };
        let required = report(&[OWN, other], &Discover::All, &["my-hooks"]);
        let discovered = report(&[OWN, other], &Discover::crates(["my-hooks"]), &[]);
        for (text, start) in [
            (required, "no hook of the required crate `my_hooks` is linked into this program; Rust links"),
            (
                discovered,
                "`.discover(…)` names the crate `my-hooks`, but no hook of that crate is linked into this program; Rust",
            ),
        ] {
            assert!(text.starts_with(start), "{text}");
            for part in
                ["`use my_hooks as _;`", "`cfg` and features", "`-Wl,--whole-archive`", "loaded at run time"]
            {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
    }

    #[test]
    fn dropped_registrations_are_reported_with_linker_options() {
        assert_eq!(
            report(&[], &Discover::All, &["plugin"]),
            "the linker dropped every `#[hook]` of this program, including those of `trainer` itself: link the whole static library (`-Wl,--whole-archive`; on macOS `-Wl,-force_load`)"
        );
    }
}
