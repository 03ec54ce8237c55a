//! Hooks that the linker collected, and which of them a trainer takes.

use std::collections::BTreeSet;

use super::definition::HookDef;
use crate::error::suggestion;

/// A free function with `#[hook]`, as the linker collects it.
pub struct Discovered(pub HookDef);

inventory::collect!(Discovered);

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
        Discover::Crates(names.into_iter().map(|name| as_crate(&name.into())).collect())
    }
}

/// A crate's name, also where its package's was given.
pub(crate) fn as_crate(name: &str) -> String {
    name.replace('-', "_")
}

/// The linked hooks that a trainer takes, in an order of their own. Names that match nothing are mistakes.
pub(crate) fn discover(choice: &Discover, required: &[String], mistakes: &mut Vec<String>) -> Vec<HookDef> {
    let mut linked: Vec<HookDef> = inventory::iter::<Discovered>().map(|discovered| discovered.0).collect();
    // inventory's own order is undefined.
    linked.sort_by_key(|hook| (hook.origin.krate(), hook.origin.path, hook.origin.method, hook.origin.line));
    let crates: BTreeSet<&str> = linked.iter().map(|hook| hook.origin.krate()).collect();

    for name in required.iter().map(|name| as_crate(name)).filter(|name| !crates.contains(name.as_str())) {
        mistakes.push(format!(
            "no hook of the required crate `{name}` is linked into this program; \
             Rust links a crate only when the program names it: write `use {name} as _;` in it"
        ));
    }
    match choice {
        Discover::All => linked,
        Discover::None => Vec::new(),
        Discover::Crates(names) => {
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
