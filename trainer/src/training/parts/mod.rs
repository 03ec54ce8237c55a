//! The parts of a run's state. [`parts`] lists them, and nothing else does: a checkpoint saves and
//! a resume loads each of them, for several ranks too, and a trial restores them.

mod hooks;
mod kept;
mod log;
mod model;
mod optimizers;
mod part;
mod position;
mod random;
#[cfg(test)]
mod tests;

use crate::checkpoint::{Saved, States};
use crate::error::{Error, Result, shortened};
use crate::hook::definition::public_path;
use crate::run::Run;
use hooks::HookState;
pub(super) use hooks::type_of;
use kept::Kept;
use log::Logged;
use model::{Gradients, Variables};
use optimizers::OptimizerState;
pub(crate) use part::{Part, Scope};
pub(super) use position::predictions;
use position::{Entries, PendingRequests, Position};
use random::RandomState;

/// Returns all parts of a run, in the order in which they are loaded.
pub(crate) fn all(run: &Run) -> Vec<Box<dyn Part>> {
    with_values(run, |_| true)
}

/// Returns the parts of a run, with the states of those of the task and the hook values whose index
/// `is_used` accepts.
pub(crate) fn with_values(run: &Run, is_used: impl Fn(usize) -> bool) -> Vec<Box<dyn Part>> {
    let mut parts: Vec<Box<dyn Part>> = Vec::new();
    for state in HookState::all(&run.hooks.instances) {
        if is_used(state.index) {
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
    parts.extend([Scope::Run, Scope::Rank].map(|scope| -> Box<dyn Part> { Box::new(Kept(scope)) }));
    #[cfg(test)]
    parts.extend(tests::added());
    parts.push(Box::new(RandomState));
    parts
}

/// Returns the parts that decide what training computes next.
pub(crate) fn deciding(run: &Run) -> impl Iterator<Item = Box<dyn Part>> {
    all(run).into_iter().filter(|part| part.decides(run))
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
