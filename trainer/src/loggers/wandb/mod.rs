//! [`Wandb`]: a run folder that the client of Weights & Biases uploads.

mod record;

use std::time::SystemTime;

use record::{Records, field, item};

use super::proto::Message;
use super::{Axis, GrowingFile, seconds, stages};
use crate::Image;
use crate::checkpoint::{Saved, State};
use crate::io::files::{folder_of, metadata, replace_file};
use crate::prelude::own::*;
use crate::{Record, Span};

/// The path of the file in the run folder. The client takes a folder whose name begins with
/// `offline-` for a run that it has not uploaded.
const FILE: &str = "wandb/offline-run/run.wandb";

/// Writes what the client of [Weights & Biases](https://wandb.ai) uploads, without a network and
/// without Python while the program trains: the numbers, histograms, images and texts of records,
/// the hyperparameters of the run, and the last value of each name as its summary.
///
/// Use this when your team compares runs on Weights & Biases.
///
/// ```no_run
/// use trainer::loggers::Wandb;
/// # use trainer::prelude::*;
/// # fn train(task: impl Task<Batch = Tensor>) -> Result<()> {
/// let builder = Trainer::builder(task).optimizer(AdamW::new(1e-3)).run_folder("runs/first");
/// let trainer = builder.hook(Wandb::new("digits")).build()?;
/// // then: pip install wandb, wandb sync runs/first/wandb/offline-run
/// # Ok(())
/// # }
/// ```
///
/// Each record is a row of the run's history. Its `_step` is the number of the row, and the
/// position on the [axis](Wandb::axis) is a column, which the run declares as the horizontal axis
/// of all charts. The metrics of a training epoch are named `epoch/train/…`. A histogram with more
/// than 512 bins, which is the limit of the client, is written with fewer.
///
/// A run that resumes or rolls back continues the file, and moves the rows that were written after
/// the restored state to `run.wandb.before-resume-<n>`, so that no row is uploaded twice. Upload
/// the run after it has ended. To upload it once more, for example after it has been resumed, add
/// `--include-synced`: the rows replace those of the same run.
///
/// If an image cannot be written, it is left out of its row. If the process is killed, the run has
/// no end in the file, and is shown as failed until it is resumed and uploaded again.
#[doc(alias("WandbLogger", "WandbCallback", "WeightsAndBiases"))]
#[derive(Debug)]
pub struct Wandb {
    file: GrowingFile,
    project: String,
    entity: Option<String>,
    run_name: Option<String>,
    axis: Axis,
    /// The ID of the run, by which the server recognizes it; empty until `setup`.
    run_id: String,
    /// The time of the first row, in seconds since the Unix epoch.
    started: Option<f64>,
    /// The number of rows.
    rows: u64,
    has_failed: bool,
}

impl Wandb {
    /// Creates a logger for this project, which is created on the server if it does not exist.
    pub fn new(project: impl Into<String>) -> Self {
        Wandb {
            file: GrowingFile::in_run_folder(FILE),
            project: project.into(),
            entity: None,
            run_name: None,
            axis: Axis::default(),
            run_id: String::new(),
            started: None,
            rows: 0,
            has_failed: false,
        }
    }

    /// Sets the user or team that the project belongs to. Defaults to that of the user who uploads
    /// the run.
    #[must_use]
    pub fn entity(mut self, name: impl Into<String>) -> Self {
        self.entity = Some(name.into());
        self
    }

    /// Sets the name of the run. Defaults to the name of the run folder.
    #[must_use]
    pub fn run_name(mut self, name: impl Into<String>) -> Self {
        self.run_name = Some(name.into());
        self
    }

    /// Sets the horizontal axis. Defaults to [`Axis::OptimizerSteps`].
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

    /// The name of the column with the position on the axis.
    fn column(&self) -> &'static str {
        match self.axis {
            Axis::OptimizerSteps => "optimizer_steps",
            Axis::Samples => "samples_seen",
            Axis::Epochs => "epoch",
            Axis::WallTime => "time",
        }
    }

    /// Returns records for the end of the file. The first ones describe the run.
    fn records<P>(&self, cx: &Cx<P>) -> Records {
        let position = self.file.end();
        let mut records = Records::at(position);
        if position > 0 {
            return records;
        }
        let hyperparameters = cx.hyperparameters();
        let items = hyperparameters.iter().map(|(name, value)| item(name, &record::hyperparameter(value)));
        let config = items.fold(Message::default(), |config, item| config.message(1, &item));
        let folder =
            cx.run_folder().and_then(std::path::Path::file_name).unwrap_or_default().to_string_lossy();
        let start = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let start = Message::default().integer(1, start.as_secs()).integer(2, start.subsec_nanos().into());
        let mut run = Message::default().field(1, &self.run_id);
        if let Some(entity) = &self.entity {
            run = run.field(2, entity);
        }
        let run = run.field(3, &self.project).message(4, &config);
        let run = run.field(8, self.run_name.as_deref().unwrap_or(&folder)).message(17, &start);
        records.push(field::RUN, &run);
        let axis = Message::default().field(2, "*").field(4, self.column());
        records.push(field::METRIC, &axis);
        records
    }

    /// Writes an image beside the file. Returns its path in the folder `files` and its JSON.
    fn write_image(&self, name: &str, image: &Image) -> Result<(String, String)> {
        let png = image.png()?;
        let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '_' };
        let name: String = name.chars().map(plain).take(100).collect();
        // With the hash of its content, a file never changes, even if the run rolls back.
        let hash = blake3::hash(&png).to_hex();
        let path = format!("media/images/{name}_{}_{}.png", self.rows, &hash[..20]);
        let file = folder_of(self.file.path()).join("files").join(&path);
        self.file.create_folder(folder_of(&file))?;
        if metadata(&file)?.is_none_or(|metadata| metadata.len() != png.len() as u64) {
            replace_file(&file, |_| Ok::<_, Error>(()), |file| Ok(file.write(&png)?))?;
        }
        let json = format!(
            r#"{{"_type":"image-file","path":"{path}","format":"png","size":{},"width":{},"height":{}}}"#,
            png.len(),
            image.width,
            image.height
        );
        Ok((path, json))
    }

    /// Appends the row of a record, and updates the summary. Returns the error of the first image
    /// that could not be written.
    fn append<P>(&mut self, cx: &Cx<P>, record: &Record) -> Result<()> {
        let time = seconds(record.time());
        let runtime = time - *self.started.get_or_insert(time);
        let position = self.axis.position(record.counters(), record.time());
        let mut items = vec![
            item("_step", &self.rows.to_string()),
            item("_timestamp", &record::number(time)),
            item("_runtime", &record::number(runtime)),
            item(self.column(), &position.to_string()),
        ];
        let is_of_epoch = record.phase() == Phase::Train && record.span() == Span::Pass;
        let prefix = if is_of_epoch { "epoch/" } else { "" };
        let mut add = |name: &str, json: &str| items.push(item(&format!("{prefix}{name}"), json));
        record.scalars().for_each(|(name, value)| add(name, &record::number(value)));
        record.histograms().for_each(|(name, histogram)| add(name, &record::histogram(histogram)));
        record.texts().for_each(|(name, text)| add(name, &record::text(text)));
        let (mut files, mut failed) = (Message::default(), None);
        for (name, image) in record.images() {
            match self.write_image(name, image) {
                Ok((path, json)) => {
                    add(name, &json);
                    files = files.message(1, &Message::default().field(1, path));
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let list = |of: &[Message]| of.iter().fold(Message::default(), |list, item| list.message(1, item));
        let mut records = self.records(cx);
        if !files.bytes().is_empty() {
            records.push(field::FILES, &files);
        }
        records.push(field::SUMMARY, &list(&items));
        let step = Message::default().integer(1, self.rows);
        records.push(field::HISTORY, &list(&items).message(2, &step));
        self.file.append(cx, &records.bytes)?;
        self.rows += 1;
        failed.map_or(Ok(()), Err)
    }
}

/// Returns a new ID: eight letters and digits, as those of the client.
fn new_id() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // Not from a random generator, whose state the run would have to keep.
    let hash = blake3::hash(format!("{} {}", now.as_nanos(), std::process::id()).as_bytes());
    let letters = b"abcdefghijklmnopqrstuvwxyz0123456789";
    hash.as_bytes()[..8].iter().map(|byte| char::from(letters[usize::from(*byte) % letters.len()])).collect()
}

#[hook(in = stages::Loggers, state, writes, may_fail)]
impl Wandb {
    /// Creates the file of a new run. Returns an error if the file already contains data of an
    /// earlier run.
    fn setup(&mut self, cx: &Cx<Main<Setup>>) -> Result<()> {
        if self.run_id.is_empty() {
            self.run_id = new_id();
        }
        self.has_failed = false;
        self.file.begin(cx)
    }

    /// Moves the rows written since the checkpoint to a separate file.
    fn after_load_checkpoint(&mut self, cx: &Cx<Main<AfterLoadCheckpoint>>) -> Result<()> {
        self.file.continue_after_resume(cx)
    }

    /// Appends the row of a record.
    #[hook(only(train, valid, test, predict))]
    fn after_record(&mut self, cx: &Cx<Main<AfterRecord>>) -> Result<()> {
        if cx.is_fast_dev_run() {
            return Ok(());
        }
        let record = cx.record().clone();
        self.append(cx, &record)
    }

    /// Notes that the run did not succeed.
    fn after_cancel(&mut self, _: &Cx<Main<AfterCancel>>) {
        self.has_failed = true;
    }

    /// Notes that the run did not succeed.
    fn after_error(&mut self, _: &Cx<Main<AfterError>>) {
        self.has_failed = true;
    }

    /// Writes the rows that could not be written yet, or reports them as missing, and ends the
    /// run.
    fn teardown(&mut self, cx: &Cx<Main<Teardown>>) -> Result<()> {
        self.file.finish(cx)?;
        let mut records = Records::at(self.file.end());
        let exit = Message::default().integer(1, self.has_failed.into());
        records.push(field::EXIT, &exit);
        self.file.end_with(cx, &records.bytes)
    }
}

/// Saves the state of the file, the ID of the run, and the number of rows.
#[diagnostic::do_not_recommend]
impl State for Wandb {
    fn save(&self) -> Result<Saved> {
        let mut saved = self.file.save()?;
        saved.set("run_id", &self.run_id)?;
        saved.set("started", &self.started)?;
        saved.set("rows", &self.rows)?;
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        self.run_id = saved.get("run_id")?;
        self.started = saved.get("started")?;
        self.rows = saved.get("rows")?;
        self.file.load(saved)
    }
}
