//! [`PassNotes`]: information from a loader about the batches of a pass.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Information from a loader about the batches of its current pass. The loader and the training
/// loop share it: clones refer to the same notes, even on different threads.
///
/// Batches are numbered as the pass yields them, from 0 at the start of the epoch.
///
/// In some loaders, a batch depends on the data before it, so its number alone does not determine
/// it. Such a loader notes its [position](PassNotes::set_position) before each batch. Checkpoints
/// store the position, and a resumed run passes it to [`Loader::seek`](super::Loader::seek):
///
/// ```
/// use trainer::data::{Batches, PassNotes};
/// use trainer::prelude::*;
///
/// /// The numbers from 0 to 999 whose digit sum is even, read from a slow source.
/// #[derive(Default)]
/// struct Even {
///     from: u64,
///     notes: PassNotes,
/// }
///
/// impl Loader<Tensor> for Even {
///     fn batches(&mut self, _epoch: u64, start: u64) -> Result<Batches<'_, Tensor>> {
///         let from = std::mem::take(&mut self.from);
///         // Without a position, the numbers before the start are read and discarded.
///         let left_out = if from == 0 { start } else { 0 };
///         let notes = self.notes.clone();
///         notes.set_position(start, from.to_string());
///         let even = (from..1000).filter(|n| (n / 100 + n / 10 % 10 + n % 10) % 2 == 0);
///         Ok(Box::new(even.skip(left_out as usize).zip(start..).map(move |(n, nth)| {
///             notes.set_position(nth + 1, (n + 1).to_string());
///             Ok(Tensor::from(n as i64))
///         })))
///     }
///     fn seek(&mut self, _epoch: u64, _batch: u64, position: &str) -> Result<()> {
///         self.from = position.parse().map_err(Error::new)?;
///         Ok(())
///     }
///     fn notes(&self) -> Option<PassNotes> {
///         Some(self.notes.clone())
///     }
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct PassNotes(Arc<Mutex<Notes>>);

#[derive(Debug, Default)]
struct Notes {
    borrowed: BTreeSet<u64>,
    positions: BTreeMap<u64, String>,
    warnings: Vec<String>,
}

impl PassNotes {
    /// Notes that a batch has no row for this rank. The rank then borrows a row from another rank,
    /// and processes it with a weight of 0.
    pub fn set_borrowed(&self, batch: u64) {
        self.lock().borrowed.insert(batch);
    }

    /// Notes the position, in any format, from which the loader can continue with this batch.
    pub fn set_position(&self, batch: u64, position: String) {
        self.lock().positions.insert(batch, position);
    }

    /// Adds a warning. The trainer prints it, even if this is not rank 0, and adds it to the
    /// warnings of the run.
    pub fn warn(&self, warning: String) {
        self.lock().warnings.push(warning);
    }

    /// Returns whether a batch was [borrowed](PassNotes::set_borrowed).
    #[must_use]
    pub fn is_borrowed(&self, batch: u64) -> bool {
        self.lock().borrowed.contains(&batch)
    }

    /// Returns the position that was [noted](PassNotes::set_position) for a batch, if any.
    #[must_use]
    pub fn position(&self, batch: u64) -> Option<String> {
        self.lock().positions.get(&batch).cloned()
    }

    /// Takes the warnings that were added since the last call.
    #[must_use]
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().warnings)
    }

    /// Removes all notes. Called at the start of a pass.
    pub(crate) fn clear(&self) {
        *self.lock() = Notes::default();
    }

    /// Removes the notes about the batches before this one.
    pub(crate) fn forget_before(&self, batch: u64) {
        let mut notes = self.lock();
        while notes.positions.first_key_value().is_some_and(|(first, _)| *first < batch) {
            notes.positions.pop_first();
        }
        while notes.borrowed.first().is_some_and(|first| *first < batch) {
            notes.borrowed.pop_first();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
