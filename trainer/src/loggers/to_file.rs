//! [`ToFile`]: a logger that formats records with a closure.

use std::fmt;
use std::path::PathBuf;

use super::{GrowingFile, stages};
use crate::Record;
use crate::prelude::*;

/// A logger that formats each record with a closure and appends the result to a file. A resumed run
/// continues the file without missing or duplicate rows.
///
/// Use this when no other logger has the format that you need.
///
/// ```
/// use std::io::Write;
///
/// use trainer::loggers::ToFile;
///
/// let logger = ToFile::in_run_folder("values.tsv", |record, out| {
///     for (name, value) in record.scalars() {
///         writeln!(out, "{}\t{name}\t{value}", record.counters().optimizer_steps)?;
///     }
///     Ok(())
/// });
/// ```
///
/// A trainer with several `ToFile` loggers must add them in the same order when it resumes, because
/// checkpoints identify each logger by its position among the `ToFile` loggers.
pub struct ToFile {
    file: GrowingFile,
    format: Box<Format>,
    out: Vec<u8>,
}

/// A closure that formats a record, and appends its rows to a buffer.
type Format = dyn FnMut(&Record, &mut Vec<u8>) -> Result<()> + Send;

impl ToFile {
    /// Creates a logger that appends to the file at this path.
    pub fn at(
        path: impl Into<PathBuf>,
        format: impl FnMut(&Record, &mut Vec<u8>) -> Result<()> + Send + 'static,
    ) -> Self {
        ToFile { file: GrowingFile::at(path), format: Box::new(format), out: Vec::new() }
    }

    /// Creates a logger that appends to the file with this name in the
    /// [run folder](crate::TrainerBuilder::run_folder).
    pub fn in_run_folder(
        name: impl Into<PathBuf>,
        format: impl FnMut(&Record, &mut Vec<u8>) -> Result<()> + Send + 'static,
    ) -> Self {
        ToFile { file: GrowingFile::in_run_folder(name), format: Box::new(format), out: Vec::new() }
    }

    /// Whether a failed write ends the run. Defaults to `false`: see
    /// [`GrowingFile::strict`].
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Self {
        self.file = self.file.strict(strict);
        self
    }
}

impl fmt::Debug for ToFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToFile").field("file", &self.file).finish_non_exhaustive()
    }
}

#[hook(in = stages::Loggers, state = self.file, writes, may_fail)]
impl ToFile {
    /// Creates the file of a new run. Returns an error if the file already contains data of an
    /// earlier run.
    fn setup(&mut self, cx: &Cx<Main<Setup>>) -> Result<()> {
        self.file.begin(cx)
    }

    /// Moves the rows written since the checkpoint to a separate file.
    fn after_load_checkpoint(&mut self, cx: &Cx<Main<AfterLoadCheckpoint>>) -> Result<()> {
        self.file.continue_after_resume(cx)
    }

    /// Appends the rows of a record.
    #[hook(only(train, valid, test, predict))]
    fn after_record(&mut self, cx: &Cx<Main<AfterRecord>>) -> Result<()> {
        self.out.clear();
        (self.format)(cx.record(), &mut self.out)?;
        self.file.append(cx, &self.out)
    }

    /// Writes the rows that could not be written yet, or reports them as missing.
    fn teardown(&mut self, cx: &Cx<Main<Teardown>>) -> Result<()> {
        self.file.finish(cx)
    }
}
