//! The built-in policy for writing and keeping checkpoints.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::watched_metric::{is_of_pass, of_epoch};
use super::{refused, stages};
use crate::checkpoint::{CheckpointFolder, SettingList, Settings};
use crate::io::files::create_folders_below;
use crate::lifecycle::{CanSaveCheckpoint, HasMetrics};
use crate::prelude::own::*;

/// Writes [checkpoints](crate::checkpoint) into a folder. Each is a subfolder that is named after
/// the number of training batches: `step-00000400`.
///
/// By default, it writes a checkpoint after each epoch and when the run is cancelled, and keeps
/// only the last one. Older ones are removed as soon as a newer one is on disk. A successful fit
/// also ends with a checkpoint, unless one was just written at the end of its last epoch.
///
/// SIGUSR1 requests an additional checkpoint after the current batch: send it with `kill -USR1` and
/// the process ID in `run.json`, or press `c` in [`trainer watch`](crate::guide::watching).
///
/// ```
/// use std::time::Duration;
///
/// use trainer::hooks::Checkpoint;
/// use trainer::prelude::*;
///
/// let checkpoint = Checkpoint::new("runs/first")
///     .every(Every::Steps(500))
///     .every_time(Duration::from_secs(600))
///     .keep_last(3)
///     .keep_best(2, "valid/loss", Goal::Minimize);
/// ```
#[doc(alias("ModelCheckpoint", "SaveModelCallback", "CheckpointHook", "save_steps"))]
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    /// Whether `path` is in the run folder, which is only known at `setup`.
    is_in_run_folder: bool,
    every: Option<Every>,
    every_time: Option<Duration>,
    keep_last: usize,
    best: Option<Best>,
    on_error: bool,
    on_cancel: bool,
    in_background: bool,
    requeue: bool,
    /// The step of the checkpoint requested by SIGUSR1. Once this checkpoint is on disk, the job is
    /// requeued.
    requeue_at: Option<u64>,
    /// The locked folder; `None` outside of fits, and in a smoke test, which writes no checkpoints.
    folder: Option<CheckpointFolder>,
    /// Whether the current fit has begun, or was resumed, so that there is something to save.
    has_begun: bool,
    /// The time and the number of optimizer steps at the last request or, before the first one, at
    /// the start of the fit.
    requested: (Instant, u64),
    /// Whether the last request was made at the end of the most recent epoch.
    is_of_epoch: bool,
    /// The step and the metric of each requested checkpoint that will be one of the best once it is
    /// written.
    best_requested: Vec<(u64, f64)>,
    /// The number of roll-backs of the fit that `remove_undone` has already handled.
    roll_backs: u64,
    kept: Kept,
}

/// The policy for keeping the best checkpoints.
#[derive(Debug)]
struct Best {
    count: usize,
    metric: String,
    goal: Goal,
}

impl Best {
    /// Describes the metric and the goal, whose values can be compared with each other.
    fn watched(&self) -> String {
        format!("{} ({:?})", self.metric, self.goal)
    }

    /// Whether the metric is a validation metric, which is checked after each validation.
    fn is_of_validation(&self) -> bool {
        self.metric.starts_with("valid/")
    }
}

/// The name of the checkpoint folder in a run folder.
pub(crate) const IN_RUN_FOLDER: &str = "checkpoints";

const NO_RUN_FOLDER: &str =
    "`Checkpoint::in_run_folder()` needs a run folder: set `.run_folder(\"runs/first\")`";

/// The key under which each checkpoint saves the list of checkpoints.
const KEPT: &str = "trainer::hooks::Checkpoint";

/// The checkpoints in the folder. They are identified by their steps, so that no text read from a
/// file is used as a path.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Kept {
    /// The newest checkpoints, in the order in which they were written.
    last: Vec<u64>,
    /// The best checkpoints with their metric, the best one first.
    best: Vec<(u64, f64)>,
    /// The metric of the best checkpoints and its goal; empty before any is measured.
    #[serde(default)]
    watched: String,
}

impl Checkpoint {
    /// Writes checkpoints into this folder, which is created if it does not exist. Only one trainer
    /// at a time can use it. Other files in it are never touched.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Checkpoint {
            path: folder.into(),
            is_in_run_folder: false,
            every: None,
            every_time: None,
            keep_last: 1,
            best: None,
            on_error: false,
            on_cancel: true,
            in_background: false,
            requeue: false,
            requeue_at: None,
            folder: None,
            has_begun: false,
            requested: (Instant::now(), 0),
            is_of_epoch: false,
            best_requested: Vec::new(),
            roll_backs: 0,
            kept: Kept::default(),
        }
    }

    /// Writes checkpoints into the folder `checkpoints` in the
    /// [run folder](crate::TrainerBuilder::run_folder).
    #[must_use]
    pub fn in_run_folder() -> Self {
        Checkpoint { is_in_run_folder: true, ..Checkpoint::new(IN_RUN_FOLDER) }
    }

    /// Sets how often a checkpoint is written. Defaults to once per epoch. `Every::Fraction` is a
    /// fraction of the batches of an epoch; it has no effect if the number of batches is not known.
    #[must_use]
    pub fn every(mut self, every: Every) -> Self {
        self.every = Some(every);
        self
    }

    /// Writes a checkpoint after a training batch if at least `time` has passed since the last
    /// checkpoint or the start of the fit. Can be combined with [`every`](Checkpoint::every), but
    /// replaces the default of one checkpoint per epoch.
    #[must_use]
    pub fn every_time(mut self, time: Duration) -> Self {
        self.every_time = Some(time);
        self
    }

    /// The number of newest checkpoints to keep, at least 1. Defaults to 1. A newer checkpoint from
    /// which a run cannot resume exactly, such as one [after an error](Checkpoint::on_error), is
    /// kept in addition.
    #[must_use]
    #[doc(alias = "save_total_limit")]
    pub fn keep_last(mut self, count: usize) -> Self {
        self.keep_last = count;
        self
    }

    /// Also keeps the `count` best checkpoints by a metric. A validation metric, `valid/…`, is
    /// checked after each validation of a fit, and any other metric at the end of each epoch. A
    /// checkpoint is written if the value is among the best, which NaN never is. A fit that never
    /// measures the metric returns an error at its start.
    ///
    /// A best checkpoint that you move away, rename or remove stays among the best: a warning says
    /// that it is missing, and only a better one takes its place.
    #[must_use]
    #[doc(alias("save_top_k", "save_best_only", "monitor"))]
    pub fn keep_best(mut self, count: usize, metric: impl Into<String>, goal: Goal) -> Self {
        self.best = Some(Best { count, metric: metric.into(), goal });
        self
    }

    /// Whether to write a checkpoint when the run fails. Defaults to `false`. The checkpoint cannot
    /// be resumed exactly if the error occurred in the middle of a step, or if several processes
    /// train together. Such a checkpoint takes the place of no exact one: neither
    /// [`keep_last`](Checkpoint::keep_last) nor
    /// [`Resume::Auto`](crate::checkpoint::Resume::Auto) prefers it.
    #[must_use]
    pub fn on_error(mut self, on_error: bool) -> Self {
        self.on_error = on_error;
        self
    }

    /// Whether to write a checkpoint when the run is cancelled. Defaults to `true`. During the
    /// sanity check, which precedes all training, no checkpoint is written.
    #[must_use]
    pub fn on_cancel(mut self, on_cancel: bool) -> Self {
        self.on_cancel = on_cancel;
        self
    }

    /// Whether a background thread writes the checkpoints from a copy in memory, while training
    /// continues. Defaults to `false`.
    #[must_use]
    pub fn in_background(mut self, in_background: bool) -> Self {
        self.in_background = in_background;
        self
    }

    /// Whether the SLURM job is requeued (`scontrol requeue`) as soon as a checkpoint requested by
    /// SIGUSR1 is on disk. Defaults to `false`. SLURM then ends the job, and starts it again when
    /// resources are available; with [`Resume::Auto`](crate::checkpoint::Resume::Auto), the program
    /// continues from that checkpoint. The signal must be sent early enough before the end of the
    /// job:
    ///
    /// ```sh
    /// #SBATCH --signal=USR1@120 --requeue --open-mode=append
    /// srun ./my-program
    /// ```
    ///
    /// A warning says that the job was requeued, or why it was not, for example because the program
    /// does not run under SLURM.
    #[must_use]
    pub fn requeue(mut self, requeue: bool) -> Self {
        self.requeue = requeue;
        self
    }

    /// The checkpoint folder. If it is in the run folder, its full path is known only from `setup`
    /// on.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.path
    }

    /// The path of the newest checkpoint; `None` if no checkpoint was written.
    #[must_use]
    pub fn newest(&self) -> Option<PathBuf> {
        self.kept.last.last().map(|step| self.path_of(*step))
    }

    /// The path of the best checkpoint and the value of its metric; `None` if no checkpoint was
    /// written as one of the best, or if [`keep_best`](Checkpoint::keep_best) is not set. There is
    /// nothing at the path if you have moved the checkpoint.
    #[must_use]
    #[doc(alias("restore_best_weights", "best_model_path", "load_best_model_at_end"))]
    pub fn best(&self) -> Option<(PathBuf, f64)> {
        self.kept.best.first().map(|(step, value)| (self.path_of(*step), *value))
    }

    /// The steps or epochs, and the time, between two checkpoints.
    pub(crate) fn interval(&self) -> (Option<Every>, Option<Duration>) {
        (self.every, self.every_time)
    }

    /// Returns an error if this fit never measures the metric of
    /// [`keep_best`](Checkpoint::keep_best).
    fn check_best<P>(&self, cx: &Cx<P>) -> Result<()> {
        self.best.as_ref().map_or(Ok(()), |best| cx.check_metric(&best.metric))
    }

    /// The path of the checkpoint of a step.
    fn path_of(&self, step: u64) -> PathBuf {
        self.path.join(CheckpointFolder::name(step))
    }

    /// Requests a checkpoint at the current step. Does nothing before the fit has begun, or in a
    /// smoke test.
    fn request<P: CanSaveCheckpoint>(&mut self, cx: &Cx<P>) -> Result<()> {
        let Some(folder) = self.folder.as_mut().filter(|_| self.has_begun) else { return Ok(()) };
        folder.relock()?;
        self.requested = (Instant::now(), cx.counters().optimizer_steps);
        self.is_of_epoch = false;
        let path = folder.step(cx.counters().batches_seen);
        if self.in_background {
            cx.save_checkpoint_in_background(path);
        } else {
            cx.save_checkpoint(path);
        }
        Ok(())
    }

    /// Requests a checkpoint if it would be one of the best. Returns an error if the metric is
    /// unknown.
    fn judge<P: CanSaveCheckpoint + HasMetrics>(&mut self, cx: &Cx<P>) -> Result<()> {
        let Some(Best { count, metric, goal }) = &self.best else { return Ok(()) };
        let Some(value) = of_epoch(&cx.metrics(), metric)?.filter(|value| !value.is_nan()) else {
            return Ok(());
        };
        let step = cx.counters().batches_seen;
        // A later validation of the same step replaces the value of an earlier one.
        let others = || self.kept.best.iter().chain(&self.best_requested).filter(|(other, _)| *other != step);
        if others().count() < *count || others().any(|(_, other)| goal.is_better(value, *other)) {
            let broken = cx.not_finite_vars()?;
            if let Some(first) = broken.first() {
                cx.warn(format!(
                    "no checkpoint with NaN or infinite values is kept as one of the best, although `{metric}` is {value}: `{first}` has \
                     such values"
                ));
                return Ok(());
            }
            self.best_requested.push((step, value));
            self.request(cx)?;
        }
        Ok(())
    }

    /// Returns the list of checkpoints with the checkpoint of this step added. Old checkpoints that
    /// are to be removed are still in the list.
    fn with(&self, step: u64) -> Kept {
        let mut kept = self.kept.clone();
        kept.last.retain(|other| *other != step);
        kept.last.push(step);
        if let (Some(Best { goal, .. }), Some((_, value))) =
            (&self.best, self.best_requested.iter().rev().find(|(own, _)| *own == step))
        {
            kept.best.retain(|(other, _)| *other != step);
            let rank = kept.best.iter().position(|(_, other)| goal.is_better(*value, *other));
            kept.best.insert(rank.unwrap_or(kept.best.len()), (step, *value));
            kept.watched = self.best.as_ref().map(Best::watched).unwrap_or_default();
        }
        kept
    }

    /// After a roll-back, removes the checkpoints that were written after the batch `step`: loggers
    /// rewind their files, so the run could not resume from these checkpoints. Called before a
    /// record is written.
    fn remove_undone<P>(&mut self, cx: &Cx<P>, step: u64) -> Result<()> {
        if std::mem::replace(&mut self.roll_backs, cx.roll_backs()) >= cx.roll_backs() {
            return Ok(());
        }
        self.requested.1 = self.requested.1.min(cx.counters().optimizer_steps.saturating_sub(1));
        self.best_requested.clear();
        let undone: Vec<u64> =
            self.folder.iter().flat_map(CheckpointFolder::steps).filter(|own| *own > step).collect();
        self.kept.last.retain(|own| *own <= step);
        self.kept.best.retain(|(own, _)| *own <= step);
        for step in undone {
            self.folder.as_ref().map_or(Ok(()), |folder| folder.remove(step))?;
        }
        Ok(())
    }

    /// Removes the checkpoints that are no longer kept. Called once the newest is on disk.
    fn prune(&mut self) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let Kept { last, best, .. } = &mut self.kept;
        let mut dropped: Vec<u64> = Vec::new();
        if last.len() > self.keep_last {
            let [mut exact, mut inexact] = [0; 2];
            last.reverse();
            last.retain(|step| {
                // One that is not exact is kept beside the exact ones, until there is a newer exact
                // one.
                let is_exact = folder.is_exact(*step);
                let count = if is_exact { &mut exact } else { &mut inexact };
                *count += 1;
                let is_kept = *count <= self.keep_last && (is_exact || exact == 0);
                if !is_kept {
                    dropped.push(*step);
                }
                is_kept
            });
            last.reverse();
        }
        if let Some(Best { count, .. }) = self.best
            && best.len() > count
        {
            dropped.extend(best.drain(count..).map(|(step, _)| step));
        }
        for step in dropped {
            if !last.contains(&step) && !best.iter().any(|(kept, _)| *kept == step) {
                folder.remove(step)?;
            }
        }
        Ok(())
    }

    /// Warns about each of the best checkpoints that is no longer in the folder.
    fn warn_of_missing<P>(&self, cx: &Cx<P>) {
        let Some(folder) = &self.folder else { return };
        let present = folder.steps();
        for (step, value) in self.kept.best.iter().filter(|(step, _)| !present.contains(step)) {
            cx.warn(format!(
                "{}: this checkpoint, one of the best with {} {value}, is no longer there: only a better one takes its place; \
                 if you have moved it, move it back to continue from it",
                folder.step(*step).display(),
                self.best.as_ref().map_or("a metric of", |best| &best.metric),
            ));
        }
    }
}

#[diagnostic::do_not_recommend]
impl Settings for Checkpoint {
    fn settings(&self) -> SettingList {
        SettingList::new()
    }

    fn checkpoints(&self, run_folder: Option<&Path>) -> Option<PathBuf> {
        if self.is_in_run_folder { Some(run_folder?.join(IN_RUN_FOLDER)) } else { Some(self.path.clone()) }
    }

    fn goals(&self) -> Vec<(String, Goal)> {
        self.best.iter().map(|best| (best.metric.clone(), best.goal)).collect()
    }

    fn mistakes(&self) -> Vec<String> {
        let every = self.every.and_then(|every| match (every, every.mistake()?) {
            (Every::Fraction(fraction), mistake) => {
                Some(format!("`.every(Every::Fraction({fraction:?}))`: {mistake}"))
            }
            (_, mistake) => Some(format!("`.every(…)` of 0 never writes a checkpoint: {mistake}")),
        });
        let best = self.best.as_ref().map_or(1, |best| best.count);
        let others = refused([
            (
                self.keep_last == 0,
                "`.keep_last(0)` keeps no checkpoint to resume from: expected at least 1".to_owned(),
            ),
            (best == 0, "`.keep_best(0, …)` keeps no checkpoint: expected at least 1".to_owned()),
            (
                self.every_time == Some(Duration::ZERO),
                "`.every_time(…)` of zero: expected a longer time; for a checkpoint after each batch, write \
                 `.every(Every::Fraction(…))` or `.every(Every::Steps(1))`"
                    .to_owned(),
            ),
        ]);
        every.into_iter().chain(others).collect()
    }
}

#[hook(in = stages::Decisions, single, settings, writes)]
impl Checkpoint {
    /// Locks the folder for this trainer, except in a smoke test. Returns an error if a setting is
    /// invalid, if the folder belongs in a run folder but the trainer has none, if another trainer
    /// has locked it, or if it has checkpoints of an earlier run that this fit does not resume.
    #[hook(only = train)]
    fn setup(&mut self, cx: &Cx<Main<Setup>>) -> Result<()> {
        if cx.is_fast_dev_run() {
            return Ok(()); // without the folder nothing is written
        }
        if self.is_in_run_folder {
            let folder = cx.run_folder().ok_or_else(|| Error::msg(NO_RUN_FOLDER))?;
            self.path = folder.join(IN_RUN_FOLDER);
            create_folders_below(folder, &self.path)?;
        }
        let folder = CheckpointFolder::lock(&self.path)?;
        let has_others = !cx.is_resuming() && self.kept.last.is_empty() && !folder.steps().is_empty();
        self.folder = Some(folder);
        self.requested = (Instant::now(), cx.counters().optimizer_steps);
        if has_others {
            return Err(Error::msg(format!(
                "{}: this folder has checkpoints of an earlier run: choose another folder, or continue that run with \
                 `.resume(Resume::Auto)`, with more `.epochs(…)` if it has finished",
                self.path.display()
            )));
        }
        Ok(())
    }

    /// Records that there is something to save. Returns an error if this fit never measures the
    /// metric of [`keep_best`](Checkpoint::keep_best).
    fn before_fit(&mut self, cx: &Cx<Main<BeforeFit>>) -> Result<()> {
        self.has_begun = true;
        self.roll_backs = cx.roll_backs();
        self.check_best(cx)
    }

    /// Repeats the check of `before_fit` for a resumed fit, in which `before_fit` does not fire
    /// again.
    fn after_train_epoch(&mut self, cx: &Cx<Main<AfterTrainEpoch>>) -> Result<()> {
        self.remove_undone(cx, cx.counters().batches_seen)?;
        self.check_best(cx)
    }

    /// Requests a checkpoint when one is due.
    #[hook(only = train)]
    fn after_step(&mut self, cx: &Cx<Main<AfterStep>>) -> Result<()> {
        let step = cx.counters();
        self.remove_undone(cx, step.batches_seen.saturating_sub(1))?;
        let is_due = self.every.is_some_and(|every| every.is_due(self.requested.1, step, cx.plan().batches));
        let is_requested = cx.take_checkpoint_request();
        if is_requested && self.requeue {
            self.requeue_at = Some(step.batches_seen);
        }
        if is_due || is_requested || self.every_time.is_some_and(|time| self.requested.0.elapsed() >= time) {
            self.request(cx)?;
        }
        Ok(())
    }

    /// Checks the metric of [`keep_best`](Checkpoint::keep_best) if it is a validation metric. Runs
    /// after the hooks that log metrics.
    #[hook(only = valid)]
    fn after_valid(&mut self, cx: &Cx<Main<AfterValid>>) -> Result<()> {
        if self.has_begun && self.best.as_ref().is_some_and(|best| is_of_pass(cx, &best.metric)) {
            self.judge(cx)?;
        }
        Ok(())
    }

    /// Requests the checkpoint of an epoch when one is due, and checks the metric of
    /// [`keep_best`](Checkpoint::keep_best) unless it is a validation metric, which `after_valid`
    /// checks. Runs after the hooks that log metrics.
    fn after_epoch(&mut self, cx: &Cx<Main<AfterEpoch>>) -> Result<()> {
        let is_due = match self.every {
            None => self.every_time.is_none(),
            Some(every) => every.is_due_after_epoch(cx.counters(), cx.plan().batches),
        };
        let before = self.requested.0;
        if is_due {
            self.request(cx)?;
        }
        if self.best.as_ref().is_some_and(|best| !best.is_of_validation()) {
            self.judge(cx)?;
        }
        self.is_of_epoch = self.requested.0 != before;
        Ok(())
    }

    /// Requests a checkpoint at the end of a fit, unless the end of the last epoch requested one
    /// and no optimizer step followed.
    fn after_fit(&mut self, cx: &Cx<Main<AfterFit>>) -> Result<()> {
        self.warn_of_missing(cx);
        if self.is_of_epoch && self.requested.1 == cx.counters().optimizer_steps {
            Ok(())
        } else {
            self.request(cx)
        }
    }

    /// Requests a checkpoint after a cancellation, unless [`on_cancel`](Checkpoint::on_cancel) is
    /// `false`.
    #[hook(only(train, valid))]
    fn after_cancel(&mut self, cx: &Cx<Main<AfterCancel>>) -> Result<()> {
        self.remove_undone(cx, cx.counters().batches_seen)?;
        if self.on_cancel { self.request(cx) } else { Ok(()) }
    }

    /// Requests a checkpoint after an error, if [`on_error`](Checkpoint::on_error) is set.
    #[hook(only(train, valid))]
    fn after_error(&mut self, cx: &Cx<Main<AfterError>>) -> Result<()> {
        self.remove_undone(cx, cx.counters().batches_seen)?;
        if self.on_error { self.request(cx) } else { Ok(()) }
    }

    /// Adds the list of checkpoints in the folder to the checkpoint, including the new one.
    fn before_save_checkpoint(&mut self, cx: &Cx<Main<BeforeSaveCheckpoint>>) -> Result<()> {
        let kept = self.step_of(cx.checkpoint()).map_or_else(|| self.kept.clone(), |step| self.with(step));
        cx.save(KEPT, &kept)
    }

    /// Restores the list of checkpoints, and removes the checkpoints that are no longer kept, in
    /// case the process was killed before it removed them. Warns about the best ones that no longer
    /// exist; other checkpoints that no longer exist are dropped from the list. Checkpoints that
    /// are not in the list, because they were written after the loaded one, become the oldest in
    /// the list, so that the next checkpoint replaces them.
    fn after_load_checkpoint(&mut self, cx: &Cx<Main<AfterLoadCheckpoint>>) -> Result<()> {
        // A checkpoint that was written without this hook has no list.
        self.kept = if cx.saved().contains(KEPT) { cx.saved().get(KEPT)? } else { Kept::default() };
        self.requested = (Instant::now(), cx.counters().optimizer_steps);
        self.has_begun = true;
        self.roll_backs = cx.roll_backs();
        let Some(folder) = &self.folder else { return Ok(()) };
        let present = folder.steps();
        self.kept.last.retain(|step| present.contains(step));
        let watched = self.best.as_ref().map(Best::watched);
        if let Some(watched) =
            watched.filter(|own| !self.kept.watched.is_empty() && *own != self.kept.watched)
        {
            cx.warn(format!(
                "`.keep_best(…)` compared {} when the checkpoint was written and compares {watched} now: the best checkpoints so \
                 far count as old ones, and are removed with the next checkpoint",
                self.kept.watched
            ));
            self.kept.best.clear();
        }
        let known = self.kept.clone();
        self.prune()?;
        self.warn_of_missing(cx);
        for step in present {
            if known.last.contains(&step) || known.best.iter().any(|(other, _)| *other == step) {
                continue;
            }
            self.kept.last.insert(0, step);
        }
        Ok(())
    }

    /// Adds the new checkpoint to the list, and removes those that are no longer kept.
    fn after_save_checkpoint(&mut self, cx: &Cx<Main<AfterSaveCheckpoint>>) -> Result<()> {
        let Some(step) = self.step_of(cx.checkpoint()) else { return Ok(()) };
        self.kept = self.with(step);
        self.best_requested.retain(|(own, _)| *own != step);
        if self.requeue_at.take_if(|at| *at <= step).is_some() {
            cx.warn(requeue());
        }
        self.prune()
    }

    /// Unlocks the folder.
    fn teardown(&mut self, _: &Cx<Main<Teardown>>) {
        (self.folder, self.has_begun) = (None, false);
        self.requeue_at = None;
    }
}

/// Asks SLURM to requeue the current job, and returns a description of the result.
fn requeue() -> String {
    let var = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let array = var("SLURM_ARRAY_JOB_ID").zip(var("SLURM_ARRAY_TASK_ID"));
    let Some(job) = array.map(|(job, task)| format!("{job}_{task}")).or_else(|| var("SLURM_JOB_ID")) else {
        return "SIGUSR1 requests to requeue the job, but this is not a SLURM job, because `SLURM_JOB_ID` is not set: the run \
                continues"
            .to_owned();
    };
    match Command::new("scontrol").args(["requeue", &job]).output() {
        Ok(output) if output.status.success() => {
            format!("requeued the job {job}: SLURM ends it, and starts it again when resources are available")
        }
        Ok(output) => format!(
            "`scontrol requeue {job}` failed ({}), so the run continues and SLURM does not start the job again: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ),
        Err(error) => format!(
            "`scontrol requeue {job}` could not be started, so the run continues and SLURM does not start the job again: {error}"
        ),
    }
}

impl Checkpoint {
    /// The step of a checkpoint in this hook's folder; `None` for any other checkpoint.
    fn step_of(&self, path: &Path) -> Option<u64> {
        self.folder.as_ref()?.step_of(path)
    }
}
