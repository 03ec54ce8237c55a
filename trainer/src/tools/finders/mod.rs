//! Finding a learning rate and a batch size with short trial runs that restore everything.

mod batch_size;
mod curve;
mod learning_rate;
mod plot;

use std::any::Any;

pub use batch_size::{BatchSizeFinder, BatchSizeFound, BatchSizeLimit};
pub use curve::{LrCurve, LrPoint};
pub use learning_rate::LearningRateFinder;

use crate::hooks::{HyperparameterSchedule, NanGuard, SpikeGuard};

/// Whether a finder omits a hook without a warning, because the finder itself sets the learning
/// rates and checks the loss.
pub(super) fn is_replaced(hook: &(dyn Any + Send)) -> bool {
    hook.is::<NanGuard>()
        || hook.is::<SpikeGuard>()
        || hook.downcast_ref().is_some_and(HyperparameterSchedule::sets_lr)
}
