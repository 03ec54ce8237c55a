//! Turning a trainer into one that repeats a part of a recorded run, and the end of that part.

use super::facts;
use crate::checkpoint::Resume;
use crate::error::{CancelledBy, Error, Result};
use crate::hook::definition::{Hook, HookDef};
use crate::hook::instance::Instance;
use crate::hook::table::Table;
use crate::phase::Phase;
use crate::run::replay::Replay;
use crate::run::tape::{self, Tape};
use crate::run::{FolderState, Modules, Run};

/// From now on, the trainer calls no hook that writes, except those that record the tape in memory,
/// and has no run folder. The next `fit` continues `checkpoint`, or else begins at the start, and ends
/// after `until` training batches.
///
/// `recording` are the hooks that record the tape, with their value.
pub(crate) fn begin(
    run: &mut Run,
    checkpoint: Option<Resume>,
    until: u64,
    tape: Option<Tape>,
    recording: (Instance, Vec<HookDef>),
) -> Result<()> {
    // Before hooks are left out, because the checkpoint lists those that decide the result.
    facts::note(run);
    let (value, definitions) = recording;
    let is_recording = |hook: &Hook| definitions.iter().any(|definition| definition.id == hook.definition.id);
    let hooks = run.hooks.table.hooks().iter();
    let mut kept: Vec<Hook> =
        hooks.filter(|hook| !hook.definition.writes && !is_recording(hook)).cloned().collect();
    if tape.is_some() {
        let known = run.hooks.instances.iter().position(|known| known.type_id == value.type_id);
        let slot = known.unwrap_or_else(|| {
            run.hooks.instances.push(value);
            run.hooks.instances.len() - 1
        });
        let slot = u32::try_from(slot).expect("fewer than 2³² hooks");
        kept.extend(definitions.into_iter().map(|definition| Hook::new(definition, Some(slot))));
    }
    let is_full = tape.as_ref().is_some_and(Tape::is_full);
    if is_full {
        kept.iter_mut().filter(|hook| hook.unrecorded.is_none()).for_each(tape::record);
    }
    let table = Table::freeze(kept, run.rank).map_err(|cycles| Error::usage(cycles.join("; ")))?;
    run.hooks.table = if is_full { table.wrapped(&tape::SHIMS) } else { table };
    run.modules = Modules::new(run.modules.is_unchecked);
    run.recorder = None;
    *run.tape.get_mut() = tape.map(|tape| Box::new(tape::Recorder::new(tape)));
    run.folder = FolderState::default();
    run.checkpoints.resume = checkpoint;
    run.replay = Some(Replay { until, has_ended: false });
    Ok(())
}

/// The environment variable that requests a replay.
pub(crate) const REQUEST: &str = "TRAINER_REPLAY";

/// Returns an error if a replay is requested, but an entry point begins that is none.
pub(super) fn check_requested(run: &Run) -> Result<()> {
    if run.replay.is_some() || std::env::var_os(REQUEST).is_none() {
        return Ok(());
    }
    Err(Error::usage(format!(
        "`{REQUEST}` is set, but this program has not called `trainer.replay_requested(&mut train, Some(&mut valid))?` before \
         its first entry point: call it after `build`, and return if it returns `true`"
    )))
}

/// Returns an error, which ends the entry point, if this is a replay and all of its batches are trained.
#[inline]
pub(super) fn check_end(run: &mut Run) -> Result<()> {
    if run.replay.is_some() && run.place.phase == Phase::Train { check(run) } else { Ok(()) }
}

#[cold]
fn check(run: &mut Run) -> Result<()> {
    let trained = run.progress.train_batches;
    let Some(replay) = run.replay.as_mut().filter(|replay| trained >= replay.until) else { return Ok(()) };
    replay.has_ended = true;
    if let Some(tape) = run.tape.get_mut() {
        tape.end();
    }
    Err(run.cancelled(CancelledBy::EndOfReplay))
}

/// Whether the entry point has ended because all batches of a replay are trained.
pub(super) fn has_ended(run: &Run) -> bool {
    run.replay.as_ref().is_some_and(|replay| replay.has_ended)
}
