//! [`Csv`]: a file of comma-separated values.

use std::borrow::Cow;
use std::fmt::Write;
use std::path::PathBuf;

use super::{GrowingFile, seconds, stages};
use crate::Record;
use crate::prelude::own::*;

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

file_logger!(Csv, "values.csv");

impl Csv {
    /// Formats the rows of a record, below the header if they are the first ones.
    fn rows(&mut self, record: &Record) -> Result<String> {
        let Counters { epoch, batches_seen, optimizer_steps, samples_seen, .. } = record.counters();
        let time = seconds(record.time());
        let phase = record.phase();
        let span = record.span().name();
        let mut rows = if self.file.is_empty() { HEADER.to_owned() } else { String::new() };
        let start =
            format!("{optimizer_steps},{epoch},{batches_seen},{samples_seen},{time:.3},{phase},{span},");
        for (name, value) in record.scalars() {
            rows.push_str(&start);
            rows.push_str(&quoted(name));
            let _ = writeln!(rows, ",{value}");
        }
        Ok(rows)
    }
}

impl Csv {
    /// The approximate size in bytes of a record of values with these names.
    pub(crate) fn bytes_of<'n>(names: impl Iterator<Item = &'n str>) -> u64 {
        const REST: &str = "12000,100,12000,384000,1795305599.125,train,steps,,0.6931471805599453\n";
        names.map(|name| (REST.len() + quoted(name).len()) as u64).sum()
    }
}

/// Quotes a field if necessary.
fn quoted(field: &str) -> Cow<'_, str> {
    // Searching for bytes is much faster than for `char`s in a build without optimization.
    if field.bytes().any(|byte| matches!(byte, b',' | b'"' | b'\n' | b'\r')) {
        Cow::Owned(format!("\"{}\"", field.replace('"', "\"\"")))
    } else {
        Cow::Borrowed(field)
    }
}

const HEADER: &str = "optimizer_steps,epoch,batches_seen,samples_seen,time,phase,span,name,value\n";
