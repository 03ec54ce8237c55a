//! Monitors: hooks that log the speed, the memory and the parameters of a training run.
//!
//! Loggers receive the logged values in [records](crate::Record).

mod cuda_memory;
#[cfg(feature = "nvml")]
mod gpu;
mod hyperparameters;
mod parameters;
mod ranks;
#[cfg(feature = "system")]
mod system;
mod throughput;

pub use cuda_memory::CudaMemoryMonitor;
#[cfg(feature = "nvml")]
pub use gpu::GpuMonitor;
pub use hyperparameters::HyperparameterMonitor;
pub use parameters::ParameterMonitor;
pub use ranks::RankMonitor;
#[cfg(feature = "system")]
pub use system::SystemMonitor;
pub use throughput::ThroughputMonitor;

use crate::prelude::*;

/// Bytes in a MiB, the unit of memory in records.
const MIB: f64 = 1_048_576.0;

/// The steps in which a monitor logs: those with a record, or every `n`-th step.
#[derive(Clone, Copy, Debug, Default)]
struct Interval(Option<u64>);

impl Interval {
    /// Returns an error if the interval is 0.
    fn check(self) -> Result<()> {
        if self.0 == Some(0) { Err(Error::msg("`.every(0)`: expected at least 1")) } else { Ok(()) }
    }

    /// Whether the monitor logs in the step that the current optimizer is about to take.
    fn is_due_before_step<P>(self, cx: &Cx<P>) -> Result<bool> {
        let Some(n) = self.0 else { return Ok(cx.is_record_due()) };
        Ok((cx.steps_of(cx.part())? + 1).is_multiple_of(n))
    }

    /// Whether the monitor logs after the current batch. `before` is the number of optimizer steps
    /// before the batch.
    fn is_due_after_step(self, before: u64, cx: &Cx<AfterStep>) -> bool {
        let steps = cx.counters().optimizer_steps;
        let Some(n) = self.0 else { return cx.is_record_due() };
        steps > before && steps.is_multiple_of(n)
    }
}

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
