//! [`TapeFile`]: writes the tape of a run.

use trainer_formats::tape::{MAGIC, file_name};

use super::{GrowingFile, stages};
use crate::checkpoint::{Saved, State};
use crate::prelude::own::*;
use crate::{Tape, TrainerBuilder};

/// The number of bytes that are buffered before they are written.
const BUFFERED: usize = 1 << 16;

/// Writes the [tape](Tape) of a run. [`TrainerBuilder::tape`] or the environment variable
/// `TRAINER_TAPE` adds this hook.
///
/// A resumed run continues the tape without missing or duplicate records, like any [`GrowingFile`].
#[derive(Debug)]
pub struct TapeFile {
    /// The file; `None` until the rank is known.
    file: Option<GrowingFile>,
    /// The rank that the state belongs to.
    rank: u32,
    /// The number of training batches at the end of the last fit whose final state is on the tape;
    /// `None` during a fit. A fit that is resumed only to find that it had ended is not recorded
    /// again.
    ended_at: Option<u64>,
}

impl TapeFile {
    fn new() -> Self {
        TapeFile { file: None, rank: 0, ended_at: None }
    }

    /// Writes the records that the trainer has collected.
    fn flush<P>(&mut self, cx: &Cx<P>) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let records = cx.tape().take();
        if records.is_empty() {
            return Ok(());
        }
        if file.is_empty() {
            file.append(cx, MAGIC)?;
        }
        file.append(cx, &records)
    }
}

/// Whether `TRAINER_TAPE` requests a tape.
fn is_requested() -> bool {
    Tape::requested().is_ok_and(|tape| tape.is_some())
}

impl Default for TapeFile {
    fn default() -> Self {
        TapeFile::new()
    }
}

#[hook(in = stages::Last, auto = is_requested, single, state, writes, may_fail)]
impl TapeFile {
    /// Creates the file of a new run.
    fn setup(&mut self, cx: &Cx<Setup>) -> Result<()> {
        if cx.is_replay() {
            self.file = None; // the records stay in memory
        } else if self.file.is_none() {
            self.rank = cx.rank();
            let in_folder = || GrowingFile::in_run_folder(file_name(cx.rank()));
            self.file = Some(cx.tape().path().map_or_else(in_folder, GrowingFile::at));
        }
        if let Some(file) = &mut self.file {
            file.begin(cx)?;
        }
        if cx.phase() == Phase::Train { Ok(()) } else { cx.tape().start() }
    }

    /// Begins to record a new fit, after the hooks that prepare it.
    fn before_fit(&mut self, cx: &Cx<BeforeFit>) -> Result<()> {
        self.ended_at = None;
        cx.tape().start()
    }

    /// Moves the records written since the checkpoint to a separate file, and records the restored
    /// state.
    fn after_load_checkpoint(&mut self, cx: &Cx<AfterLoadCheckpoint>) -> Result<()> {
        if let Some(file) = &mut self.file {
            file.continue_after_resume(cx)?;
        }
        cx.tape().resume()
    }

    /// Records the state, and writes the records.
    fn after_step(&mut self, cx: &Cx<AfterStep>) -> Result<()> {
        cx.tape().record_interval(false)?;
        if cx.tape().pending() > BUFFERED { self.flush(cx) } else { Ok(()) }
    }

    /// Writes the records that belong to a checkpoint.
    fn before_save_checkpoint(&mut self, cx: &Cx<BeforeSaveCheckpoint>) -> Result<()> {
        cx.tape().note_checkpoint()?;
        self.flush(cx)
    }

    /// Records the state at the end of a fit.
    fn after_fit(&mut self, cx: &Cx<AfterFit>) -> Result<()> {
        let now = Some(cx.counters().batches_seen);
        if std::mem::replace(&mut self.ended_at, now) == now {
            Ok(())
        } else {
            cx.tape().record_interval(true)
        }
    }

    /// Writes the remaining records, or reports them as missing.
    fn teardown(&mut self, cx: &Cx<Teardown>) -> Result<()> {
        cx.tape().end().into_iter().for_each(|warning| cx.warn(warning));
        self.flush(cx)?;
        self.file.as_mut().map_or(Ok(()), |file| file.finish(cx))
    }
}

/// Saves the state of the file, and the rank that wrote it.
#[diagnostic::do_not_recommend]
impl State for TapeFile {
    fn save(&self) -> Result<Saved> {
        let mut saved = self.file.as_ref().map_or_else(|| Ok(Saved::new()), State::save)?;
        saved.set("rank", &self.rank)?;
        saved.set("ended_at", &self.ended_at)?;
        Ok(saved)
    }

    /// Returns `false`, because the tape records both the roll-back and what the run did before the
    /// roll-back.
    fn rolls_back(&self) -> bool {
        false
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        // After a resume with a different number of ranks, a rank may get the state of another
        // rank. It then begins a new tape.
        if saved.get::<u32>("rank")? == self.rank
            && saved.contains("position")
            && let Some(file) = &mut self.file
        {
            file.load(saved)?;
            self.ended_at = if saved.contains("ended_at") { saved.get("ended_at")? } else { None };
        }
        Ok(())
    }
}

/// # Tapes
impl<T: Task> TrainerBuilder<T> {
    /// Records the changes made by each hook, operation and named module, and by the loader.
    /// `trainer diff` compares the tapes of two runs, and finds where the runs differ: see the
    /// [guide](crate::guide::tape).
    ///
    /// The tape is `run.tape()` in the [run folder](Self::run_folder). The environment variable
    /// `TRAINER_TAPE` requests a tape for a program that has none: `steps:100`, `full`,
    /// `full:100..200` (only these training batches) or `paranoid`.
    ///
    /// ```
    /// use trainer::Tape;
    /// # use trainer::prelude::*;
    /// # let vs = nn::VarStore::new(Device::Cpu);
    /// # let net = nn::linear(&vs.root() / "fc", 4, 2, Default::default());
    /// # let task = Supervised::new(vs, net, |pred: &Tensor, labels: &Tensor| pred.cross_entropy_for_logits(labels));
    ///
    /// let trainer =
    ///     Trainer::builder(task).optimizer(Sgd::new(0.1)).run_folder("runs/first").tape(Tape::steps(100)).build()?;
    /// # Ok::<(), trainer::Error>(())
    /// ```
    pub fn tape(mut self, tape: Tape) -> Self {
        self.tape = Some(tape);
        self.hook(TapeFile::new())
    }
}
