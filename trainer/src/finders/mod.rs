//! Finding a learning rate and a batch size: short trainings that leave everything as it was.

mod batch_size;
mod curve;
mod learning_rate;
mod plot;

use std::any::TypeId;

pub use batch_size::{BatchSizeFound, BatchSizeLimit, FindBatchSize};
pub use curve::{LrCurve, LrPoint};
pub use learning_rate::FindLr;

use crate::hooks::{Amp, GradClip};

/// The hooks that run in a finder: those that belong to the computation of a step, and whose whole
/// state can be restored.
fn is_kept(hook: TypeId) -> bool {
    [TypeId::of::<Amp>(), TypeId::of::<GradClip>()].contains(&hook)
}
