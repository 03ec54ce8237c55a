//! [`Part`]: one part of the state of a run.

use std::borrow::Cow;

use serde::de::DeserializeOwned;

use crate::checkpoint::Saved;
use crate::checkpoint::progress::FitState;
use crate::error::{Error, Result};
use crate::optim::Optimizers;
use crate::run::{Model, Ranks, RunHooks};

/// One part of the state of a run: how checkpoints name, check and merge it. How it is saved and
/// loaded is in [`AnyPart`](super::AnyPart).
pub(crate) trait Part {
    /// Returns the name under which the part is saved.
    fn name(&self) -> Cow<'static, str>;

    /// Returns which ranks save the part. Defaults to [`Scope::Run`].
    fn scope(&self) -> Scope {
        Scope::Run
    }

    /// Returns the checkpoint file to name in errors about the part, or `None` to name the
    /// checkpoint folder.
    fn file(&self) -> Option<&'static str> {
        None
    }

    /// Returns the reason why a run cannot resume exactly from the current state, if there is one.
    fn why_inexact(&self, _fit: &FitState, _model: &Model) -> Option<String> {
        None
    }

    /// Whether a resume accepts that the trainer or the checkpoint lacks the part.
    fn is_left_out(&self, _hooks: &RunHooks) -> bool {
        false
    }

    /// Checks the values of a saved state on their own, without comparing them with the run. The
    /// hash of a manifest detects damage, but not a manifest that another program wrote.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first field with a value that no run can have.
    fn validate(&self, _saved: &Saved) -> Result<()> {
        Ok(())
    }

    /// Checks whether a saved state can be loaded into this run, and adds to `why` the reasons why
    /// the run would not continue exactly. Nothing has been loaded yet.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be loaded.
    fn check(&self, _fit: &FitState, _model: &Model, _saved: &Saved, _why: &mut Vec<String>) -> Result<()> {
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
    fn rolls_back(&self, _hooks: &RunHooks) -> bool {
        true
    }

    /// Whether the state is divided among the ranks of this run.
    fn is_divided(&self, _optimizers: &Optimizers) -> bool {
        false
    }

    /// Whether this rank loads a tensor of a divided state.
    fn is_in_share(&self, _optimizers: &Optimizers, _name: &str) -> bool {
        true
    }

    /// Whether another rank loads a tensor that this rank has saved as its share of a divided
    /// state. Defaults to whether this rank does not load it.
    fn is_needed_elsewhere(&self, optimizers: &Optimizers, name: &str) -> bool {
        !self.is_in_share(optimizers, name)
    }

    /// Merges the state of a further rank into the merged state of the ranks before it. If a
    /// different number of ranks resumes, this is called for the ranks that wrote the checkpoint,
    /// in their order. Defaults to keeping the state of rank 0.
    ///
    /// # Errors
    ///
    /// Returns an error if the states do not fit together.
    fn merge(&self, _rank: u32, _merged: &mut Saved, _other: Saved) -> Result<()> {
        Ok(())
    }

    /// Returns the state that this rank loads, given the merged state of the `written_by` ranks
    /// that wrote the checkpoint. Called if a different number of ranks resumes. Defaults to the
    /// unchanged merged state.
    ///
    /// # Errors
    ///
    /// Returns an error if the states do not fit together.
    fn merged(&self, _rank: u32, _written_by: u32, merged: Saved) -> Result<Saved> {
        Ok(merged)
    }
}

/// Which ranks save a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Rank 0, because the state is the same on all ranks.
    Run,
    /// Each rank, because the states differ. Each rank writes its own state to its own files.
    Rank,
}

impl Scope {
    /// The scope of the variables and the optimizers, which differ between ranks if each rank
    /// trains by itself.
    pub(crate) fn of_model(ranks: &Ranks) -> Self {
        if ranks.train_separately { Scope::Rank } else { Scope::Run }
    }
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
