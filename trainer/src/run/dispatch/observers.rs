//! The run-time check of hooks that only observe. It finds changes that the compiler cannot see,
//! because tensors share their memory.
//!
//! The check replaces the hook's function in the table, so it costs nothing while it is off.

use crate::error::{BoxError, Result};
use crate::hook::call::{FIX, Loop, PROMISE, not_run};
use crate::hook::definition::HookResult;
use crate::hook::frame::Ending;
use crate::hook::frame::Frame;
use crate::hook::frame::Range;
use crate::libtorch::DrawWatch;
use crate::run::changes::{Changes, Reading};
use crate::run::{Hook, Place, Rest, Run, RunHooks, Shim};

/// The number of changes that an error lists.
const LISTED: usize = 3;
/// The name of the state that a hook changes by drawing random numbers from libtorch.
const RANDOM: &str = "the random state";

/// Returns whether hooks that only observe are checked. `set` is the choice of the program. If
/// `set` is `None`, these hooks are checked in a smoke test, or if the environment variable
/// `TRAINER_CHECK` requests it.
///
/// # Errors
///
/// Returns a message if the environment variable has an unknown value.
pub(crate) fn is_on(set: Option<bool>, is_smoke_test: bool) -> Result<bool, String> {
    let requested = match std::env::var("TRAINER_CHECK") {
        Ok(value) if value == "observers" => true,
        Ok(value) if !value.is_empty() => {
            return Err(format!("`TRAINER_CHECK={value}`: expected `observers`"));
        }
        _ => false,
    };
    Ok(set.unwrap_or(requested || is_smoke_test))
}

/// If the hook only observes, turns on the check for all of its further calls.
pub(crate) fn check(hook: &mut Hook) {
    if hook.definition.observes && hook.unchecked.is_none() {
        hook.unchecked = Some(hook.definition.call.replace(point, around));
    }
}

/// Returns the original function of the hook that is being called, and what watches it.
fn unchecked(hooks: &RunHooks, place: Place) -> (Shim, Watch) {
    let hook = place.hook.map(|hook| hooks.table.hook(hook));
    let call = hook.and_then(|hook| hook.unchecked).expect("a check takes the place of a hook's function");
    let by = hook.and_then(|hook| hook.slot);
    (call, Watch { changes: Changes::new(Reading::Observed { by }), draws: None })
}

fn point(run: &mut Run, slot: u32) -> HookResult {
    let (Shim::Point(call), mut watch) = unchecked(&run.hooks, run.at.place) else {
        unreachable!("a check is of the kind of its hook")
    };
    watch.start(run)?;
    call(run, slot)?;
    watch.stop(run, "takes `&Cx`", "take `&mut Cx`")
}

/// Calls a hook around an operation, and checks that the hook itself changes nothing before or
/// after it runs the operation.
fn around(run: &mut Run, slot: u32, rest: Rest<'_>) -> HookResult {
    let (Shim::Around(call), mut watch) = unchecked(&run.hooks, run.at.place) else {
        unreachable!("a check is of the kind of its hook")
    };
    watch.start(run)?;
    let frame = &mut Frame {
        operation: rest.operation,
        remaining_hooks: Range::default(),
        ending: Ending::Open,
        responsible: None,
        body: |run: &mut Run| -> Result<()> {
            watch.stop(run, PROMISE, FIX)?;
            let result = run.run_rest(rest);
            watch.start(run)?;
            result
        },
    };
    call(run, slot, frame)?;
    let ending = frame.ending;
    if ending != Ending::Ran {
        return Err(not_run(ending));
    }
    watch.stop(run, PROMISE, FIX)
}

/// Finds what the hook that is being called changes.
struct Watch {
    changes: Changes,
    draws: Option<DrawWatch>,
}

impl Watch {
    /// Notes the current values.
    fn start(&mut self, run: &Run) -> Result<()> {
        self.changes.changed(run)?;
        self.draws = Some(DrawWatch::start()?);
        Ok(())
    }

    /// Returns an error if something has changed since the start, or if the hook has drawn random
    /// numbers.
    fn stop(&mut self, run: &Run, promise: &str, fix: &str) -> HookResult {
        let has_drawn = self.draws.take().map_or(Ok(false), DrawWatch::stop)?;
        let found = self.changes.changed(run)?;
        let names = self.changes.names();
        let mut changed: Vec<&str> = found.iter().map(|(number, _)| names.name(*number)).collect();
        changed.sort_unstable();
        changed.extend(has_drawn.then_some(RANDOM));
        if changed.is_empty() { Ok(()) } else { Err(broken(&changed, promise, fix)) }
    }
}

#[cold]
fn broken(changed: &[&str], promise: &str, fix: &str) -> BoxError {
    let more = match changed.len().saturating_sub(LISTED) {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    let help = if changed == [RANDOM] { ", or draw from a separate random number generator" } else { "" };
    let listed = changed.iter().take(LISTED).copied().collect::<Vec<_>>().join(", ");
    format!("the hook {promise}, so it must only observe, but it changed {listed}{more}: {fix}{help}").into()
}
