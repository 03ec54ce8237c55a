//! [`Trainer::replay`]: repeats a part of a recorded run.

mod end;
mod fork;
mod request;
mod source;

use std::ops::Range;
use std::path::{Path, PathBuf};

use trainer_formats::tape::{Difference, MAGIC, Tape as TapeReader, difference_of};

use crate::Tape;
use crate::checkpoint::Resume;
use crate::data::Loader;
use crate::error::{Error, Result};
use crate::log::history::Summary;
use crate::loggers::TapeFile;
use crate::run::Instance;
use crate::run::Run;
use crate::run::dispatch::registration::hooks_of;
use crate::training::Trainer;
use crate::training::replay;
use crate::training::tape::{self, Recorder};
use crate::training::task::Task;
use end::EndOfReplay;
use source::Source;

/// The result of [`Trainer::replay`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Replayed {
    /// The checkpoint from which the replay began; `None` for the start of the run.
    pub from: Option<PathBuf>,
    /// The number of changes that were equal in the replay and in the [tape](crate::Tape) of the
    /// run; `None` if the run has no tape.
    pub compared: Option<u64>,
    /// The summary of the training batches, as [`fit`](Trainer::fit) returns it.
    pub summary: Summary,
}

/// # Replays
impl<T: Task> Trainer<T> {
    /// Repeats the training batches `batches` of a recorded run with the hooks of this trainer.
    ///
    /// The batches between the preceding checkpoint and the first of `batches` are repeated too. A
    /// hook of this trainer can, for example, [observe](crate::Cx#observers) values that the run
    /// did not record.
    ///
    /// `run` is the folder of the run, or a folder with its checkpoints. Batches are counted from 0
    /// over all epochs, as in the output of `trainer diff`. The replay begins at the newest
    /// checkpoint that was written before the first of these batches, or else at the start of the
    /// run. The replay ends right after the last batch, before any validation that follows, and
    /// fires only `teardown` among the points at the end of a run. If the run has a
    /// [tape](crate::Tape), the replay is compared with everything that the tape records about the
    /// repeated batches.
    ///
    /// A replay writes nothing: hooks with the key [`writes`](crate::language::writes), such as the
    /// built-in loggers and [`Checkpoint`](crate::hooks::Checkpoint), are not called, requests for
    /// checkpoints are ignored, and there is no run folder. A hook that writes without this key can
    /// check [`Cx::is_replay`](crate::Cx::is_replay).
    ///
    /// The same rules apply to this trainer after the replay. Its weights are then those that the
    /// run had after the last batch, and [`validate`](Trainer::validate) and
    /// [`predict`](Trainer::predict) use them.
    ///
    /// ```no_run
    /// # use trainer::prelude::*;
    /// # fn replay(task: impl Task<Batch = Tensor>, train: &mut InMemory<Tensor>) -> Result<()> {
    /// let mut trainer = Trainer::builder(task)
    ///     .optimizer(AdamW::new(1e-3))
    ///     .epochs(100)
    ///     .observe::<AfterBackward>("grad", |cx| {
    ///         println!("{}: {:?}", cx.counters().batches_seen, cx.grad("fc1.weight")?.norm());
    ///         Ok(())
    ///     })
    ///     .build()?;
    /// trainer.replay(train, None, "runs/0007", 4170..4175)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - `batches` is empty, or the recorded run ended before the first of these batches;
    /// - the run has no checkpoint before the first batch, and this trainer has trained before;
    /// - the program differs from that of the run in such a way that [`fit`](Trainer::fit) would
    ///   not [resume](crate::TrainerBuilder::resume) from the checkpoint;
    /// - the replay differs from the tape of the run; the error says where, as `trainer diff` does;
    /// - `fit` returns an error.
    pub fn replay(
        &mut self,
        train: &mut dyn Loader<T::Batch>,
        valid: Option<&mut dyn Loader<T::Batch>>,
        run: impl AsRef<Path>,
        batches: Range<u64>,
    ) -> Result<Replayed> {
        let path = run.as_ref();
        let source = Source::find(self.run.reports(), path, &batches)?;
        let tape = source.tape.as_ref().map(|(_, settings)| settings.clone());
        let end = EndOfReplay { until: batches.end, fork: None };
        let (replayed, records) = self.repeat(train, valid, &source, end, tape)?;
        self.check_reached(&batches)?;
        let compared = match &source.tape {
            None => None,
            Some((tape, _)) => Some(compare(path, tape, &records)?),
        };
        Ok(Replayed { compared, ..replayed })
    }

    /// Repeats batches of a run, and returns the result and the tape records of the replay.
    fn repeat(
        &mut self,
        train: &mut dyn Loader<T::Batch>,
        valid: Option<&mut dyn Loader<T::Batch>>,
        source: &Source,
        end: EndOfReplay,
        tape: Option<Tape>,
    ) -> Result<(Replayed, Vec<u8>)> {
        self.run.optimizers().require()?;
        begin(&mut self.run, source, end, tape)?;
        let summary = self.fit(train, valid)?;
        let records = tape::read(self.run.layers(), Recorder::take);
        let from = source.checkpoint.as_ref().map(|(path, _)| path.clone());
        Ok((Replayed { from, compared: None, summary }, records))
    }

    /// Returns an error if the run has ended before these batches.
    fn check_reached(&self, batches: &Range<u64>) -> Result<()> {
        let trained = self.run.progress().train_batches;
        if trained <= batches.start {
            return Err(Error::usage(format!(
                "the run has only {trained} training batches: there is nothing to replay in {}..{}",
                batches.start, batches.end
            )));
        }
        Ok(())
    }
}

/// Prepares the trainer to repeat batches of the run that `source` describes.
fn begin(run: &mut Run, source: &Source, end: EndOfReplay, tape: Option<Tape>) -> Result<()> {
    let checkpoint = source.checkpoint.as_ref();
    match checkpoint {
        Some((_, progress)) => run.progress_mut().fits_begun = progress.fits.saturating_sub(1),
        None if run.progress().fits_begun > 0 => {
            return Err(Error::usage(
                "this replay begins at the start of the run, because there is no checkpoint before its first batch, but \
                 this trainer has already trained: build a new one",
            ));
        }
        None => {}
    }
    let checkpoint = checkpoint.map(|(path, _)| Resume::From(path.clone()));
    let mut kept = vec![(Instance::with_hooks(end), hooks_of::<EndOfReplay>())];
    if tape.is_some() {
        kept.push((Instance::with_hooks(TapeFile::default()), hooks_of::<TapeFile>()));
    }
    replay::begin(run, checkpoint, tape, kept)
}

/// Compares the records of a replay with the tape of the run, and returns the number of changes
/// that were equal.
fn compare(run: &Path, tape: &Path, records: &[u8]) -> Result<u64> {
    let recorded = TapeReader::open(tape).map_err(Error::new)?;
    let replayed = TapeReader::of_bytes("the replay", [MAGIC, records].concat()).map_err(Error::new)?;
    let mut difference = difference_of(recorded, replayed).map_err(Error::new)?;
    // Ignore the hooks that only the recorded run has, because a replay omits hooks that write. One
    // that changed something would be in `first`.
    difference.only.retain(|only| only.run == 1);
    if difference.is_empty() { Ok(difference.compared) } else { Err(differs(run, &difference)) }
}

fn differs(run: &Path, difference: &Difference) -> Error {
    Error::usage(format!(
        "the replay differs from the run in {} (here, the first run is the recorded one, and the second is the replay): {}",
        run.display(),
        difference.to_string().trim_end()
    ))
}
