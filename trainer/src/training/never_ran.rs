//! Reports hooks that did not run in a whole fit, so that they do not stay unnoticed.

use crate::lifecycle::MOMENTS;
use crate::moment::MomentKind;
use crate::moments::tree;
use crate::phase::Phase;
use crate::run::Dispatch;
use crate::run::Hook;
use crate::run::reports::Reports;

/// At the end of the first fit of a run, prints a line for each hook of the program that did not
/// run, because nothing fired its custom moment or because its `every` never came due. This may be
/// intended, as for a point that only fires if something is wrong, so it is not a warning.
pub(super) fn note_hooks_that_never_ran(hooks: &[Hook], dispatch: &Dispatch, reports: &Reports) {
    for (index, hook) in hooks.iter().enumerate().filter(|(_, hook)| is_expected(hook)) {
        let definition = &hook.definition;
        let placed = definition.origin.placed();
        if let Some(missing) = never_entered(dispatch, hook) {
            reports.notice(&format!("{placed} did not run in this fit, because {missing}"));
        } else if let (Some(every), Some(unit)) = (definition.every, definition.moment.counts)
            && !dispatch.was_due(index)
        {
            reports.notice(&format!(
                "{placed} did not run in this fit, because its `every = {every}` never came due: there were fewer {} at `{}`",
                unit.name(),
                definition.moment.path()
            ));
        }
    }
}

/// Returns whether a hook of the program is meant to run in a fit.
fn is_expected(hook: &Hook) -> bool {
    let definition = &hook.definition;
    !definition.origin.is_own() && definition.phases().contains(Phase::Train)
}

/// If nothing has fired or run the custom moment of a hook, says so.
fn never_entered(dispatch: &Dispatch, hook: &Hook) -> Option<String> {
    let moment = hook.definition.moment;
    let row = (hook.definition.row)();
    let (entered, verb) = match moment.kind {
        MomentKind::Point => (row, "fired"),
        MomentKind::Operation => (row, "run"),
        MomentKind::Before | MomentKind::After => (moment.within?(), "run"),
    };
    if row < MOMENTS.len() || dispatch.entered.contains(&entered) {
        return None;
    }
    let path = tree::moments()[entered].path();
    let method = if verb == "fired" { "fire" } else { "run" };
    Some(format!("nothing has {verb} `{path}`: a hook or the task does so with `.{method}::<…>`"))
}
