//! [`JsonLines`]: a file with a JSON object for each record.

use std::path::PathBuf;

use serde_json::{Value as Json, json};

use super::{GrowingFile, seconds, stages};
use crate::Record;
use crate::prelude::*;

/// Writes each record as a JSON object on its own line:
///
/// ```text
/// {"optimizer_steps":50,"epoch":0,"batches_seen":50,"samples_seen":3200,"time":1795305599.125,"phase":"train","span":"steps","train/loss":0.6931471805599453}
/// ```
///
/// Use this when your own program reads the values, including histograms and texts. For numbers
/// alone, [`Csv`](super::Csv) is simpler to read.
///
/// Numbers are written with full precision. JSON has neither NaN nor infinities, so these are the
/// strings `"NaN"`, `"inf"` and `"-inf"`. The time is in seconds since the Unix epoch. A text is a
/// string; a histogram is an object with `min`, `max`, `count`, `sum`, `sum_squares`, `limits` and
/// `counts`; images are left out. In Python,
/// `pandas.read_json("records.jsonl", lines=True)` reads the file.
///
/// A resumed run continues the file without missing or duplicate lines.
#[derive(Debug)]
pub struct JsonLines {
    file: GrowingFile,
}

impl Default for JsonLines {
    fn default() -> Self {
        JsonLines { file: GrowingFile::in_run_folder("records.jsonl") }
    }
}

impl JsonLines {
    /// Creates a logger that writes `records.jsonl` in the
    /// [run folder](crate::TrainerBuilder::run_folder).
    #[must_use]
    pub fn new() -> Self {
        JsonLines::default()
    }

    /// Creates a logger that writes the file at this path.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        JsonLines { file: GrowingFile::at(path) }
    }

    /// Whether a failed write ends the run. Defaults to `false`: see
    /// [`GrowingFile::strict`].
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Self {
        self.file = self.file.strict(strict);
        self
    }

    /// Formats the line of a record.
    fn line(record: &Record) -> String {
        let mut line = numbers_and_texts(record);
        for (name, histogram) in record.histograms() {
            let value = json!({
                "min": histogram.min,
                "max": histogram.max,
                "count": histogram.count,
                "sum": number(histogram.sum),
                "sum_squares": number(histogram.sum_squares),
                "limits": histogram.limits,
                "counts": histogram.counts,
            });
            add(&mut line, name, &value);
        }
        line + "}\n"
    }
}

/// Returns the beginning of a record's line: the counters, the numbers and the texts, without the
/// closing brace.
pub(super) fn numbers_and_texts(record: &Record) -> String {
    let Counters { epoch, batches_seen, optimizer_steps, samples_seen, .. } = record.counters();
    let mut line = format!(
        "{{\"optimizer_steps\":{optimizer_steps},\"epoch\":{epoch},\"batches_seen\":{batches_seen},\
         \"samples_seen\":{samples_seen},\"time\":{:.3},\"phase\":\"{}\",\"span\":\"{}\"",
        seconds(record.time()),
        record.phase(),
        record.span().name()
    );
    record.scalars().for_each(|(name, value)| add(&mut line, name, &number(value)));
    record.texts().for_each(|(name, text)| add(&mut line, name, &text.into()));
    line
}

/// Adds a value to the line of a record.
pub(super) fn add(line: &mut String, name: &str, value: &Json) {
    *line += &format!(",{}:{value}", Json::from(name));
}

/// Converts a number to JSON: NaN and infinities, which JSON does not have, become strings.
fn number(value: f64) -> Json {
    if value.is_finite() { value.into() } else { value.to_string().into() }
}

#[hook(in = stages::Loggers, state = self.file, writes, may_fail)]
impl JsonLines {
    /// Creates the file of a new run. Returns an error if the file already contains data of an
    /// earlier run.
    fn setup(&mut self, cx: &Cx<Main<Setup>>) -> Result<()> {
        self.file.begin(cx)
    }

    /// Moves the lines written since the checkpoint to a separate file.
    fn after_load_checkpoint(&mut self, cx: &Cx<Main<AfterLoadCheckpoint>>) -> Result<()> {
        self.file.continue_after_resume(cx)
    }

    /// Appends the line of a record.
    #[hook(only(train, valid, test, predict))]
    fn after_record(&mut self, cx: &Cx<Main<AfterRecord>>) -> Result<()> {
        let line = JsonLines::line(cx.record());
        self.file.append(cx, line.as_bytes())
    }

    /// Writes the lines that could not be written yet, or reports them as missing.
    fn teardown(&mut self, cx: &Cx<Main<Teardown>>) -> Result<()> {
        self.file.finish(cx)
    }
}
