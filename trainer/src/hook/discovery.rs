//! Hooks that the linker collected, and which of them a trainer takes.

use std::collections::BTreeSet;

use super::definition::HookDef;
use crate::error::suggestion;

/// A free function with `#[hook]`, as the linker collects it.
pub struct Discovered(pub HookDef);

inventory::collect!(Discovered);

/// A module with a hook block: its crate is linked, though no hook of it need be discovered.
pub struct Linked(pub &'static str);

inventory::collect!(Linked);

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

/// The linked hooks that a trainer takes, in an order of their own. Names that match nothing are mistakes.
pub(crate) fn discover(choice: &Discover, required: &[String], mistakes: &mut Vec<String>) -> Vec<HookDef> {
    let mut linked: Vec<HookDef> =
        inventory::iter::<Discovered>().map(|discovered| discovered.0.clone()).collect();
    // inventory's own order is undefined.
    linked.sort_by(|one, other| one.origin.rank().cmp(&other.origin.rank()));
    let blocks = inventory::iter::<Linked>().map(|linked| crate_of(linked.0));
    let crates: BTreeSet<&str> = linked.iter().map(|hook| hook.origin.krate()).chain(blocks).collect();

    for name in required.iter().map(|name| as_crate(name)).filter(|name| !crates.contains(name.as_str())) {
        let similar = suggestion(&name, crates.iter().copied());
        mistakes.push(format!(
            "no hook of the required crate `{name}` is linked into this program{similar}; \
             Rust links a crate only when the program names it: write `use {name} as _;` in it"
        ));
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
            linked.retain(|hook| names.iter().any(|name| name == hook.origin.krate()));
            linked
        }
    }
}
