//! The parts of a run's state. [`parts`] lists them, and nothing else does: a checkpoint saves and
//! a resume loads each of them, for several ranks too, and a trial restores them.

mod hooks;
mod log;
mod model;
mod optimizers;
mod position;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde::de::DeserializeOwned;

use crate::checkpoint::{Saved, States};
use crate::error::{Error, Result, shortened};
use crate::hook::definition::public_path;
use crate::hook::instance::Instance;
use crate::run::Run;
use hooks::HookState;
pub(super) use hooks::type_of;
use log::Logged;
use model::{Gradients, RandomState, Variables};
use optimizers::OptimizerState;
pub(super) use position::predictions;
use position::{Entries, PendingRequests, Position};

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

/// Returns all parts of a run, in the order in which they are loaded. Of the task and the hook
/// values, these are the ones that `is_used` accepts.
pub(crate) fn parts(run: &Run, is_used: impl Fn(usize, &Instance) -> bool) -> Vec<Box<dyn Part>> {
    let mut parts: Vec<Box<dyn Part>> = Vec::new();
    for state in HookState::all(&run.hooks.instances) {
        if is_used(state.index, &run.hooks.instances[state.index]) {
            parts.push(Box::new(state));
        }
    }
    parts.push(Box::new(Variables));
    for part in run.model.optimizers.names() {
        parts.push(Box::new(OptimizerState { part: part.to_owned() }));
    }
    // Optimizers decide which parameters are frozen, so the gradients follow them.
    parts.push(Box::new(Gradients));
    parts.push(Box::new(Logged));
    parts.push(Box::new(Position));
    parts.push(Box::new(PendingRequests));
    parts.push(Box::new(Entries));
    #[cfg(test)]
    parts.extend(tests::added());
    parts.push(Box::new(RandomState));
    parts
}

/// Accepts the task and every hook value.
pub(crate) fn all(_: usize, _: &Instance) -> bool {
    true
}

/// Returns the states of parts.
pub(crate) fn save(run: &Run, parts: &[Box<dyn Part>]) -> Result<States> {
    parts.iter().map(|part| Ok((part.name().into_owned(), part.save(run)?))).collect()
}

/// Returns what one rank loads of the states that all ranks have saved.
///
/// # Errors
///
/// Returns an error if the states of another number of ranks do not fit together.
pub(crate) fn select(parts: &[Box<dyn Part>], ranks: Vec<States>, rank: u32, size: u32) -> Result<States> {
    if ranks.len() != size as usize {
        return join(parts, ranks, rank);
    }
    let mut ranks = ranks.into_iter();
    let mut main = ranks.next().unwrap_or_default();
    let Some(mut own) = ranks.nth((rank as usize).wrapping_sub(1)) else { return Ok(main) };
    for part in parts.iter().filter(|part| part.scope() == Scope::Run) {
        own.extend(main.remove_entry(&*part.name()));
    }
    Ok(own)
}

/// Joins the states of all ranks that wrote a checkpoint for a rank of another number of ranks.
fn join(parts: &[Box<dyn Part>], mut ranks: Vec<States>, rank: u32) -> Result<States> {
    let mut joined = States::new();
    for part in parts {
        let name = part.name();
        let states: Vec<Saved> = ranks.iter_mut().filter_map(|states| states.remove(&*name)).collect();
        if !states.is_empty() {
            joined.insert(name.into_owned(), part.join(rank, states)?);
        }
    }
    // What no part of this trainer has is reported later.
    joined.extend(ranks.into_iter().next().unwrap_or_default());
    Ok(joined)
}

/// Describes a saved state for which this trainer has no part.
///
/// # Errors
///
/// Returns an error if the run cannot continue without it.
pub(crate) fn check_unknown(name: &str) -> Result<String> {
    if let Some(part) = optimizers::part_of(name) {
        let part = optimizers::described(part);
        return Err(Error::usage(format!(
            "the checkpoint has {part}, but this trainer does not: use the same optimizers as when it was written"
        )));
    }
    let what = match type_of(name) {
        Some(hook) => format!("the state of the hook `{}`", shortened(&public_path(hook))),
        None => format!("the state `{}`", shortened(name)),
    };
    Ok(format!("the checkpoint has {what}, which this trainer does not have"))
}

/// Whether a number of batches, steps, epochs or samples is possible: `f64` represents every
/// integer up to 2⁵³ exactly.
fn is_count(number: u64) -> bool {
    number < 1 << 53
}

/// Returns an error that names the first field of `part` whose value is impossible.
fn require(part: &str, fields: &[(&str, bool)]) -> Result<()> {
    match fields.iter().find(|(_, is_possible)| !is_possible) {
        None => Ok(()),
        Some((field, _)) => Err(Error::usage(format!(
            "its field `parts.{part}.{field}` has an invalid value: restore the file, or use another checkpoint"
        ))),
    }
}

/// Returns a value of a saved state.
fn value<V: DeserializeOwned>(part: &str, key: &str, saved: &Saved) -> Result<V> {
    saved.get(key).map_err(|error| {
        Error::usage(format!(
            "its field `parts.{part}.{key}` cannot be read: {error}; restore the file, or use another checkpoint"
        ))
    })
}
