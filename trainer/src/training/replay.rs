//! Replays: turns a trainer into one that repeats a part of a recorded run and writes nothing.

use std::sync::Arc;

use super::facts;
use super::tape::{Recording, Tape};
use crate::checkpoint::Resume;
use crate::error::{Error, Result};
use crate::run::Instance;
use crate::run::Table;
use crate::run::dispatch::guard;
use crate::run::layers::{Layer, Layers, SHIMS};
use crate::run::{FolderState, Modules, Run};
use crate::run::{Hook, HookDef};

/// The environment variable that requests a replay.
pub(crate) const REQUEST: &str = "TRAINER_REPLAY";

/// Turns the run into a replay. From now on, the trainer has no run folder and calls no hook that
/// writes, except the hooks in `kept`, which write nothing in a replay. The next `fit` resumes from
/// `checkpoint`, or starts from the beginning without one, and ends where a hook in `kept` ends it.
pub(crate) fn begin(
    run: &mut Run,
    checkpoint: Option<Resume>,
    tape: Option<Tape>,
    kept: Vec<(Instance, Vec<HookDef>)>,
) -> Result<()> {
    // Before hooks are left out, because the checkpoint lists those that decide the result.
    facts::note(run);
    let mut hooks: Vec<Hook> = run.hooks().table.hooks().to_vec();
    hooks.retain(|hook| !hook.definition.writes);
    for (mut value, definitions) in kept {
        value.observes = definitions.iter().all(|definition| definition.observes);
        value.writes = true;
        let known = run.hooks().instances.iter().position(|known| known.type_id == value.type_id);
        let slot = known.unwrap_or_else(|| {
            run.hooks_mut().instances.push(value);
            run.hooks().instances.len() - 1
        });
        let slot = u32::try_from(slot).expect("fewer than 2³² hooks");
        let definitions = definitions.into_iter().map(|definition| HookDef { writes: true, ..definition });
        hooks.extend(definitions.map(|definition| Hook::new(definition, Some(slot))));
    }
    hooks.iter_mut().for_each(guard::guard);
    let is_full = tape.as_ref().is_some_and(Tape::is_full);
    let table = Table::freeze(hooks, run.rank()).map_err(|cycles| Error::usage(cycles.join("; ")))?;
    run.hooks_mut().table = if is_full { table.wrapped(&SHIMS) } else { table };
    *run.modules_mut() = Modules::new(run.modules().is_unchecked);
    let recording = tape.map(|tape| -> Arc<dyn Layer> { Arc::new(Recording::new(tape)) });
    *run.layers_mut() = Layers(recording.into_iter().collect());
    let omits_command_line = run.folder_state().omits_command_line;
    *run.folder_state_mut() = FolderState { omits_command_line, is_replay: true, ..FolderState::default() };
    run.checkpoints_mut().resume = checkpoint;
    Ok(())
}

/// Returns an error if a replay was requested, but a different entry point begins.
pub(super) fn check_requested(is_replay: bool) -> Result<()> {
    if is_replay || std::env::var_os(REQUEST).is_none() {
        return Ok(());
    }
    Err(Error::usage(format!(
        "`{REQUEST}` is set, but this program has not called `trainer.replay_requested(&mut train, Some(&mut valid))?` before \
         its first entry point: call it after `build`, and return if it returns `true`"
    )))
}
