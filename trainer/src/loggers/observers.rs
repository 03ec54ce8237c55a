//! The built-in hooks that only observe a run. A resumed run may have other ones, or other settings
//! of them, because they decide nothing.
//!
//! The list stands until a hook can declare in `#[hook]` that it observes.

use crate::hooks::{
    ActivationStats, CudaMemoryMonitor, HyperparameterMonitor, KernelProfiler, ModelSummary,
    ParameterMonitor, Progress, ThroughputMonitor,
};
use crate::loggers::{Console, Csv, JsonLines, TensorBoard, ToFile};
use crate::values::facts::{SettingList, Settings};

macro_rules! observers {
    ($($hook:ty,)*) => {$(
        #[diagnostic::do_not_recommend]
        impl Settings for $hook {
            fn settings(&self) -> SettingList {
                SettingList::left_out()
            }
        }
    )*};
}

observers! {
    ActivationStats,
    Console,
    Csv,
    CudaMemoryMonitor,
    HyperparameterMonitor,
    JsonLines,
    KernelProfiler,
    ModelSummary,
    ParameterMonitor,
    Progress,
    TensorBoard,
    ThroughputMonitor,
    ToFile,
}

#[cfg(feature = "nvml")]
observers! {
    crate::hooks::GpuMonitor,
}

#[cfg(feature = "system")]
observers! {
    crate::hooks::SystemMonitor,
}

#[cfg(feature = "mlflow")]
observers! {
    crate::loggers::MlFlow,
}
