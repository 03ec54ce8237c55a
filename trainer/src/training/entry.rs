//! Entry points: setup, error handling and teardown shared by `fit`, `validate`, `test` and
//! `predict`.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::active::{self, ActiveEntry};
use super::agreement::agree;
use super::tape;
use super::{
    decide, device, facts, modules, ranks, records, replay, resume, run_folder, save, variables, window,
};
use crate::checkpoint::progress::LoopState;
use crate::distributed::World;
use crate::error::{Error, Result, discard_panic, panic_text};
use crate::hook::call::Loop;
use crate::hook::call::Panic;
use crate::io::terminal;
use crate::libtorch::{GradModeGuard, HeapGuard, Modes, Warnings};
use crate::lifecycle::at;
use crate::log::history::Summary;
use crate::modules::WatchGuard;
use crate::moment::MomentInfo;
use crate::phase::Phase;
use crate::run::cancel::{OnSignal, SignalGuard};
use crate::run::layers::Target;
use crate::run::settings::Settings;
use crate::run::{Place, Run};

/// Runs an entry point. If the run is resumed and the entry point had already ended before the
/// interruption, returns the recorded result instead.
///
/// An error before the entry point begins, such as a locked run folder, is returned directly. After
/// that, a cancelled run fires `after_cancel`, and an error or a panic fires `after_error`; then
/// `teardown` fires in any case. At these points every hook runs, even after one of them has
/// failed. The first error is returned, with the errors of the cleanup attached; a panic is
/// resumed.
pub(super) fn enter(
    run: &mut Run,
    phase: Phase,
    operation: &'static MomentInfo,
    body: impl FnOnce(&mut Run) -> Result<()>,
) -> Result<Summary> {
    if active::is_outermost() {
        replay::check_requested(run.is_replay())?;
    }
    // Before the signal handlers are installed, so that a signal ends a process that waits here.
    ranks::join(run.ranks_mut())?;
    ranks::compare_resume(run.checkpoints(), run.world())?;
    device::say_why_on_cpu(run.device(), run.settings().device, run.reports());
    facts::note(run);
    let folder = run_folder::resolve(run);
    let recorded = folder.and_then(|()| resume::recorded_outcome(run, phase));
    if let Some(outcome) = ranks::or_leave(run, recorded)? {
        return outcome;
    }
    let on = (&run.hooks().table, run.device());
    let active = ActiveEntry::begin(operation.name, on, run.settings().seed, run.reports());
    let active = ranks::or_leave(run, active)?;
    // The entry point may run within the forward pass of another run, whose modules it must not
    // observe.
    let _unobserved = WatchGuard::nothing();
    let on_signal = run.settings().on_signal;
    let signals = (on_signal != OnSignal::Ignore).then(SignalGuard::install).transpose();
    let signals = ranks::or_leave(run, signals)?;
    run.cancellation_mut().handle_signals(signals.is_some());
    let folder = run_folder::begin(run, phase);
    ranks::or_leave(run, folder)?;
    let settings = run.settings();
    let modes = (Modes::begin(settings.modes()), GradModeGuard::recorded(), HeapGuard::begin(settings.heap));
    let warned = ranks::or_leave(run, Warnings::begin())?;
    *run.place_mut() = Place::begin(operation, phase);
    let result = run.layered(Target::Entry, |run| run_guarded(run, phase, operation, body));
    decide::report_warnings(run.reports());
    drop((warned, modes));
    let is_unrecorded = tape::read(run.layers(), |recorder| !recorder.has_begun());
    if is_unrecorded && phase == Phase::Train && result.is_ok() {
        run.reports().warn(
            "a tape was requested, but no hook writes it, because `.discover(…)` excludes the hooks of `trainer`: call `.tape(…)` on \
             the builder"
                .to_owned(),
        );
    }
    let warnings = run.reports_mut().take_warnings();
    let result = result.map(|summary| Summary { warnings, ..summary });
    if phase == Phase::Predict {
        run.checkpoints_mut().predictions += 1;
    } else {
        run.checkpoints_mut().journal.finish(phase, &result);
    }
    drop(active);
    let Some(signals) = signals else { return result };
    let received = signals.end(on_signal == OnSignal::Exit, || {
        if let Err(error) = &result {
            terminal::eprint_line(error);
        }
    });
    // A signal that arrived after the work was done still cancels.
    match (result, received) {
        (Ok(_), Some(by)) => Err(run.cancelled(by)),
        (result, _) => result,
    }
}

/// Runs the hooks and the body of an entry point, with its error handling and teardown.
fn run_guarded(
    run: &mut Run,
    phase: Phase,
    operation: &'static MomentInfo,
    body: impl FnOnce(&mut Run) -> Result<()>,
) -> Result<Summary> {
    let _ = run.begin_anew(operation, phase, None);
    let mut is_set_up = false;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        ranks::compare(run, phase.entry())?;
        seed(run.settings(), run.progress(), run.world());
        run.model_mut().values.changed = run.model().changed();
        run.fire::<at::setup>()?;
        is_set_up = true;
        variables::adopt(run)?;
        if std::mem::take(&mut run.modules_mut().is_unchecked) {
            modules::check_patterns(run.hooks(), run.vars()).map_err(|error| run.locate(error))?;
        }
        body(run)?;
        run.place_mut().operation = operation;
        agree(run, None)?;
        decide::check_cancelled(run)
    }));

    let (result, mut panic) = match outcome {
        Ok(result) => (result, None),
        Err(payload) => (Err(panicked(run, &payload)), Some(payload)),
    };
    // Reset the mode: a panic may have left a `tch::no_grad` active.
    GradModeGuard::record();
    run.step_mut().clear();
    run.modules_mut().abandon_calls();
    let mut errors = Vec::new();
    // Fires `after_record` first, because the record in flight was created before the run ended.
    let (in_flight, late) = records::flush_at_exit(run);
    keep_first(&mut panic, late);
    let is_end_of_replay = result.as_ref().is_err_and(|error| error.is_end_of_replay());
    if let Err(error) = result
        && !is_end_of_replay
    {
        let counters = run.counters();
        // The hooks see the phase and the counters of the moment where the error occurred.
        if let Some(location) = error.location() {
            run.place_mut().phase = location.phase;
            run.at_mut().set_loader(location.loader.as_ref());
            run.progress_mut().counters = location.counters;
        }
        run.logs_mut().failed = None;
        let is_cancelled = error.is_cancelled();
        if !is_cancelled {
            ranks::leave(run, &error); // before the hooks, because the other ranks wait
        }
        run.fit_mut().failed_mid_step |= panic.is_some() || matches!(error, Error::Hook(_));
        run.occasion_mut().error = Some(error);
        if !is_cancelled {
            let why = save::why_lost(run.fit(), run.ranks());
            save::drop_inexact(run.checkpoints(), why, run.reports());
        }
        let (later, late) =
            if is_cancelled { run.fire_all::<at::after_cancel>() } else { run.fire_all::<at::after_error>() };
        *run.place_mut() = Place::begin(operation, phase);
        run.progress_mut().counters = counters;
        keep_first(&mut panic, late);
        errors.extend(run.occasion_mut().error.take()); // hooks can only read it
        errors.extend(later);
    }
    errors.extend(in_flight);
    // Write the requested checkpoints and complete the background save, even after a panic.
    match catch_unwind(AssertUnwindSafe(|| save::finish(run))) {
        Ok(written) => errors.extend(written.err()),
        Err(payload) => {
            errors.push(panicked(run, &payload));
            keep_first(&mut panic, Some(payload));
            run.logs_mut().failed = None;
            GradModeGuard::record(); // as after a panic in the loop
        }
    }
    // Gradients of an incomplete step or window must not enter the next one.
    let dropped = window::discard(run);
    // After the last checkpoint, because a resumed run continues these records.
    if !is_end_of_replay {
        let (rest, late) = records::emit_rest(run);
        keep_first(&mut panic, late);
        errors.extend(rest);
    }
    ranks::part(run.ranks_mut(), &mut errors);
    let (later, late) = run.fire_all::<at::teardown>();
    keep_first(&mut panic, late);
    errors.extend(later);
    if is_set_up {
        run.model_mut().note_values();
    }
    errors.extend(dropped.err());
    run.reports_mut().end_failures();
    run.hooks_mut().switched_off.clear(); // hooks that have panicked are called again
    let result = first_of(errors, |error| run.locate(error));
    if result.is_ok() {
        run.add_row();
    }
    run_folder::end(run, &result);

    if let Some(payload) = panic {
        // The panic's own message names neither the step nor the batch.
        if let Err(error) = &result {
            terminal::eprint_line(error);
        }
        resume_unwind(payload);
    }
    result?;
    let history = run.history().clone();
    let stopped = run.requests().reason_cut_short().map(str::to_owned);
    if let Some(reason) = &stopped {
        run.reports().notice(&format!("stopped early: {reason}"));
    }
    let incomplete_logs = run.reports_mut().take_incomplete_logs();
    Ok(Summary {
        counters: run.counters(),
        metrics: history.last(),
        history,
        stopped,
        warnings: Vec::new(), // `enter` adds them
        incomplete_logs,
    })
}

/// Keeps the first of two panics: the one that is resumed at the end.
fn keep_first(panic: &mut Option<Panic>, late: Option<Panic>) {
    match panic {
        None => *panic = late,
        Some(_) => late.into_iter().for_each(discard_panic),
    }
}

/// Returns the first error, with the later ones attached as cleanup errors. Only then does the
/// first one need a location: `locate` adds it.
fn first_of(errors: Vec<Error>, locate: impl FnOnce(Error) -> Error) -> Result<()> {
    let mut errors = errors.into_iter();
    let Some(mut first) = errors.next() else { return Ok(()) };
    if !errors.as_slice().is_empty() {
        first = locate(first);
        if let Some(cleanup) = first.cleanup_mut() {
            cleanup.extend(errors);
        }
    }
    Err(first)
}

/// Seeds libtorch if a seed is set. The value passed to libtorch also depends on the number of
/// epochs so far and on the rank.
pub(super) fn seed(settings: &Settings, progress: &LoopState, world: &World) {
    if let Some(seed) = settings.seed {
        // 2^64 divided by the golden ratio spreads the seeds of consecutive epochs.
        let mixed = seed.wrapping_add(progress.epochs_begun.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let rank = world.rank();
        let mixed = mixed.wrapping_add(u64::from(rank).wrapping_mul(0xd1b5_4a32_d192_ed03));
        tch::manual_seed(mixed.cast_signed());
    }
}

/// Converts a panic to an error about the hook that was running, or else about the operation.
fn panicked(run: &mut Run, payload: &Panic) -> Error {
    let text = panic_text(&**payload);
    match run.place_mut().hook.take() {
        None => run.locate(Error::Panic(Box::new(text))),
        Some(hook) => run.hook_failed(hook, run.hooks().table.hook(hook).definition.moment, text.into()),
    }
}
