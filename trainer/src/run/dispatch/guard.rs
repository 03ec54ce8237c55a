//! The guard of the hooks that may fail: an error or a panic of a logger, a monitor or a tape is a
//! warning, and the run continues.
//!
//! The guard replaces the function of a hook with the key `may_fail`, as the check of observers
//! does. What else a hook value does in a run, such as saving its state, goes through the same
//! function,
//! [`Reports::tolerate`](crate::run::reports::Reports::tolerate).

use std::any::TypeId;
use std::panic::resume_unwind;

use crate::error::{BoxError, Result, discard_panic};
use crate::hook::call::{Loop, Panic, not_run};
use crate::hook::definition::HookResult;
use crate::hook::frame::Ending;
use crate::hook::frame::Frame;
use crate::hook::frame::{HookId, Range};
use crate::io::terminal;
use crate::lifecycle::at;
use crate::moment::Moment;
use crate::run::reports::{caught, ending};
use crate::run::{Hook, RunHooks, Shim};
use crate::run::{Place, Rest, Run};
use crate::values::paths::public_path;

/// If the hook may fail, guards all of its further calls.
pub(crate) fn guard(hook: &mut Hook) {
    if hook.definition.may_fail && hook.unguarded.is_none() {
        hook.unguarded = Some(hook.definition.call.replace(point, around));
    }
}

/// Returns the hook that is being called, and its original function.
fn current(hooks: &RunHooks, place: Place) -> (HookId, Shim) {
    let id = place.hook.expect("dispatch sets the current hook before each call");
    let call = hooks.table.hook(id).unguarded;
    (id, call.expect("a guard takes the place of a hook's function"))
}

/// Whether a hook is no longer called in this entry point, because its value has panicked. Its
/// `teardown` is called even then, so that a logger writes what it has.
fn is_off(hooks: &RunHooks, id: HookId) -> bool {
    let off = &hooks.switched_off;
    if off.is_empty() {
        return false;
    }
    let hook = hooks.table.hook(id);
    off.contains(&owner(hook)) && (hook.definition.row)() != at::teardown::index()
}

/// Identifies the value of a hook or, for a function, the hook itself.
fn owner(hook: &Hook) -> (Option<u32>, TypeId) {
    (hook.slot, hook.definition.id)
}

fn point(run: &mut Run, slot: u32) -> HookResult {
    let (id, Shim::Point(call)) = current(&run.hooks, run.at.place) else {
        unreachable!("a guard is of the kind of its hook")
    };
    if is_off(&run.hooks, id) {
        return Ok(());
    }
    let place = run.at.place;
    let called = caught(|| logged(run, |run| call(run, slot)));
    run.at.place = place;
    called.or_else(|failure| failed(run, id, failure))
}

/// Calls a hook. The error of an invalid value that the hook has logged is that of the hook.
fn logged(run: &mut Run, call: impl FnOnce(&mut Run) -> HookResult) -> HookResult {
    let result = call(run);
    let logged = run.log.get_mut().failed.take();
    result.and_then(|()| logged.map_or(Ok(()), |error| Err(error.into())))
}

/// How far an operation has come, within a hook around it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Before,
    Running,
    Failed,
    After,
}

/// Calls a hook around an operation. The operation runs in any case, and its own errors and panics
/// are not those of the hook.
fn around(run: &mut Run, slot: u32, rest: Rest<'_>) -> HookResult {
    let (id, Shim::Around(call)) = current(&run.hooks, run.at.place) else {
        unreachable!("a guard is of the kind of its hook")
    };
    if is_off(&run.hooks, id) {
        return run.run_next(rest).map_err(Into::into);
    }
    let place = run.at.place;
    let mut within = Within::Before;
    let mut ending = Ending::Open;
    let called = caught(|| {
        let frame = &mut Frame {
            operation: rest.operation,
            remaining_hooks: Range::default(),
            ending: Ending::Open,
            responsible: None,
            body: |run: &mut Run| -> Result<()> {
                within = Within::Running;
                let result = run.run_rest(&mut *rest);
                within = if result.is_ok() { Within::After } else { Within::Failed };
                result
            },
        };
        let result = logged(run, |run| call(run, slot, frame));
        ending = frame.ending;
        result
    });
    match (called, within) {
        (Err((_, Some(panic))), Within::Running) => resume_unwind(panic),
        (Err((error, _)), Within::Failed | Within::Running) => Err(error),
        (Ok(()), Within::Failed) => Err(not_run(ending)),
        (called, within) => {
            run.at.place = place;
            let failure =
                called.err().or_else(|| (within == Within::Before).then(|| (not_run(Ending::Skipped), None)));
            if let Some(failure) = failure {
                failed(run, id, failure)?;
            }
            if within == Within::Before { run.run_next(rest).map_err(Into::into) } else { Ok(()) }
        }
    }
}

/// Reports that a hook has failed, and switches it off if it has panicked. Returns an error if the
/// failure ends the run.
#[cold]
fn failed(run: &mut Run, id: HookId, (error, panic): (BoxError, Option<Panic>)) -> HookResult {
    let error = ending(error)?;
    let hook = run.hooks.table.hook(id);
    let definition = &hook.definition;
    let (at, writes, owner) = (definition.moment, definition.writes, owner(hook));
    let who = definition.origin.path.to_string();
    let text = run.blame(id, at, error).to_string();
    if writes {
        run.reports.note_incomplete(who.clone());
    }
    let then = match panic {
        None => "the run continues, and calls the hook again",
        Some(panic) => {
            discard_panic(panic);
            run.hooks.switched_off.push(owner);
            "the run continues without the hook"
        }
    };
    run.reports.note_failure(&who, text, then);
    Ok(())
}

impl Drop for RunHooks {
    /// Drops the values of hooks that may fail, whose destructors must not end the program.
    fn drop(&mut self) {
        for instance in self.instances.iter_mut().filter(|instance| instance.may_fail) {
            let value = instance.value.take();
            let dropped = caught(|| {
                drop(value);
                Ok(())
            });
            if let Err((error, panic)) = dropped {
                panic.into_iter().for_each(discard_panic);
                let name = public_path(instance.type_name);
                terminal::eprint_line(format!("warning: `{name}` failed while it was dropped: {error}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::run::dispatch::registration::HookImpl;

    /// The built-in types whose hooks all observe, but whose failures end the run.
    const MUST_NOT_FAIL: [(&str, &str); 4] = [
        ("ActivationCheckpointing", "decides how modules are computed"),
        ("Checkpoint", "a run that cannot be resumed must say so"),
        ("EndOfReplay", "a replay must end where it was asked to"),
        ("FeatureRecorder", "the features are its result"),
    ];

    #[test]
    fn every_built_in_type_that_only_observes_may_fail_or_is_listed_with_a_reason() {
        let blocks = inventory::iter::<HookImpl>()
            .filter(|block| block.origin.is_own())
            .map(|block| (block.hooks(), block.origin.path.rsplit("::").next().unwrap_or_default()));
        let mut found = BTreeSet::new();
        for (hooks, name) in blocks {
            if !hooks.is_empty() && hooks.iter().all(|hook| hook.observes && !hook.may_fail) {
                found.insert(name);
            }
            let some = hooks.iter().filter(|hook| hook.may_fail).count();
            assert!(some == 0 || some == hooks.len(), "only some of the hooks of {name} may fail");
        }
        let missing: Vec<_> =
            found.difference(&MUST_NOT_FAIL.map(|(name, _)| name).into()).copied().collect();
        assert!(missing.is_empty(), "give these hooks the key `may_fail`, or list them: {missing:?}");
    }
}
