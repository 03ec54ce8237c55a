//! The training loop and the passes over data within it.

use std::time::Duration;

use super::agree::agree_on_next;
use super::pass::{Pass, batches_of_epoch, each_batch};
use super::resume::{self, DataFingerprint};
use super::save;
use super::step::{predict_step, step, weigh};
use super::task::Task;
use crate::data::Loader;
use crate::error::{Error, Result};
use crate::every::{Every, ends_interval};
use crate::lifecycle::at;
use crate::moment::AtOperation;
use crate::phase::Phase;
use crate::progress::{FitStart, LoopPosition, Stage};
use crate::run::Run;

/// The validation data, if there is any.
type Valid<'a, 'l, T> = Option<&'a mut (dyn Loader<<T as Task>::Batch> + 'l)>;

/// Runs the operation `fit`. A resumed fit continues where it was: points that had fired do not
/// fire again.
pub(super) fn fit<T: Task>(
    run: &mut Run,
    train: &mut dyn Loader<T::Batch>,
    mut valid: Valid<'_, '_, T>,
) -> Result<()> {
    run.model.optimizers.require()?;
    if valid.is_none() {
        check_needs_no_validation(run)?;
    }
    if let Some(world) = run.ranks.world.clone() {
        train.share(world.share())?;
        if let Some(valid) = valid.as_deref_mut() {
            valid.share(world.share())?;
        }
        run.compare_data(train.fingerprint(), valid.as_deref().and_then(Loader::fingerprint))?;
    }
    run.progress.fits_begun += 1;
    run.checkpoints.note_configured(&run.model.optimizers);
    let data = DataFingerprint {
        is_deterministic: train.is_deterministic() && valid.as_deref().is_none_or(Loader::is_deterministic),
        fingerprints: [train.fingerprint(), valid.as_deref().and_then(Loader::fingerprint)],
    };
    let resumed = resume::resume(run, &data)?;
    if !resumed {
        // Gradients left by an earlier run, or by the program, must not enter the first step.
        run.drop_window()?;
        run.fit.position = LoopPosition::default();
        // The remainder of an epoch that ended early is not trained.
        run.progress.epochs_done = run.progress.epochs_begun;
        run.fit.start =
            FitStart::now(run.progress.epochs_begun, run.progress.counters.optimizer_steps, Duration::ZERO);
    }
    run.fit.is_running = true;
    run.fit.data = data.fingerprints;
    run.fit.plan = run.plan(batches_of_epoch(run, train.len())?, valid.is_some());
    if resumed && run.fit.position.stage == Stage::BetweenEpochs && run.is_over() {
        eprintln!("nothing is left to train: the resumed fit had already finished");
    }
    operate::<at::fit>(run, resumed, |run| {
        let is_checked = resumed && run.fit.position.stage != Stage::SanityCheck;
        if let (1.., Some(valid), false) = (run.settings.sanity_steps, valid.as_deref_mut(), is_checked) {
            run.fit.position.stage = Stage::SanityCheck;
            in_phase(run, Phase::Sanity, |run| {
                let check = |run: &mut Run| evaluate::<T, at::valid>(run, valid, None);
                run.operate_with::<at::sanity_check>(check).map(drop)
            })?;
        }
        if run.fit.position.stage == Stage::SanityCheck {
            run.fit.position.stage = Stage::BetweenEpochs;
        }
        if run.fit.position.stage != Stage::BetweenEpochs {
            epoch::<T>(run, train, valid.as_deref_mut(), true)?;
        }
        loop {
            run.check_deadline();
            run.agree()?;
            save::save_requested(run)?;
            run.check_cancelled()?;
            if run.is_over() {
                run.requests.is_cut_short |= !run.has_all_epochs() && run.is_stopped();
                return Ok(());
            }
            epoch::<T>(run, train, valid.as_deref_mut(), false)?;
        }
    })
}

/// Runs an operation with its hooks; the point before a resumed one has already fired.
fn operate<O: AtOperation>(
    run: &mut Run,
    resumed: bool,
    body: impl FnOnce(&mut Run) -> Result<()>,
) -> Result<()> {
    if !resumed {
        run.operate_with::<O>(body)?;
    } else if run.inside_with::<O>(body)?.took_place() {
        run.fire::<O::After>()?;
    }
    Ok(())
}

/// Returns an error if a setting requires validation data.
fn check_needs_no_validation(run: &Run) -> Result<()> {
    let setting = match run.settings.validate_every {
        _ if run.settings.sanity_steps > 0 => "sanity_steps",
        Some(_) => "validate_every",
        None => return Ok(()),
    };
    Err(Error::usage(format!(
        "`.{setting}(…)` requires validation, but `fit` was called without validation data: call \
         `fit(&mut train, Some(&mut valid))`"
    )))
}

/// Runs the operation `epoch`.
fn epoch<T: Task>(
    run: &mut Run,
    train: &mut dyn Loader<T::Batch>,
    mut valid: Valid<'_, '_, T>,
    resumed: bool,
) -> Result<()> {
    if !resumed {
        run.progress.counters.epoch = run.progress.epochs_begun;
        run.progress.counters.batch_idx = 0;
        run.log.metrics.clear();
        run.progress.epochs_begun += 1;
    }
    let steps = run.progress.counters.optimizer_steps;
    operate::<at::epoch>(run, resumed, |run| {
        let is_validating = resumed && run.fit.position.stage == Stage::Validating;
        if !is_validating {
            operate::<at::train_epoch>(run, resumed, |run| {
                train_pass::<T>(run, train, valid.as_deref_mut(), resumed)
            })?;
            run.record_pass()?;
            run.requests.end_epoch = false; // the request was for that pass
        }
        run.agree()?;
        let is_due = match run.settings.validate_every {
            _ if is_validating => true,
            Some(Every::Epochs(n)) => run.progress.epochs_begun.is_multiple_of(n),
            Some(Every::Steps(_) | Every::Fraction(_)) => false,
            None => true,
        };
        match valid {
            Some(_) if is_due && run.is_stopped() => {
                run.requests.is_cut_short = true;
                Ok(())
            }
            Some(valid) if is_due => {
                let begun = is_validating.then_some(run.fit.position.valid);
                run.fit.position.stage = Stage::Validating;
                validate_within::<T>(run, valid, begun)
            }
            _ => Ok(()),
        }
    })?;
    run.record_pass()?; // of what was logged at `after_epoch`
    run.fit.position = LoopPosition::default();
    run.progress.epochs_done += 1;
    run.log.record(run.progress.counters);
    let is_unbounded = run.fit.plan.epochs.is_none() && run.settings.max_time.is_none();
    let is_idle =
        run.progress.counters.optimizer_steps == steps && run.fit.window.filled == 0 && !run.is_stopped();
    if is_unbounded && !resumed && is_idle {
        return Err(Error::usage(
            "an epoch ended without an optimizer step, so `.max_steps(…)` would never be reached: check which hook skips \
             the steps, or set `.epochs(…)` too",
        ));
    }
    Ok(())
}

/// Runs one pass over the training data, with the validations that come due within it.
fn train_pass<T: Task>(
    run: &mut Run,
    train: &mut dyn Loader<T::Batch>,
    mut valid: Valid<'_, '_, T>,
    resumed: bool,
) -> Result<()> {
    let order = if run.settings.repeats_batches() { 0 } else { run.progress.counters.epoch };
    let begun = resumed.then_some(run.fit.position.train);
    let mut pass = Pass::begin(run, train, order, begun)?;
    if resumed && run.fit.position.stage == Stage::ValidatingWithin {
        let valid = valid.as_deref_mut().ok_or_else(no_validation_to_resume)?;
        let begun = Some(run.fit.position.valid);
        validate_within::<T>(run, valid, begun)?;
        run.log.record(run.progress.counters);
    }
    loop {
        run.fit.position =
            LoopPosition { stage: Stage::Training, train: run.progress.counters.batch_idx, valid: 0 };
        run.check_deadline();
        agree_on_next(run, &mut pass, &mut weigh::<T>)?;
        save::save_requested(run)?;
        run.check_cancelled()?;
        // An open accumulation window gets one more batch, which ends it.
        if run.ends_pass() && run.fit.window.filled == 0 {
            run.requests.is_cut_short |= run.is_stopped();
            break;
        }
        let Some(batch) = pass.next(run)? else { break };
        run.ranks.random_before_draw = None;
        // Drawing a batch ahead is only necessary if this batch does not fill the window.
        run.fit.window.is_last_of_pass = !run.fills_window() && pass.is_last(run);
        let steps = run.progress.counters.optimizer_steps;
        run.expect_record(run.fills_window() || run.fit.window.is_last_of_pass || run.ends_pass());
        step::<T>(run, batch)?;
        run.record_if_due(steps)?;
        if let Some(valid) = valid.as_deref_mut()
            && is_validation_due(run, steps)?
            && !run.is_stopped_by_now()?
        {
            run.fit.position = LoopPosition {
                stage: Stage::ValidatingWithin,
                train: run.progress.counters.batch_idx,
                valid: 0,
            };
            validate_within::<T>(run, valid, None)?;
            run.log.record(run.progress.counters);
        }
    }
    run.check_variables()?;
    run.warn_of_uncalled_modules();
    run.flush_record()?;
    run.finish_pass()?;
    run.warn_of_nan();
    Ok(())
}

fn no_validation_to_resume() -> Error {
    Error::usage(
        "the checkpoint was written in the middle of a validation, but `fit` was called without validation data: call \
         `fit(&mut train, Some(&mut valid))`",
    )
}

/// Whether a validation within the epoch comes due with the batch that was just done.
fn is_validation_due(run: &Run, steps_before: u64) -> Result<bool> {
    Ok(match run.settings.validate_every {
        Some(Every::Steps(n)) => run.progress.counters.optimizer_steps / n > steps_before / n,
        Some(Every::Fraction(fraction)) => {
            let batches = run.progress.batches.ok_or_else(|| {
                Error::usage(format!(
                    "`.validate_every(Every::Fraction({fraction:?}))` is a fraction, but the loader does not report its number of \
                     batches: use `Every::Steps(…)`"
                ))
            })?;
            ends_interval(fraction, batches, run.progress.counters.batch_idx)
        }
        _ => false,
    })
}

/// Runs the operation `valid` within training.
fn validate_within<T: Task>(
    run: &mut Run,
    valid: &mut dyn Loader<T::Batch>,
    resumed: Option<u64>,
) -> Result<()> {
    in_phase(run, Phase::Valid, |run| evaluate::<T, at::valid>(run, valid, resumed))
}

/// Runs a pass in another phase, then restores the phase, the position in the outer pass, and the
/// request to end it.
fn in_phase(run: &mut Run, phase: Phase, body: impl FnOnce(&mut Run) -> Result<()>) -> Result<()> {
    run.flush_record()?;
    let outer =
        (run.progress.phase, run.progress.counters.batch_idx, run.progress.batches, run.requests.end_epoch);
    (run.progress.phase, run.requests.end_epoch) = (phase, false);
    let result = body(run);
    (run.progress.phase, run.progress.counters.batch_idx, run.progress.batches, run.requests.end_epoch) =
        outer;
    result
}

/// Runs an operation that is a pass over data without gradients, or resumes it after `resumed`
/// batches.
pub(super) fn evaluate<T: Task, O: AtOperation>(
    run: &mut Run,
    loader: &mut dyn Loader<T::Batch>,
    resumed: Option<u64>,
) -> Result<()> {
    operate::<O>(run, resumed.is_some(), |run| {
        let _no_grad = tch::no_grad_guard();
        each_batch(run, loader, resumed, &mut step::<T>)
    })?;
    run.record_pass()
}

/// Runs the operation `predict`, and passes each prediction to `sink`.
pub(super) fn predict<T: Task>(
    run: &mut Run,
    data: &mut dyn Loader<T::Batch>,
    sink: &mut dyn FnMut(T::Pred) -> Result<()>,
) -> Result<()> {
    run.operate_with::<at::predict>(|run| {
        let _no_grad = tch::no_grad_guard();
        each_batch(run, data, None, &mut |run, batch| predict_step::<T>(run, batch, sink))
    })?;
    run.record_pass()
}
