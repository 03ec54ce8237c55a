//! Shards that are parquet files.

use std::fs::File;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;

use ::parquet::errors::ParquetError;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::schema::types::Type;
use serde::de::DeserializeOwned;

use super::parquet_row::{fields_of, row_from};
use super::shards::{Format, Indexed, Shards, without_panic};
use crate::error::Result;
use crate::io::files::{Links, in_file, open};

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
    /// Decimal numbers are not supported.
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

    fn index(_: &Path, file: File, _: u64) -> Indexed<RowGroups> {
        let starts = without_panic(|| {
            let reader = SerializedFileReader::new(file)?;
            starts_of(&reader)
        });
        let (starts, damage) = match starts {
            Ok(Ok(starts)) => (starts, None),
            Ok(Err(error)) => (vec![0], Some(unreadable(&text_of(&error)))),
            Err(panic) => (vec![0], Some(unreadable(&panic))),
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
        let decoded = without_panic(|| decode_group(file, starts, group, &mut rows));
        let problem = match decoded {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(text_of(&error)),
            Err(panic) => Some(panic),
        };
        Ok(Rows { rows, problem })
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

fn unreadable(problem: &str) -> String {
    format!(
        "none of its rows can be read: {problem}; if another program reads the file, write it again with that program"
    )
}

fn text_of(error: &ParquetError) -> String {
    let text = error.to_string();
    text.strip_prefix("Parquet error: ").unwrap_or(&text).to_owned()
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
        return Err(ParquetError::General(
            "the file has changed since it was opened: open it again".to_owned(),
        ));
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
