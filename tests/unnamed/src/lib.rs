//! Hooks that no program names, so that the linker leaves them out.
//!
//! Its dependency on the trainer has another name, which the macros find out.

use training::prelude::*;

/// Never runs.
#[hook]
pub fn before_fit(_: &mut Cx<BeforeFit>) {}

/// A type with hooks.
#[derive(Default)]
pub struct Counter(u64);

#[hook(auto)]
impl Counter {
    /// Never runs either.
    #[training::hook(at::at_half, ord = 3, only = train)]
    fn count(&mut self, _: &mut Cx<AtHalf>) {
        self.0 += 1;
    }
}

training::lifecycle! {
    within step {
        /// Half of a batch was seen.
        point at_half: batch;
    }
}

/// A batch of this crate's own.
#[derive(training::data::Batch, training::data::Rows)]
pub struct Pair {
    /// The inputs.
    pub inputs: Tensor,
}
