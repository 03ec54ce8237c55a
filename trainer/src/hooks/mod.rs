//! The built-in hooks, written with `#[hook]` like any user-defined hook.

mod activation_stats;
mod amp;
mod averaging;
mod batch_norm_update;
mod checkpoint;
mod data_parallel;
mod early_stopping;
mod feature_recorder;
mod field_schedule;
mod freeze;
mod goal;
mod grad_clip;
mod hyperparameter_schedule;
mod kernel_profiler;
mod lr_schedule;
mod methods;
mod model_summary;
mod monitors;
mod nan_guard;
mod pace;
mod progress;
mod reduce_on_plateau;
mod schedule_core;
mod stochastic_depth;
mod unit_activity;

pub use activation_stats::ActivationStats;
pub use amp::Amp;
pub use averaging::{Ema, Swa};
pub use batch_norm_update::BatchNormUpdate;
pub use checkpoint::Checkpoint;
pub use data_parallel::DataParallel;
pub use early_stopping::EarlyStopping;
pub use feature_recorder::FeatureRecorder;
pub use field_schedule::FieldSchedule;
pub use freeze::Freeze;
pub use goal::Goal;
pub use grad_clip::{ClipGradNorm, ClipGradValue};
pub use hyperparameter_schedule::HyperparameterSchedule;
pub use kernel_profiler::KernelProfiler;
pub use lr_schedule::LrSchedule;
pub use methods::{CutMix, GradientNoise, LabelSmoothing, Lookahead, MixUp, Sam};
pub use model_summary::ModelSummary;
#[cfg(feature = "nvml")]
pub use monitors::GpuMonitor;
#[cfg(feature = "system")]
pub use monitors::SystemMonitor;
pub use monitors::{CudaMemoryMonitor, HyperparameterMonitor, ParameterMonitor, ThroughputMonitor};
pub use nan_guard::NanGuard;
pub use progress::Progress;
pub use reduce_on_plateau::{PlateauState, ReduceOnPlateau};
pub use stochastic_depth::StochasticDepth;
pub use unit_activity::{DeadUnits, SaturatedUnits};

/// The `ord` of each built-in hook, relative to which other hooks can be ordered:
/// `#[hook(ord = trainer::ord::PROGRESS + 1)]`.
pub mod ord {
    /// The `ord` of [`Amp`](super::Amp): outside of [`NanGuard`](super::NanGuard) around
    /// `opt_step`.
    pub const AMP: i32 = -60;
    /// The `ord` of [`Ema`](super::Ema) and [`Swa`](super::Swa): before most other hooks, so that
    /// they see the averaged weights during evaluation.
    pub const AVERAGING: i32 = -200;
    /// The `ord` of [`BatchNormUpdate`](super::BatchNormUpdate): right after [`Swa`](super::Swa).
    pub const BATCH_NORM_UPDATE: i32 = -199;
    /// The `ord` of [`Checkpoint`](super::Checkpoint). The hook only requests a checkpoint, which
    /// is written after all hooks have run. At `after_valid` and `after_epoch`, the `ord` is
    /// [`EARLY_STOPPING`].
    pub const CHECKPOINT: i32 = -3;
    /// The `ord` of [`DataParallel`](super::DataParallel): inside of most other hooks around
    /// `backward`. At `before_opt_step`, it comes first.
    pub const DATA_PARALLEL: i32 = 1_000;
    /// The `ord` of [`EarlyStopping`](super::EarlyStopping): after hooks that log the watched
    /// metric.
    pub const EARLY_STOPPING: i32 = 10;
    /// The `ord` of [`GradientNoise`](super::GradientNoise): inside of [`Amp`](super::Amp), so that
    /// the noise is not scaled.
    pub const GRADIENT_NOISE: i32 = 100;
    /// The `ord` of the [loggers](crate::loggers): after hooks that change the weights or the
    /// settings of the run.
    pub const LOGGER: i32 = 20;
    /// The `ord` of [`Lookahead`](super::Lookahead): before [`Ema`](super::Ema), which therefore
    /// averages the weights that training continues with.
    pub const LOOKAHEAD: i32 = -210;
    /// The `ord` of [`Freeze`](super::Freeze): before hooks that read which parameters are trained.
    pub const FREEZE: i32 = -150;
    /// The `ord` of [`LrSchedule`](super::LrSchedule),
    /// [`HyperparameterSchedule`](super::HyperparameterSchedule) and
    /// [`FieldSchedule`](super::FieldSchedule).
    pub const LR_SCHEDULE: i32 = -100;
    /// The `ord` of [`ClipGradNorm`](super::ClipGradNorm): inside all hooks around `opt_step` with a
    /// lower `ord`. That of [`ClipGradValue`](super::ClipGradValue) is one less.
    pub const GRAD_CLIP: i32 = 1_000_000;
    /// The `ord` of [metrics](crate::metrics::MetricHook): before hooks that watch or print the
    /// logged values.
    pub const METRICS: i32 = -10;
    /// The `ord` of [`KernelProfiler`](super::KernelProfiler): it starts recording after other
    /// hooks at `before_step`. At `after_step`, where it stops, the `ord` is the negative of this
    /// value.
    pub const KERNEL_PROFILER: i32 = 1_000_000;
    /// The `ord` of [`MixUp`](super::MixUp), [`CutMix`](super::CutMix) and
    /// [`LabelSmoothing`](super::LabelSmoothing): after hooks that normalize or augment the batch.
    pub const MIX: i32 = 100;
    /// The `ord` of the monitors, such as [`ParameterMonitor`](super::ParameterMonitor): after
    /// hooks that set hyperparameters or change gradients, and around
    /// [`ClipGradValue`](super::ClipGradValue) and [`ClipGradNorm`](super::ClipGradNorm). At
    /// `before_step`, the `ord` of [`ThroughputMonitor`](super::ThroughputMonitor) is the negative
    /// of this value.
    pub const MONITORS: i32 = 999_998;
    /// The `ord` of [`NanGuard`](super::NanGuard): outside most other hooks around `backward` and
    /// `opt_step`.
    pub const NAN_GUARD: i32 = -50;
    /// The `ord` of [`Progress`](super::Progress).
    pub const PROGRESS: i32 = 5;
    /// The `ord` of [`ReduceOnPlateau`](super::ReduceOnPlateau): after hooks that log the watched
    /// metric.
    pub const REDUCE_ON_PLATEAU: i32 = 10;
    /// The `ord` of [`Sam`](super::Sam): outside of [`Amp`](super::Amp), whose hooks around `pred`
    /// and `loss` it runs again.
    pub const SAM: i32 = -70;
    /// The `ord` of [`DeadUnits`](super::DeadUnits) and [`SaturatedUnits`](super::SaturatedUnits):
    /// before hooks that watch or print the metrics of an epoch.
    pub const UNIT_ACTIVITY: i32 = 0;
}
