//! Order constraints: `before = path` and `after = path`, whose targets are identified by the
//! `TypeId` of a function or type.

use std::any::TypeId;

use super::definition::Hooks;

/// A `before` or `after` constraint of a hook.
#[derive(Clone, Debug)]
pub struct OrderConstraint {
    pub(crate) side: Side,
    pub(crate) target: TypeId,
    /// The target's path, as written.
    pub(crate) path: &'static str,
    /// Whether the target may be absent.
    pub(crate) optional: bool,
    /// Whether the constraint is written on a block, and applies at every moment where both the
    /// block and the target have a hook.
    pub(crate) inherited: bool,
}

/// Whether a hook runs before or after its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Before,
    After,
}

impl OrderConstraint {
    /// Creates a constraint that runs the hook before its target.
    #[must_use]
    pub const fn before(target: TypeId, path: &'static str) -> Self {
        OrderConstraint { side: Side::Before, target, path, optional: false, inherited: false }
    }

    /// Creates a constraint that runs the hook after its target.
    #[must_use]
    pub const fn after(target: TypeId, path: &'static str) -> Self {
        OrderConstraint { side: Side::After, target, path, optional: false, inherited: false }
    }

    /// Allows the target to be absent.
    #[must_use]
    pub const fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Marks the constraint as written on the block.
    #[must_use]
    pub const fn inherited(mut self) -> Self {
        self.inherited = true;
        self
    }

    /// Formats the constraint as written: `after = my_crate::Clip`.
    pub(crate) fn written(&self) -> String {
        let OrderConstraint { path, optional, .. } = self;
        if *optional {
            format!("{} = optional({path})", self.key())
        } else {
            format!("{} = {path}", self.key())
        }
    }

    /// Returns the key: `before` or `after`.
    pub(crate) fn key(&self) -> &'static str {
        match self.side {
            Side::Before => "before",
            Side::After => "after",
        }
    }
}

/// Returns the identity of a hook type.
#[must_use]
pub const fn id_of_type<H: Hooks>() -> TypeId {
    TypeId::of::<H>()
}

/// Returns the identity of an annotated function, whose signature is checked elsewhere.
#[must_use]
pub const fn id_of_own<F: 'static>(_: &F) -> TypeId {
    TypeId::of::<F>()
}
