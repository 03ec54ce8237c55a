//! `before = path`, `after = path`: which hook, by the identity of its function or type.

use std::any::TypeId;

use super::definition::Hooks;
use super::shim::Outcome;
use crate::Cx;
use crate::moment::Moment;
use crate::next::Next;

/// A constraint of one hook towards another.
#[derive(Clone, Debug)]
pub struct Edge {
    pub(crate) kind: EdgeKind,
    pub(crate) target: TypeId,
    /// The target's path, as it was written.
    pub(crate) path: &'static str,
    /// It need not be there.
    pub(crate) optional: bool,
    /// Written on the block: it holds wherever both have a hook.
    pub(crate) inherited: bool,
}

/// On which side of its target a hook runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EdgeKind {
    Before,
    After,
}

impl Edge {
    /// The hook runs before its target.
    #[must_use]
    pub const fn before(target: TypeId, path: &'static str) -> Self {
        Edge { kind: EdgeKind::Before, target, path, optional: false, inherited: false }
    }

    /// The hook runs after its target.
    #[must_use]
    pub const fn after(target: TypeId, path: &'static str) -> Self {
        Edge { kind: EdgeKind::After, target, path, optional: false, inherited: false }
    }

    /// The target need not be there.
    #[must_use]
    pub const fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// It was written on the block.
    #[must_use]
    pub const fn inherited(mut self) -> Self {
        self.inherited = true;
        self
    }

    /// As it was written: `after = my_crate::Clip`.
    pub(crate) fn written(&self) -> String {
        let Edge { path, optional, .. } = self;
        if *optional {
            format!("{} = optional({path})", self.key())
        } else {
            format!("{} = {path}", self.key())
        }
    }

    /// `before`, `after`.
    pub(crate) fn key(&self) -> &'static str {
        match self.kind {
            EdgeKind::Before => "before",
            EdgeKind::After => "after",
        }
    }
}

/// The identity of a hook type.
#[must_use]
pub const fn id_of_type<H: Hooks>() -> TypeId {
    TypeId::of::<H>()
}

/// The identity of a hook function.
#[must_use]
pub const fn id_of_fn<F: HookFn<M>, M>(_: &F) -> TypeId {
    TypeId::of::<F>()
}

/// The identity of the function that an attribute stands on; its signature is checked elsewhere.
#[must_use]
pub const fn id_of_own<F: 'static>(_: &F) -> TypeId {
    TypeId::of::<F>()
}

/// A function that can be a hook.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a hook",
    label = "not a hook",
    note = "`before` and `after` take the path of a function with `#[hook]`, or of a type with a `#[hook] impl` block"
)]
pub trait HookFn<M>: 'static {}

#[diagnostic::do_not_recommend]
impl<F, P: Moment, R: Outcome> HookFn<(P, R)> for F where F: Fn(&mut Cx<P>) -> R + 'static {}

#[diagnostic::do_not_recommend]
impl<F, P: Moment, R: Outcome> HookFn<(P, Next<P>, R)> for F where F: Fn(&mut Cx<P>, Next<P>) -> R + 'static {}
