//! Spans of the crate `tracing`.

use tracing::span::EnteredSpan;
use tracing::{debug_span, info_span};

use super::recorder::{DATA, ENTRY, KEYS_BEFORE_MOMENTS, Key};
use crate::phase::Phase;
use crate::run::Run;
use crate::tree;

/// Enters the span of this key, if the trainer has `.tracing(true)`.
pub(super) fn enter(run: &Run, key: Key, phase: Phase) -> Option<EnteredSpan> {
    let recorder = run.recorder.as_ref().filter(|recorder| recorder.traces)?;
    let (phase, hooks) = (phase.name(), KEYS_BEFORE_MOMENTS + tree::moments().len());
    let span = match key {
        ENTRY => info_span!(target: "trainer", "entry", name = recorder.entry, phase),
        DATA => debug_span!(target: "trainer", "data", phase),
        _ if key < hooks => {
            let name = tree::moments()[key - KEYS_BEFORE_MOMENTS].name;
            info_span!(target: "trainer", "operation", name, phase)
        }
        _ => {
            let hook = &run.hooks.table.hooks()[key - hooks].definition;
            debug_span!(target: "trainer", "hook", name = hook.origin.name(), moment = hook.moment.name, phase)
        }
    };
    Some(span.entered())
}
