//! [`TensorBoard`]: event files for TensorBoard.

mod event;

use std::path::PathBuf;
use std::time::SystemTime;

use event::{Events, Status};

use super::{Axis, GrowingFile, seconds, stages};
use crate::Hyperparameter;
use crate::checkpoint::{Saved, State};
use crate::io::files::metadata;
use crate::prelude::own::*;

/// Writes event files for [TensorBoard](https://www.tensorflow.org/tensorboard): the numbers,
/// histograms, images and texts of records, and the hyperparameters of the run.
///
/// Use this when you want curves, histograms and images of many runs in a browser, even while they
/// train.
///
/// `tensorboard --logdir runs` then shows every run folder in `runs` as a run. The metrics of a
/// training epoch have separate tags: `epoch/train/loss` beside `train/loss`. Numbers are rounded
/// to `f32`, which is what TensorBoard stores. Small images are enlarged without smoothing.
///
/// On its HPARAMS page, TensorBoard first shows the hyperparameters that differ between runs, then
/// the others by name, and ticks the first five. The names of hyperparameters that the program has
/// not [set](crate::TrainerBuilder::hyperparameter) begin with a mark that sorts them last, as in
/// `▸ beta1`.
///
/// A run that resumes or rolls back begins a new file, and moves the events that were written after
/// the restored state to `….before-resume-<n>`, so that no point of a curve is duplicated. A
/// TensorBoard that is already running updates its curves.
///
/// ```no_run
/// use trainer::loggers::TensorBoard;
/// # use trainer::prelude::*;
/// # fn train(task: impl Task<Batch = Tensor>) -> Result<()> {
/// let builder = Trainer::builder(task).optimizer(AdamW::new(1e-3)).run_folder("runs/first");
/// let trainer = builder.hook(TensorBoard::new()).build()?; // then: tensorboard --logdir runs
/// # Ok(())
/// # }
/// ```
#[doc(alias("TensorBoardLogger", "TensorBoardCallback", "SummaryWriter"))]
#[derive(Debug)]
pub struct TensorBoard {
    file: GrowingFile,
    axis: Axis,
    /// The index of the file that is being written.
    part: u64,
    /// Whether the current file has its first event, the version.
    has_version: bool,
    /// Whether the hyperparameters have been written.
    has_hyperparameters: bool,
    hyperparameters: Vec<(String, Hyperparameter)>,
    status: Status,
    /// Whether the run is being resumed, and has not loaded a checkpoint yet.
    is_resuming: bool,
    /// Whether the run has rolled back, possibly to an earlier file, and has written nothing since.
    is_rolled_back: bool,
}

impl Default for TensorBoard {
    fn default() -> Self {
        TensorBoard {
            file: GrowingFile::in_run_folder(file_name(0)),
            axis: Axis::default(),
            part: 0,
            has_version: false,
            has_hyperparameters: false,
            hyperparameters: Vec::new(),
            status: Status::Success,
            is_resuming: false,
            is_rolled_back: false,
        }
    }
}

/// The prefix for the names of hyperparameters that the program has not set. TensorBoard sorts
/// hyperparameters with the same value in all runs by name, and shows the first five. This
/// character sorts after the letters of all alphabets.
const ADDED: &str = "▸ ";

/// Returns the hyperparameters of the program, followed by all others. The others get a prefix, so
/// that they also come last when sorted by name.
fn in_order(
    own: Vec<(String, Hyperparameter)>,
    all: Vec<(String, Hyperparameter)>,
) -> Vec<(String, Hyperparameter)> {
    let added = all.into_iter().skip(own.len()).map(|(name, value)| (format!("{ADDED}{name}"), value));
    let added: Vec<_> = added.collect();
    own.into_iter().chain(added).collect()
}

/// Returns the name of the event file with this index. TensorBoard reads the files in the order of
/// their names.
fn file_name(part: u64) -> String {
    format!("events.out.tfevents.{part:04}.trainer")
}

impl TensorBoard {
    /// Creates a logger that writes into the [run folder](crate::TrainerBuilder::run_folder).
    #[must_use]
    pub fn new() -> Self {
        TensorBoard::default()
    }

    /// Creates a logger that writes into this folder.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        TensorBoard { file: GrowingFile::at(folder.into().join(file_name(0))), ..TensorBoard::default() }
    }

    /// Sets the horizontal axis, which TensorBoard calls "step". Defaults to
    /// [`Axis::OptimizerSteps`].
    #[must_use]
    pub fn axis(mut self, axis: Axis) -> Self {
        self.axis = axis;
        self
    }

    /// Whether a failed write ends the run. Defaults to `false`: see
    /// [`GrowingFile::strict`].
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Self {
        self.file = self.file.strict(strict);
        self
    }

    /// Returns a handle to the event file with this index, without opening it.
    fn file_of(&self, part: u64) -> GrowingFile {
        self.file.beside(&file_name(part))
    }

    /// Moves the content that existing files have beyond the checkpoint to separate files, and
    /// begins a new file after the existing files. If the current file is the last file and is
    /// empty, keeps it instead.
    fn begin_part<P>(&mut self, cx: &Cx<P>) -> Result<()> {
        self.file.continue_after_resume(cx)?;
        if !self.file.is_complete() {
            self.has_version = true;
            return Ok(()); // the next rows complete it
        }
        let before = self.part;
        while metadata(self.file_of(self.part + 1).path())?.is_some() {
            self.part += 1;
            self.file_of(self.part).continue_after_resume(cx)?;
        }
        if before == self.part && self.file.is_empty() {
            return Ok(());
        }
        self.part += 1;
        self.file = self.file_of(self.part);
        self.file.continue_after_resume(cx)?;
        self.has_version = false;
        let step = self.axis.position(cx.counters(), SystemTime::now()) + 1;
        self.append(cx, step, |events| events.session_start(step))
    }

    /// Appends events, preceded by the header events if the file has none yet.
    fn append<P>(&mut self, cx: &Cx<P>, step: u64, add: impl FnOnce(&mut Events)) -> Result<()> {
        if std::mem::take(&mut self.is_rolled_back) && !cx.is_fast_dev_run() {
            let begun = self.begin_part(cx);
            self.is_rolled_back = begun.is_err();
            begun?;
        }
        let mut events = Events { bytes: Vec::new(), time: seconds(SystemTime::now()), step };
        if !std::mem::replace(&mut self.has_version, true) {
            events.version();
            // TensorBoard treats the first session start that it reads as the start of the run, and
            // later ones as resumes.
            if self.part == 0 {
                events.session_start(0);
            }
        }
        if !std::mem::replace(&mut self.has_hyperparameters, true) {
            events.hyperparameters(&self.hyperparameters);
        }
        add(&mut events);
        self.file.append(cx, &events.bytes)
    }
}

#[hook(in = stages::Loggers, state, writes, may_fail)]
impl TensorBoard {
    /// Creates the first file of a new run, and collects the hyperparameters.
    fn setup(&mut self, cx: &Cx<Main<Setup>>) -> Result<()> {
        self.file.begin(cx)?;
        self.hyperparameters = in_order(cx.own_hyperparameters(), cx.hyperparameters());
        self.status = Status::Success;
        self.is_resuming = cx.is_resuming();
        Ok(())
    }

    /// Begins a new file if the run is resumed but was killed before its first checkpoint.
    fn before_fit(&mut self, cx: &Cx<Main<BeforeFit>>) -> Result<()> {
        if std::mem::take(&mut self.is_resuming) && !cx.is_fast_dev_run() {
            self.begin_part(cx)?;
        }
        Ok(())
    }

    /// Begins a new file, and moves the events written since the checkpoint to separate files.
    fn after_load_checkpoint(&mut self, cx: &Cx<Main<AfterLoadCheckpoint>>) -> Result<()> {
        if std::mem::take(&mut self.is_resuming) && !cx.is_fast_dev_run() {
            self.begin_part(cx)?;
        }
        Ok(())
    }

    /// Appends the events of a record.
    #[hook(only(train, valid, test, predict))]
    fn after_record(&mut self, cx: &Cx<Main<AfterRecord>>) -> Result<()> {
        let record = cx.record().clone();
        let step = self.axis.position(record.counters(), record.time());
        self.append(cx, step, |events| events.record(&record))
    }

    /// Records that the run did not succeed.
    fn after_cancel(&mut self, _: &Cx<Main<AfterCancel>>) {
        self.status = Status::Failure;
    }

    /// Records that the run did not succeed.
    fn after_error(&mut self, _: &Cx<Main<AfterError>>) {
        self.status = Status::Failure;
    }

    /// Appends the outcome of the run, and writes the events that could not be written yet.
    fn teardown(&mut self, cx: &Cx<Main<Teardown>>) -> Result<()> {
        let step = self.axis.position(cx.counters(), SystemTime::now());
        let status = self.status;
        if self.has_version {
            self.append(cx, step, |events| events.end(status))?;
        }
        self.file.finish(cx)
    }
}

/// Saves the index and the state of the current file, and whether the hyperparameters have been
/// written.
#[diagnostic::do_not_recommend]
impl State for TensorBoard {
    fn save(&self) -> Result<Saved> {
        let mut saved = self.file.save()?;
        saved.set("part", &self.part)?;
        saved.set("has_hyperparameters", &self.has_hyperparameters)?;
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        // A resume calls `begin_part` itself.
        self.is_rolled_back = !self.is_resuming && self.has_version;
        self.part = saved.get("part")?;
        self.has_hyperparameters = saved.get("has_hyperparameters")?;
        self.file = self.file_of(self.part);
        self.file.load(saved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hyperparameters_of_the_program_stay_first_when_sorted_by_name() {
        let own = || {
            vec![
                ("width".to_owned(), 8.into()),
                ("Zahl".to_owned(), 1.into()),
                ("ширина".to_owned(), 2.into()),
            ]
        };
        let all: Vec<_> = own().into_iter().chain([("amsgrad".to_owned(), false.into())]).collect();
        let mut names: Vec<_> = in_order(own(), all).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["width", "Zahl", "ширина", "▸ amsgrad"]);
        names.sort(); // as TensorBoard does
        assert_eq!(names, ["Zahl", "width", "ширина", "▸ amsgrad"]);
    }
}
