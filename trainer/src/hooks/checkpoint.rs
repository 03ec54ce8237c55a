//! Checkpoints in a folder: how often, which are kept.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::better::{Better, of_epoch};
use super::ord;
use crate::checkpoint::{self, Lock};
use crate::lifecycle::CanSaveCheckpoint;
use crate::prelude::*;
use crate::training::ends_share;

/// Writes [checkpoints](crate::checkpoint) into a folder, each into one of its own, `step-00000400`, named after the training steps.
///
/// Unless told otherwise it writes one after each epoch, keeps the last, and writes one more when the run is cancelled.
/// What is not to be kept is removed once a newer one is whole on the disk.
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
///     .keep_best(2, "valid/loss", Better::Lower);
/// ```
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    every: Option<Every>,
    every_time: Option<Duration>,
    keep_last: usize,
    best: Option<Best>,
    on_error: bool,
    on_cancel: bool,
    in_background: bool,
    lock: Option<Lock>,
    /// There is a fit to write: it has begun, or was taken up.
    has_begun: bool,
    /// When one was asked for last, and after how many optimizer steps.
    asked: (Instant, u64),
    /// That was at the end of an epoch.
    is_of_epoch: bool,
    /// Names and metrics of those that are among the best once they are whole.
    best_to_be: Vec<(String, f64)>,
    kept: Kept,
}

/// How many of the best are kept, by which metric.
#[derive(Debug)]
struct Best {
    count: usize,
    metric: String,
    better: Better,
}

/// Under which key a checkpoint keeps what was there when it was written.
const KEPT: &str = "trainer::hooks::Checkpoint";

/// What is in the folder, by the names in there.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Kept {
    /// In the order in which they were written.
    last: Vec<String>,
    /// The best first, with their metric.
    best: Vec<(String, f64)>,
}

impl Checkpoint {
    /// Checkpoints in this folder, which is made if it is not there. It is for one trainer at a time.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Checkpoint {
            folder: folder.into(),
            every: None,
            every_time: None,
            keep_last: 1,
            best: None,
            on_error: false,
            on_cancel: true,
            in_background: false,
            lock: None,
            has_begun: false,
            asked: (Instant::now(), 0),
            is_of_epoch: false,
            best_to_be: Vec::new(),
            kept: Kept::default(),
        }
    }

    /// How often one is written; after each epoch unless set. `Every::Fraction` is a share of an epoch's batches, where those are known.
    #[must_use]
    pub fn every(mut self, every: Every) -> Self {
        self.every = Some(every);
        self
    }

    /// Writes one too when so much time has passed since the last.
    #[must_use]
    pub fn every_time(mut self, time: Duration) -> Self {
        self.every_time = Some(time);
        self
    }

    /// How many of the newest are kept; 1 unless set.
    #[must_use]
    pub fn keep_last(mut self, count: usize) -> Self {
        self.keep_last = count.max(1);
        self
    }

    /// Keeps as many of the best besides, judged at the end of each epoch by its own metric.
    #[must_use]
    pub fn keep_best(mut self, count: usize, metric: impl Into<String>, better: Better) -> Self {
        self.best = Some(Best { count, metric: metric.into(), better });
        self
    }

    /// Does one more when an error ends the run? Not unless set. After an error in the middle of a step it cannot be resumed exactly.
    #[must_use]
    pub fn on_error(mut self, on_error: bool) -> Self {
        self.on_error = on_error;
        self
    }

    /// Does one more when the run is cancelled? It does unless set.
    #[must_use]
    pub fn on_cancel(mut self, on_cancel: bool) -> Self {
        self.on_cancel = on_cancel;
        self
    }

    /// Is it written by a thread while training goes on? From a copy in memory, which takes as much again as what is saved. Not
    /// unless set.
    #[must_use]
    pub fn in_background(mut self, in_background: bool) -> Self {
        self.in_background = in_background;
        self
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The newest checkpoint, if one was written.
    #[must_use]
    pub fn newest(&self) -> Option<PathBuf> {
        self.kept.last.last().map(|name| self.folder.join(name))
    }

    /// The best checkpoint and its metric, if the best are kept and one was written.
    #[must_use]
    pub fn best(&self) -> Option<(PathBuf, f64)> {
        self.kept.best.first().map(|(name, value)| (self.folder.join(name), *value))
    }

    fn name(step: StepState) -> String {
        format!("step-{:08}", step.global_step)
    }

    fn ask<P: CanSaveCheckpoint>(&mut self, cx: &mut Cx<P>) {
        if self.lock.is_none() || !self.has_begun {
            return;
        }
        self.asked = (Instant::now(), cx.step().optimizer_step);
        self.is_of_epoch = false;
        let folder = self.folder.join(Self::name(cx.step()));
        if self.in_background { cx.save_checkpoint_in_background(folder) } else { cx.save_checkpoint(folder) }
    }

    /// Takes this one among the best if it is one of them.
    fn judge(&mut self, cx: &mut Cx<AfterEpoch>) -> Result<()> {
        let Some(Best { count, metric, better }) = &self.best else { return Ok(()) };
        let Some(value) = of_epoch(cx.metrics(), metric)?.filter(|value| !value.is_nan()) else {
            return Ok(());
        };
        let is_among = |(_, other): &(String, f64)| better.is_better(value, *other);
        if self.kept.best.len() < *count || self.kept.best.iter().any(is_among) {
            self.best_to_be.push((Self::name(cx.step()), value));
            self.ask(cx);
        }
        Ok(())
    }

    /// What is in the folder once this one is whole.
    fn with(&self, name: &str) -> Kept {
        let mut kept = self.kept.clone();
        kept.last.retain(|other| other != name);
        kept.last.push(name.to_owned());
        if let (Some(Best { better, .. }), Some((_, value))) =
            (&self.best, self.best_to_be.iter().rev().find(|(own, _)| own == name))
        {
            kept.best.retain(|(other, _)| other != name);
            let place = kept.best.iter().position(|(_, other)| better.is_better(*value, *other));
            kept.best.insert(place.unwrap_or(kept.best.len()), (name.to_owned(), *value));
        }
        kept
    }

    /// Removes what is not to be kept: the newest is whole by now.
    fn prune(&mut self) -> Result<()> {
        let Kept { last, best } = &mut self.kept;
        let mut dropped: Vec<String> = Vec::new();
        if last.len() > self.keep_last {
            dropped.extend(last.drain(..last.len() - self.keep_last));
        }
        if let Some(Best { count, .. }) = self.best
            && best.len() > count
        {
            dropped.extend(best.drain(count..).map(|(name, _)| name));
        }
        for name in dropped {
            if !last.contains(&name) && !best.iter().any(|(kept, _)| *kept == name) {
                checkpoint::remove(&self.folder.join(name))?;
            }
        }
        Ok(())
    }
}

#[hook(ord = ord::CHECKPOINT, single, main_only)]
impl Checkpoint {
    /// Takes the folder for this trainer alone.
    #[hook(only = train)]
    fn setup(&mut self, cx: &mut Cx<Setup>) -> Result<()> {
        if cx.is_fast_dev_run() {
            return Ok(()); // without the folder nothing is written
        }
        self.lock = Some(Lock::of(&self.folder)?);
        self.asked = (Instant::now(), cx.step().optimizer_step);
        if !cx.is_resuming() && self.kept.last.is_empty() && checkpoint::newest(&self.folder).is_some() {
            return Err(Error::msg(format!(
                "{}: there are checkpoints of an earlier run: `.resume(\"auto\")` goes on with it; else take another folder, or \
                 remove them",
                self.folder.display()
            )));
        }
        Ok(())
    }

    /// Notes that there is something to write.
    fn before_fit(&mut self, _: &mut Cx<BeforeFit>) {
        self.has_begun = true;
    }

    /// Asks for a checkpoint when it is time for one.
    #[hook(only = train)]
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) {
        let step = cx.step();
        let is_due = match self.every {
            // More than one optimizer makes more than one step at a time.
            Some(Every::Steps(n)) => n > 0 && step.optimizer_step / n > self.asked.1 / n,
            Some(Every::Fraction(share)) => {
                cx.batches().is_some_and(|batches| ends_share(share, batches, step.batch_idx))
            }
            _ => false,
        };
        if is_due || self.every_time.is_some_and(|time| self.asked.0.elapsed() >= time) {
            self.ask(cx);
        }
    }

    /// Asks for one after the epochs that it is to be after, and judges whether this is one of the best.
    fn after_epoch(&mut self, cx: &mut Cx<AfterEpoch>) -> Result<()> {
        let is_due = match self.every {
            None => self.every_time.is_none(),
            Some(Every::Epochs(n)) => n > 0 && (cx.step().epoch + 1).is_multiple_of(n),
            Some(_) => false,
        };
        let before = self.asked.0;
        if is_due {
            self.ask(cx);
        }
        self.judge(cx)?;
        self.is_of_epoch = self.asked.0 != before;
        Ok(())
    }

    /// Asks for the last of a fit, unless it is there.
    fn after_fit(&mut self, cx: &mut Cx<AfterFit>) {
        if !(self.is_of_epoch && self.asked.1 == cx.step().optimizer_step) {
            self.ask(cx);
        }
    }

    /// Asks for a last one, so that what was trained is not lost.
    #[hook(only(train, sanity, valid))]
    fn after_cancel(&mut self, cx: &mut Cx<AfterCancel>) {
        if self.on_cancel {
            self.ask(cx);
        }
    }

    /// The same after an error, if that is wanted.
    #[hook(only(train, sanity, valid))]
    fn after_error(&mut self, cx: &mut Cx<AfterError>) {
        if self.on_error {
            self.ask(cx);
        }
    }

    /// Notes in it what will be there.
    fn before_save_checkpoint(&mut self, cx: &mut Cx<BeforeSaveCheckpoint>) -> Result<()> {
        let kept = self.own(cx.checkpoint()).map_or_else(|| self.kept.clone(), |name| self.with(&name));
        cx.save(KEPT, &kept)
    }

    /// Takes up what there was. What is not in the folder any more does not count; what was left there since goes when the next
    /// is written.
    fn after_load_checkpoint(&mut self, cx: &mut Cx<AfterLoadCheckpoint>) {
        // One that was written without this hook has nothing of it.
        self.kept = cx.load(KEPT).unwrap_or_default();
        self.asked = (Instant::now(), cx.step().optimizer_step);
        self.has_begun = true;
        let folder = &self.folder;
        let is_there = |name: &String| folder.join(name).exists();
        self.kept.last.retain(is_there);
        self.kept.best.retain(|(name, _)| is_there(name));
        for path in checkpoint::newest_first(folder) {
            let Some(name) = self.own(&path) else { continue };
            if !self.kept.last.contains(&name) && !self.kept.best.iter().any(|(known, _)| *known == name) {
                self.kept.last.insert(0, name);
            }
        }
    }

    /// Removes older ones.
    fn after_save_checkpoint(&mut self, cx: &mut Cx<AfterSaveCheckpoint>) -> Result<()> {
        let Some(name) = self.own(cx.checkpoint()) else { return Ok(()) };
        self.kept = self.with(&name);
        self.best_to_be.retain(|(own, _)| *own != name);
        self.prune()
    }

    /// Gives the folder free.
    fn teardown(&mut self, _: &mut Cx<Teardown>) {
        (self.lock, self.has_begun) = (None, false);
    }
}

impl Checkpoint {
    /// The name of a checkpoint that this hook has asked for.
    fn own(&self, path: &Path) -> Option<String> {
        let name = path.file_name()?.to_str()?;
        let is_ours = name.strip_prefix("step-").is_some_and(|digits| digits.parse::<u64>().is_ok());
        (path.parent() == Some(&self.folder) && is_ours).then(|| name.to_owned())
    }
}
