//! Shards that are parquet files.

use std::fs::File;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;

use ::parquet::errors::ParquetError;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::schema::types::Type;
use serde::de::DeserializeOwned;

use super::foreign::Found;
use super::parquet_row::{fields_of, row_from};
use super::shards::{Format, Indexed, Shards, without_panic};
use crate::error::Result;
use crate::io::files::{Links, in_file, open, read_at};
use crate::io::format::Format as Kind;

/// Parquet files whose rows are deserialized into a `T`: see [`Shards::parquet`].
#[derive(Debug)]
pub struct Parquet<T>(PhantomData<fn() -> T>);

impl<T: DeserializeOwned + Clone + Send + Sync + 'static> Shards<Parquet<T>> {
    /// Opens parquet files. serde deserializes their rows into a `T`. Each path is a file, or a
    /// folder whose `*.parquet` files are used in the order of their names.
    ///
    /// ```
    /// use trainer::data::{Parquet, Shards};
    /// use trainer::prelude::*;
    ///
    /// /// The columns that are read; the files may have others.
    /// #[derive(Clone, serde::Deserialize)]
    /// struct Review {
    ///     text: String,
    ///     label: i64,
    /// }
    ///
    /// # fn load() -> Result<()> {
    /// let reviews: Shards<Parquet<Review>> = Shards::parquet(["data/train"])?;
    /// let rows = reviews.buffer(50_000).map(|review, _| Ok((review.text, review.label)));
    /// let train = DataLoader::new(rows).batch_size(32).shuffle(42).workers(2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A row group is decoded as a whole, once for all workers, and the most recently used row
    /// groups are kept in memory. Files with small row groups, of a few thousand rows, need the
    /// least memory. This function reads only the footers.
    ///
    /// | column | `T` has |
    /// |---|---|
    /// | integer, date, time, timestamp | an integer, in the unit of the column |
    /// | floating point | `f32` or `f64` |
    /// | string | `String` |
    /// | bytes | `Vec<u8>` |
    /// | list | `Vec` |
    /// | group | a struct |
    /// | map | a map |
    /// | any, with nulls | an `Option` |
    ///
    /// Decimal numbers, files that are encrypted or compressed with brotli, and some files of old
    /// versions of fastparquet and pyarrow, which do not follow the format, are not supported.
    /// Write such a file again in Python, decrypted and with floating-point numbers:
    /// `pyarrow.parquet.write_table(pyarrow.parquet.read_table(…), …)`.
    ///
    /// # Errors
    ///
    /// Returns an error if there are no such files, or if a file cannot be opened. For damaged
    /// files, see [Damaged shards](Shards#damaged-shards).
    pub fn parquet(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self> {
        Self::open(paths)
    }
}

/// The index of the first row of each row group, followed by the total number of rows.
#[derive(Debug)]
pub struct RowGroups(Vec<usize>);

/// The rows of a row group, each as a value or as the reason why it cannot be produced.
pub struct Rows<T> {
    rows: Vec<Result<T, Box<str>>>,
    /// The reason why there are fewer rows than expected, if it is known.
    problem: Option<String>,
}

impl<T: DeserializeOwned + Clone + Send + Sync + 'static> Format for Parquet<T> {
    type Row = T;
    type Index = RowGroups;
    type Piece = Rows<T>;

    const EXTENSION: &'static str = "parquet";

    fn index(path: &Path, file: File, length: u64) -> Indexed<RowGroups> {
        let starts = caught(|| {
            let reader = SerializedFileReader::new(file.try_clone()?)?;
            starts_of(&reader)
        });
        let (starts, damage) = match starts {
            Ok(starts) => (starts, None),
            Err(problem) => (vec![0], Some(footer_problem(path, &file, length, &problem))),
        };
        let rows = starts[starts.len() - 1];
        let largest = starts.windows(2).map(|group| group[1] - group[0]).max().unwrap_or(0);
        Indexed { index: RowGroups(starts), rows, largest, damage }
    }

    fn piece(RowGroups(starts): &RowGroups, row: usize) -> (usize, usize) {
        let group = starts.partition_point(|start| *start <= row) - 1;
        (group, starts[group + 1] - starts[group])
    }

    fn read(path: &Path, RowGroups(starts): &RowGroups, group: usize) -> Result<Rows<T>> {
        let (file, _) = open(path, Links::Follow)?;
        let mut rows = Vec::new();
        rows.try_reserve_exact(starts[group + 1] - starts[group])?;
        let problem = caught(|| decode_group(file, starts, group, &mut rows)).err();
        Ok(Rows { rows, problem: problem.map(|problem| page_problem(&problem)) })
    }

    fn row(path: &Path, RowGroups(starts): &RowGroups, piece: &Rows<T>, row: usize) -> Result<T> {
        let group = starts.partition_point(|start| *start <= row) - 1;
        let problem = match piece.rows.get(row - starts[group]) {
            Some(Ok(row)) => return Ok(row.clone()),
            Some(Err(problem)) => problem,
            None => piece.problem.as_deref().unwrap_or("the row group has fewer rows than the footer says"),
        };
        Err(in_file(path, format!("row {row}: {problem}")))
    }

    fn size(rows: usize) -> usize {
        rows
    }

    /// Returns the cache capacity for two buffers: while some workers still read the end of one
    /// buffer, others already read the next. A buffer may begin and end within a row group.
    fn capacity(buffer: usize, largest: usize) -> usize {
        buffer.saturating_add(largest).saturating_mul(2)
    }
}

/// Calls the library, and returns its error or its panic as a text.
fn caught<R>(call: impl FnOnce() -> Result<R, ParquetError>) -> Result<R, String> {
    without_panic(call)?.map_err(|error| {
        let text = error.to_string();
        text.strip_prefix("Parquet error: ").unwrap_or(&text).to_owned()
    })
}

/// What to do about a file that the library refuses. Other libraries read some of these: files with
/// another codec, or of old versions of fastparquet and pyarrow, which do not follow the format.
const WRITE_AGAIN: &str = "if Python reads the file, write it again with `pyarrow.parquet.write_table(pyarrow.parquet.read_table(…), …)`; \
     otherwise it is damaged: copy or download it again";

const CHANGED: &str = "the file has changed since it was opened: open it again";

/// Says why the footer of a file cannot be read, and what to do.
fn footer_problem(path: &Path, file: &File, length: u64, problem: &str) -> String {
    let what = match Found::in_file(path, file, length) {
        Ok(found) if !matches!(found.format, Kind::Parquet | Kind::Unknown) => {
            return found.refused("a parquet file");
        }
        Ok(_) => {
            let mut end = [0; 4];
            match length.checked_sub(4).map(|position| read_at(path, file, position, &mut end)) {
                Some(Ok(())) if end == *b"PAR1" => {
                    format!("its footer is not supported, or is damaged ({problem}): {WRITE_AGAIN}")
                }
                Some(Ok(())) if end == *b"PARE" => {
                    "it is encrypted: write it again without encryption, with the program that has its key".to_owned()
                }
                _ => "it is truncated or damaged, because it has no footer at its end: copy or download it again"
                    .to_owned(),
            }
        }
        Err(error) => error.to_string(),
    };
    format!("none of its rows can be read: {what}")
}

/// Says why rows cannot be decoded, and what to do.
fn page_problem(problem: &str) -> String {
    if problem == CHANGED {
        return problem.to_owned();
    }
    if let Some(codec) = problem.strip_prefix("Disabled feature at compile time: ") {
        return format!("its pages are compressed with {codec}, which is not supported: {WRITE_AGAIN}");
    }
    // Python does not compare the checksums by default.
    if problem.contains("CRC") {
        return format!("its content is damaged ({problem}): copy or download it again");
    }
    format!("its pages are not supported, or are damaged ({problem}): {WRITE_AGAIN}")
}

fn starts_of(reader: &SerializedFileReader<File>) -> Result<Vec<usize>, ParquetError> {
    let mut starts = vec![0];
    for group in reader.metadata().row_groups() {
        let rows = usize::try_from(group.num_rows())
            .ok()
            .and_then(|rows| rows.checked_add(starts[starts.len() - 1]));
        starts.push(
            rows.ok_or_else(|| ParquetError::General("its footer has an invalid number of rows".to_owned()))?,
        );
    }
    Ok(starts)
}

/// Appends the rows of a row group, up to the first row that cannot be decoded.
fn decode_group<T: DeserializeOwned>(
    file: File,
    starts: &[usize],
    group: usize,
    rows: &mut Vec<Result<T, Box<str>>>,
) -> Result<(), ParquetError> {
    let reader = SerializedFileReader::new(file)?;
    if starts_of(&reader)? != starts {
        return Err(ParquetError::General(CHANGED.to_owned()));
    }
    let schema = reader.metadata().file_metadata().schema();
    let columns: Vec<&str> = schema.get_fields().iter().map(|column| column.name()).collect();
    let projection = fields_of::<T>().map(|fields| project(schema, fields)).transpose()?.flatten();
    let group = reader.get_row_group(group)?;
    for row in group.get_row_iter(projection)? {
        rows.push(row_from(row?).map_err(|problem| {
            format!("{problem}; the file has the columns {}", columns.join(", ")).into_boxed_str()
        }));
    }
    Ok(())
}

/// Returns the schema with only these columns, or `None` if the schema has none of them.
fn project(schema: &Type, fields: &[&str]) -> Result<Option<Type>, ParquetError> {
    let columns = schema.get_fields().iter().filter(|column| fields.contains(&column.name()));
    let columns: Vec<Arc<Type>> = columns.cloned().collect();
    if columns.is_empty() {
        return Ok(None);
    }
    Type::group_type_builder(schema.name()).with_fields(columns).build().map(Some)
}
