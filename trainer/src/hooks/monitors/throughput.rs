//! The speed of training.

use std::time::{Duration, Instant};

use super::{Interval, interval_settings};
use crate::hooks::pace::Pace;
use crate::prelude::own::*;
use crate::stages;

/// Logs the training speed, the time spent waiting for data, and the remaining time.
///
/// Use this when you want the speed in the records of every run. To find out where the time goes,
/// use a [profile](crate::TrainerBuilder::profile).
///
/// | name | unit | value |
/// |---|---|---|
/// | `train/throughput/samples_per_second` | 1/s | samples per second, including the wait for data |
/// | `train/throughput/batches_per_second` | 1/s | batches per second, including the wait for data |
/// | `train/time/step` | s | the mean time of a batch, without waiting for data |
/// | `train/time/data_wait` | s | the mean time between two batches |
/// | `train/time/remaining` | s | the time until the planned end of the fit |
///
/// ```
/// use trainer::hooks::ThroughputMonitor;
/// use trainer::prelude::*;
///
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let mut trainer = Trainer::builder(task)
///     .optimizer(AdamW::new(1e-2))
///     .hook(ThroughputMonitor::new().every(2))
///     .build()?;
/// # let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
/// # let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
/// let summary = trainer.fit(&mut InMemory::new((inputs, labels))?.batch_size(16), None)?;
/// println!("{} samples/s", summary.metrics["train/throughput/samples_per_second"]);
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// - Each value covers the batches since the previous one. The value of an epoch covers all of its
///   recorded batches; for the remaining time, it is the last value.
/// - Time spent on validation, checkpoints and loggers counts only toward the remaining time. The
///   wait after a batch with a record is therefore not measured: if every batch has a record,
///   `data_wait` covers only the first wait of an epoch and those after a validation or checkpoint.
/// - The remaining time is extrapolated to the [planned steps](crate::Plan::steps) from the mean
///   pace of this fit, including its validations. It is omitted if the number of planned steps is
///   not known.
/// - On a GPU, `time/step` is only the time that it takes to queue the work of a batch. The monitor
///   does not synchronize with the device, so the throughput is exact only if something else
///   synchronizes with it.
/// - The clock is read up to three times per batch, which takes less than 0.1 µs. Nothing is kept
///   in checkpoints: after a resume, the first values cover only the batches since the resume, but
///   they are logged in the same records as in an uninterrupted run.
#[doc(alias("IterTimerHook", "samples_per_second"))]
#[derive(Debug, Default)]
pub struct ThroughputMonitor {
    interval: Interval,
    /// When the wait for the next batch began; `None` if it is not measured.
    idle_since: Option<Instant>,
    step_began: Option<Instant>,
    /// The number of optimizer steps before the current batch.
    steps: u64,
    /// The pace of the optimizer steps since the fit began or was resumed.
    pace: Option<Pace>,
    window: Window,
}

/// The batches since values were last logged.
#[derive(Debug, Default)]
struct Window {
    /// The number of samples seen before these batches.
    samples_before: u64,
    batches: u32,
    steps: Duration,
    waits: u32,
    waited: Duration,
}

impl ThroughputMonitor {
    /// Creates the monitor.
    #[must_use]
    pub fn new() -> Self {
        ThroughputMonitor::default()
    }

    /// Logs after every `n`-th optimizer step. Defaults to the steps after which a record is
    /// [due](Cx::is_record_due), which requires a logger.
    #[must_use]
    pub fn every(mut self, n: u64) -> Self {
        self.interval = Interval(Some(n));
        self
    }

    /// Starts all clocks. Returns an error if a setting is invalid.
    fn begin<P>(&mut self, cx: &Cx<P>) {
        let counters = cx.counters();
        self.pace = Some(Pace::start(counters.optimizer_steps));
        self.window = Window { samples_before: counters.samples_seen, ..Window::default() };
        self.idle_since = Some(Instant::now());
    }
}

#[hook(in = stages::Monitors, single, settings, may_fail)]
impl ThroughputMonitor {
    /// Starts the clocks of a fit.
    fn before_fit(&mut self, cx: &Cx<BeforeFit>) {
        self.begin(cx);
    }

    /// Starts the clocks of a resumed fit.
    fn after_load_checkpoint(&mut self, cx: &Cx<AfterLoadCheckpoint>) {
        self.begin(cx);
    }

    /// Starts timing the wait for the first batch of an epoch.
    fn before_train_epoch(&mut self, _: &Cx<BeforeTrainEpoch>) {
        self.idle_since = Some(Instant::now());
    }

    /// Stops timing the wait for a batch, and starts timing the batch.
    #[hook(in = stages::First, only = train)]
    fn before_step(&mut self, cx: &Cx<BeforeStep>) {
        let now = Instant::now();
        if let Some(since) = self.idle_since.take() {
            self.window.waited += now - since;
            self.window.waits += 1;
        }
        self.step_began = Some(now);
        self.steps = cx.counters().optimizer_steps;
    }

    /// Stops timing a batch, and logs the values if they are due.
    #[hook(only = train)]
    fn after_step(&mut self, cx: &Cx<AfterStep>) {
        let now = Instant::now();
        if let Some(began) = self.step_began.take() {
            self.window.steps += now - began;
            self.window.batches += 1;
        }
        if self.interval.is_due_after_step(self.steps, cx) {
            self.log(cx);
        }
        // If a record is due, the loggers run before the next batch, and this wait is not measured.
        self.idle_since = if cx.is_record_due() { None } else { Some(Instant::now()) };
    }

    /// Restarts timing the wait for data, so that it excludes the validation.
    fn after_valid(&mut self, _: &Cx<AfterValid>) {
        self.idle_since = Some(Instant::now());
    }

    /// Restarts timing the wait for data, so that it excludes the checkpoint.
    fn after_save_checkpoint(&mut self, _: &Cx<AfterSaveCheckpoint>) {
        self.idle_since = Some(Instant::now());
    }
}

impl ThroughputMonitor {
    #[cold]
    fn log(&mut self, cx: &Cx<AfterStep>) {
        let counters = cx.counters();
        let next = Window { samples_before: counters.samples_seen, ..Window::default() };
        let Window { samples_before, batches, steps, waits, waited } =
            std::mem::replace(&mut self.window, next);
        let samples = counters.samples_seen.saturating_sub(samples_before);
        let batches = f64::from(batches);
        let steps = steps.as_secs_f64();
        let wait = if waits == 0 { 0.0 } else { waited.as_secs_f64() / f64::from(waits) };
        let seconds = (steps + wait * batches).max(1e-9);
        // Weighted so that the value of an epoch is the mean over its batches.
        cx.log_weighted("throughput/samples_per_second", samples as f64 / seconds, seconds);
        cx.log_weighted("throughput/batches_per_second", batches / seconds, seconds);
        cx.log_weighted("time/step", steps / batches, batches);
        if waits > 0 {
            cx.log_weighted("time/data_wait", wait, f64::from(waits));
        }
        if let (Some(pace), Some(planned)) = (&self.pace, cx.plan().steps) {
            let remaining = pace.remaining(counters.optimizer_steps, planned);
            cx.log_as("time/remaining", remaining, Reduce::Last);
        }
    }
}

interval_settings!(ThroughputMonitor);
