//! The memory and the load of the process and of the machine.

use std::fmt;
use std::time::Instant;

use sysinfo::{MemoryRefreshKind, Pid, ProcessRefreshKind, ProcessesToUpdate, System};

use super::{Interval, MIB, interval_settings};
use crate::prelude::own::*;
use crate::stages;

/// Logs the memory and the load of the process and of the machine.
///
/// Use this when the machine may run out of memory, or when you want to know whether its cores are
/// busy.
///
/// | name | unit | value |
/// |---|---|---|
/// | `train/system/process_memory` | MiB | the resident memory of the process |
/// | `train/system/process_cores` | – | the mean number of cores that the process kept busy since the last value |
/// | `train/system/memory_used` | MiB | the memory in use on the machine |
///
/// The value of an epoch is the maximum for memory, and the mean over its recorded steps for cores.
/// Reading the values takes about 50 µs; nothing is kept in checkpoints. Needs the cargo feature
/// `system`.
///
/// ```
/// use trainer::hooks::SystemMonitor;
/// use trainer::prelude::*;
///
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let mut trainer = Trainer::builder(task)
///     .optimizer(AdamW::new(1e-2))
///     .hook(SystemMonitor::new().every(2))
///     .build()?;
/// # let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
/// # let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
/// let summary = trainer.fit(&mut InMemory::new((inputs, labels))?.batch_size(16), None)?;
/// assert!(summary.metrics["train/system/process_memory"] > 1.0);
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "DeviceStatsMonitor")]
#[derive(Default)]
pub struct SystemMonitor {
    interval: Interval,
    /// The number of optimizer steps before the current batch.
    steps: u64,
    system: Option<System>,
    /// The time of the last reading, and the CPU time, in milliseconds, that the process had used
    /// until then.
    last: Option<(Instant, u64)>,
}

impl fmt::Debug for SystemMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SystemMonitor").field("interval", &self.interval).finish_non_exhaustive()
    }
}

impl SystemMonitor {
    /// Creates the monitor.
    #[must_use]
    pub fn new() -> Self {
        SystemMonitor::default()
    }

    /// Logs after every `n`-th optimizer step. Defaults to the steps after which a record is
    /// [due](Cx::is_record_due), which requires a logger.
    #[must_use]
    pub fn every(mut self, n: u64) -> Self {
        self.interval = Interval(Some(n));
        self
    }

    /// Reads the first values. Returns an error if a setting is invalid, or if the operating system
    /// does not report the values.
    fn begin(&mut self) -> Result<()> {
        self.last = None;
        self.read().map(drop)
    }

    /// Returns the memory in use by the process and on the machine, in bytes, and the mean number
    /// of cores that the process kept busy since the last call. In the first call of a fit, the
    /// number of cores is 0.
    fn read(&mut self) -> Result<(u64, u64, f64)> {
        let system = match &mut self.system {
            Some(system) => system,
            none => none.insert(System::new().map_err(Error::new)?),
        };
        let pid = Pid::from_u32(std::process::id());
        let kind = ProcessRefreshKind::nothing().with_memory().with_cpu();
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), false, kind);
        system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
        let Some(process) = system.process(pid) else {
            return Err(Error::msg(
                "the operating system does not report the memory of this process: remove the monitor on this system",
            ));
        };
        let now = Instant::now();
        let cpu = process.accumulated_cpu_time();
        let cores = self.last.map_or(0.0, |(at, before)| {
            cpu.saturating_sub(before) as f64 / 1e3 / (now - at).as_secs_f64().max(1e-3)
        });
        let values = (process.memory(), system.used_memory(), cores);
        self.last = Some((now, cpu));
        Ok(values)
    }
}

#[hook(in = stages::Monitors, only = train, single, settings, may_fail)]
impl SystemMonitor {
    /// Reads the first values.
    fn before_fit(&mut self, _: &Cx<BeforeFit>) -> Result<()> {
        self.begin()
    }

    /// Reads the first values of a resumed fit.
    fn after_load_checkpoint(&mut self, _: &Cx<AfterLoadCheckpoint>) -> Result<()> {
        self.begin()
    }

    /// Records the number of optimizer steps before the batch.
    fn before_step(&mut self, cx: &Cx<BeforeStep>) {
        self.steps = cx.counters().optimizer_steps;
    }

    /// Logs the values if they are due.
    fn after_step(&mut self, cx: &Cx<AfterStep>) -> Result<()> {
        if self.interval.is_due_after_step(self.steps, cx) {
            let (process, machine, cores) = self.read()?;
            cx.log_as("system/process_memory", process as f64 / MIB, Reduce::Max);
            cx.log_weighted("system/process_cores", cores, 1.0);
            cx.log_as("system/memory_used", machine as f64 / MIB, Reduce::Max);
        }
        Ok(())
    }
}

interval_settings!(SystemMonitor);
