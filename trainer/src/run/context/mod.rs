//! [`Cx`]: the context that a hook is called with.

// The modules are in the order of the page of `Cx`, because rustdoc shows impl blocks in this
// order. Blank lines keep rustfmt from sorting them.
mod cx;

mod gradients;

mod control;

mod record;

mod state;

mod metrics;

mod module;

mod recompute;

mod eval;

mod checkpoint;

mod world;

pub use cx::Cx;
pub(crate) use cx::missing;
