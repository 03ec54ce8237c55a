//! [`Shards`]: rows in many files.

use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::{fmt, panic, thread};

use rand::seq::SliceRandom;

use super::cache::Cache;
use crate::data::batch_sampler::reserve;
use crate::data::dataset::Dataset;
use crate::data::fingerprint::with_files;
use crate::data::rng::{ORDER, RowRng, keyed};
use crate::error::{Error, Result, discard_panic, panic_text};
use crate::io::files::{Links, entries, in_file, name_of, open};

/// The number of threads that open shards. The threads mostly wait for the disk.
const OPENERS: usize = 16;

/// The default number of rows that are shuffled together.
const BUFFER: usize = 10_000;

/// The maximum number of damaged shards that an error names.
const NAMED_SHARDS: usize = 20;

/// The format in which the files of [`Shards`] store rows.
pub trait Format: Send + Sync + Sized + 'static {
    /// The type of a row.
    type Row: Send + 'static;
    /// The information about a shard that is known without reading its rows.
    type Index: fmt::Debug + Send + Sync + 'static;
    /// The part of a shard that the cache holds: a row group, or the open file.
    type Piece: Send + Sync + 'static;

    /// The extension of the files.
    const EXTENSION: &'static str;

    /// Finds out which rows a shard has, without reading them.
    fn index(path: &Path, file: File, length: u64) -> Indexed<Self::Index>;

    /// Returns the number of the piece that contains a row, and the number of rows in the piece.
    fn piece(index: &Self::Index, row: usize) -> (usize, usize);

    /// Reads a piece.
    fn read(path: &Path, index: &Self::Index, piece: usize) -> Result<Self::Piece>;

    /// Returns a row of a piece.
    fn row(path: &Path, index: &Self::Index, piece: &Self::Piece, row: usize) -> Result<Self::Row>;

    /// Returns the size that the cache counts for a piece with this number of rows.
    fn size(rows: usize) -> usize;

    /// Returns the capacity of the cache, given the number of rows in the buffer and in the largest
    /// piece.
    fn capacity(buffer: usize, largest: usize) -> usize;
}

/// The information about a shard that is known without reading its rows.
#[derive(Debug)]
pub struct Indexed<I> {
    pub(super) index: I,
    /// The number of rows that can be read.
    pub(super) rows: usize,
    /// The number of rows in the largest piece.
    pub(super) largest: usize,
    /// The reason why the remaining rows cannot be read, if the shard is damaged.
    pub(super) damage: Option<String>,
}

/// The rows of many files, called shards, which together may be much larger than memory. Created by
/// [`Shards::tar`] and [`Shards::parquet`]. Shards may have different numbers of rows.
///
/// Use this when the data is larger than memory, or has too many samples to store each in its own
/// file. If the data fits into memory, or each sample is a file on a local disk, prefer a data set
/// that shuffles all rows together.
///
/// Opening shards locates their rows without reading them. The rows of any batch can then be read
/// directly, even after a resume. A shuffled epoch reads the data part by part: it shuffles the
/// shards, and then the rows within each [`buffer`](Shards::buffer) of consecutive rows.
///
/// # Damaged shards
///
/// A row that cannot be produced stands for the damaged part of a shard. If the footer of a parquet
/// file or the first header of a tar file cannot be read, this is the only row of the shard. In a
/// tar file that is truncated or damaged further on, this row takes the place of all rows from the
/// damage on. A pass over damaged shards returns an error that names the shards, before any row is
/// read. With [`skip_damaged`](crate::data::DataLoader::skip_damaged), warnings name the shards
/// instead, and the other rows are used.
///
/// ```
/// use trainer::data::Shards;
/// use trainer::prelude::*;
///
/// # fn load() -> Result<()> {
/// let images = Shards::tar(["data/train"])?.buffer(50_000); // all `*.tar` in the folder
/// let bytes = images.map(|sample, _| Ok(sample.part("bin")?.to_vec()));
/// let train = DataLoader::new(bytes).batch_size(64).shuffle(42).workers(4);
/// # Ok(())
/// # }
/// ```
#[doc(alias = "IterableDataset")]
pub struct Shards<F: Format> {
    shards: Vec<Shard<F::Index>>,
    /// The index of the first row of each shard, followed by the total number of rows.
    starts: Vec<usize>,
    buffer: usize,
    /// The cached pieces, by the number of the shard and the number of the piece in the shard. If a
    /// piece cannot be read, the text of the error is cached.
    cache: Cache<(usize, usize), Result<F::Piece, String>>,
}

#[derive(Debug)]
struct Shard<I> {
    path: PathBuf,
    length: u64,
    indexed: Indexed<I>,
}

impl<I> Shard<I> {
    /// Returns the number of rows, including the row that stands for the damaged part, if any.
    fn rows(&self) -> usize {
        self.indexed.rows + usize::from(self.indexed.damage.is_some())
    }
}

impl<F: Format> fmt::Debug for Shards<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.len();
        f.debug_struct("Shards")
            .field("shards", &self.shards.len())
            .field("rows", &rows)
            .field("buffer", &self.buffer)
            .finish_non_exhaustive()
    }
}

impl<F: Format> Shards<F> {
    pub(super) fn open(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self> {
        let mut files = Vec::new();
        for path in paths {
            files_of(path.as_ref(), F::EXTENSION, &mut files)?;
        }
        if files.is_empty() {
            return Err(Error::usage(
                "no shards were given: expected the path of at least one file or folder",
            ));
        }
        let shards = in_parallel(&files, |path| {
            let (file, length) = open(path, Links::Follow)?;
            let indexed = F::index(path, file, length);
            Ok(Shard { path: path.clone(), length, indexed })
        })?;
        let mut starts = vec![0];
        for shard in &shards {
            starts.push(starts[starts.len() - 1] + shard.rows());
        }
        Ok(Shards { shards, starts, buffer: 0, cache: Cache::new(0) }.buffer(BUFFER))
    }

    /// Sets the number of consecutive rows that are shuffled together. Defaults to 10,000.
    ///
    /// A larger buffer mixes more shards, but reads from more places on the disk at a time. For
    /// parquet files, the row groups of two buffers are held in memory.
    ///
    /// # Panics
    ///
    /// Panics if `rows` is 0.
    #[must_use]
    #[track_caller]
    pub fn buffer(mut self, rows: usize) -> Self {
        assert!(rows > 0, "`.buffer(0)`: expected at least 1");
        let largest = self.shards.iter().map(|shard| shard.indexed.largest).max().unwrap_or(0);
        self.buffer = rows;
        self.cache = Cache::new(F::capacity(rows, largest));
        self
    }

    /// Returns the number of the shard that contains a row, and the number of the row in the shard.
    fn find(&self, index: usize) -> (usize, usize) {
        let shard = self.starts.partition_point(|start| *start <= index) - 1;
        (shard, index - self.starts[shard])
    }
}

impl<F: Format> Dataset for Shards<F> {
    type Row = F::Row;

    fn len(&self) -> usize {
        self.starts[self.shards.len()]
    }

    fn row(&self, index: usize, _: &mut RowRng) -> Result<F::Row> {
        let (nth, row) = self.find(index);
        let Shard { path, indexed: Indexed { index, rows, damage, .. }, .. } = &self.shards[nth];
        if let Some(damage) = damage
            && row == *rows
        {
            return Err(in_file(path, damage.clone()));
        }
        let (piece, piece_rows) = F::piece(index, row);
        let read = || F::read(path, index, piece).map_err(|error| error.to_string());
        self.cache.with((nth, piece), F::size(piece_rows), read, |piece| match piece {
            Ok(piece) => F::row(path, index, piece, row),
            Err(text) => Err(Error::msg(format!("row {row} of {text}"))),
        })
    }

    fn order(&self, epoch: u64, seed: Option<u64>) -> Result<Option<Vec<usize>>> {
        let Some(seed) = seed else { return Ok(None) };
        let mut rng = keyed(seed, epoch, ORDER);
        let mut shards: Vec<usize> = (0..self.shards.len()).collect();
        shards.shuffle(&mut rng);
        let mut order = Vec::new();
        reserve(&mut order, self.len())?;
        order.extend(shards.into_iter().flat_map(|nth| self.starts[nth]..self.starts[nth + 1]));
        order.chunks_mut(self.buffer).for_each(|rows| rows.shuffle(&mut rng));
        Ok(Some(order))
    }

    fn fingerprint(&self) -> String {
        let mut hash = blake3::Hasher::new();
        for shard in &self.shards {
            hash.update(name_of(&shard.path).as_bytes());
            hash.update(&[0]);
            hash.update(&shard.length.to_le_bytes());
            hash.update(&(shard.rows() as u64).to_le_bytes());
        }
        let hash = hash.finalize().to_hex();
        let rows = format!("{} shards {}, buffer of {} rows", self.shards.len(), &hash[..16], self.buffer);
        with_files(&rows, self.shards.iter().map(|shard| shard.path.as_path()))
    }

    fn check(&self) -> Result<()> {
        let damages = self.shards.iter().filter_map(|shard| {
            let damage = shard.indexed.damage.as_ref()?;
            Some(format!("\n  {}: {damage}", shard.path.display()))
        });
        let damages: Vec<String> = damages.collect();
        if damages.is_empty() {
            return Ok(());
        }
        let further = damages.len().saturating_sub(NAMED_SHARDS);
        let further = if further > 0 { format!("\n  and {further} more") } else { String::new() };
        Err(Error::msg(format!(
            "{} of {} shards cannot be read completely: do what each line says, or leave out what cannot be read with \
             `DataLoader::skip_damaged(true)`{}{further}",
            damages.len(),
            self.shards.len(),
            damages[..damages.len().min(NAMED_SHARDS)].concat()
        )))
    }

    fn row_name(&self, index: usize) -> String {
        let (nth, row) = self.find(index);
        format!("row {row} of {}", self.shards[nth].path.display())
    }
}

/// Adds `path` if it is a file. If it is a folder, adds the files in it that have this extension,
/// in the order of their names.
fn files_of(path: &Path, extension: &str, files: &mut Vec<PathBuf>) -> Result<()> {
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let mut found = entries(path)?;
    found.retain(|file| file.extension().is_some_and(|found| found.eq_ignore_ascii_case(extension)));
    if found.is_empty() {
        return Err(in_file(path, format!("the folder has no files with the extension `.{extension}`")));
    }
    found.sort();
    files.append(&mut found);
    Ok(())
}

/// Calls `call` with each item on several threads. Returns the results in order, or the first
/// error.
fn in_parallel<T: Sync, R: Send>(items: &[T], call: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Result<R>)>> = Mutex::new(Vec::with_capacity(items.len()));
    let work = || {
        while let nth = next.fetch_add(1, Ordering::Relaxed)
            && let Some(item) = items.get(nth)
        {
            let result = call(item);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((nth, result));
        }
    };
    thread::scope(|scope| {
        for _ in 1..OPENERS.min(items.len()) {
            // If a thread cannot be started, the other threads do its work.
            drop(thread::Builder::new().name("opens shards".to_owned()).spawn_scoped(scope, work));
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(nth, _)| *nth);
    done.into_iter().map(|(_, result)| result).collect()
}

thread_local! {
    /// Whether a panic of this thread is returned as an error, so that nothing is printed.
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Calls `call`, which uses a library that may panic on damaged data. Returns a panic as an error
/// message, and prints nothing.
pub(super) fn without_panic<R>(call: impl FnOnce() -> R) -> Result<R, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_CAUGHT.get() {
                before(info);
            }
        }));
    });
    IS_CAUGHT.set(true);
    let result = panic::catch_unwind(panic::AssertUnwindSafe(call));
    IS_CAUGHT.set(false);
    result.map_err(|payload| {
        let text = panic_text(&*payload);
        discard_panic(payload);
        format!("reading it {text}")
    })
}
