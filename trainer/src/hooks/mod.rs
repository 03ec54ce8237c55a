//! The built-in hooks, written with `#[hook]` like any user-defined hook.

mod activation_checkpointing;
mod activation_stats;
mod amp;
mod averaging;
mod batch_norm_update;
mod checkpoint;
pub mod checkup;
mod data_parallel;
mod early_stopping;
mod feature_recorder;
mod field_schedule;
mod freeze;
mod grad_clip;
mod hyperparameter_schedule;
mod kernel_profiler;
mod local_sgd;
mod lora;
mod methods;
mod model_summary;
mod monitors;
mod nan_guard;
mod pace;
mod progress;
mod reduce_on_plateau;
mod spike_guard;
mod stochastic_depth;
mod unit_activity;
mod watched_metric;

pub use activation_checkpointing::ActivationCheckpointing;
pub use activation_stats::ActivationStats;
pub use amp::Amp;
pub use averaging::{Ema, Swa};
pub use batch_norm_update::BatchNormUpdate;
pub use checkpoint::Checkpoint;
pub(crate) use checkpoint::IN_RUN_FOLDER;
pub use checkup::Checkup;
pub use data_parallel::DataParallel;
pub use early_stopping::EarlyStopping;
pub use feature_recorder::FeatureRecorder;
pub use field_schedule::FieldSchedule;
pub use freeze::Freeze;
pub use grad_clip::{ClipGradNorm, ClipGradValue};
pub use hyperparameter_schedule::HyperparameterSchedule;
pub use kernel_profiler::KernelProfiler;
pub use local_sgd::LocalSgd;
pub use lora::Lora;
pub use methods::{CutMix, Distillation, GradientNoise, LabelSmoothing, Lookahead, MixUp, Sam};
pub use model_summary::ModelSummary;
#[cfg(feature = "nvml")]
pub use monitors::GpuMonitor;
#[cfg(feature = "system")]
pub use monitors::SystemMonitor;
pub use monitors::{
    CudaMemoryMonitor, HyperparameterMonitor, ParameterMonitor, RankMonitor, ThroughputMonitor,
};
pub use nan_guard::NanGuard;
#[cfg(feature = "dashboard")]
pub use progress::Dashboard;
pub use progress::Progress;
pub use reduce_on_plateau::{PlateauState, ReduceOnPlateau};
pub use spike_guard::SpikeGuard;
pub use stochastic_depth::StochasticDepth;
pub use unit_activity::{DeadUnits, SaturatedUnits};

use crate::hook::stages;

/// Whether a setting is a finite number above 0.
fn is_positive(number: f64) -> bool {
    number.is_finite() && number > 0.0
}

/// Whether a setting is a finite number of at least 0.
fn is_at_least_0(number: f64) -> bool {
    number.is_finite() && number >= 0.0
}

/// Returns the messages whose condition is met: the mistakes in some settings.
fn refused<const N: usize>(cases: [(bool, String); N]) -> Vec<String> {
    cases.into_iter().filter_map(|(is_invalid, message)| is_invalid.then_some(message)).collect()
}
