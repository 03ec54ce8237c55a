//! Monitors: hooks that log the speed, the memory and the parameters of a training run.
//!
//! Loggers receive the logged values in [records](crate::Record).

mod cuda_memory;
#[cfg(feature = "nvml")]
mod gpu;
mod hyperparameters;
mod parameters;
mod rank_monitor;
#[cfg(feature = "system")]
mod system;
mod throughput;

pub use cuda_memory::CudaMemoryMonitor;
#[cfg(feature = "nvml")]
pub use gpu::GpuMonitor;
pub use hyperparameters::HyperparameterMonitor;
pub use parameters::ParameterMonitor;
pub use rank_monitor::RankMonitor;
#[cfg(feature = "system")]
pub use system::SystemMonitor;
pub use throughput::ThroughputMonitor;

use super::refused;
use crate::prelude::*;

/// Bytes in a MiB, the unit of memory in records.
const MIB: f64 = 1_048_576.0;

/// The steps in which a monitor logs: those with a record, or every `n`-th step.
#[derive(Clone, Copy, Debug, Default)]
struct Interval(Option<u64>);

impl Interval {
    /// Returns a message if the interval is 0.
    fn mistakes(self) -> Vec<String> {
        refused([(self.0 == Some(0), "`.every(0)`: expected at least 1".to_owned())])
    }

    /// Whether the monitor logs in the step that the current optimizer is about to take.
    fn is_due_before_step<P>(self, cx: &Cx<P>) -> bool {
        let Some(n) = self.0 else { return cx.is_record_due() };
        cx.step_number().is_multiple_of(n)
    }

    /// Whether the monitor logs after the current batch. `before` is the number of optimizer steps
    /// before the batch.
    fn is_due_after_step(self, before: u64, cx: &Cx<AfterStep>) -> bool {
        let steps = cx.counters().optimizer_steps;
        let Some(n) = self.0 else { return cx.is_record_due() };
        steps > before && steps.is_multiple_of(n)
    }
}

/// Implements `Settings` for monitors whose only setting that can be invalid is the interval. They
/// list no settings, because they only observe.
macro_rules! interval_settings {
    ($monitor:ident) => {
        #[diagnostic::do_not_recommend]
        impl crate::checkpoint::Settings for $monitor {
            fn settings(&self) -> crate::checkpoint::SettingList {
                crate::checkpoint::SettingList::new()
            }

            fn mistakes(&self) -> Vec<String> {
                self.interval.mistakes()
            }
        }
    };
}
use interval_settings;

/// Whether a metric is a monitor's value that is too detailed for a progress line, such as
/// `train/grad_norm/fc1.weight`.
pub(super) fn is_detail(name: &str) -> bool {
    const GROUPS: [&str; 11] = [
        "cuda_memory/",
        "gpu/",
        "grad_norm/",
        "hyperparameter/",
        "ranks/",
        "system/",
        "throughput/",
        "time/",
        "update_norm/",
        "update_ratio/",
        "weight_norm/",
    ];
    name.split_once('/').is_some_and(|(_, name)| GROUPS.iter().any(|group| name.starts_with(group)))
}
