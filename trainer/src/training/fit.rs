//! Training, and the other passes over data: which comes when.

use std::time::Duration;

use super::limit::{Every, ends_share};
use super::pass::{Pass, batches_of_epoch, each_batch};
use super::plan::{FitStart, LoopPosition, Plan, Stage};
use super::step::{predict_step, step};
use crate::checkpoint::{self, DataFingerprint};
use crate::data::Loader;
use crate::error::{Error, Result};
use crate::lifecycle::at;
use crate::moment::AtOperation;
use crate::phase::Phase;
use crate::run::Run;
use crate::task::Task;

/// The data of a validation, if there is any.
type Valid<'a, 'l, T> = Option<&'a mut (dyn Loader<<T as Task>::Batch> + 'l)>;

/// The operation `fit`. One that is resumed goes on where it was: what has fired does not fire again.
pub(super) fn fit<T: Task>(
    run: &mut Run,
    train: &mut dyn Loader<T::Batch>,
    mut valid: Valid<'_, '_, T>,
) -> Result<()> {
    run.model.optimizers.require()?;
    if valid.is_none() {
        wants_no_validation(run)?;
    }
    run.progress.fits_begun += 1;
    run.checkpoints.note_configured(&run.model.optimizers);
    let data = DataFingerprint {
        repeats: train.is_deterministic() && valid.as_deref().is_none_or(Loader::is_deterministic),
        told: [train.fingerprint(), valid.as_deref().and_then(Loader::fingerprint)],
    };
    let resumed = checkpoint::resume(run, &data)?;
    if !resumed {
        // What a run before has left, or the program itself, is no gradient of the first step.
        run.drop_window()?;
        run.fit.position = LoopPosition::default();
        run.progress.epochs_done = run.progress.epochs_begun; // one that broke off is over
        run.fit.start =
            FitStart::now(run.progress.epochs_begun, run.progress.counters.optimizer_steps, Duration::ZERO);
    }
    run.fit.is_running = true;
    run.fit.data = data.told;
    run.fit.plan = Plan::begin(run, batches_of_epoch(run, train.len())?, valid.is_some());
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
            checkpoint::save_requested(run)?;
            run.check_cancelled()?;
            run.check_deadline();
            if run.is_over() {
                run.requests.is_cut_short |= !run.has_all_epochs() && run.is_stopped();
                return Ok(());
            }
            epoch::<T>(run, train, valid.as_deref_mut(), false)?;
        }
    })
}

/// An operation with its hooks; one that is resumed has begun already.
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

fn wants_no_validation(run: &Run) -> Result<()> {
    let setting = match run.settings.validate_every {
        _ if run.settings.sanity_steps > 0 => "sanity_steps",
        Some(_) => "validate_every",
        None => return Ok(()),
    };
    Err(Error::usage(format!(
        "`.{setting}(…)` asks for validation, and `fit` was given no validation data: `fit(&mut train, Some(&mut valid))`"
    )))
}

/// The operation `epoch`.
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
            run.requests.end_epoch = false; // it was about that pass
        }
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
    run.fit.position = LoopPosition::default();
    run.progress.epochs_done += 1;
    run.log.record(run.progress.counters);
    let is_unbounded = run.fit.plan.epochs.is_none() && run.settings.max_time.is_none();
    let is_idle =
        run.progress.counters.optimizer_steps == steps && run.fit.window.filled == 0 && !run.is_stopped();
    if is_unbounded && !resumed && is_idle {
        return Err(Error::usage(
            "an epoch went by without an optimizer step, so that `.max_steps(…)` is never reached: a hook skips them \
             all; say `.epochs(…)` too",
        ));
    }
    Ok(())
}

/// One pass over the training data, step by step, with the validations within.
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
        let valid = valid.as_deref_mut().ok_or_else(no_validation_to_go_on_with)?;
        let begun = Some(run.fit.position.valid);
        validate_within::<T>(run, valid, begun)?;
        run.log.record(run.progress.counters);
    }
    loop {
        run.fit.position =
            LoopPosition { stage: Stage::Training, train: run.progress.counters.batch_idx, valid: 0 };
        checkpoint::save_requested(run)?;
        run.check_cancelled()?;
        run.check_deadline();
        // A window that is open is closed by one more batch.
        if run.ends_pass() && run.fit.window.filled == 0 {
            run.requests.is_cut_short |= run.is_stopped();
            break;
        }
        let Some(batch) = pass.next()? else { break };
        // Only a window that this batch does not fill asks whether there is another.
        run.fit.window.last = !run.fills_window() && pass.is_last();
        let steps = run.progress.counters.optimizer_steps;
        step::<T>(run, batch)?;
        if let Some(valid) = valid.as_deref_mut()
            && is_validation_due(run, steps)?
            && !run.is_stopped()
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
    run.log.finish(run.progress.phase)?;
    run.warn_of_nan();
    Ok(())
}

fn no_validation_to_go_on_with() -> Error {
    Error::usage(
        "the checkpoint was written in the middle of a validation, and `fit` was given no validation data to go on with",
    )
}

/// Does the interval of a validation within the epoch end with the step that is done?
fn is_validation_due(run: &Run, steps_before: u64) -> Result<bool> {
    Ok(match run.settings.validate_every {
        Some(Every::Steps(n)) => run.progress.counters.optimizer_steps / n > steps_before / n,
        Some(Every::Fraction(share)) => {
            let batches = run.progress.batches.ok_or_else(|| {
                Error::usage(format!(
                    "`.validate_every(Every::Fraction({share:?}))` is a share, and the loader does not say how many batches it \
                     has: say `Every::Steps(…)`"
                ))
            })?;
            ends_share(share, batches, run.progress.counters.batch_idx)
        }
        _ => false,
    })
}

/// The operation `valid` in the middle of training.
fn validate_within<T: Task>(
    run: &mut Run,
    valid: &mut dyn Loader<T::Batch>,
    resumed: Option<u64>,
) -> Result<()> {
    in_phase(run, Phase::Valid, |run| evaluate::<T, at::valid>(run, valid, resumed))
}

/// A pass in a phase within another: its batches are counted by themselves, and what is asked of it is.
fn in_phase(run: &mut Run, phase: Phase, body: impl FnOnce(&mut Run) -> Result<()>) -> Result<()> {
    let outer =
        (run.progress.phase, run.progress.counters.batch_idx, run.progress.batches, run.requests.end_epoch);
    (run.progress.phase, run.requests.end_epoch) = (phase, false);
    let result = body(run);
    (run.progress.phase, run.progress.counters.batch_idx, run.progress.batches, run.requests.end_epoch) =
        outer;
    result
}

/// An operation that is a pass over data without gradients; one that is resumed goes on after so many batches.
pub(super) fn evaluate<T: Task, O: AtOperation>(
    run: &mut Run,
    loader: &mut dyn Loader<T::Batch>,
    resumed: Option<u64>,
) -> Result<()> {
    operate::<O>(run, resumed.is_some(), |run| {
        let _no_grad = tch::no_grad_guard();
        each_batch(run, loader, resumed, &mut step::<T>)
    })
}

/// The operation `predict`. Hands each prediction to `sink`.
pub(super) fn predict<T: Task>(
    run: &mut Run,
    data: &mut dyn Loader<T::Batch>,
    sink: &mut dyn FnMut(T::Pred) -> Result<()>,
) -> Result<()> {
    run.operate_with::<at::predict>(|run| {
        let _no_grad = tch::no_grad_guard();
        each_batch(run, data, None, &mut |run, batch| predict_step::<T>(run, batch, sink))
    })?;
    Ok(())
}
