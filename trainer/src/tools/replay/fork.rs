//! [`Trainer::fork`]: begins a new run with the state that a recorded run had before one of its
//! batches.

use std::path::Path;

use trainer_formats::run::Origin;

use super::end::EndOfReplay;
use super::source::Source;
use super::{Replayed, compare};
use crate::checkpoint::folder::CheckpointFolder;
use crate::data::Loader;
use crate::error::{Error, Result};
use crate::hooks::IN_RUN_FOLDER;
use crate::io::files::{Lock, create_folders_below, in_file};
use crate::run::run_folder::{Status, load_run_file, write_run_file};
use crate::training::Trainer;
use crate::training::run_folder;
use crate::training::task::Task;

/// # Another run from a batch on
impl<T: Task> Trainer<T> {
    /// Begins a new run in the folder `into`, with the state that a recorded run had before its
    /// training batch `batch`, to find out what a different program would have done from there on.
    ///
    /// This trainer must match that of the recorded run: it [replays](Trainer::replay) the run up
    /// to that batch, and writes a checkpoint and a `run.json`, which names the origin, into the
    /// folder. A different trainer, for example without a hook or with another value of a setting,
    /// can then train in this folder, and reports what differs. `trainer diff` compares the two
    /// runs from there on.
    ///
    /// ```no_run
    /// use trainer::TrainerBuilder;
    /// use trainer::hooks::Checkpoint;
    /// use trainer::prelude::*;
    ///
    /// # fn program() -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>> {
    /// #     let vs = nn::VarStore::new(Device::Cpu);
    /// #     let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
    /// #     let task = trainer::Supervised::new(vs, net, |pred: &Tensor, _: &Tensor| pred.mean(Kind::Float));
    /// #     Trainer::builder(task)
    /// # }
    /// # fn what_if(train: &mut InMemory<(Tensor, Tensor)>) -> Result<()> {
    /// let mut same = program().build()?;
    /// same.fork(train, None, "runs/0007", 4_000, "runs/unclipped")?;
    ///
    /// let mut changed = program()
    ///     .without("my_hooks::clamp")
    ///     .hook(Checkpoint::in_run_folder())
    ///     .run_folder("runs/unclipped")
    ///     .resume(Resume::Auto)
    ///     .allow_inexact_resume(true) // reports what differs from the recorded run
    ///     .build()?;
    /// changed.fit(train, None)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Hooks that write, such as loggers, start afresh in the new folder.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - `batch` is 0, because that would be an ordinary new run;
    /// - the folder already holds a run or checkpoints, or cannot be written;
    /// - [`replay`](Trainer::replay) returns an error.
    pub fn fork(
        &mut self,
        train: &mut dyn Loader<T::Batch>,
        valid: Option<&mut dyn Loader<T::Batch>>,
        run: impl AsRef<Path>,
        batch: u64,
        into: impl AsRef<Path>,
    ) -> Result<Replayed> {
        let (path, into) = (run.as_ref(), into.as_ref());
        if batch == 0 {
            return Err(Error::usage(
                "a `fork` before training batch 0 would be a new run: expected the number of a later batch",
            ));
        }
        // A checkpoint that was written right before `batch` can serve as the source too.
        let source = Source::find(self.run.reports(), path, &(batch..batch + 1))?;
        let folder = self.is_main().then(|| Lock::acquire(into)).transpose()?;
        if folder.is_some() {
            if load_run_file(into)?.is_some() {
                return Err(in_file(into, "this folder holds a run: fork into a new folder"));
            }
            let checkpoints = into.join(IN_RUN_FOLDER);
            create_folders_below(into, &checkpoints)?;
            if !CheckpointFolder::lock(&checkpoints)?.steps().is_empty() {
                return Err(in_file(&checkpoints, "this folder has checkpoints: fork into a new folder"));
            }
        }
        let end = EndOfReplay { until: batch, fork: Some(into.join(IN_RUN_FOLDER)) };
        let tape = source.tape.as_ref().map(|(_, settings)| settings.clone());
        let (replayed, records) = self.repeat(train, valid, &source, end, tape)?;
        let trained = self.run.progress().train_batches;
        if trained < batch {
            return Err(Error::usage(format!(
                "the run has only {trained} training batches: it cannot be forked before batch {batch}"
            )));
        }
        let compared = match &source.tape {
            None => None,
            Some((tape, _)) => Some(compare(path, tape, &records)?),
        };
        if self.is_main() {
            let mut file = run_folder::describe(&self.run, "fit");
            file.status = Status::Forked;
            file.origin = Some(Origin { run: path.display().to_string(), batches: batch });
            write_run_file(&file, into)?;
        }
        Ok(Replayed { compared, ..replayed })
    }
}
