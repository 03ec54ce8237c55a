//! Spans: the timed entries of the dispatch table, and two spans outside of the table, which
//! measure the entry point and the wait for data.

use tch::Device;

use crate::hook::definition::{HookResult, Shim};
use crate::hook::table::{HookId, Shims, Table};
use crate::lifecycle::Module;
use crate::moment::{Moment, MomentInfo};
use crate::moments::tree;
use crate::phase::Phase;
use crate::run::recorder::{DATA, ENTRY, KEYS_BEFORE_MOMENTS, Key, ProfileSettings, Recorder};
use crate::run::{Rest, Run};

/// An open span. It ends when it is dropped, even while a panic unwinds.
struct Span<'a> {
    run: &'a mut Run,
    depth: usize,
    #[cfg(feature = "tracing")]
    _entered: Option<tracing::span::EnteredSpan>,
}

impl<'a> Span<'a> {
    #[inline]
    fn begin(run: &'a mut Run, key: Key, phase: Phase, is_body: bool) -> Self {
        #[cfg(feature = "tracing")]
        let _entered = if is_body { None } else { super::tracing::enter(run, key, phase) };
        let recorder = run.recorder.as_mut().expect("the table has timed entries only with a recorder");
        let depth = recorder.begin(key, phase, is_body);
        Span {
            run,
            depth,
            #[cfg(feature = "tracing")]
            _entered,
        }
    }
}

impl Drop for Span<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(recorder) = &mut self.run.recorder {
            recorder.end(self.depth);
        }
    }
}

/// The functions that timed entries of the dispatch table call.
pub(super) const SHIMS: Shims = Shims {
    point: Some(timed_point),
    around: Some(timed_around),
    operation: timed_operation,
    body: timed_body,
};

/// Calls a hook at a point, and records how long it takes.
fn timed_point(run: &mut Run, slot: u32) -> HookResult {
    let hook = current_hook(run);
    let Shim::Point(call) = run.hooks.table.hook(hook).definition.call else {
        unreachable!("an entry of a point belongs to a hook at a point")
    };
    let phase = run.place.phase;
    call(Span::begin(run, hook_key(hook), phase, false).run, slot)
}

/// Calls a hook around an operation, and records how long it takes.
fn timed_around(run: &mut Run, slot: u32, rest: Rest<'_>) -> HookResult {
    let hook = current_hook(run);
    let Shim::Around(call) = run.hooks.table.hook(hook).definition.call else {
        unreachable!("an entry around an operation belongs to a hook around it")
    };
    let phase = run.place.phase;
    call(Span::begin(run, hook_key(hook), phase, false).run, slot, rest)
}

fn current_hook(run: &Run) -> HookId {
    run.place.hook.expect("dispatch sets the current hook before each call")
}

fn hook_key(hook: HookId) -> Key {
    KEYS_BEFORE_MOMENTS + tree::moments().len() + hook.index()
}

/// Runs an operation with the hooks around it, and records how long this takes. `row` is the row of
/// the operation, passed instead of the slot that a hook's function receives.
fn timed_operation(run: &mut Run, row: u32, rest: Rest<'_>) -> HookResult {
    timed(run, row, rest, false)
}

/// Runs only the body of an operation that has hooks around it, and records how long the body
/// takes. `row` is the row of the operation, passed instead of the slot that a hook's function
/// receives.
fn timed_body(run: &mut Run, row: u32, rest: Rest<'_>) -> HookResult {
    timed(run, row, rest, true)
}

fn timed(run: &mut Run, row: u32, rest: Rest<'_>, is_body: bool) -> HookResult {
    let key = operation_key(run, row as usize);
    let phase = run.place.phase;
    let span = Span::begin(run, key, phase, is_body);
    let result = span.run.run_rest(rest);
    drop(span);
    result.map_err(Into::into)
}

/// Returns the key of the operation in this row. For `module`, this is the key of the module being
/// called.
fn operation_key(run: &Run, row: usize) -> Key {
    match run.modules.calls.last() {
        Some(call) if row == Module::index() => {
            KEYS_BEFORE_MOMENTS + tree::moments().len() + run.hooks.table.hooks().len() + call.known as usize
        }
        _ => KEYS_BEFORE_MOMENTS + row,
    }
}

/// Runs an entry point, measures it if the trainer has a profile, and reports the profile if
/// `TRAINER_PROFILE` requests it.
pub(crate) fn entry<R>(
    run: &mut Run,
    phase: Phase,
    operation: &'static MomentInfo,
    body: impl FnOnce(&mut Run) -> R,
) -> R {
    if run.recorder.is_none() {
        return body(run);
    }
    let entry = Entry(run);
    if let Some(recorder) = &mut entry.0.recorder {
        recorder.restart(operation.name);
    }
    body(Span::begin(entry.0, ENTRY, phase, false).run)
}

/// Reports the profile when it is dropped, even while a panic unwinds.
struct Entry<'a>(&'a mut Run);

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        super::report::report(self.0);
    }
}

/// Runs `draw`, which waits for a loader, and measures it if the trainer has a profile.
pub(crate) fn data<R>(run: &mut Run, draw: impl FnOnce() -> R) -> R {
    if run.recorder.is_none() {
        return draw();
    }
    let phase = run.place.phase;
    let _span = Span::begin(run, DATA, phase, false);
    draw()
}

/// If anything is measured, replaces the entries of the table with timed entries and returns the
/// recorder that they use.
pub(crate) fn measured(
    table: Table,
    settings: ProfileSettings,
    device: Device,
) -> (Table, Option<Box<Recorder>>) {
    if !settings.measures() {
        return (table, None);
    }
    let recorder = Recorder::new(table.hooks().len(), settings, device);
    let table = table.wrapped(&SHIMS);
    (table, Some(Box::new(recorder)))
}
