//! The `ord` of each built-in hook, relative to which other hooks can be ordered:
//! `#[hook(ord = trainer::ord::PROGRESS + 1)]`.

/// The `ord` of [`Amp`](crate::hooks::Amp): outside of [`NanGuard`](crate::hooks::NanGuard) around
/// `opt_step`.
pub const AMP: i32 = -60;
/// The `ord` of [`Ema`](crate::hooks::Ema) and [`Swa`](crate::hooks::Swa): before most other hooks,
/// so that they see the averaged weights during evaluation.
pub const AVERAGING: i32 = -200;
/// The `ord` of [`BatchNormUpdate`](crate::hooks::BatchNormUpdate): right after
/// [`Swa`](crate::hooks::Swa).
pub const BATCH_NORM_UPDATE: i32 = -199;
/// The `ord` of [`Checkpoint`](crate::hooks::Checkpoint). The hook only requests a checkpoint,
/// which is written after all hooks have run. At `after_valid` and `after_epoch`, the `ord` is
/// [`EARLY_STOPPING`].
pub const CHECKPOINT: i32 = -3;
/// The `ord` of [`DataParallel`](crate::hooks::DataParallel): inside of most other hooks around
/// `backward`. At `before_opt_step`, it comes first.
pub const DATA_PARALLEL: i32 = 1_000;
/// The `ord` of [`EarlyStopping`](crate::hooks::EarlyStopping): after hooks that log the watched
/// metric.
pub const EARLY_STOPPING: i32 = 10;
/// The `ord` of [`GradientNoise`](crate::hooks::GradientNoise): inside of
/// [`Amp`](crate::hooks::Amp), so that the noise is not scaled.
pub const GRADIENT_NOISE: i32 = 100;
/// The `ord` of the [loggers](crate::loggers): after hooks that change the weights or the settings
/// of the run.
pub const LOGGER: i32 = 20;
/// The `ord` of [`Lookahead`](crate::hooks::Lookahead): before [`Ema`](crate::hooks::Ema), which
/// therefore averages the weights that training continues with.
pub const LOOKAHEAD: i32 = -210;
/// The `ord` of [`Freeze`](crate::hooks::Freeze): before hooks that read which parameters are
/// trained.
pub const FREEZE: i32 = -150;
/// The `ord` of [`LrSchedule`](crate::hooks::LrSchedule),
/// [`HyperparameterSchedule`](crate::hooks::HyperparameterSchedule) and
/// [`FieldSchedule`](crate::hooks::FieldSchedule).
pub const LR_SCHEDULE: i32 = -100;
/// The `ord` of [`ClipGradNorm`](crate::hooks::ClipGradNorm): inside all hooks around `opt_step`
/// with a lower `ord`. That of [`ClipGradValue`](crate::hooks::ClipGradValue) is one less.
pub const GRAD_CLIP: i32 = 1_000_000;
/// The `ord` of [metrics](crate::metrics::MetricHook): before hooks that watch or print the logged
/// values.
pub const METRICS: i32 = -10;
/// The `ord` of [`KernelProfiler`](crate::hooks::KernelProfiler): it starts recording after other
/// hooks at `before_step`. At `after_step`, where it stops, the `ord` is the negative of this
/// value.
pub const KERNEL_PROFILER: i32 = 1_000_000;
/// The `ord` of [`MixUp`](crate::hooks::MixUp), [`CutMix`](crate::hooks::CutMix) and
/// [`LabelSmoothing`](crate::hooks::LabelSmoothing): after hooks that normalize or augment the
/// batch.
pub const MIX: i32 = 100;
/// The `ord` of the monitors, such as [`ParameterMonitor`](crate::hooks::ParameterMonitor): after
/// hooks that set hyperparameters or change gradients, and around
/// [`ClipGradValue`](crate::hooks::ClipGradValue) and [`ClipGradNorm`](crate::hooks::ClipGradNorm).
/// At `before_step`, the `ord` of [`ThroughputMonitor`](crate::hooks::ThroughputMonitor) is the
/// negative of this value.
pub const MONITORS: i32 = 999_998;
/// The `ord` of [`NanGuard`](crate::hooks::NanGuard): outside most other hooks around `backward`
/// and `opt_step`.
pub const NAN_GUARD: i32 = -50;
/// The `ord` of [`Progress`](crate::hooks::Progress).
pub const PROGRESS: i32 = 5;
/// The `ord` of [`ReduceOnPlateau`](crate::hooks::ReduceOnPlateau): after hooks that log the
/// watched metric.
pub const REDUCE_ON_PLATEAU: i32 = 10;
/// The `ord` of [`Sam`](crate::hooks::Sam): outside of [`Amp`](crate::hooks::Amp), whose hooks
/// around `pred` and `loss` it runs again.
pub const SAM: i32 = -70;
/// The `ord` of [`DeadUnits`](crate::hooks::DeadUnits) and
/// [`SaturatedUnits`](crate::hooks::SaturatedUnits): before hooks that watch or print the metrics
/// of an epoch.
pub const UNIT_ACTIVITY: i32 = 0;
