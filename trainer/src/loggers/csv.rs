//! [`Csv`]: a file of comma-separated values.

use std::borrow::Cow;
use std::fmt::Write;
use std::path::PathBuf;

use super::{GrowingFile, seconds, stages};
use crate::Record;
use crate::prelude::*;

/// Writes the numbers of each record as comma-separated values, one row per number:
///
/// ```text
/// optimizer_steps,epoch,batches_seen,samples_seen,time,phase,span,name,value
/// 50,0,50,3200,1795305599.125,train,steps,train/loss,0.6931471805599453
/// ```
///
/// Use this when you want to analyze the numbers in pandas or a spreadsheet. To write histograms
/// and texts too, use [`JsonLines`](super::JsonLines).
///
/// Numbers are written with full precision. NaN and infinities are `NaN`, `inf` and `-inf`. A name
/// with a comma, a quote or a line break is quoted as in RFC 4180. The time is in seconds since the
/// Unix epoch. Histograms, images and texts are left out. In Python,
/// `pandas.read_csv("values.csv").pivot_table("value", "optimizer_steps", "name")` returns a table
/// with a column for each name.
///
/// A resumed run continues the file without missing or duplicate rows.
#[doc(alias = "CSVLogger")]
#[derive(Debug)]
pub struct Csv {
    file: GrowingFile,
}

impl Default for Csv {
    fn default() -> Self {
        Csv { file: GrowingFile::in_run_folder("values.csv") }
    }
}

impl Csv {
    /// Creates a logger that writes `values.csv` in the
    /// [run folder](crate::TrainerBuilder::run_folder).
    #[must_use]
    pub fn new() -> Self {
        Csv::default()
    }

    /// Creates a logger that writes the file at this path.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Csv { file: GrowingFile::at(path) }
    }

    /// Whether a failed write ends the run. Defaults to `false`: see
    /// [`GrowingFile::strict`].
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Self {
        self.file = self.file.strict(strict);
        self
    }

    /// Formats the rows of a record.
    fn rows(record: &Record) -> String {
        let Counters { epoch, batches_seen, optimizer_steps, samples_seen, .. } = record.counters();
        let time = seconds(record.time());
        let phase = record.phase();
        let span = record.span().name();
        let mut rows = String::new();
        for (name, value) in record.scalars() {
            let name = quoted(name);
            let _ = writeln!(
                rows,
                "{optimizer_steps},{epoch},{batches_seen},{samples_seen},{time:.3},{phase},{span},{name},{value}"
            );
        }
        rows
    }
}

/// Quotes a field if necessary.
fn quoted(field: &str) -> Cow<'_, str> {
    if field.contains([',', '"', '\n', '\r']) {
        Cow::Owned(format!("\"{}\"", field.replace('"', "\"\"")))
    } else {
        Cow::Borrowed(field)
    }
}

const HEADER: &str = "optimizer_steps,epoch,batches_seen,samples_seen,time,phase,span,name,value\n";

#[hook(in = stages::Loggers, state = self.file, writes, may_fail)]
impl Csv {
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
        let rows = Csv::rows(cx.record());
        let header = if self.file.is_empty() { HEADER } else { "" };
        self.file.append(cx, format!("{header}{rows}").as_bytes())
    }

    /// Writes the rows that could not be written yet, or reports them as missing.
    fn teardown(&mut self, cx: &Cx<Main<Teardown>>) -> Result<()> {
        self.file.finish(cx)
    }
}
