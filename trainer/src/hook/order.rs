//! Which hook comes first.

use super::definition::Hook;

/// Sorts the hooks of one moment: by `ord`; where that is equal the explicit ones in the order in
/// which they were added, then the discovered ones by crate, module path and name.
///
/// `hooks` lists the explicit ones first and each kind in its order, so that a stable sort is enough.
pub(crate) fn sort(hooks: &mut [Hook]) {
    hooks.sort_by_key(|hook| hook.definition.ord);
}
