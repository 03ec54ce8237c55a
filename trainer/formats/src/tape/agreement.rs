//! [`disagreement`]: compares the full tape of a replay with the coarse tape of its run.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use trainer_files::Error;

use super::events::{Event, Tape};
use super::record::EntryKind;

/// A place where the replay of a run differs from the tape of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// The training batch, counted from 0, after which values differ.
    pub batch: u64,
    /// The names of the values that differ.
    pub values: Vec<Arc<str>>,
}

/// Returns the first batch after which the tapes of a run and of its replay disagree. `coarse` is
/// the [`Level::Steps`](super::Level::Steps) tape of the run, and `full` is the full tape of a
/// replay of some batches. Returns `None` if the tapes agree on everything that both cover.
///
/// # Errors
///
/// Returns an error if a tape cannot be read.
pub fn disagreement(coarse: impl AsRef<Path>, full: impl AsRef<Path>) -> Result<Option<Disagreement>, Error> {
    let mut recorded: HashMap<u64, Vec<(Arc<str>, u64)>> = HashMap::new();
    for event in Tape::open(coarse)? {
        if let Event::Changed { entry, position, values } = event?
            && entry.kind == EntryKind::Interval
        {
            recorded.insert(position.batches_seen, values);
        }
    }
    let mut state: HashMap<Arc<str>, u64> = HashMap::new();
    // All values that occurred in the current batch, because the coarse tape may have recorded a
    // value before the end of the batch.
    let mut current: HashMap<Arc<str>, HashSet<u64>> = HashMap::new();
    let mut batch = None;
    let end_of = |batch: u64, state: &HashMap<Arc<str>, u64>, current: &HashMap<Arc<str>, HashSet<u64>>| {
        let is_other = |(name, hash): &&(Arc<str>, u64)| {
            let known = state.get(name);
            known.is_some_and(|known| known != hash)
                && !current.get(name).is_some_and(|values| values.contains(hash))
        };
        let values: Vec<_> =
            recorded.get(&batch)?.iter().filter(is_other).map(|(name, _)| Arc::clone(name)).collect();
        (!values.is_empty()).then_some(Disagreement { batch, values })
    };
    for event in Tape::open(full)? {
        let Event::Changed { position, values, .. } = event? else { continue };
        let here = (position.phase == "train").then_some(position.batches_seen);
        if let Some(last) = batch.filter(|_| here != batch) {
            if let Some(found) = end_of(last, &state, &current) {
                return Ok(Some(found));
            }
            current.clear();
        }
        batch = here;
        for (name, hash) in values {
            current.entry(Arc::clone(&name)).or_default().extend(state.insert(name.clone(), hash));
            current.entry(name).or_default().insert(hash);
        }
    }
    Ok(batch.and_then(|last| end_of(last, &state, &current)))
}
