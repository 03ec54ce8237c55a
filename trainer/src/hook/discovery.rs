//! Hooks that the linker collected, and which of them a trainer takes.

use std::any::TypeId;
use std::collections::BTreeSet;

use super::definition::{HookDef, Hooks};
use crate::checkpoint::StateOf;
use crate::error::suggestion;
use crate::run::Instance;

/// A free function with `#[hook]`, as the linker collects it.
pub struct Discovered(pub HookDef);

inventory::collect!(Discovered);

/// A block with `#[hook]`, as the linker collects it.
#[derive(Clone, Copy)]
pub struct Block {
    pub(crate) module: &'static str,
    /// The path of the type, without its parameters.
    pub(crate) path: &'static str,
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
    pub const fn generic(module: &'static str, path: &'static str) -> Self {
        Block { module, path, id: None, hooks: &[], make: None, state: None }
    }

    /// Of a type whose values are added by hand, or that is a task.
    #[must_use]
    pub const fn of<H: Hooks>(module: &'static str, path: &'static str) -> Self {
        Block { module, path, id: Some(TypeId::of::<H>()), hooks: H::HOOKS, make: None, state: H::STATE }
    }

    /// Of a type that is discovered.
    #[must_use]
    pub const fn auto<H: Auto>(module: &'static str, path: &'static str) -> Self {
        let make = || Instance::of(H::default());
        Block { make: Some(make), ..Block::of::<H>(module, path) }
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
    /// Those of these crates.
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
pub(crate) type Found = (HookDef, Option<Block>);

/// The linked hooks that a trainer takes, in an order of their own. Names that match nothing are mistakes.
pub(crate) fn discover(choice: &Discover, required: &[String], mistakes: &mut Vec<String>) -> Vec<Found> {
    let mut linked: Vec<Found> =
        inventory::iter::<Discovered>().map(|discovered| (discovered.0.clone(), None)).collect();
    let blocks: Vec<&Block> = inventory::iter::<Block>().collect();
    for block in blocks.iter().filter(|block| block.make.is_some()) {
        linked.extend(block.hooks.iter().map(|hook| (hook.clone(), Some(**block))));
    }
    // inventory's own order is undefined.
    linked.sort_by(|(one, _), (other, _)| one.origin.rank().cmp(&other.origin.rank()));
    let of_blocks = blocks.iter().map(|block| crate_of(block.module));
    let crates: BTreeSet<&str> =
        linked.iter().map(|(hook, _)| hook.origin.krate()).chain(of_blocks).collect();

    for name in required.iter().map(|name| as_crate(name)).filter(|name| !crates.contains(name.as_str())) {
        let similar = suggestion(&name, crates.iter().copied());
        let help = if similar.is_empty() {
            format!("; Rust links a crate only when the program names it: write `use {name} as _;` in it")
        } else {
            similar
        };
        mistakes.push(format!("no hook of the required crate `{name}` is linked into this program{help}"));
    }
    match choice {
        Discover::All => linked,
        Discover::None => Vec::new(),
        Discover::Crates(names) => {
            let names: Vec<_> = names.iter().map(|name| as_crate(name)).collect();
            for name in names.iter().filter(|name| !crates.contains(name.as_str())) {
                let similar = suggestion(name, crates.iter().copied());
                mistakes.push(format!(
                    "`.discover(…)` names the crate `{name}`, but no hook of it is linked into this program{similar}"
                ));
            }
            linked.retain(|(hook, _)| names.iter().any(|name| name == hook.origin.krate()));
            linked
        }
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
    inventory::iter::<Block>().find(|block| block.id.is_none() && same(block.path)).map(|block| block.path)
}
