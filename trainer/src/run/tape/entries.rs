//! The entries of the dispatch table that record what hooks and operations change.
//!
//! They replace the functions of hooks and wrap operations, so a tape costs nothing while it is
//! off.

use super::recorder::{Key, Recorder};
use crate::error::{BoxError, Error, Result};
use crate::hook::definition::{Hook, HookResult, Shim};
use crate::hook::table::{HookId, Shims};
use crate::lifecycle::Module;
use crate::moment::Moment;
use crate::run::{Rest, Run};

/// Makes the tape record what the hook changes, from now on. Does nothing if the hook only observes
/// and has the key `writes`.
pub(crate) fn record(hook: &mut Hook) {
    if hook.definition.observes && hook.definition.writes {
        return;
    }
    let recorded = match hook.definition.call {
        Shim::Point(_) => Shim::Point(point),
        Shim::Around(_) => Shim::Around(around),
    };
    hook.unrecorded = Some(std::mem::replace(&mut hook.definition.call, recorded));
}

/// The functions that entries around operations call.
pub(crate) const SHIMS: Shims = Shims { point: None, around: None, operation, body: operation };

/// Calls `body` with the recorder, if there is one. If that fails, the tape ends with a warning,
/// and the run continues.
///
/// # Errors
///
/// Returns the error in a replay, whose purpose is the tape.
pub(crate) fn with(run: &Run, body: impl FnOnce(&mut Recorder, &Run) -> Result<()>) -> Result<()> {
    let record = || -> Result<(), BoxError> {
        match &mut *run.tape.borrow_mut() {
            Some(recorder) => Ok(body(recorder, run)?),
            None => Ok(()),
        }
    };
    if run.replay.is_some() {
        return record().map_err(Error::from);
    }
    if run.tolerate("the tape", record)?.is_none() {
        run.note_incomplete("the tape".to_owned());
        if let Ok(mut tape) = run.tape.try_borrow_mut()
            && let Some(recorder) = &mut *tape
        {
            recorder.end();
        }
    }
    Ok(())
}

/// Runs `body`, and records its changes under this entry.
fn within(run: &mut Run, key: Key, body: impl FnOnce(&mut Run) -> HookResult) -> HookResult {
    with(run, |recorder, run| recorder.enter(run, key))?;
    let result = body(run);
    let recorded = with(run, |recorder, run| recorder.leave(run, key));
    result.and(recorded.map_err(Into::into))
}

fn current(run: &Run) -> (HookId, Shim) {
    let hook = run.place.hook.expect("dispatch sets the current hook before each call");
    let call = run.hooks.table.hook(hook).unrecorded;
    (hook, call.expect("a recorded entry takes the place of a hook's function"))
}

fn point(run: &mut Run, slot: u32) -> HookResult {
    let (hook, Shim::Point(call)) = current(run) else { unreachable!("an entry is of the kind of its hook") };
    within(run, Key::Hook(hook.index()), |run| call(run, slot))
}

fn around(run: &mut Run, slot: u32, rest: Rest<'_>) -> HookResult {
    let (hook, Shim::Around(call)) = current(run) else {
        unreachable!("an entry is of the kind of its hook")
    };
    within(run, Key::Hook(hook.index()), |run| call(run, slot, rest))
}

/// Runs an operation with the hooks around it, or only its body. `row` is the row of the operation,
/// passed instead of the slot that a hook's function receives.
fn operation(run: &mut Run, row: u32, rest: Rest<'_>) -> HookResult {
    let row = row as usize;
    let key = match run.modules.calls.last() {
        Some(call) if row == Module::index() => Key::Module(call.known),
        _ => Key::Operation(row),
    };
    within(run, key, |run| run.run_rest(rest).map_err(Into::into))
}

/// Runs `draw`, which waits for a loader, and records what it changes, such as the random state.
pub(crate) fn data<R>(run: &mut Run, draw: impl FnOnce(&mut Run) -> R) -> Result<R> {
    if run.tape.get_mut().is_none() {
        return Ok(draw(run));
    }
    with(run, |recorder, run| recorder.enter(run, Key::Loader))?;
    let drawn = draw(run);
    with(run, |recorder, run| recorder.leave(run, Key::Loader))?;
    Ok(drawn)
}

/// Records the batch that a step begins with.
pub(crate) fn loaded(run: &mut Run) -> Result<()> {
    if run.tape.get_mut().is_none() {
        return Ok(());
    }
    with(run, Recorder::loaded)
}
