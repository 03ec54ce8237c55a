//! [`JsonLines`]: a file with a JSON object for each record.

use std::path::PathBuf;

use serde_json::{Value as Json, json};

use super::{GrowingFile, seconds, stages};
use crate::Record;
use crate::prelude::own::*;

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

file_logger!(JsonLines, "records.jsonl");

impl JsonLines {
    /// Formats the line of a record.
    fn rows(&mut self, record: &Record) -> Result<String> {
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
        Ok(line + "}\n")
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
