//! The load of an NVIDIA GPU.

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::error::NvmlError;

use super::{Interval, MIB, interval_settings};
use crate::libtorch::cuda;
use crate::prelude::own::*;
use crate::stages;

/// Logs the load of an NVIDIA GPU as `nvidia-smi` shows it, including the load from other
/// processes.
///
/// Use this when you want to know whether the GPU is busy. For the memory of tensors, use
/// [`CudaMemoryMonitor`](super::super::CudaMemoryMonitor).
///
/// | name | unit | value |
/// |---|---|---|
/// | `train/gpu/utilization` | % | the fraction of the driver's last sampling period in which a kernel ran |
/// | `train/gpu/memory` | MiB | the memory in use |
/// | `train/gpu/temperature` | °C | the temperature of the chip |
/// | `train/gpu/power` | W | the power draw |
///
/// A value that the GPU does not report is omitted. The values are read from the driver (NVML),
/// without waiting for the GPU. Without a driver, the fit fails when it starts. The value of an
/// epoch is the mean over its recorded steps or, for memory and temperature, the maximum. Nothing
/// is kept in checkpoints. Needs the cargo feature `nvml`.
///
/// ```no_run
/// use trainer::hooks::GpuMonitor;
/// use trainer::prelude::*;
///
/// # let vs = nn::VarStore::new(Device::Cuda(0));
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let trainer = Trainer::builder(task)
///     .optimizer(AdamW::new(1e-2))
///     .hook(GpuMonitor::new())
///     .build()?;
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "DeviceStatsMonitor")]
#[derive(Debug, Default)]
pub struct GpuMonitor {
    interval: Interval,
    /// The index of the GPU that [`device`](GpuMonitor::device) selected.
    chosen: Option<u32>,
    /// The number of optimizer steps before the current batch.
    steps: u64,
    /// The driver, and the index of the GPU; `None` outside of a fit.
    driver: Option<(Nvml, u32)>,
}

impl GpuMonitor {
    /// Creates a monitor of the GPU that the task is on.
    #[must_use]
    pub fn new() -> Self {
        GpuMonitor::default()
    }

    /// Monitors the GPU with this index in `nvidia-smi` instead of the task's GPU, and logs its
    /// values as `train/gpu/<index>/…`. For several GPUs, add several monitors.
    #[must_use]
    pub fn device(mut self, index: u32) -> Self {
        self.chosen = Some(index);
        self
    }

    /// Logs after every `n`-th optimizer step. Defaults to the steps after which a record is
    /// [due](Cx::is_record_due), which requires a logger.
    #[must_use]
    pub fn every(mut self, n: u64) -> Self {
        self.interval = Interval(Some(n));
        self
    }

    /// Opens the driver. Returns an error if a setting is invalid, there is no driver, or the GPU
    /// is unknown.
    fn begin(&mut self, device: Device) -> Result<()> {
        let nvml = Nvml::init().map_err(|error| {
            let hint = "install the driver, or remove the monitor";
            Error::msg(format!("cannot load the NVIDIA driver's library: {error}; {hint}"))
        })?;
        let index = match (self.chosen, device) {
            (Some(index), _) => nvml.device_by_index(index).map(|_| index).map_err(|error| {
                failed(&error, &format!("open GPU {index}, which `.device({index})` selects"))
            })?,
            (None, Device::Cuda(nth)) => {
                let found = cuda::bus_id(nth).map(|id| nvml.device_by_pci_bus_id(id)?.index());
                found.transpose().map_err(|error| failed(&error, "find the task's GPU"))?.ok_or_else(|| {
                    Error::msg(
                        "the CUDA runtime does not report which GPU the task is on: select one with `.device(…)`",
                    )
                })?
            }
            (None, other) => {
                return Err(Error::msg(format!(
                    "the task is on {other:?}, not on a GPU: select the GPU to monitor, `.device(0)`"
                )));
            }
        };
        self.driver = Some((nvml, index));
        Ok(())
    }
}

#[cold]
fn failed(error: &NvmlError, what: &str) -> Error {
    Error::msg(format!("cannot {what}: {error}; select another GPU with `.device(…)`, or remove the monitor"))
}

#[hook(in = stages::Monitors, only = train, settings, may_fail)]
impl GpuMonitor {
    /// Opens the driver.
    fn before_fit(&mut self, cx: &Cx<BeforeFit>) -> Result<()> {
        self.begin(cx.device())
    }

    /// Opens the driver for a resumed fit.
    fn after_load_checkpoint(&mut self, cx: &Cx<AfterLoadCheckpoint>) -> Result<()> {
        self.begin(cx.device())
    }

    /// Records the number of optimizer steps before the batch.
    fn before_step(&mut self, cx: &Cx<BeforeStep>) {
        self.steps = cx.counters().optimizer_steps;
    }

    /// Logs the values if they are due.
    fn after_step(&mut self, cx: &Cx<AfterStep>) -> Result<()> {
        if !self.interval.is_due_after_step(self.steps, cx) {
            return Ok(());
        }
        let Some((nvml, index)) = &self.driver else { return Ok(()) };
        let device = nvml.device_by_index(*index).map_err(|error| failed(&error, "read the GPU"))?;
        let group = self.chosen.map_or_else(|| "gpu".to_owned(), |index| format!("gpu/{index}"));
        if let Ok(utilization) = device.utilization_rates() {
            cx.log_weighted(format!("{group}/utilization"), utilization.gpu, 1.0);
        }
        if let Ok(memory) = device.memory_info() {
            cx.log_as(format!("{group}/memory"), memory.used as f64 / MIB, Reduce::Max);
        }
        if let Ok(temperature) = device.temperature(TemperatureSensor::Gpu) {
            cx.log_as(format!("{group}/temperature"), temperature, Reduce::Max);
        }
        if let Ok(milliwatts) = device.power_usage() {
            cx.log_weighted(format!("{group}/power"), f64::from(milliwatts) / 1e3, 1.0);
        }
        Ok(())
    }

    /// Closes the driver.
    fn teardown(&mut self, _: &Cx<Teardown>) {
        self.driver = None;
    }
}

interval_settings!(GpuMonitor);
