//! [`Points`]: the numbers that a run's loggers write. They can be read while the run is in
//! progress.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserializer;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use trainer_files::{Error, Links, in_file, metadata, open};

use crate::float::not_finite;

/// The file that the logger `Csv` writes to the folder of a run.
pub const CSV_FILE: &str = "values.csv";
/// The file that the logger `JsonLines` writes to the folder of a run.
pub const JSON_LINES_FILE: &str = "records.jsonl";
/// The file that the logger `Report` writes to the folder of a run. It has the format of
/// `JsonLines`, plus images.
pub const REPORT_RECORDS_FILE: &str = "report.jsonl";
/// The maximum size of a logger's file that is read, in bytes.
pub const MAX_POINTS_BYTES: u64 = 1 << 32;
/// The maximum length of a line of a logger's file, in bytes. A line may be a record with its
/// images.
pub const MAX_LINE_BYTES: u64 = 1 << 26;

/// The number of bytes that are read at once.
const BLOCK: usize = 1 << 20;

/// A numeric value in a record.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Point {
    /// The number of optimizer steps before the record.
    pub optimizer_steps: u64,
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// The number of training batches before the record.
    pub batches_seen: u64,
    /// The number of training samples before the record.
    pub samples_seen: u64,
    /// When the record was created, in seconds since the Unix epoch.
    pub time: f64,
    /// The phase: `train`, `valid`, `test` or `predict`.
    pub phase: Arc<str>,
    /// The range that the record covers.
    pub span: Span,
    /// The name, with its phase: `train/loss`.
    pub name: Arc<str>,
    /// The value.
    pub value: f64,
}

/// The part of a run over which the values of a record were reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// The optimizer steps since the previous record.
    Steps,
    /// A pass over data: an epoch of training, a validation, a test, a prediction.
    Pass,
    /// The time from the last record to the end of an entry point.
    Rest,
}

impl Span {
    /// Returns the name: `steps`, `pass` or `rest`.
    pub const fn name(self) -> &'static str {
        match self {
            Span::Steps => "steps",
            Span::Pass => "pass",
            Span::Rest => "rest",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        [Span::Steps, Span::Pass, Span::Rest].into_iter().find(|span| span.name() == name)
    }
}

/// The numbers in a logger's file. Each call of [`read`](Points::read) returns the numbers added
/// since the previous call, so a program can follow a run.
///
/// ```no_run
/// use trainer_formats::run::Points;
///
/// let mut points = Points::in_folder("runs/0001")?.expect("the run has a logger");
/// for point in points.read()?.points {
///     println!("{} {} {}", point.optimizer_steps, point.name, point.value);
/// }
/// # Ok::<(), trainer_formats::run::Error>(())
/// ```
#[derive(Debug)]
pub struct Points {
    path: PathBuf,
    /// The number of bytes read so far.
    offset: u64,
    /// The number of lines read so far.
    lines: u64,
    /// The last line read, which shows whether the file has been replaced.
    last: Vec<u8>,
    /// The columns of a CSV file; `None` before its header is read.
    columns: Option<Columns>,
    /// One copy of each name and phase.
    texts: HashSet<Arc<str>>,
}

/// The result of [`Points::read`].
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Update {
    /// Whether `points` replaces all earlier points. This happens when the run is resumed, which
    /// removes the rows since the checkpoint.
    pub is_restart: bool,
    /// The added points, in file order.
    pub points: Vec<Point>,
}

impl Points {
    /// Opens the file of a logger in the folder of a run: `values.csv`, or else `records.jsonl`, or
    /// else `report.jsonl`. Returns `None` if none of these files exists.
    ///
    /// # Errors
    ///
    /// Returns an error if it cannot be determined whether these files exist.
    pub fn in_folder(folder: impl AsRef<Path>) -> Result<Option<Self>, Error> {
        for name in [CSV_FILE, JSON_LINES_FILE, REPORT_RECORDS_FILE] {
            let path = folder.as_ref().join(name);
            // Reading reports whatever is not a regular file.
            if metadata(&path)?.is_some_and(|found| !found.is_file() || found.len() > 0) {
                return Ok(Some(Points::open(path)));
            }
        }
        Ok(None)
    }

    /// Opens the file at this path. It has the format of the logger `Csv` if its name ends in
    /// `.csv`, and that of `JsonLines` otherwise.
    #[must_use]
    pub fn open(path: impl Into<PathBuf>) -> Self {
        Points {
            path: path.into(),
            offset: 0,
            lines: 0,
            last: Vec::new(),
            columns: None,
            texts: HashSet::new(),
        }
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the points added to the file since the previous call. An incomplete last line is
    /// left for the next call.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, or if a line does not have the logger's format.
    pub fn read(&mut self) -> Result<Update, Error> {
        let (mut file, length) = open(&self.path, Links::Refuse)?;
        if length > MAX_POINTS_BYTES {
            return Err(in_file(
                &self.path,
                format!("the file has {length} bytes: expected at most {MAX_POINTS_BYTES}"),
            ));
        }
        let is_restart = !self.is_continued(&mut file).map_err(|error| in_file(&self.path, error))?;
        if is_restart {
            *self = Points { texts: std::mem::take(&mut self.texts), ..Points::open(&self.path) };
        }
        let mut update = Update { is_restart, points: Vec::new() };
        file.seek(SeekFrom::Start(self.offset)).map_err(|error| in_file(&self.path, error))?;
        let mut file = file.take(length.saturating_sub(self.offset));
        let mut bytes = Vec::new();
        loop {
            // A line that does not fit is read in blocks of increasing size.
            let block = bytes.len().max(BLOCK) as u64;
            let read = file.by_ref().take(block).read_to_end(&mut bytes);
            if read.map_err(|error| in_file(&self.path, error))? == 0 {
                return Ok(update);
            }
            let left = self.read_lines(&bytes, &mut update.points)?;
            if left as u64 > MAX_LINE_BYTES {
                let why = format!("line {}: expected at most {MAX_LINE_BYTES} bytes", self.lines + 1);
                return Err(in_file(&self.path, why));
            }
            bytes.drain(..bytes.len() - left);
        }
    }

    /// Reads the complete lines at the start of `bytes`, and returns the number of bytes behind
    /// them.
    fn read_lines(&mut self, bytes: &[u8], points: &mut Vec<Point>) -> Result<usize, Error> {
        let is_csv = self.path.extension().is_some_and(|extension| extension == "csv");
        let mut rest = bytes;
        while let Some(length) = if is_csv { length_of_row(rest) } else { length_of_line(rest) } {
            let (line, behind) = rest.split_at(length);
            let read = if is_csv { self.read_row(line, points) } else { self.read_object(line, points) };
            read.map_err(|why| in_file(&self.path, format!("line {}: {why}", self.lines + 1)))?;
            self.lines += line.iter().filter(|byte| **byte == b'\n').count() as u64;
            self.offset += length as u64;
            self.last.clear();
            self.last.extend_from_slice(line);
            rest = behind;
        }
        Ok(rest.len())
    }

    /// Whether the file still has the last line that was read.
    fn is_continued(&self, file: &mut File) -> io::Result<bool> {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(self.offset - self.last.len() as u64))?;
        file.by_ref().take(self.last.len() as u64).read_to_end(&mut bytes)?;
        Ok(bytes == self.last)
    }

    /// Reads a row of a CSV file. The first row is the header.
    fn read_row(&mut self, line: &[u8], points: &mut Vec<Point>) -> Result<(), String> {
        let line = std::str::from_utf8(line).map_err(|error| error.to_string())?;
        let fields = fields_of(line);
        let Some(columns) = &self.columns else {
            self.columns = Some(Columns::of(&fields)?);
            return Ok(());
        };
        let field = |column: usize| fields.get(column).map_or("", |field| &**field);
        let number = |column: usize| {
            field(column).parse().map_err(|_| format!("expected a number, found `{}`", field(column)))
        };
        let float = |column: usize| {
            field(column).parse().map_err(|_| format!("expected a number, found `{}`", field(column)))
        };
        let [optimizer_steps, epoch, batches_seen, samples_seen, time, phase, span, name, value] = columns.0;
        let mut point = Point {
            optimizer_steps: number(optimizer_steps)?,
            epoch: number(epoch)?,
            batches_seen: number(batches_seen)?,
            samples_seen: number(samples_seen)?,
            time: float(time)?,
            phase: Arc::default(),
            span: Span::parse(field(span)).ok_or_else(|| format!("unknown span `{}`", field(span)))?,
            name: Arc::default(),
            value: float(value)?,
        };
        point.phase = intern(&mut self.texts, field(phase));
        point.name = intern(&mut self.texts, field(name));
        points.push(point);
        Ok(())
    }

    /// Reads a JSON object, which is a record.
    fn read_object(&mut self, line: &[u8], points: &mut Vec<Point>) -> Result<(), String> {
        let mut reader = serde_json::Deserializer::from_slice(line);
        let record = reader.deserialize_map(RecordVisitor).and_then(|record| reader.end().map(|()| record));
        let Record { counters, time, phase, span, values } = record.map_err(|error| error.to_string())?;
        let [optimizer_steps, epoch, batches_seen, samples_seen] = counters;
        let span = Span::parse(&span).ok_or_else(|| format!("unknown span `{span}`"))?;
        let phase = intern(&mut self.texts, &phase);
        for (name, value) in values {
            points.push(Point {
                optimizer_steps,
                epoch,
                batches_seen,
                samples_seen,
                time,
                phase: Arc::clone(&phase),
                span,
                name: intern(&mut self.texts, &name),
                value,
            });
        }
        Ok(())
    }
}

/// Returns the shared copy of a text.
fn intern(texts: &mut HashSet<Arc<str>>, text: &str) -> Arc<str> {
    if let Some(known) = texts.get(text) {
        return Arc::clone(known);
    }
    let new: Arc<str> = text.into();
    texts.insert(Arc::clone(&new));
    new
}

/// The columns of `values.csv`, in the order of the fields of [`Point`].
const COLUMNS: [&str; 9] =
    ["optimizer_steps", "epoch", "batches_seen", "samples_seen", "time", "phase", "span", "name", "value"];

/// The position of each of the [`COLUMNS`] in the file.
#[derive(Debug)]
struct Columns([usize; 9]);

impl Columns {
    fn of(header: &[String]) -> Result<Self, String> {
        let mut columns = [0; 9];
        for (column, name) in columns.iter_mut().zip(COLUMNS) {
            let found = header.iter().position(|own| own == name);
            *column = found.ok_or_else(|| {
                format!("expected the header `{}`, found `{}`", COLUMNS.join(","), header.join(","))
            })?;
        }
        Ok(Columns(columns))
    }
}

/// Returns the length of the first line with its line break; `None` if the line is incomplete.
fn length_of_line(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1)
}

/// Returns the length of the first row of CSV text. A quoted field may contain line breaks.
fn length_of_row(bytes: &[u8]) -> Option<usize> {
    let mut is_quoted = false;
    let end = bytes.iter().position(|byte| {
        is_quoted ^= *byte == b'"';
        *byte == b'\n' && !is_quoted
    });
    end.map(|at| at + 1)
}

/// Returns the fields of a CSV row.
fn fields_of(row: &str) -> Vec<String> {
    let row = row.strip_suffix('\n').unwrap_or(row);
    let mut fields = vec![String::new()];
    let mut is_quoted = false;
    let mut characters = row.chars().peekable();
    while let Some(character) = characters.next() {
        let last = fields.len() - 1;
        match character {
            '"' if is_quoted && characters.peek() == Some(&'"') => {
                characters.next();
                fields[last].push('"');
            }
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => fields.push(String::new()),
            other => fields[last].push(other),
        }
    }
    fields
}

/// A record in JSON.
#[derive(Default)]
struct Record {
    counters: [u64; 4],
    time: f64,
    phase: String,
    span: String,
    values: Vec<(String, f64)>,
}

struct RecordVisitor;

impl<'de> Visitor<'de> for RecordVisitor {
    type Value = Record;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a record of the logger `JsonLines`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Record, A::Error> {
        let mut record = Record::default();
        let mut missing: HashSet<&str> = COLUMNS[..7].iter().copied().collect();
        while let Some(key) = map.next_key::<String>()? {
            missing.remove(&*key);
            match COLUMNS[..7].iter().position(|column| *column == key) {
                Some(counter @ 0..4) => record.counters[counter] = map.next_value()?,
                Some(4) => record.time = map.next_value()?,
                Some(5) => record.phase = map.next_value()?,
                Some(_) => record.span = map.next_value()?,
                None => {
                    let Scalar(value) = map.next_value()?;
                    record.values.extend(value.map(|value| (key, value)));
                }
            }
        }
        match missing.into_iter().min() {
            Some(name) => Err(A::Error::custom(format!("`{name}` is missing"))),
            None => Ok(record),
        }
    }
}

/// A number; `None` for a text or a histogram.
struct Scalar(Option<f64>);

impl<'de> serde::Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ScalarVisitor;

        impl<'de> Visitor<'de> for ScalarVisitor {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, a text or a histogram")
            }

            fn visit_f64<E>(self, number: f64) -> Result<Scalar, E> {
                Ok(Scalar(Some(number)))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Scalar, E> {
                Ok(Scalar(Some(number as f64)))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Scalar, E> {
                Ok(Scalar(Some(number as f64)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar(not_finite(text)))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Scalar(None))
            }
        }

        deserializer.deserialize_any(ScalarVisitor)
    }
}
