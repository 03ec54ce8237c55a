//! The speed of each rank.

use std::time::{Duration, Instant};

use super::{Interval, interval_settings};
use crate::distributed::World;
use crate::prelude::own::*;
use crate::stages;

/// Logs how the ranks differ in speed: the times of the slowest, the median and the fastest rank.
///
/// | name | unit | value |
/// |---|---|---|
/// | `train/ranks/slowest/rank` | | the number of this rank |
/// | `train/ranks/slowest/compute` | s | the mean time of the forward pass and the loss of a batch |
/// | `train/ranks/slowest/data` | s | the mean time that the rank waits for a batch of its loader |
/// | `train/ranks/slowest/waiting` | s | the mean time in collectives, where it waits for other ranks |
///
/// The same names exist with `median` and `fastest` instead of `slowest`. The slowest rank is the
/// one with the largest sum of `compute` and `data`; the time of a whole step is the same on all
/// ranks, because they wait for each other.
///
/// Use this when several processes are slower than they should be. If one rank is always the
/// slowest, its host, GPU or disk is slow; if the slowest rank changes, the batches have different
/// sizes.
///
/// ```
/// use trainer::hooks::RankMonitor;
/// use trainer::prelude::*;
///
/// # fn f<T: Task>(builder: trainer::TrainerBuilder<T>) -> trainer::TrainerBuilder<T> {
/// builder.hook(RankMonitor::new().every(100))
/// # }
/// ```
///
/// - Each value covers the batches since the previous value. The ranks exchange their times only
///   when a value is due.
/// - The backward pass is not part of `compute`, because it also averages gradients. The wait for
///   other ranks at the end of the backward pass is not part of `waiting`.
/// - In one process, nothing is logged. Nothing is kept in checkpoints.
#[derive(Debug, Default)]
pub struct RankMonitor {
    interval: Interval,
    /// When the wait for the next batch began, and this rank's total time in collectives until
    /// then.
    idle_since: Option<(Instant, Duration)>,
    step_began: Option<(Instant, Duration)>,
    /// The number of optimizer steps before the current batch.
    steps: u64,
    window: Window,
}

/// The times of this rank since values were last logged.
#[derive(Debug, Default)]
struct Window {
    batches: u32,
    compute: Duration,
    waits: u32,
    data: Duration,
    /// This rank's total time in collectives until the window began.
    waited_before: Option<Duration>,
}

/// The names of the times, in the order in which the ranks exchange them.
const TIMES: [&str; 3] = ["compute", "data", "waiting"];

impl RankMonitor {
    /// Creates the monitor.
    #[must_use]
    pub fn new() -> Self {
        RankMonitor::default()
    }

    /// Logs after every `n`-th optimizer step. Defaults to the steps after which a record is
    /// [due](Cx::is_record_due), which requires a logger.
    #[must_use]
    pub fn every(mut self, n: u64) -> Self {
        self.interval = Interval(Some(n));
        self
    }
}

/// The time since an instant, excluding the time that this rank has spent in collectives since
/// then.
fn own_time((since, waited): (Instant, Duration), world: &World) -> Duration {
    since.elapsed().saturating_sub(world.waited().saturating_sub(waited))
}

#[hook(in = stages::Monitors, single, settings, may_fail)]
impl RankMonitor {
    /// Starts the clocks of a fit.
    fn before_fit(&mut self, _: &Cx<BeforeFit>) {
        self.window = Window::default();
    }

    /// Starts timing the wait for the first batch of an epoch.
    fn before_train_epoch(&mut self, cx: &Cx<BeforeTrainEpoch>) {
        self.idle_since = Some((Instant::now(), cx.world().waited()));
    }

    /// Stops timing the wait for a batch, and starts timing the forward pass.
    #[hook(in = stages::First, only = train)]
    fn before_step(&mut self, cx: &Cx<BeforeStep>) {
        let world = cx.world();
        if let Some(since) = self.idle_since.take() {
            self.window.data += own_time(since, &world);
            self.window.waits += 1;
        }
        self.window.waited_before.get_or_insert(world.waited());
        self.step_began = Some((Instant::now(), world.waited()));
        self.steps = cx.counters().optimizer_steps;
    }

    /// Stops timing the forward pass.
    #[hook(only = train)]
    fn before_backward(&mut self, cx: &Cx<BeforeBackward>) {
        if let Some(began) = self.step_began.take() {
            self.window.compute += own_time(began, &cx.world());
            self.window.batches += 1;
        }
    }

    /// Logs the values if they are due.
    #[hook(only = train)]
    fn after_step(&mut self, cx: &Cx<AfterStep>) -> Result<()> {
        if self.interval.is_due_after_step(self.steps, cx) {
            self.log(cx)?;
        }
        // If a record is due, the loggers run before the next batch, and this wait is not measured.
        let world = cx.world();
        self.idle_since = if cx.is_record_due() { None } else { Some((Instant::now(), world.waited())) };
        Ok(())
    }

    /// Restarts timing the wait for data, so that it excludes the validation.
    fn after_valid(&mut self, cx: &Cx<AfterValid>) {
        self.idle_since = Some((Instant::now(), cx.world().waited()));
    }

    /// Stops timing the wait for data, because it would include the checkpoint.
    fn after_save_checkpoint(&mut self, _: &Cx<AfterSaveCheckpoint>) {
        self.idle_since = None;
    }
}

impl RankMonitor {
    #[cold]
    fn log(&mut self, cx: &Cx<AfterStep>) -> Result<()> {
        let world = cx.world();
        let Window { batches, compute, waits, data, waited_before } = std::mem::take(&mut self.window);
        if world.size() == 1 {
            return Ok(());
        }
        let waited = world.waited().saturating_sub(waited_before.unwrap_or_default());
        let mean = |time: Duration, count: u32| time.as_secs_f64() / f64::from(count.max(1));
        let own = [mean(compute, batches), mean(data, waits), mean(waited, batches)];
        let mut ranks: Vec<(u32, [f64; 3])> =
            (0..).zip(world.gather("the times of the ranks", &own)?).collect();
        ranks.sort_by(|(_, one), (_, other)| (one[0] + one[1]).total_cmp(&(other[0] + other[1])));
        let last = ranks.len() - 1;
        for (name, nth) in [("slowest", last), ("median", last / 2), ("fastest", 0)] {
            let (rank, times) = &ranks[nth];
            cx.log_as(format!("ranks/{name}/rank"), f64::from(*rank), Reduce::Last);
            for (time, seconds) in TIMES.iter().zip(times) {
                cx.log(format!("ranks/{name}/{time}"), *seconds);
            }
        }
        Ok(())
    }
}

interval_settings!(RankMonitor);
