//! Finding a learning rate and a batch size with short trial runs that restore everything.

mod batch_size;
mod curve;
mod learning_rate;
mod plot;

use std::any::TypeId;

pub use batch_size::{BatchSizeFound, BatchSizeLimit, FindBatchSize};
pub use curve::{LrCurve, LrPoint};
pub use learning_rate::FindLr;

use crate::hooks::{LrSchedule, NanGuard, SpikeGuard};

/// Returns the types of the hooks that a finder omits without a warning. The finder itself sets the
/// learning rates and checks the loss, instead of these hooks.
fn replaced() -> [TypeId; 3] {
    [TypeId::of::<LrSchedule>(), TypeId::of::<NanGuard>(), TypeId::of::<SpikeGuard>()]
}
