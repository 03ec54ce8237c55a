//! [`read_csv`]: the rows of a CSV file.

use std::borrow::Cow;
use std::fs::File;
use std::ops::Deref;
use std::path::Path;

use ::csv::{DeserializeErrorKind, ErrorKind, Position, ReaderBuilder, StringRecord};
use serde::de::DeserializeOwned;

use super::foreign::Found;
use crate::data::dataset::Dataset;
use crate::data::fingerprint::with_files;
use crate::data::rng::RowRng;
use crate::error::{Result, shortened};
use crate::io::files::{Links, in_file, open};
use crate::io::format::Format;

/// Reads a CSV file whose first line has the names of the columns. serde deserializes each further
/// line into a `T`. The returned rows are a [`Dataset`].
///
/// Use this when the table fits into memory. If it does not, convert it to parquet and use
/// `Shards`.
///
/// ```
/// use trainer::data::read_csv;
/// use trainer::prelude::*;
///
/// #[derive(Clone, serde::Deserialize)]
/// struct Flower {
///     length: f32,
///     width: f32,
///     species: i64,
/// }
///
/// # let path = std::env::temp_dir().join(format!("trainer-flowers-{}.csv", std::process::id()));
/// # std::fs::write(&path, "length,width,species\n5.1,3.5,0\n6.2,2.9,1\n")?;
/// let flowers = read_csv::<Flower>(&path)?;
/// let rows = flowers.map(|flower, _| Ok(([flower.length, flower.width], flower.species)));
/// let mut train = DataLoader::new(rows).batch_size(2).shuffle(42);
/// let (inputs, labels): (Tensor, Tensor) = train.batches(0, 0)?.next().expect("there is a batch")?;
/// assert_eq!((inputs.size(), labels.size()), (vec![2, 2], vec![2]));
/// # std::fs::remove_file(path)?;
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// Fields are separated by commas and may be quoted; [`CsvReader`] has settings for other files. An
/// empty field becomes `None` in an `Option`. A whole number may be written as `1.0`, and a `bool`
/// as `True` or `TRUE`, because Python writes them so.
///
/// # Errors
///
/// Returns an error if
///
/// - the file cannot be read, is empty, is compressed or of another format, or is not UTF-8;
/// - a line has more or fewer fields than the first;
/// - a field cannot be deserialized.
///
/// The error for a line names the line, and also the column if a single field is the cause.
pub fn read_csv<T: DeserializeOwned>(path: impl AsRef<Path>) -> Result<CsvRows<T>> {
    CsvReader::new().read(path)
}

/// Reads CSV files that are not separated by commas, have comments, or have no line with the names
/// of the columns. For all others, use [`read_csv`].
///
/// ```
/// use trainer::data::CsvReader;
///
/// # let path = std::env::temp_dir().join(format!("trainer-plain-{}.csv", std::process::id()));
/// # std::fs::write(&path, "# measured in March\n5.1;0\n6.2;1\n")?;
/// let reader = CsvReader::new().delimiter(b';').comment(b'#').names(["length", "species"]);
/// let rows = reader.read::<(f32, i64)>(&path)?;
/// assert_eq!(rows[1], (6.2, 1));
/// # std::fs::remove_file(path)?;
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Debug)]
pub struct CsvReader {
    builder: ReaderBuilder,
    names: Option<StringRecord>,
}

impl Default for CsvReader {
    fn default() -> Self {
        CsvReader { builder: ReaderBuilder::new(), names: None }
    }
}

impl CsvReader {
    /// Creates a reader of files as [`read_csv`] reads them.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the byte that separates the fields of a line. Defaults to `b','`.
    #[must_use]
    pub fn delimiter(mut self, delimiter: u8) -> Self {
        self.builder.delimiter(delimiter);
        self
    }

    /// Leaves out lines that begin with this byte. By default, no line is left out.
    #[must_use]
    pub fn comment(mut self, start: u8) -> Self {
        self.builder.comment(Some(start));
        self
    }

    /// Sets the names of the columns of a file whose first line has values. By default, the first
    /// line has the names.
    #[must_use]
    pub fn names<N: AsRef<str>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.builder.has_headers(false);
        self.names = Some(names.into_iter().collect::<Vec<_>>().into());
        self
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// Returns an error in the cases listed at [`read_csv`].
    pub fn read<T: DeserializeOwned>(&self, path: impl AsRef<Path>) -> Result<CsvRows<T>> {
        let path = path.as_ref();
        let (file, length) = open(path, Links::Follow)?;
        let found = Found::in_file(path, &file, length)?;
        let other = || in_file(path, found.refused("a CSV file"));
        match found.format {
            // A valid table can begin like JSON, and without a line of names it can be empty.
            Format::Text | Format::Unknown | Format::Json => {}
            Format::Empty if self.names.is_some() => {}
            _ => return Err(other()),
        }
        let rows = self.rows(path, file);
        let has_rows = rows.as_ref().is_ok_and(|rows| !rows.rows.is_empty());
        if found.format == Format::Json && !has_rows { Err(other()) } else { rows }
    }

    fn rows<T: DeserializeOwned>(&self, path: &Path, file: File) -> Result<CsvRows<T>> {
        let mut reader = self.builder.from_reader(file);
        let no_names = StringRecord::new();
        let names = match &self.names {
            Some(names) => names.clone(),
            None => {
                reader.headers().map_err(|error| in_file(path, text_of(&error, None, &no_names)))?.clone()
            }
        };
        let mut rows = Vec::new();
        let mut columns = vec![false; names.len()];
        for record in reader.records() {
            let record = record.map_err(|error| in_file(path, text_of(&error, None, &names)))?;
            rows.push(row_of(record, &names, &mut columns).map_err(|problem| in_file(path, problem))?);
        }
        let fingerprint = with_files(&format!("a table of {} columns", names.len()), [path].into_iter());
        Ok(CsvRows { rows, fingerprint })
    }
}

/// Deserializes a row. `rewritten` are the columns whose fields are written as another program than
/// serde expects them.
fn row_of<T: DeserializeOwned>(
    mut record: StringRecord,
    names: &StringRecord,
    rewritten: &mut [bool],
) -> Result<T, String> {
    if rewritten.contains(&true) {
        record = rewrite(&record, rewritten);
    }
    loop {
        let error = match record.deserialize(Some(names)) {
            Ok(row) => return Ok(row),
            Err(error) => error,
        };
        let column = match error.kind() {
            ErrorKind::Deserialize { err, .. } => err.field().and_then(|field| usize::try_from(field).ok()),
            _ => None,
        };
        // Tries each column once.
        let is_new = column
            .and_then(|column| rewritten.get_mut(column))
            .is_some_and(|column| !std::mem::replace(column, true));
        if !is_new {
            return Err(text_of(&error, record.position(), names)
                + &shown(column.and_then(|column| record.get(column))));
        }
        record = rewrite(&record, rewritten);
    }
}

/// Returns a row with the fields of these columns in the form that serde expects.
fn rewrite(record: &StringRecord, columns: &[bool]) -> StringRecord {
    let fields = record.iter().zip(columns).map(|(field, is_rewritten)| {
        let field = if *is_rewritten { field.trim() } else { return Cow::Borrowed(field) };
        match field {
            "True" | "TRUE" => Cow::Borrowed("true"),
            "False" | "FALSE" => Cow::Borrowed("false"),
            // A whole number that a floating-point number represents exactly.
            number => match number.parse::<f64>() {
                Ok(value)
                    if value.fract() == 0.0 && value.abs() < EXACT && number.contains(['.', 'e', 'E']) =>
                {
                    Cow::Owned(format!("{value:.0}"))
                }
                _ => Cow::Borrowed(number),
            },
        }
    });
    let mut written: StringRecord = fields.collect::<Vec<_>>().into();
    written.set_position(record.position().cloned());
    written
}

/// The least whole number that is not the only one with its floating-point number.
const EXACT: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;

/// Returns the end of a message with the text of a field.
fn shown(field: Option<&str>) -> String {
    field.map_or_else(String::new, |field| format!(", in {:?}", shortened(field)))
}

/// The rows of a CSV file: see [`read_csv`]. They are a [`Dataset`] that knows its content, and a
/// slice.
#[derive(Clone, Debug, PartialEq)]
pub struct CsvRows<T> {
    rows: Vec<T>,
    fingerprint: String,
}

impl<T> Deref for CsvRows<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.rows
    }
}

impl<T> IntoIterator for CsvRows<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.rows.into_iter()
    }
}

/// The rows are clones of the elements.
impl<T: Clone + Send + Sync + 'static> Dataset for CsvRows<T> {
    type Row = T;

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn row(&self, index: usize, _: &mut RowRng) -> Result<T> {
        Ok(self.rows[index].clone())
    }

    fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }
}

/// Returns a message that says where an error occurred, and what is wrong.
fn text_of(error: &::csv::Error, row: Option<&Position>, names: &StringRecord) -> String {
    let line =
        error.position().or(row).map_or_else(String::new, |position| format!("line {}", position.line()));
    match error.kind() {
        ErrorKind::Deserialize { err, .. } => {
            let column = err.field().and_then(|field| usize::try_from(field).ok());
            let column = column.map_or_else(String::new, |field| {
                let name = names.get(field).map_or_else(String::new, |name| format!(" (`{name}`)"));
                format!(", column {}{name}", field + 1)
            });
            let problem = match err.kind() {
                DeserializeErrorKind::Message(text) | DeserializeErrorKind::Unsupported(text) => text.clone(),
                DeserializeErrorKind::UnexpectedEndOfRow => "a field is missing".to_owned(),
                kind => kind.to_string(),
            };
            format!("{line}{column}: {problem}")
        }
        ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{line}: it has {len} fields: expected {expected_len}, as in the first line")
        }
        ErrorKind::Utf8 { err, .. } => format!("{line}, column {}: it is not UTF-8", err.field() + 1),
        _ => error.to_string(),
    }
}
