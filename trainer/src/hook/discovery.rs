//! Hooks that the linker collected, and which of them a trainer takes.

use std::any::TypeId;
use std::collections::BTreeSet;

use super::definition::{HookDef, Hooks, Origin};
use crate::checkpoint::StateOf;
use crate::error::suggestion;
use crate::run::Instance;

/// A free function with `#[hook]`, as the linker collects it.
pub struct Discovered(pub HookDef);

inventory::collect!(Discovered);

/// A block with `#[hook]`, as the linker collects it.
pub struct Block {
    /// Where it was written; the path is that of its type, without parameters.
    pub(crate) origin: Origin,
    /// The type, if it is one type.
    pub(crate) id: Option<TypeId>,
    pub(crate) hooks: &'static [HookDef],
    /// Makes the value that every trainer has of it.
    pub(crate) make: Option<fn() -> Instance>,
    pub(crate) state: Option<StateOf>,
}

inventory::collect!(Block);

impl Block {
    /// Of a generic type.
    #[must_use]
    pub const fn generic(origin: Origin) -> Self {
        Block { origin, id: None, hooks: &[], make: None, state: None }
    }

    /// Of a type whose values are added by hand, or that is a task.
    #[must_use]
    pub const fn of<H: Hooks>(origin: Origin) -> Self {
        Block { origin, id: Some(TypeId::of::<H>()), hooks: H::HOOKS, make: None, state: H::STATE }
    }

    /// Of a type that is discovered.
    #[must_use]
    pub const fn auto<H: Auto>(origin: Origin) -> Self {
        let make = || Instance::with_hooks(H::default());
        Block { origin, id: Some(TypeId::of::<H>()), hooks: H::HOOKS, make: Some(make), state: H::STATE }
    }
}

/// A hook type that trainers can make by themselves.
#[diagnostic::on_unimplemented(
    message = "`#[hook(auto)]` makes a value with `Default`, which `{Self}` does not implement",
    label = "needs `Default`",
    note = "derive or implement `Default`, or remove `auto` and add a value with `.hook(…)`"
)]
pub trait Auto: Hooks + Default {}

#[diagnostic::do_not_recommend]
impl<H: Hooks + Default> Auto for H {}

/// Which of the hooks that are linked into the program a trainer takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Discover {
    /// All of them.
    #[default]
    All,
    /// None: only hooks that are added to the builder. What a test wants.
    None,
    /// Those of these crates; `name@version` is one of several versions.
    Crates(Vec<String>),
}

impl Discover {
    /// Those of these crates.
    pub fn crates(names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Discover::Crates(names.into_iter().map(Into::into).collect())
    }
}

/// The crate of a module path.
pub(crate) fn crate_of(module: &str) -> &str {
    module.split("::").next().unwrap_or_default()
}

/// A crate's name, also where its package's was given.
fn as_crate(name: &str) -> String {
    name.replace('-', "_")
}

/// A hook that was found, and the block that it stands in.
pub(crate) type Found = (HookDef, Option<&'static Block>);

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

    /// Whether a program names this crate so: `my_hooks`, `my-hooks`, `my_hooks@1.2.0`.
    fn is_called(&self, spec: &str) -> bool {
        let (name, version) =
            spec.split_once('@').map_or((spec, None), |(name, version)| (name, Some(version)));
        self.name == as_crate(name) && (version.is_none() || version == self.version)
    }
}

/// Returns the linked hooks that a trainer takes, in an order of their own. Names that match nothing are mistakes.
pub(crate) fn discover(choice: &Discover, required: &[String], mistakes: &mut Vec<String>) -> Vec<Found> {
    let mut linked: Vec<Found> =
        inventory::iter::<Discovered>().map(|discovered| (discovered.0.clone(), None)).collect();
    let blocks: Vec<&'static Block> = inventory::iter::<Block>().collect();
    for block in blocks.iter().filter(|block| block.make.is_some()) {
        linked.extend(block.hooks.iter().map(|hook| (hook.clone(), Some(*block))));
    }
    // inventory's own order is undefined.
    linked.sort_by(|(one, _), (other, _)| one.origin.rank().cmp(&other.origin.rank()));
    let of_blocks = blocks.iter().map(|block| &block.origin);
    let crates: BTreeSet<Linked> =
        linked.iter().map(|(hook, _)| &hook.origin).chain(of_blocks).map(Linked::of).collect();
    missing(&crates, choice, required, mistakes);
    match choice {
        Discover::All => {}
        Discover::None => linked.clear(),
        Discover::Crates(names) => {
            linked.retain(|(hook, _)| names.iter().any(|name| Linked::of(&hook.origin).is_called(name)));
        }
    }
    linked
}

/// Reports the crates that a program names and that have no hook in it.
fn missing(crates: &BTreeSet<Linked>, choice: &Discover, required: &[String], mistakes: &mut Vec<String>) {
    // This crate has blocks of its own, which no linker leaves out alone.
    if !crates.iter().any(|linked| linked.is_called(env!("CARGO_PKG_NAME"))) {
        mistakes.push(
            "the linker has left out every `#[hook]` of this program, even those of `trainer` itself: \
             link the static library whole (`-Wl,--whole-archive`; on macOS `-Wl,-force_load`)"
                .into(),
        );
        return;
    }
    let similar = |name: &str| suggestion(&as_crate(name), crates.iter().map(|linked| linked.name));
    let versions = |name: &str| {
        let name = name.split('@').next().unwrap_or_default();
        let linked = crates.iter().filter(|linked| linked.is_called(name) && !linked.binary);
        let versions: Vec<_> =
            linked.filter_map(|it| Some(format!("`{}@{}`", it.name, it.version?))).collect();
        (!versions.is_empty()).then(|| format!("; linked is {}", versions.join(" and ")))
    };
    for spec in required {
        // The hooks of a binary are there anyway: what is required is a library, though it may have the same name.
        if crates.iter().any(|linked| linked.is_called(spec) && !linked.binary) {
            continue;
        }
        let name = as_crate(spec.split('@').next().unwrap_or_default());
        let of_binary = crates.iter().any(|linked| linked.is_called(&name));
        let (similar, versions) = (similar(&name), versions(spec));
        let help = match versions {
            Some(versions) => versions,
            None if of_binary => format!(
                "; the hooks of that name are those of the program, not of its library: write `use {name} as _;` in the program"
            ),
            None if !similar.is_empty() => similar,
            None => format!(
                "; Rust links a crate only when the program names it: write `use {name} as _;` in it \
                 (a library that is loaded at run time cannot add hooks)"
            ),
        };
        let spec = if spec.contains('@') { spec } else { &name };
        mistakes.push(format!("no hook of the required crate `{spec}` is linked into this program{help}"));
    }
    let Discover::Crates(names) = choice else { return };
    for spec in names.iter().filter(|spec| !crates.iter().any(|linked| linked.is_called(spec))) {
        let help = versions(spec).unwrap_or_else(|| similar(spec));
        mistakes.push(format!(
            "`.discover(…)` names the crate `{spec}`, but no hook of it is linked into this program{help}"
        ));
    }
}

/// The hooks of a task, if its type has a block of them, and how its state is kept.
pub(crate) fn of_task<T: 'static>() -> (&'static [HookDef], Option<StateOf>) {
    let id = Some(TypeId::of::<T>());
    let block = inventory::iter::<Block>().find(|block| block.id == id);
    block.map_or((&[], None), |block| (block.hooks, block.state))
}

/// The path of the block of hooks of a generic task, which `of_task` cannot find.
pub(crate) fn of_generic_task<T: 'static>() -> Option<&'static str> {
    let (name, _) = std::any::type_name::<T>().split_once('<')?;
    // The block may stand in another module of the type's crate.
    let same =
        |path: &str| crate_of(path) == crate_of(name) && path.rsplit("::").next() == name.rsplit("::").next();
    let block = inventory::iter::<Block>().find(|block| block.id.is_none() && same(&block.origin.path));
    block.map(|block| &*block.origin.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Linked = Linked { name: "trainer", version: Some("1.0.0"), binary: false };

    fn told(crates: &[Linked], choice: &Discover, required: &[&str]) -> String {
        let mut mistakes = Vec::new();
        let required: Vec<_> = required.iter().map(ToString::to_string).collect();
        missing(&crates.iter().copied().collect(), choice, &required, &mut mistakes);
        mistakes.join("\n")
    }

    #[test]
    fn hooks_of_the_binary_do_not_stand_for_the_library_of_the_same_name() {
        let binary = Linked { name: "my_run", version: Some("0.1.0"), binary: true };
        assert_eq!(
            told(&[OWN, binary], &Discover::All, &["my-run"]),
            "no hook of the required crate `my_run` is linked into this program; the hooks of that name are those of the program, not of its library: write `use my_run as _;` in the program"
        );
        assert_eq!(told(&[OWN, binary, Linked { binary: false, ..binary }], &Discover::All, &["my-run"]), "");
    }

    #[test]
    fn each_version_of_a_crate_can_be_required_and_discovered() {
        let old = Linked { name: "plugin", version: Some("0.1.0"), binary: false };
        let new = Linked { version: Some("0.2.0"), ..old };
        let choice = Discover::crates(["plugin@0.1.0"]);
        assert_eq!(told(&[OWN, old, new], &choice, &["plugin@0.2.0", "plugin"]), "");
        assert_eq!(
            told(&[OWN, new], &choice, &["plugin@0.1.0"]),
            "no hook of the required crate `plugin@0.1.0` is linked into this program; linked is `plugin@0.2.0`\n\
             `.discover(…)` names the crate `plugin@0.1.0`, but no hook of it is linked into this program; \
             linked is `plugin@0.2.0`"
        );
    }

    #[test]
    fn a_linker_that_leaves_out_registrations_is_reported_without_advice_that_cannot_work() {
        assert_eq!(
            told(&[], &Discover::All, &["plugin"]),
            "the linker has left out every `#[hook]` of this program, even those of `trainer` itself: link the static library whole (`-Wl,--whole-archive`; on macOS `-Wl,-force_load`)"
        );
    }
}
