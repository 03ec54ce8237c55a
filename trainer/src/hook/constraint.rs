//! Order constraints: `before = path` and `after = path`, whose targets are identified by the
//! `TypeId` of a function, a hook type or a set.

use std::any::TypeId;

/// A `before` or `after` constraint of a hook.
#[derive(Clone, Debug)]
pub struct OrderConstraint {
    pub(crate) side: Side,
    pub(crate) target: OrderTarget,
    /// The target's path, as written.
    pub(crate) path: &'static str,
    /// Whether the target may be absent.
    pub(crate) optional: bool,
    /// Whether the constraint is written on an `impl` block. It then applies at every moment for
    /// which both the block and the target have a hook.
    pub(crate) inherited: bool,
}

/// The target of an order constraint: a hook function, a hook type or a set of hooks.
#[derive(Clone, Copy, Debug)]
pub struct OrderTarget {
    pub(crate) id: TypeId,
    /// Whether the target is a set, which may be empty.
    pub(crate) is_set: bool,
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
    pub const fn before(target: OrderTarget, path: &'static str) -> Self {
        OrderConstraint { side: Side::Before, target, path, optional: false, inherited: false }
    }

    /// Creates a constraint that runs the hook after its target.
    #[must_use]
    pub const fn after(target: OrderTarget, path: &'static str) -> Self {
        OrderConstraint { side: Side::After, target, path, optional: false, inherited: false }
    }

    /// Allows the target to be absent.
    #[must_use]
    pub const fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Marks the constraint as one that is written on an `impl` block.
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

    /// Returns the key of the constraint: `before` or `after`.
    pub(crate) fn key(&self) -> &'static str {
        match self.side {
            Side::Before => "before",
            Side::After => "after",
        }
    }
}

/// Returns the `TypeId` of a function that has `#[hook]`. Does not check the function's signature.
#[must_use]
pub const fn id_of_own<F: 'static>(_: &F) -> TypeId {
    TypeId::of::<F>()
}
