//! The moments of a run: the lifecycle, its moments and phases, and the counters.

pub(crate) mod counters;
pub mod lifecycle;
pub mod moment;
pub(crate) mod never;
pub mod phase;
pub(crate) mod tree;
