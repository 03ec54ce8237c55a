//! The check of hooks that only observe, at run time: what the compiler cannot see, because tensors
//! share their memory.
//!
//! The check takes the place of the hook's function in the table, so that it costs nothing while it
//! is off.

use crate::error::{BoxError, Result};
use crate::hook::definition::{Hook, HookResult, Shim};
use crate::hook::table::Range;
use crate::libtorch::DrawWatch;
use crate::run::probe::Probe;
use crate::run::{Ending, Frame, Rest, Run};

/// The number of changes that an error lists.
const LISTED: usize = 3;
/// What a hook changes that draws from libtorch's random numbers.
const RANDOM: &str = "the random state";

/// Returns whether hooks that observe are checked: as the program has set it, or else if the
/// environment variable `TRAINER_CHECK` says so, or in a smoke test.
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

/// Checks a hook from now on, if it only observes.
pub(crate) fn check(hook: &mut Hook) {
    if hook.definition.observes && hook.unchecked.is_none() {
        let checked = match hook.definition.call {
            Shim::Point(_) => Shim::Point(point),
            Shim::Around(_) => Shim::Around(around),
        };
        hook.unchecked = Some(std::mem::replace(&mut hook.definition.call, checked));
    }
}

/// Returns the function of the hook that is being called.
fn unchecked(run: &Run) -> Shim {
    let hook = run.place.hook.map(|hook| run.hooks.table.hook(hook));
    hook.and_then(|hook| hook.unchecked).expect("a check takes the place of a hook's function")
}

fn point(run: &mut Run, slot: u32) -> HookResult {
    let Shim::Point(call) = unchecked(run) else { unreachable!("a check is of the kind of its hook") };
    let before = Probe::of(run)?;
    let watch = DrawWatch::start()?;
    call(run, slot)?;
    let has_drawn = watch.stop()?;
    compare(run, &before, has_drawn, "takes `&Cx`", "take `&mut Cx`")
}

/// What a hook around an operation promises to only observe.
const PROMISE: &str = "has the key `observes`";
/// What to do if it does more.
const FIX: &str = "remove the key";

/// Checks what the hook changes before it runs the operation and afterwards.
fn around(run: &mut Run, slot: u32, rest: Rest<'_>) -> HookResult {
    let Shim::Around(call) = unchecked(run) else { unreachable!("a check is of the kind of its hook") };
    let mut last = Probe::of(run)?;
    let mut watch = Some(DrawWatch::start()?);
    let frame = &mut Frame {
        operation: rest.operation,
        remaining_hooks: Range::default(),
        ending: Ending::Open,
        responsible: None,
        body: |run: &mut Run| -> Result<()> {
            compare(run, &last, has_drawn(&mut watch)?, PROMISE, FIX)?;
            let result = run.run_rest(rest);
            last = Probe::of(run)?;
            watch = Some(DrawWatch::start()?);
            result
        },
    };
    call(run, slot, frame)?;
    let ending = frame.ending;
    if ending != Ending::Ran {
        return Err(not_run(ending));
    }
    compare(run, &last, has_drawn(&mut watch)?, PROMISE, FIX)
}

/// Returns the error of a hook that only observes, but ended the operation like this.
#[cold]
pub(super) fn not_run(ending: Ending) -> BoxError {
    let what = if ending == Ending::Failed { "handled an error of" } else { "did not run" };
    format!("it {PROMISE}, but {what} the operation: return `next.run(cx)`, or {FIX}").into()
}

fn has_drawn(watch: &mut Option<DrawWatch>) -> Result<bool> {
    watch.take().map_or(Ok(false), DrawWatch::stop)
}

/// Returns an error if something has changed since `before`, or if the hook has drawn random numbers.
fn compare(run: &Run, before: &Probe, has_drawn: bool, promise: &str, fix: &str) -> HookResult {
    let now = Probe::of(run)?;
    let mut changed: Vec<&str> = before.changed(&now).collect();
    if has_drawn {
        changed.push(RANDOM);
    }
    if changed.is_empty() { Ok(()) } else { Err(broken(&changed, promise, fix)) }
}

#[cold]
fn broken(changed: &[&str], promise: &str, fix: &str) -> BoxError {
    let more = match changed.len().saturating_sub(LISTED) {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    let help = if changed == [RANDOM] { ", or draw from a generator of its own" } else { "" };
    let listed = changed.iter().take(LISTED).copied().collect::<Vec<_>>().join(", ");
    format!("it {promise}, so it only observes, but it changed {listed}{more}: {fix}{help}").into()
}
