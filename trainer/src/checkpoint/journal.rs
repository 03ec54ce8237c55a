//! The history of a run, in a file that each checkpoint appends to: one JSON object per line.
//!
//! Checkpoints in one folder share the file through hard links if the file system supports them.
//! Each manifest records the length and the hash of its part of the file; bytes that a later
//! checkpoint appended are ignored.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blake3::Hasher;
use serde::{Deserialize, Serialize};

use super::files::{HISTORY, step_of};
use super::tensors::FileDigest;
use crate::error::{Error, Result};
use crate::io::files::{Links, create, folder_of, in_file, link_and_append, name_of, open, read_start};
use crate::log::history::History;
use crate::log::history::Metrics;
use crate::log::history::Summary;
use crate::moments::counters::Counters;
use crate::phase::Phase;
use crate::values::float::Float;

/// One line of the file.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Line<'a> {
    /// A row in the history of the current entry point.
    Row { step: Counters, values: Values<'a> },
    /// A roll-back, which cuts the history of the entry point to this number of rows.
    RolledBack { rows: usize },
    /// An entry point that has returned a summary.
    Finished { entry: Phase, step: Counters, metrics: Values<'a>, stopped: Option<String> },
    /// An entry point that returned an error.
    Failed { entry: Phase, error: String },
}

/// Values by name.
type Values<'a> = Vec<(Cow<'a, str>, Float)>;

/// The result of an entry point that has ended.
#[derive(Debug)]
struct Finished {
    entry: Phase,
    outcome: Result<(Counters, Metrics, Option<String>), String>,
}

/// The content of the file, in memory.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    lines: Lines,
    /// How many rows of the current history are in `lines`.
    rows: usize,
    finished: Vec<Finished>,
    /// How many of these are in `lines`.
    appended: usize,
    /// The file that was last written or loaded, and how many bytes of `lines` it contains.
    last: Option<(PathBuf, u64)>,
}

/// Every line so far.
#[derive(Debug, Default)]
struct Lines {
    /// Shared with background saves.
    bytes: Arc<Vec<u8>>,
    hasher: Hasher,
}

impl Lines {
    fn push(&mut self, line: &Line<'_>) -> Result<()> {
        let mut text = serde_json::to_vec(line)
            .map_err(|error| Error::usage(format!("the history cannot be written as JSON: {error}")))?;
        text.push(b'\n');
        if Arc::get_mut(&mut self.bytes).is_none() {
            let mut copy = Vec::new(); // a background save still has the bytes
            copy.try_reserve_exact(self.bytes.len() + text.len())?;
            copy.extend_from_slice(&self.bytes);
            self.bytes = Arc::new(copy);
        }
        let bytes = Arc::make_mut(&mut self.bytes);
        bytes.try_reserve(text.len())?;
        bytes.extend(&text);
        self.hasher.update(&text);
        Ok(())
    }
}

impl Journal {
    /// Appends the results of entry points that have ended since the last update, and the new rows
    /// of the history. The row that was appended last may have gained values since then, so it is
    /// appended again.
    pub(crate) fn update(&mut self, history: &History) -> Result<()> {
        while let Some(&Finished { entry, ref outcome }) = self.finished.get(self.appended) {
            self.lines.push(&match outcome {
                Ok((step, metrics, stopped)) => Line::Finished {
                    entry,
                    step: *step,
                    metrics: floats(metrics.iter()),
                    stopped: stopped.clone(),
                },
                Err(error) => Line::Failed { entry, error: error.clone() },
            })?;
            self.appended += 1;
        }
        for row in self.rows.saturating_sub(1)..history.len() {
            self.lines.push(&Line::Row { step: history.steps()[row], values: floats(history.row(row)) })?;
        }
        self.rows = history.len();
        Ok(())
    }

    /// Drops the rows of the current history after the first `rows`.
    pub(crate) fn rewind(&mut self, rows: usize) -> Result<()> {
        if rows < self.rows {
            self.lines.push(&Line::RolledBack { rows })?;
            self.rows = rows;
        }
        Ok(())
    }

    /// Records the result of an entry point. When a resumed program calls the entry point, it
    /// returns this result again.
    pub(crate) fn finish(&mut self, entry: Phase, outcome: &Result<Summary>) {
        let outcome = match outcome {
            Ok(summary) => Ok((summary.counters, summary.metrics.clone(), summary.stopped.clone())),
            Err(error) => Err(error.to_string()),
        };
        self.rows = 0;
        self.finished.push(Finished { entry, outcome });
    }

    /// The result of the `nth` finished entry point of this kind, counted from 0.
    pub(crate) fn finished(&self, entry: Phase, nth: usize) -> Option<Result<Summary, String>> {
        let found = self.finished.iter().filter(|finished| finished.entry == entry).nth(nth)?;
        let summary = |(step, metrics, stopped)| Summary::recorded(step, metrics, stopped);
        Some(found.outcome.clone().map(summary))
    }

    /// The content that the next checkpoint writes.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let digest = FileDigest::new(self.lines.bytes.len() as u64, &self.lines.hasher);
        Snapshot { bytes: Arc::clone(&self.lines.bytes), digest, last: self.last.clone() }
    }

    /// Records that the file had `length` bytes when the checkpoint was written.
    pub(crate) fn written(&mut self, checkpoint: &Path, length: u64) {
        self.last = Some((checkpoint.join(HISTORY), length));
    }

    /// Reads the file of a checkpoint and verifies its hash.
    pub(crate) fn verified(checkpoint: &Path, digest: &FileDigest) -> Result<(PathBuf, Vec<u8>)> {
        let path = checkpoint.join(HISTORY);
        let (file, length) = open(&path, Links::Refuse)?;
        if length < digest.bytes {
            return Err(in_file(
                &path,
                format!(
                    "the file has {length} bytes, but had {} when it was written: it was changed or damaged; \
                     restore it, or use another checkpoint",
                    digest.bytes
                ),
            ));
        }
        let bytes = read_start(&path, &file, digest.bytes)?;
        digest.check(&path, &bytes)?;
        Ok((path, bytes))
    }

    /// Reads the file of a checkpoint and verifies its hash. Returns the journal, and the history
    /// of the entry point that was running.
    pub(crate) fn load(checkpoint: &Path, digest: &FileDigest) -> Result<(Self, History)> {
        let (path, bytes) = Journal::verified(checkpoint, digest)?;
        let mut journal = Journal::default();
        let mut history = History::default();
        for (nth, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let line: Line<'_> = serde_json::from_slice(line).map_err(|error| {
                in_file(
                    &path,
                    format!(
                        "line {} cannot be read: {error}; restore the file, or use another checkpoint",
                        nth + 1
                    ),
                )
            })?;
            let (entry, outcome) = match line {
                Line::Row { step, values } => {
                    history.record(step, values.iter().map(|(name, value)| (&**name, value.0)));
                    continue;
                }
                Line::RolledBack { rows } => {
                    history.truncate(rows);
                    continue;
                }
                Line::Finished { entry, step, metrics: values, stopped } => {
                    (entry, Ok((step, metrics(values), stopped)))
                }
                Line::Failed { entry, error } => (entry, Err(error)),
            };
            history = History::default();
            journal.finished.push(Finished { entry, outcome });
        }
        (journal.rows, journal.appended) = (history.len(), journal.finished.len());
        journal.lines.hasher.update(&bytes);
        journal.lines.bytes = Arc::new(bytes);
        journal.last = Some((path, digest.bytes));
        Ok((journal, history))
    }
}

/// The content of the file for one checkpoint.
pub(crate) struct Snapshot {
    bytes: Arc<Vec<u8>>,
    pub(crate) digest: FileDigest,
    last: Option<(PathBuf, u64)>,
}

impl Snapshot {
    /// Writes the file into the folder `aside`, which becomes `target`. If the previous checkpoint
    /// and `target` are named after steps and are in the same folder, makes the file a hard link to
    /// that of the previous checkpoint, and appends to it. Otherwise, or if the link cannot be
    /// created, writes a separate file.
    pub(crate) fn write(&self, aside: &Path, target: &Path) -> Result<()> {
        let path = aside.join(HISTORY);
        if let Some((last, length)) = &self.last {
            let before = folder_of(last);
            let new = usize::try_from(*length).ok().and_then(|length| self.bytes.get(length..));
            if is_step(before)
                && is_step(target)
                && folder_of(before) == folder_of(target)
                && let Some(new) = new
                && link_and_append(last, *length, &path, new)?
            {
                return Ok(());
            }
        }
        let mut file = create(&path)?;
        file.write(&self.bytes)?;
        Ok(file.sync()?)
    }
}

/// Whether a folder has the name of a step, such as `step-00000400`.
fn is_step(folder: &Path) -> bool {
    step_of(name_of(folder)).is_some()
}

fn floats<'a>(values: impl Iterator<Item = (&'a str, f64)>) -> Values<'a> {
    values.map(|(name, value)| (Cow::Borrowed(name), Float(value))).collect()
}

fn metrics(values: Values<'_>) -> Metrics {
    values.into_iter().map(|(name, Float(value))| (name.into_owned(), value)).collect()
}
