//! Discovery: finding the hooks linked into a program, and selecting the ones that a trainer uses.

use std::any::TypeId;
use std::collections::BTreeSet;

use super::call::Loop;
use super::definition::{HookDef, Origin};
use super::instance::Instance;
use crate::error::did_you_mean;

/// When a trainer creates the value of a block with `auto`.
#[derive(Clone, Copy, Debug)]
pub enum AutoWhen {
    /// If the trainer discovers the hooks of the crate. Those of the trainer itself, unless it
    /// discovers none.
    Always,
    /// If the trainer has several ranks, regardless of which crates it discovers.
    OnRanks,
    /// If the trainer discovers the hooks of the crate, and this function returns `true`.
    If(fn() -> bool),
}

/// The selection of linked hooks that a trainer uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Discover {
    /// All linked hooks.
    #[default]
    All,
    /// No linked hooks, only those added to the builder: not even the trainer's own
    /// [`Checkup`](crate::hooks::Checkup). Useful in tests.
    None,
    /// The hooks of these crates, and the trainer's own; `name@version` selects one of several
    /// linked versions.
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

/// A hook that is linked into the program.
pub(crate) struct Linked<R: Loop> {
    pub(crate) hook: HookDef<R>,
    /// How to create its value, if the hook is a method of a block with `auto`.
    pub(crate) auto: Option<Automatic<R>>,
}

/// A block with `auto`.
pub(crate) struct Automatic<R: Loop> {
    pub(crate) id: TypeId,
    /// The type that identifies a group of hook types. A trainer accepts at most one value from the
    /// whole group.
    pub(crate) single: Option<TypeId>,
    pub(crate) make: fn() -> Instance<R>,
    pub(crate) when: AutoWhen,
}

/// A crate with hooks in this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Crate {
    name: &'static str,
    version: Option<&'static str>,
    binary: bool,
    own: bool,
}

impl Crate {
    fn of(origin: &Origin) -> Self {
        Crate { name: origin.krate(), version: origin.version, binary: origin.binary, own: origin.is_own() }
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
/// and name. `origins` are those of all blocks and functions with hooks in the program. Reports
/// names that match nothing.
pub(crate) fn discover<'a, R: Loop>(
    mut linked: Vec<Linked<R>>,
    origins: impl Iterator<Item = &'a Origin>,
    selection: &Discover,
    ranks: u32,
    required: &[String],
    mistakes: &mut Vec<String>,
) -> Vec<Linked<R>> {
    // The linker does not define an order.
    linked.sort_by(|one, other| one.hook.origin.rank().cmp(&other.hook.origin.rank()));
    let mut crates: BTreeSet<Crate> = origins.map(Crate::of).collect();
    crates.extend(linked.iter().map(|linked| Crate::of(&linked.hook.origin)));
    missing(&crates, selection, required, mistakes);
    let is_selected = |hook: &HookDef<R>| match selection {
        Discover::All => true,
        Discover::None => false,
        Discover::Crates(names) => names.iter().any(|name| Crate::of(&hook.origin).is_called(name)),
    };
    linked.retain(|Linked { hook, auto }| match auto.as_ref().map(|auto| auto.when) {
        Some(AutoWhen::OnRanks) => ranks > 1,
        Some(AutoWhen::If(is_on)) => is_selected(hook) && is_on(),
        Some(AutoWhen::Always) if hook.origin.is_own() => *selection != Discover::None,
        Some(AutoWhen::Always) => is_selected(hook),
        None => is_selected(hook),
    });
    linked
}

/// Reports crates that the program names but that have no hooks linked into it.
fn missing(crates: &BTreeSet<Crate>, selection: &Discover, required: &[String], mistakes: &mut Vec<String>) {
    // This crate has blocks too. If even they are missing, the linker dropped all registrations.
    if !crates.iter().any(|linked| linked.own) {
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
fn similar(name: &str, crates: &BTreeSet<Crate>) -> String {
    did_you_mean(&as_crate(name), crates.iter().map(|linked| linked.name))
}

/// Lists the linked versions of a library.
fn versions(spec: &str, crates: &BTreeSet<Crate>) -> Option<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Crate = Crate { name: "trainer", version: Some("1.0.0"), binary: false, own: true };

    fn report(crates: &[Crate], choice: &Discover, required: &[&str]) -> String {
        let mut mistakes = Vec::new();
        let required: Vec<_> = required.iter().map(ToString::to_string).collect();
        missing(&crates.iter().copied().collect(), choice, &required, &mut mistakes);
        mistakes.join("\n")
    }

    #[test]
    fn hooks_of_a_binary_do_not_satisfy_a_requirement_for_its_library() {
        let binary = Crate { name: "my_run", version: Some("0.1.0"), binary: true, own: false };
        assert_eq!(
            report(&[OWN, binary], &Discover::All, &["my-run"]),
            "no hook of the required crate `my_run` is linked into this program; only hooks of the binary `my_run` are linked, not those of its library: write `use my_run as _;` in the binary"
        );
        assert_eq!(
            report(&[OWN, binary, Crate { binary: false, ..binary }], &Discover::All, &["my-run"]),
            ""
        );
    }

    #[test]
    fn each_version_of_a_crate_can_be_required_and_discovered() {
        let old = Crate { name: "plugin", version: Some("0.1.0"), binary: false, own: false };
        let new = Crate { version: Some("0.2.0"), ..old };
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
        let other = Crate { name: "other", version: Some("0.1.0"), binary: false, own: false };
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
