//! Finding a learning rate and a batch size with short trial runs that restore everything.

mod batch_size;
mod curve;
mod learning_rate;
mod plot;

use std::any::TypeId;

pub use batch_size::{BatchSizeFound, BatchSizeLimit, FindBatchSize};
pub use curve::{LrCurve, LrPoint};
pub use learning_rate::FindLr;

use crate::hooks::{Amp, GradClip};

/// Whether a hook runs in a finder: it must be part of the computation of a step, and its entire
/// state must be restorable.
fn is_kept(hook: TypeId) -> bool {
    [TypeId::of::<Amp>(), TypeId::of::<GradClip>()].contains(&hook)
}
