//! [`ToFile`]: a logger that formats records with a closure.

use std::fmt;
use std::path::PathBuf;

use super::{GrowingFile, stages};
use crate::Record;
use crate::prelude::own::*;

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
}

/// A closure that formats a record, and appends its rows to a buffer.
type Format = dyn FnMut(&Record, &mut Vec<u8>) -> Result<()> + Send;

impl ToFile {
    /// Creates a logger that appends to the file at this path.
    pub fn at(
        path: impl Into<PathBuf>,
        format: impl FnMut(&Record, &mut Vec<u8>) -> Result<()> + Send + 'static,
    ) -> Self {
        ToFile { file: GrowingFile::at(path), format: Box::new(format) }
    }

    /// Creates a logger that appends to the file with this name in the
    /// [run folder](crate::TrainerBuilder::run_folder).
    pub fn in_run_folder(
        name: impl Into<PathBuf>,
        format: impl FnMut(&Record, &mut Vec<u8>) -> Result<()> + Send + 'static,
    ) -> Self {
        ToFile { file: GrowingFile::in_run_folder(name), format: Box::new(format) }
    }

    fn rows(&mut self, record: &Record) -> Result<Vec<u8>> {
        let mut rows = Vec::new();
        (self.format)(record, &mut rows)?;
        Ok(rows)
    }
}

file_logger!(ToFile);

impl fmt::Debug for ToFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToFile").field("file", &self.file).finish_non_exhaustive()
    }
}
