//! The parts of a run's state. The only list of them is in [`with_values`]. A checkpoint saves each
//! part, a resume loads it, even with several ranks, and a trial restores it.

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

use std::ops::Deref;

use crate::checkpoint::progress::{FitState, LoopState};
use crate::checkpoint::states::SavedStates;
use crate::checkpoint::{Saved, States};
use crate::distributed::World;
use crate::error::{Error, Result, shortened};
use crate::moments::counters::Counters;
use crate::optim::Optimizers;
use crate::run::Run;
use crate::values::paths::public_path;
use hooks::HookState;
pub(super) use hooks::type_of;
use kept::Kept;
use log::Logged;
pub(crate) use model::VARIABLES;
use model::{Gradients, Variables};
use optimizers::OptimizerState;
pub(crate) use part::{Part, Scope};
pub(super) use position::predictions;
use position::{Entries, PendingRequests, Position};
use random::RandomState;

/// A part of the state of a run. What each part reads and changes is in
/// [`save`](AnyPart::save) and [`load`](AnyPart::load).
pub(crate) enum AnyPart {
    Hook(HookState),
    Variables(Variables),
    Optimizer(OptimizerState),
    Gradients(Gradients),
    Log(Logged),
    Position(Position),
    Requests(PendingRequests),
    Entries(Entries),
    Kept(Kept),
    #[cfg(test)]
    Count(tests::Count),
    Random(RandomState),
}

impl Deref for AnyPart {
    type Target = dyn Part;

    fn deref(&self) -> &Self::Target {
        match self {
            AnyPart::Hook(part) => part,
            AnyPart::Variables(part) => part,
            AnyPart::Optimizer(part) => part,
            AnyPart::Gradients(part) => part,
            AnyPart::Log(part) => part,
            AnyPart::Position(part) => part,
            AnyPart::Requests(part) => part,
            AnyPart::Entries(part) => part,
            AnyPart::Kept(part) => part,
            #[cfg(test)]
            AnyPart::Count(part) => part,
            AnyPart::Random(part) => part,
        }
    }
}

impl AnyPart {
    /// Returns the current state, with tensors that share their storage with the run. If the state
    /// is divided among the ranks, its tensors are in [`Saved::shares`], and each rank saves its
    /// own, even if the scope of the part is [`Scope::Run`]. Every rank calls this for every part.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be saved.
    fn save(&self, run: &Run) -> Result<Saved> {
        match self {
            AnyPart::Hook(part) => part.save(run.hooks(), run.reports()),
            AnyPart::Variables(part) => part.save(run.vars()),
            AnyPart::Optimizer(part) => part.save(run.optimizers()),
            AnyPart::Gradients(part) => part.save(run.model()),
            AnyPart::Log(part) => part.save(&run.logs()),
            AnyPart::Position(part) => part.save(run.progress(), run.fit()),
            AnyPart::Requests(part) => part.save(run.requests()),
            AnyPart::Entries(part) => part.save(run.checkpoints()),
            AnyPart::Kept(part) => {
                let of_rank = (run.rank() > 0).then(|| run.vars());
                part.save(run.kept().as_ref(), &of_checkpoint(run), of_rank)
            }
            #[cfg(test)]
            AnyPart::Count(part) => part.save(),
            AnyPart::Random(part) => part.save(run.ranks().random_before_draw.as_ref(), run.device()),
        }
    }

    /// Loads a saved state.
    ///
    /// # Errors
    ///
    /// Returns an error if the state does not match the run, or if libtorch fails.
    pub(crate) fn load(&self, run: &mut Run, saved: &Saved) -> Result<()> {
        let device = run.device();
        match self {
            AnyPart::Hook(part) => {
                let mut value = part.take(run.hooks_mut())?;
                let loaded = part.load(&mut value, run.hooks(), run.reports(), saved);
                part.put_back(run.hooks_mut(), value);
                loaded?;
            }
            AnyPart::Variables(part) => part.load(run.vars(), saved)?,
            AnyPart::Optimizer(part) => part.load(run.optimizers_mut(), saved)?,
            AnyPart::Gradients(part) => part.load(run.model_mut(), saved)?,
            AnyPart::Log(part) => part.load(run.logs_mut(), device, saved)?,
            AnyPart::Position(part) => {
                let (progress, fit) = part.load(saved)?;
                // This fit has already been counted.
                *run.progress_mut() = LoopState { fits_begun: run.progress().fits_begun, ..progress };
                *run.fit_mut() = fit;
            }
            AnyPart::Requests(part) => *run.requests_mut() = part.load(run.world().is_solo(), saved)?,
            AnyPart::Entries(part) => part.load(run.checkpoints_mut(), saved)?,
            AnyPart::Kept(part) => {
                let kept = run.kept_mut().take();
                *run.kept_mut() = part.load(kept, run.optimizers(), saved)?;
            }
            #[cfg(test)]
            AnyPart::Count(part) => part.load(saved)?,
            AnyPart::Random(part) => part.load(device, saved)?,
        }
        Ok(())
    }

    /// Restores a state that was kept in the current pass over the training data. Batches that are
    /// undone count as skipped batches.
    ///
    /// # Errors
    ///
    /// Returns an error if the state does not match the run, or if libtorch fails.
    pub(crate) fn roll_back(&self, run: &mut Run, kept: &Saved) -> Result<()> {
        let AnyPart::Position(part) = self else { return self.load(run, kept) };
        let (LoopState { counters, .. }, FitState { window, .. }) = part.load(kept)?;
        let Counters { epoch, batch_idx, .. } = run.counters();
        run.progress_mut().counters = Counters { epoch, batch_idx, ..counters };
        run.fit_mut().window = window;
        Ok(())
    }
}

/// Returns the parts that a checkpoint saves. In the new run that continues from the end of a
/// replay, hooks that write start afresh.
pub(crate) fn of_checkpoint(run: &Run) -> Vec<AnyPart> {
    with_values(run, |index| !run.is_replay() || !run.hooks().instances[index].writes)
}

/// Returns all parts of a run, in the order in which they are loaded. The state of the task or of a
/// hook value is included only if `is_used` accepts its index.
pub(crate) fn with_values(run: &Run, is_used: impl Fn(usize) -> bool) -> Vec<AnyPart> {
    let hooks = HookState::all(&run.hooks().instances).into_iter();
    let mut parts: Vec<AnyPart> = hooks.filter(|state| is_used(state.index)).map(AnyPart::Hook).collect();
    let scope = Scope::of_model(run.ranks());
    parts.push(AnyPart::Variables(Variables::new(scope)));
    let optimizers = run.optimizers().names();
    parts.extend(optimizers.map(|part| AnyPart::Optimizer(OptimizerState { part: part.to_owned(), scope })));
    parts.extend([
        // Optimizers decide which parameters are frozen, so the gradients follow them.
        AnyPart::Gradients(Gradients),
        AnyPart::Log(Logged),
        AnyPart::Position(Position),
        AnyPart::Requests(PendingRequests),
        AnyPart::Entries(Entries),
        AnyPart::Kept(Kept(Scope::Run)),
        AnyPart::Kept(Kept(Scope::Rank)),
    ]);
    #[cfg(test)]
    parts.extend(tests::added().map(AnyPart::Count));
    parts.push(AnyPart::Random(RandomState));
    parts
}

/// Whether a state with this name is that of an optimizer.
pub(super) fn is_optimizer(name: &str) -> bool {
    optimizers::part_of(name).is_some()
}

/// Returns the states of parts.
pub(crate) fn save(run: &Run, parts: &[AnyPart]) -> Result<States> {
    parts.iter().map(|part| Ok((part.name().into_owned(), part.save(run)?))).collect()
}

/// Reduces the saved states to those that this rank writes: on rank 0, all of them; on any other
/// rank, the states that differ between ranks and its shares of the divided states.
pub(crate) fn of_rank(parts: &[AnyPart], rank: u32, mut states: States) -> States {
    if rank == 0 {
        return states;
    }
    for part in parts {
        let name = &*part.name();
        let Some(mut saved) = states.remove(name) else { continue };
        saved.averages.clear(); // they are equal on all ranks
        if part.scope() == Scope::Run {
            saved = Saved { shares: saved.shares, ..Saved::new() };
        }
        if part.scope() == Scope::Rank || !saved.shares.is_empty() {
            states.insert(name.to_owned(), saved);
        }
    }
    states
}

/// Reads the states that this rank loads from a checkpoint. Each rank reads the files of rank 0 and
/// its own. It reads the files of other ranks only if a different number of ranks wrote the
/// checkpoint, or if divided states are now divided differently. It then reads one rank at a time,
/// and keeps only what it needs. Every rank must call this.
///
/// # Errors
///
/// Returns an error if a file is missing or damaged, if a state has a value that no run can have,
/// or if the states that a different number of ranks wrote do not fit together.
pub(crate) fn select(
    (rank, world): (u32, &World),
    optimizers: &Optimizers,
    parts: &[AnyPart],
    saved: &mut SavedStates<'_>,
    written_by: u32,
) -> Result<States> {
    let mut states = std::mem::take(&mut saved.main);
    validate(parts, &states)?;
    if written_by == world.size() {
        select_own(world, optimizers, parts, saved, &mut states)?;
        return Ok(states);
    }
    for other in 1..written_by {
        let mut other = saved.take_rank(other)?;
        validate(parts, &other)?;
        take_shares(optimizers, parts, &mut states, &mut other);
        for part in parts.iter().filter(|part| part.scope() == Scope::Rank) {
            let name = &*part.name();
            match (states.get_mut(name), other.remove(name)) {
                (Some(merged), Some(other)) => part.merge(rank, merged, other)?,
                (None, Some(other)) => drop(states.insert(name.to_owned(), other)),
                (_, None) => {}
            }
        }
    }
    for part in parts {
        let name = &*part.name();
        if let Some(merged) = states.remove(name) {
            states.insert(name.to_owned(), part.merged(rank, written_by, merged)?);
        }
    }
    Ok(states)
}

/// Replaces the states of rank 0 with those of this rank, if the same number of ranks resumes.
fn select_own(
    world: &World,
    optimizers: &Optimizers,
    parts: &[AnyPart],
    saved: &mut SavedStates<'_>,
    states: &mut States,
) -> Result<()> {
    if world.is_solo() {
        return Ok(());
    }
    let rank = world.rank();
    let mut own = if rank == 0 { States::new() } else { saved.take_rank(rank)? };
    validate(parts, &own)?;
    let has_share = own.values().any(|saved| !saved.shares.is_empty());
    // Whether another rank needs tensors from the share that this rank saved.
    let is_needed_elsewhere = parts.iter().any(|part| {
        let name = &*part.name();
        let is_elsewhere = |name: &String| part.is_needed_elsewhere(optimizers, name);
        match rank {
            0 => {
                part.is_divided(optimizers)
                    && states.get(name).is_some_and(|saved| saved.tensors.keys().any(is_elsewhere))
            }
            _ => own.get(name).is_some_and(|saved| {
                !saved.shares.is_empty()
                    && (!part.is_divided(optimizers) || saved.shares.keys().any(is_elsewhere))
            }),
        }
    });
    take_shares(optimizers, parts, states, &mut own);
    if rank > 0 {
        for part in parts.iter().filter(|part| part.scope() == Scope::Rank) {
            let name = part.name();
            // The ranks may have trained together when the checkpoint was written, and separately now.
            if own.contains_key(&*name) || !is_of_model(&name) {
                states.remove(&*name);
            }
        }
        states.extend(own);
    }
    let flags = [has_share, is_needed_elsewhere].map(|flag| f64::from(u8::from(flag)));
    let ([have_shares, are_needed_elsewhere], []) = world.combine(flags, [], "the shares in a checkpoint")?;
    if have_shares > 0.0 && are_needed_elsewhere > 0.0 {
        for other in (1..world.size()).filter(|other| *other != rank) {
            take_shares(optimizers, parts, states, &mut saved.take_rank(other)?);
        }
    }
    Ok(())
}

/// Whether the part with this name holds the variables or the state of an optimizer. The scope of
/// such a part depends on the run.
fn is_of_model(name: &str) -> bool {
    name == model::VARIABLES || is_optimizer(name)
}

/// Moves the tensors that this rank needs from the shares in `of_rank` into `states`.
fn take_shares(optimizers: &Optimizers, parts: &[AnyPart], states: &mut States, of_rank: &mut States) {
    for part in parts.iter().filter(|part| part.scope() == Scope::Run) {
        let name = &*part.name();
        let shares = of_rank.remove(name).map(|saved| saved.shares).unwrap_or_default();
        if let Some(saved) = states.get_mut(name) {
            saved.tensors.extend(shares.into_iter().filter(|(name, _)| part.is_in_share(optimizers, name)));
        }
    }
}

/// Checks the values of the states on their own, without comparing them with the run.
fn validate(parts: &[AnyPart], states: &States) -> Result<()> {
    for part in parts {
        let saved = states.get(&*part.name()).filter(|saved| saved.shares.is_empty());
        saved.map_or(Ok(()), |saved| part.validate(saved))?;
    }
    Ok(())
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
