//! Finding a learning rate and a batch size with short trial runs that restore everything.

mod batch_size;
mod curve;
mod learning_rate;
mod plot;

use std::any::TypeId;

pub use batch_size::{BatchSizeFound, BatchSizeLimit, FindBatchSize};
pub use curve::{LrCurve, LrPoint};
pub use learning_rate::FindLr;

use crate::hooks::{
    Amp, ClipGradNorm, ClipGradValue, CutMix, Freeze, GradientNoise, HyperparameterSchedule, LabelSmoothing,
    Lookahead, MixUp, Sam, StochasticDepth,
};
use crate::training::trial::Hooks;

/// Classifies a hook by the type of its value. A finder runs what is part of the computation of a
/// step, or decides which parameters are trained, if its entire state can be restored.
fn hooks(hook: TypeId) -> Hooks {
    let kept = [
        TypeId::of::<Amp>(),
        TypeId::of::<ClipGradNorm>(),
        TypeId::of::<ClipGradValue>(),
        TypeId::of::<CutMix>(),
        TypeId::of::<Freeze>(),
        TypeId::of::<GradientNoise>(),
        TypeId::of::<LabelSmoothing>(),
        TypeId::of::<MixUp>(),
        TypeId::of::<Sam>(),
    ];
    let missed =
        [TypeId::of::<HyperparameterSchedule>(), TypeId::of::<Lookahead>(), TypeId::of::<StochasticDepth>()];
    match hook {
        hook if kept.contains(&hook) => Hooks::Kept,
        hook if missed.contains(&hook) => Hooks::Missed,
        _ => Hooks::Ignored,
    }
}
