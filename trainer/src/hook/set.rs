//! Sets of hooks: `in = my_crate::Clipping`. A stage is a set of this crate that has a position.

use std::any::TypeId;

use super::stages;

/// A set of hooks. A hook joins it with `#[hook(in = Clipping)]`. With `before = Clipping` or
/// `after = Clipping`, a hook of any crate runs before or after all hooks in the set. A set may be
/// empty.
///
/// ```standalone_crate
/// use trainer::prelude::*;
///
/// /// Hooks that limit gradients.
/// pub struct Clipping;
///
/// impl HookSet for Clipping {}
///
/// #[hook(in = Clipping)]
/// fn halve(cx: &mut Cx<BeforeOptStep>) {
///     for (_, mut grad) in cx.grads() {
///         let _ = grad.g_mul_scalar_(0.5);
///     }
/// }
///
/// #[hook(after = Clipping)]
/// fn gradient_norm(cx: &Cx<BeforeOptStep>) {
///     let squares: Vec<Tensor> = cx.grads().map(|(_, grad)| grad.square().sum(grad.kind())).collect();
///     cx.log("gradient_norm", Tensor::stack(&squares, 0).sum(Kind::Float).sqrt());
/// }
/// # fn main() {}
/// ```
///
/// [`stages`] are sets that also have a position.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a set of hooks",
    label = "not a set of hooks",
    note = "a set is a custom type, such as `pub struct Clipping;` with `impl HookSet for Clipping {{}}`, or one of `trainer::stages`"
)]
pub trait HookSet: 'static {
    /// The stage, if this set is a stage.
    #[doc(hidden)]
    const STAGE: Option<Stage> = None;
}

/// The position of a stage in the order in which stages run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stage(pub(super) usize);

impl Stage {
    /// Returns the name of the stage, or `None` for the position of hooks without a stage.
    pub(crate) fn name(self) -> Option<&'static str> {
        (self != stages::DEFAULT).then(|| stages::NAMES[self.0])
    }
}

/// A reference to a set that a hook belongs to.
#[derive(Clone, Copy, Debug)]
pub struct SetRef {
    pub(crate) id: TypeId,
    pub(crate) stage: Option<Stage>,
    /// The path of the set, as written.
    pub(crate) path: &'static str,
}

impl SetRef {
    /// Refers to the set `S`.
    #[must_use]
    pub const fn of<S: HookSet>(path: &'static str) -> Self {
        SetRef { id: TypeId::of::<S>(), stage: S::STAGE, path }
    }
}
