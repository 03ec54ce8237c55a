//! [`Part`].

use std::borrow::Cow;

use serde::de::DeserializeOwned;

use crate::checkpoint::Saved;
use crate::error::{Error, Result};
use crate::run::Run;

/// One part of the state of a run.
pub(crate) trait Part {
    /// Returns the name under which the part is saved.
    fn name(&self) -> Cow<'static, str>;

    /// Returns which ranks save the part. Defaults to [`Scope::Run`].
    fn scope(&self) -> Scope {
        Scope::Run
    }

    /// Returns the file of the checkpoint that errors about the part name; `None` for its folder.
    fn file(&self) -> Option<&'static str> {
        None
    }

    /// Returns the current state, with tensors that share their storage with the run. Every rank
    /// calls this for every part, so it may be a collective.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be saved.
    fn save(&self, run: &Run) -> Result<Saved>;

    /// Returns why a run cannot resume exactly from the state that is saved now, if it cannot.
    fn why_inexact(&self, _run: &Run) -> Option<String> {
        None
    }

    /// Whether the state decides what training computes next, and is equal each time the run comes
    /// to the same place. Defaults to `true`.
    fn decides(&self, _run: &Run) -> bool {
        true
    }

    /// Whether a resume ignores that the trainer or the checkpoint does not have the part.
    fn is_left_out(&self, _run: &Run) -> bool {
        false
    }

    /// Checks the values of a saved state by themselves. The hash of a manifest detects damage, but
    /// not a manifest that another program wrote.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first field with a value that no run can have.
    fn validate(&self, _saved: &Saved) -> Result<()> {
        Ok(())
    }

    /// Checks whether a saved state can be loaded into this run, and adds the reasons why the run
    /// would not continue exactly to `why`. Nothing has been loaded yet.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be loaded.
    fn check(&self, _run: &Run, _saved: &Saved, _why: &mut Vec<String>) -> Result<()> {
        Ok(())
    }

    /// Returns why the run would not continue exactly from a checkpoint without this part.
    ///
    /// # Errors
    ///
    /// Returns an error if the run cannot continue at all.
    fn check_absent(&self) -> Result<String> {
        Err(Error::usage(format!(
            "the checkpoint does not have the state `{}`: it was changed or damaged; use another checkpoint",
            self.name()
        )))
    }

    /// Whether a roll-back restores the part. Defaults to `true`.
    fn rolls_back(&self, _run: &Run) -> bool {
        true
    }

    /// Restores a state that was kept in the current pass over the training data. Defaults to
    /// [`load`](Part::load).
    ///
    /// # Errors
    ///
    /// Returns an error if the state does not match the run, or if libtorch fails.
    fn roll_back(&self, run: &mut Run, kept: &Saved) -> Result<()> {
        self.load(run, kept)
    }

    /// Loads a saved state.
    ///
    /// # Errors
    ///
    /// Returns an error if the state does not match the run, or if libtorch fails.
    fn load(&self, run: &mut Run, saved: &Saved) -> Result<()>;

    /// Returns what this rank loads of the states of all ranks that wrote a checkpoint, if it was
    /// another number of ranks. Defaults to the state of the first one.
    ///
    /// # Errors
    ///
    /// Returns an error if the states do not fit together.
    fn join(&self, _rank: u32, states: Vec<Saved>) -> Result<Saved> {
        Ok(states.into_iter().next().unwrap_or_default())
    }
}

/// Which ranks save a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Rank 0, because the state is the same on all ranks.
    Run,
    /// Each rank, because their states differ.
    Rank,
}

/// Whether a number of batches, steps, epochs or samples is possible: `f64` represents every
/// integer up to 2⁵³ exactly.
pub(super) fn is_count(number: u64) -> bool {
    number < 1 << 53
}

/// Returns an error that names the first field of `part` whose value is impossible.
pub(super) fn require(part: &str, fields: &[(&str, bool)]) -> Result<()> {
    match fields.iter().find(|(_, is_possible)| !is_possible) {
        None => Ok(()),
        Some((field, _)) => Err(Error::usage(format!(
            "its field `parts.{part}.{field}` has an invalid value: restore the file, or use another checkpoint"
        ))),
    }
}

/// Returns a value of a saved state.
pub(super) fn value<V: DeserializeOwned>(part: &str, key: &str, saved: &Saved) -> Result<V> {
    saved.get(key).map_err(|error| {
        Error::usage(format!(
            "its field `parts.{part}.{key}` cannot be read: {error}; restore the file, or use another checkpoint"
        ))
    })
}
