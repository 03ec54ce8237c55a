//! [`ByLength`]: batches of rows chosen by their lengths.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::fmt;
use std::iter;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::batch::Batch;
use super::collate::Collate;
use super::data_loader::DataLoader;
use super::dataset::Dataset;
use super::loader::{Batches, Loader};
use super::notes::PassNotes;
use super::sequence::{Sequence, Sequences};
use crate::distributed::Share;
use crate::error::{Error, Result};
use crate::values::facts::SettingList;

/// The number of rows that a worker produces as one unit of work.
const ROWS_PER_TASK: usize = 32;

/// A loader that chooses the rows of a batch by their lengths: see [`DataLoader::pack`] and
/// [`DataLoader::by_length`].
///
/// It reads the rows in the order of the [`DataLoader`], and holds each row until the row is in a
/// batch. A checkpoint stores which rows are held. A resumed run reads these rows again, but no
/// other rows from before the checkpoint. If there are several ranks, each rank reads all rows and
/// forms the same batches, and the ranks then divide each batch.
///
/// ```
/// use trainer::data::{Sequence, Sequences};
/// use trainer::prelude::*;
///
/// let texts: Vec<Sequence> = (1..100).map(|length| vec![7; length % 12 + 1].into()).collect();
/// let mut train = DataLoader::new(texts).batch_size(4).shuffle(42).by_length(&[4, 8, 12], Sequence::len);
/// let batch: Sequences = train.batches(0, 0)?.next().expect("there is a batch")?;
/// assert!(batch.tokens.size()[1] <= 12);
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias("group_by_length", "BucketIterator"))]
pub struct ByLength<D, G> {
    loader: DataLoader<D>,
    grouping: G,
    sought: Option<Position>,
}

/// The position in an epoch from which the remaining batches can be formed.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Position {
    /// The position in the epoch of the first row that has not been read yet.
    next: usize,
    /// The pieces that have been read but are not in a batch yet. Each is identified by the
    /// position of the row in the epoch and the index of the piece in the row.
    held: Vec<(usize, usize)>,
}

/// A piece of a row, with the position of the row in the epoch and the index of the piece in the
/// row.
struct Piece<P> {
    at: (usize, usize),
    value: P,
}

/// The rule that chooses the rows of a batch.
///
/// The methods must depend only on their arguments, so that a resumed run forms the same batches
/// from the same pieces.
pub trait Grouping<R>: Clone + Send + Sync + 'static {
    /// A piece of a row.
    type Piece: Send + 'static;
    /// The type of the batch.
    type Batch: Batch;

    /// Divides a row into pieces, in order.
    fn pieces(&self, row: R) -> Vec<Self::Piece>;

    /// Chooses the next batch from the held pieces, which are sorted from oldest to newest.
    ///
    /// The batch has at most `rows` rows. For each row, the result contains a list of the pieces
    /// that form the row, as indices into `held`. Returns `None` if more pieces must be read first.
    /// If `is_all` is true, there are no more pieces, and `None` ends the pass.
    fn choose(&self, held: &[&Self::Piece], rows: usize, is_all: bool) -> Option<Vec<Vec<usize>>>;

    /// Combines rows, each a list of pieces, into a batch.
    ///
    /// # Errors
    ///
    /// Returns an error if the rows cannot be combined into one batch.
    fn collate(&self, rows: Vec<Vec<Self::Piece>>) -> Result<Self::Batch>;

    /// Returns a description of the rule, which is part of the loader's fingerprint.
    fn describe(&self) -> String;
}

impl<D: Dataset> DataLoader<D> {
    /// Packs sequences into rows of `length` tokens, so that batches contain little padding.
    /// [`batch_size`](DataLoader::batch_size) sets the number of rows per batch.
    ///
    /// Use this when batches should contain as little padding as possible, and the attention of
    /// your model accepts a mask. If the model needs a single sequence per row, use
    /// [`by_length`](DataLoader::by_length).
    ///
    /// The sequences that were read ahead (256, see [`ByLength::read_ahead`]) are placed into rows:
    /// first the oldest, and then the others from longest to shortest. Each sequence is placed into
    /// the row with the least room among those that have enough room for it (best fit). A sequence
    /// of more than `length` tokens is split.
    ///
    /// ```
    /// use trainer::data::{Sequence, Sequences};
    /// use trainer::prelude::*;
    ///
    /// let texts: Vec<Vec<i64>> = (1..100).map(|length| vec![7; length % 12 + 1]).collect();
    /// let mut train = DataLoader::new(texts).batch_size(4).shuffle(42).pack(16);
    /// let batch: Sequences = train.batches(0, 0)?.next().expect("there are several batches")?;
    /// assert_eq!(batch.tokens.size(), [4, 16]);
    /// # Ok::<(), trainer::Error>(())
    /// ```
    ///
    /// Sequences in the same row must not attend to each other: pass [`Sequences::causal_mask`] to
    /// the attention and [`Sequences::positions`] to the position embedding. Return
    /// [`Sequences::weight`] from [`Task::weight`](crate::Task::weight), so that the loss is the
    /// mean over all tokens, even with gradient accumulation or several ranks.
    ///
    /// # Panics
    ///
    /// Panics if `length` is 0.
    #[must_use]
    #[track_caller]
    pub fn pack(self, length: usize) -> ByLength<D, Packing>
    where
        D::Row: Into<Sequence>,
    {
        assert!(length > 0, "`.pack(0)`: expected a length of at least 1");
        ByLength { loader: self, grouping: Packing { length, read_ahead: 256 }, sought: None }
    }

    /// Forms batches of rows of similar length, so that batches contain little padding.
    ///
    /// All rows of a batch are from the same bucket. Each of `boundaries` is the largest length in
    /// its bucket, and rows longer than the last boundary share one more bucket. `length` returns
    /// the length of a row.
    ///
    /// Use this when rows have different lengths, and the model needs a single sequence per row. If
    /// the attention of the model accepts a mask, [`pack`](DataLoader::pack) needs less padding.
    ///
    /// A bucket yields a batch as soon as it has enough rows. At the end of the epoch, each bucket
    /// yields a batch of its remaining rows, if any.
    ///
    /// ```
    /// use trainer::data::{Sequence, Sequences};
    /// use trainer::prelude::*;
    ///
    /// let texts: Vec<Sequence> = (1..100).map(|length| vec![7; length % 12 + 1].into()).collect();
    /// let mut train = DataLoader::new(texts).batch_size(4).shuffle(42).by_length(&[4, 8, 12], Sequence::len);
    /// for batch in train.batches(0, 0)? {
    ///     let batch: Sequences = batch?;
    ///     assert!([4, 8, 12].iter().any(|end| (end - 3..=*end).contains(&batch.tokens.size()[1])));
    /// }
    /// # Ok::<(), trainer::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if the boundaries are not strictly increasing.
    #[must_use]
    #[track_caller]
    pub fn by_length(
        self,
        boundaries: &[usize],
        length: impl Fn(&D::Row) -> usize + Send + Sync + 'static,
    ) -> ByLength<D, Buckets<D::Row>>
    where
        D::Row: Collate,
    {
        assert!(
            boundaries.is_sorted_by(|a, b| a < b),
            "`.by_length({boundaries:?}, …)`: expected increasing boundaries"
        );
        let grouping = Buckets { boundaries: boundaries.into(), length: Arc::new(length) };
        ByLength { loader: self, grouping, sought: None }
    }
}

impl<D> ByLength<D, Packing> {
    /// Sets how many sequences are read ahead, so that the best fit can be chosen among them.
    /// Defaults to 256. A larger number leaves less padding.
    ///
    /// # Panics
    ///
    /// Panics if `sequences` is 0.
    #[must_use]
    #[track_caller]
    pub fn read_ahead(mut self, sequences: usize) -> Self {
        assert!(sequences > 0, "`.read_ahead(0)`: expected at least 1");
        self.grouping.read_ahead = sequences;
        self
    }
}

impl<D, G> Loader<G::Batch> for ByLength<D, G>
where
    D: Dataset,
    G: Grouping<D::Row>,
{
    fn batches(&mut self, epoch: u64, start: u64) -> Result<Batches<'_, G::Batch>> {
        let left_out = if self.sought.is_some() { 0 } else { start };
        let position = self.sought.take().unwrap_or_default();
        let mut pass = GroupedPass::begin(&self.loader, self.grouping.clone(), epoch, &position)?;
        // Without a position, the batches before the start are formed and discarded.
        for _ in 0..left_out {
            if pass.next_rows()?.is_none() {
                break;
            }
        }
        let notes = self.loader.shared_notes().clone();
        notes.set_position(start, pass.position());
        let mut nth = start;
        Ok(Box::new(iter::from_fn(move || {
            let rows = match pass.next_rows() {
                Ok(rows) => rows?,
                Err(error) => return Some(Err(error)),
            };
            if let Some(share) = pass.share
                && share.is_borrowed(rows.len())
            {
                notes.set_borrowed(nth);
            }
            nth += 1;
            notes.set_position(nth, pass.position());
            let own = pass.share.map_or(0..rows.len(), |share| share.rows(rows.len()));
            Some(pass.grouping.collate(rows.into_iter().skip(own.start).take(own.len()).collect()))
        })))
    }

    fn share(&mut self, share: Share) -> Result<()> {
        self.loader.set_share(share);
        Ok(())
    }

    fn notes(&self) -> Option<PassNotes> {
        Some(self.loader.shared_notes().clone())
    }

    fn seek(&mut self, _epoch: u64, batch: u64, position: &str) -> Result<()> {
        let position: Position = serde_json::from_str(position).map_err(|error| {
            Error::usage(format!(
                "the position of batch {batch} of the data in the checkpoint cannot be read: {error}"
            ))
        })?;
        let rows = self.loader.sampler().rows();
        if let Some(beyond) =
            position.held.iter().map(|(row, _)| *row + 1).chain([position.next]).find(|at| *at > rows)
        {
            return Err(Error::usage(format!(
                "the position of batch {batch} in the checkpoint is row {beyond}, but the data has {rows} rows"
            )));
        }
        self.sought = Some(position);
        Ok(())
    }

    fn fingerprint(&self) -> Option<String> {
        Some(format!("{}, {}", self.loader.fingerprint_of_rows(), self.grouping.describe()))
    }

    fn settings(&self) -> SettingList {
        self.loader.settings_of_rows().with("grouping", format_args!("{}", self.grouping.describe()))
    }
}

/// The position of a row in the epoch, and the row itself, which is `None` if it is damaged.
type Produced<R> = (usize, Result<Option<R>>);

/// A pass that reads the rows of an epoch and forms batches of them.
struct GroupedPass<R, G: Grouping<R>> {
    grouping: G,
    /// The rows that have not been read yet, in the chunks that the workers produce.
    rows: Box<dyn Iterator<Item = Result<Vec<Produced<R>>>>>,
    /// The remaining rows of the current chunk.
    chunk: VecDeque<Produced<R>>,
    held: Vec<Piece<G::Piece>>,
    next: usize,
    is_all: bool,
    rows_per_batch: usize,
    drops_last: bool,
    share: Option<Share>,
}

impl<R: Send + 'static, G: Grouping<R>> GroupedPass<R, G> {
    fn begin<D: Dataset<Row = R>>(
        loader: &DataLoader<D>,
        grouping: G,
        epoch: u64,
        from: &Position,
    ) -> Result<Self> {
        let pass = loader.pass(epoch)?;
        let mut held = Vec::new();
        for &(row, nth) in &from.held {
            let pieces = pass.row(row)?.map_or_else(Vec::new, |row| grouping.pieces(row));
            held.extend(pieces.into_iter().nth(nth).map(|value| Piece { at: (row, nth), value }));
        }
        let first = from.next;
        let count = pass.rows();
        let chunks = (count - first.min(count)).div_ceil(ROWS_PER_TASK);
        let rows = loader.produce(0..chunks, move |nth| {
            let start = first + nth * ROWS_PER_TASK;
            Ok((start..(start + ROWS_PER_TASK).min(count)).map(|at| (at, pass.row(at))).collect())
        })?;
        let sampler = loader.sampler();
        Ok(GroupedPass {
            grouping,
            rows,
            chunk: VecDeque::new(),
            held,
            next: first,
            is_all: false,
            rows_per_batch: sampler.batch_size(),
            drops_last: sampler.drop_last,
            share: sampler.share,
        })
    }

    /// Returns the rows of the next batch, for all ranks together.
    fn next_rows(&mut self) -> Result<Option<Vec<Vec<G::Piece>>>> {
        loop {
            let held: Vec<_> = self.held.iter().map(|piece| &piece.value).collect();
            let Some(chosen) = self.grouping.choose(&held, self.rows_per_batch, self.is_all) else {
                if self.is_all {
                    return Ok(None);
                }
                self.read()?;
                continue;
            };
            let is_incomplete = chosen.len() < self.rows_per_batch;
            let rows = self.take(chosen);
            if !(is_incomplete && self.drops_last) {
                return Ok(Some(rows));
            }
        }
    }

    /// Reads one more row.
    fn read(&mut self) -> Result<()> {
        if self.chunk.is_empty() {
            match self.rows.next() {
                Some(chunk) => self.chunk = chunk?.into(),
                None => self.is_all = true,
            }
        }
        if let Some((at, row)) = self.chunk.pop_front() {
            self.next = at + 1;
            let pieces = row?.map_or_else(Vec::new, |row| self.grouping.pieces(row));
            let pieces = pieces.into_iter().enumerate();
            self.held.extend(pieces.map(|(nth, value)| Piece { at: (at, nth), value }));
        }
        Ok(())
    }

    /// Removes the chosen pieces from those that are held, and returns them.
    fn take(&mut self, chosen: Vec<Vec<usize>>) -> Vec<Vec<G::Piece>> {
        let mut held: Vec<Option<Piece<G::Piece>>> = self.held.drain(..).map(Some).collect();
        let mut take = |at: usize| held[at].take().expect("a piece is chosen once").value;
        let rows = chosen.into_iter().map(|row| row.into_iter().map(&mut take).collect()).collect();
        self.held.extend(held.into_iter().flatten());
        rows
    }

    fn position(&self) -> String {
        let held = self.held.iter().map(|piece| piece.at).collect();
        serde_json::to_string(&Position { next: self.next, held }).expect("numbers are valid JSON")
    }
}

/// Packs sequences into rows of the same length: see [`DataLoader::pack`].
#[derive(Clone, Debug)]
pub struct Packing {
    length: usize,
    read_ahead: usize,
}

impl<R: Into<Sequence> + 'static> Grouping<R> for Packing {
    type Piece = Sequence;
    type Batch = Sequences;

    fn pieces(&self, row: R) -> Vec<Sequence> {
        row.into().pieces(self.length).collect()
    }

    fn choose(&self, held: &[&Sequence], rows: usize, is_all: bool) -> Option<Vec<Vec<usize>>> {
        let tokens: usize = held.iter().map(|sequence| sequence.len()).sum();
        if held.is_empty() || !is_all && (held.len() < self.read_ahead || tokens < rows * self.length) {
            return None;
        }
        // The oldest comes first, so that no sequence waits forever; then the longest.
        let mut order: Vec<usize> = (1..held.len()).collect();
        order.sort_by_key(|at| Reverse(held[*at].len()));
        let mut packed: Vec<(usize, Vec<usize>)> = Vec::with_capacity(rows);
        for at in iter::once(0).chain(order) {
            let length = held[at].len();
            let fitting = packed.iter_mut().filter(|(room, _)| *room >= length);
            if let Some((room, row)) = fitting.min_by_key(|(room, _)| *room) {
                *room -= length;
                row.push(at);
            } else if packed.len() < rows {
                packed.push((self.length - length, vec![at]));
            }
        }
        Some(packed.into_iter().map(|(_, row)| row).collect())
    }

    fn collate(&self, rows: Vec<Vec<Sequence>>) -> Result<Sequences> {
        Sequences::of_rows(&rows, Some(self.length))
    }

    fn describe(&self) -> String {
        format!("packed into {} tokens, best fit among {}", self.length, self.read_ahead)
    }
}

/// Forms batches of rows of similar length: see [`DataLoader::by_length`].
pub struct Buckets<R> {
    boundaries: Arc<[usize]>,
    length: Arc<dyn Fn(&R) -> usize + Send + Sync>,
}

impl<R> Clone for Buckets<R> {
    fn clone(&self) -> Self {
        Buckets { boundaries: Arc::clone(&self.boundaries), length: Arc::clone(&self.length) }
    }
}

impl<R: Collate> Grouping<R> for Buckets<R> {
    type Piece = R;
    type Batch = R::Batch;

    fn pieces(&self, row: R) -> Vec<R> {
        vec![row]
    }

    fn choose(&self, held: &[&R], rows: usize, is_all: bool) -> Option<Vec<Vec<usize>>> {
        let mut buckets = vec![Vec::new(); self.boundaries.len() + 1];
        for (at, row) in held.iter().enumerate() {
            let length = (self.length)(row);
            let bucket = self.boundaries.partition_point(|end| *end < length);
            buckets[bucket].push(vec![at]);
            if buckets[bucket].len() == rows {
                return Some(buckets.swap_remove(bucket));
            }
        }
        buckets.into_iter().find(|bucket| is_all && !bucket.is_empty())
    }

    fn collate(&self, rows: Vec<Vec<R>>) -> Result<R::Batch> {
        R::collate(rows.into_iter().flatten().collect())
    }

    fn describe(&self) -> String {
        format!("in buckets up to {:?}", self.boundaries)
    }
}

impl<D: fmt::Debug, G: fmt::Debug> fmt::Debug for ByLength<D, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByLength")
            .field("loader", &self.loader)
            .field("grouping", &self.grouping)
            .finish_non_exhaustive()
    }
}

impl<R> fmt::Debug for Buckets<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buckets").field("boundaries", &self.boundaries).finish_non_exhaustive()
    }
}
