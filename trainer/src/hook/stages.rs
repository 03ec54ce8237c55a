//! The stages that built-in hooks belong to, in the order in which they run.
//!
//! A stage is a [set](crate::HookSet) of hooks with a position. At a point, the hooks of an earlier
//! stage run before those of a later one; around an operation, they run further outside. Within a
//! stage, hooks are ordered by `ord`. Hooks without a stage, like most hooks of a program, run
//! between [`Metrics`] and [`Display`], those with a lower `ord` first.
//!
//! ```standalone_crate
//! use trainer::prelude::*;
//! use trainer::stages;
//!
//! /// Runs after all other hooks, including those with a greater `ord`.
//! #[hook(in = stages::Last)]
//! fn done(cx: &Cx<AfterFit>) {
//!     println!("{}", cx.counters().optimizer_steps);
//! }
//!
//! /// Runs outside of the built-in hooks that clip gradients, but inside the monitors.
//! #[hook(before = stages::Clipping)]
//! fn unclipped(cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
//!     next.run(cx)
//! }
//! # fn main() {}
//! ```

use super::set::{HookSet, Stage};

/// Defines the stages in order. Hooks without a stage run between the two lists.
macro_rules! stages {
    (
        $($(#[$docs:meta])+ $name:ident,)+
        _,
        $($(#[$later_docs:meta])+ $later:ident,)+
    ) => {
        /// The names of the stages, in order. The name for hooks without a stage is empty.
        pub(super) const NAMES: &[&str] =
            &[$(stringify!($name),)+ "", $(stringify!($later),)+];
        /// The position of hooks without a stage.
        pub(super) const DEFAULT: Stage = Stage(position(""));
        $(stages!(@one $(#[$docs])+ $name);)+
        $(stages!(@one $(#[$later_docs])+ $later);)+
    };
    (@one $(#[$docs:meta])+ $name:ident) => {
        $(#[$docs])+
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl HookSet for $name {
            const STAGE: Option<Stage> = Some(Stage(position(stringify!($name))));
        }
    };
}

/// Returns the index of a name in the list.
const fn position(name: &str) -> usize {
    let mut nth = 0;
    while !equal(NAMES[nth].as_bytes(), name.as_bytes()) {
        nth += 1;
    }
    nth
}

const fn equal(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut nth = 0;
    while nth < one.len() {
        if one[nth] != other[nth] {
            return false;
        }
        nth += 1;
    }
    true
}

stages! {
    /// Before all other hooks: [`ThroughputMonitor`](crate::hooks::ThroughputMonitor) at
    /// `before_step`, [`KernelProfiler`](crate::hooks::KernelProfiler) at `after_step`, and
    /// [`DataParallel`](crate::hooks::DataParallel) at `before_opt_step`.
    First,
    /// [`Lookahead`](crate::hooks::Lookahead) or [`LocalSgd`](crate::hooks::LocalSgd), then
    /// [`Ema`](crate::hooks::Ema) and [`Swa`](crate::hooks::Swa), then
    /// [`BatchNormUpdate`](crate::hooks::BatchNormUpdate). Other hooks therefore see the averaged
    /// weights during evaluation.
    Averaging,
    /// [`Lora`](crate::hooks::Lora) and [`Freeze`](crate::hooks::Freeze): before hooks that read
    /// the outputs of modules, or that read which parameters are trained.
    Freezing,
    /// [`HyperparameterSchedule`](crate::hooks::HyperparameterSchedule) and
    /// [`FieldSchedule`](crate::hooks::FieldSchedule).
    Schedules,
    /// Hooks that repeat or skip an optimizer step. From the outermost inward, these are
    /// [`Sam`](crate::hooks::Sam), [`Amp`](crate::hooks::Amp) and
    /// [`NanGuard`](crate::hooks::NanGuard). [`SpikeGuard`](crate::hooks::SpikeGuard) at
    /// `after_step` is in this stage too.
    StepControl,
    /// The [metrics](crate::metrics): before hooks that watch or print the logged values.
    Metrics,
    _,
    /// [`Progress`](crate::hooks::Progress) and its `Dashboard`: after hooks that log.
    Display,
    /// [`EarlyStopping`](crate::hooks::EarlyStopping),
    /// [`ReduceOnPlateau`](crate::hooks::ReduceOnPlateau) and
    /// [`Checkpoint`](crate::hooks::Checkpoint): after the hooks that log the watched metric.
    Decisions,
    /// The [loggers](crate::loggers): after hooks that change the weights or the settings of the
    /// run.
    Loggers,
    /// [`MixUp`](crate::hooks::MixUp), [`CutMix`](crate::hooks::CutMix) and
    /// [`LabelSmoothing`](crate::hooks::LabelSmoothing): after hooks that normalize or augment the
    /// batch. Also [`GradientNoise`](crate::hooks::GradientNoise), whose noise
    /// [`Amp`](crate::hooks::Amp) does not scale.
    Regularization,
    /// [`DataParallel`](crate::hooks::DataParallel): inside of most other hooks around `backward`.
    Communication,
    /// The monitors, such as [`ParameterMonitor`](crate::hooks::ParameterMonitor): after hooks that
    /// set hyperparameters or change gradients, and around those that clip them.
    Monitors,
    /// [`ClipGradValue`](crate::hooks::ClipGradValue), then
    /// [`ClipGradNorm`](crate::hooks::ClipGradNorm). A hook that replaces `opt_step` must run
    /// inside of these two, with `after = trainer::stages::Clipping`. Otherwise, the clipping would
    /// not run, which is an error.
    Clipping,
    /// After all other hooks: [`KernelProfiler`](crate::hooks::KernelProfiler) at `before_step`.
    Last,
}
