//! Hooks of a crate that no program names, so the linker omits them.
//!
//! The crate renames its dependency on the trainer, which the macros must detect.

use training::prelude::*;

/// A hook that never runs.
#[hook]
pub fn before_fit(_: &mut Cx<BeforeFit>) {}

/// A type with hooks.
#[derive(Default)]
pub struct Counter(u64);

#[hook(auto)]
impl Counter {
    /// A hook that never runs.
    #[training::hook(ord = 3, only = train)]
    fn count(&mut self, _: &mut Cx<AtHalf>) {
        self.0 += 1;
    }
}

training::lifecycle! {
    within step {
        /// Halfway through a batch.
        point at_half: batch;
    }
}

/// A batch type with derived traits.
#[derive(training::data::Batch, training::data::Rows)]
pub struct Pair {
    /// The inputs.
    pub inputs: Tensor,
}
