//! [`read_csv`]: the rows of a CSV file.

use std::path::Path;

use ::csv::{DeserializeErrorKind, ErrorKind, ReaderBuilder, StringRecord};
use serde::de::DeserializeOwned;

use crate::error::Result;
use crate::io::files::{Links, in_file, open};

/// Reads a CSV file whose first line has the names of the columns. serde deserializes each further
/// line into a `T`. The returned `Vec` is a [`Dataset`](crate::data::Dataset).
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
/// let flowers: Vec<Flower> = read_csv(&path)?;
/// let rows = flowers.map(|flower, _| Ok(([flower.length, flower.width], flower.species)));
/// let mut train = DataLoader::new(rows).batch_size(2).shuffle(42);
/// let (inputs, labels): (Tensor, Tensor) = train.batches(0, 0)?.next().expect("there is a batch")?;
/// assert_eq!((inputs.size(), labels.size()), (vec![2, 2], vec![2]));
/// # std::fs::remove_file(path)?;
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// Fields are separated by commas and may be quoted. An empty field becomes `None` in an `Option`.
///
/// # Errors
///
/// Returns an error if
///
/// - the file cannot be read;
/// - a line has more or fewer fields than the first;
/// - a field cannot be deserialized.
///
/// The error for a line names the line, and also the column if a single field is the cause.
pub fn read_csv<T: DeserializeOwned>(path: impl AsRef<Path>) -> Result<Vec<T>> {
    let path = path.as_ref();
    let (file, _) = open(path, Links::Follow)?;
    let mut reader = ReaderBuilder::new().from_reader(file);
    let names =
        reader.headers().map_err(|error| in_file(path, text_of(&error, &StringRecord::new())))?.clone();
    let rows =
        reader.into_deserialize().map(|row| row.map_err(|error| in_file(path, text_of(&error, &names))));
    rows.collect()
}

/// Returns a message that says where an error occurred, and what is wrong.
fn text_of(error: &::csv::Error, names: &StringRecord) -> String {
    let line = error.position().map_or_else(String::new, |position| format!("line {}", position.line()));
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
