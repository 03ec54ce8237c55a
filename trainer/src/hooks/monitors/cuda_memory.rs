//! The memory of a CUDA device, as libtorch's allocator counts it.

use super::{Interval, MIB, interval_settings};
use crate::cuda::{self, CudaMemory};
use crate::prelude::own::*;
use crate::stages;

/// Logs the memory that libtorch's allocator manages on the task's CUDA device, in MiB:
/// `train/cuda_memory/allocated`, the memory occupied by tensors; `…/reserved`, the memory held by
/// the allocator; and their peaks since the fit began, `…/peak_allocated` and `…/peak_reserved`.
///
/// Use this when a run needs too much GPU memory. For the memory of all processes on the GPU, use
/// `GpuMonitor` (feature `nvml`).
///
/// The values correspond to PyTorch's `torch.cuda.memory_allocated` and related functions; when a
/// fit begins or resumes, the monitor calls [`reset_peaks`](crate::cuda::reset_peaks). Reading the
/// values does not wait for the device. A task that is not on a CUDA device is an error when `fit`
/// begins. The value of an epoch is the maximum.
///
/// ```no_run
/// use trainer::hooks::CudaMemoryMonitor;
/// use trainer::prelude::*;
///
/// # let vs = nn::VarStore::new(Device::Cuda(0));
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let trainer = Trainer::builder(task)
///     .optimizer(AdamW::new(1e-2))
///     .hook(CudaMemoryMonitor::new())
///     .build()?;
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "DeviceStatsMonitor")]
#[derive(Debug, Default)]
pub struct CudaMemoryMonitor {
    interval: Interval,
    /// The number of optimizer steps before the current batch.
    steps: u64,
}

impl CudaMemoryMonitor {
    /// Creates the monitor.
    #[must_use]
    pub fn new() -> Self {
        CudaMemoryMonitor::default()
    }

    /// Logs after every `n`-th optimizer step. Defaults to the steps after which a record is
    /// [due](Cx::is_record_due), which requires a logger.
    #[must_use]
    pub fn every(mut self, n: u64) -> Self {
        self.interval = Interval(Some(n));
        self
    }

    /// Resets the peaks. Returns an error if a setting is invalid, or if the task is not on a CUDA
    /// device.
    fn begin<P>(&self, cx: &Cx<P>) -> Result<()> {
        match cx.device() {
            device @ Device::Cuda(_) => cuda::reset_peaks(device),
            other => Err(Error::fatal(format!(
                "the task is on {other:?}, but libtorch only tracks the memory of CUDA devices: remove the monitor"
            ))),
        }
    }
}

#[hook(in = stages::Monitors, only = train, single, settings, may_fail)]
impl CudaMemoryMonitor {
    /// Resets the peaks. Returns an error if a setting is invalid, or if the task is not on a CUDA
    /// device.
    fn before_fit(&mut self, cx: &Cx<BeforeFit>) -> Result<()> {
        self.begin(cx)
    }

    /// Does the same as `before_fit` for a resumed fit.
    fn after_load_checkpoint(&mut self, cx: &Cx<AfterLoadCheckpoint>) -> Result<()> {
        self.begin(cx)
    }

    /// Records the number of optimizer steps before the batch.
    fn before_step(&mut self, cx: &Cx<BeforeStep>) {
        self.steps = cx.counters().optimizer_steps;
    }

    /// Logs the values if they are due.
    fn after_step(&mut self, cx: &Cx<AfterStep>) -> Result<()> {
        if self.interval.is_due_after_step(self.steps, cx) {
            let CudaMemory { allocated, peak_allocated, reserved, peak_reserved } =
                cuda::memory(cx.device())?;
            cx.log_as("cuda_memory/allocated", allocated as f64 / MIB, Reduce::Max);
            cx.log_as("cuda_memory/peak_allocated", peak_allocated as f64 / MIB, Reduce::Max);
            cx.log_as("cuda_memory/reserved", reserved as f64 / MIB, Reduce::Max);
            cx.log_as("cuda_memory/peak_reserved", peak_reserved as f64 / MIB, Reduce::Max);
        }
        Ok(())
    }
}

interval_settings!(CudaMemoryMonitor);
