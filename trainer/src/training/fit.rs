//! Training, and the other passes over data: which comes when.

use super::pass::{Pass, batches_of_epoch, each_batch};
use super::plan::Plan;
use super::settings::Every;
use super::step::{predict_step, step};
use crate::data::Loader;
use crate::error::{Error, Result};
use crate::lifecycle::at;
use crate::moment::AtOperation;
use crate::phase::Phase;
use crate::run::Run;
use crate::task::Task;

/// The data of a validation, if there is any.
type Valid<'a, 'l, T> = Option<&'a mut (dyn Loader<<T as Task>::Batch> + 'l)>;

/// The operation `fit`.
pub(super) fn fit<T: Task>(
    run: &mut Run,
    train: &mut dyn Loader<T::Batch>,
    mut valid: Valid<'_, '_, T>,
) -> Result<()> {
    run.optimizers.require()?;
    if valid.is_none() {
        wants_no_validation(run)?;
    }
    // What a run before has left, or the program itself, is no gradient of the first step.
    run.drop_window()?;
    run.plan = Plan::begin(run, batches_of_epoch(run, train.len())?);
    run.operate_with::<at::fit>(|run| {
        if let (1.., Some(valid)) = (run.settings.sanity_steps, valid.as_deref_mut()) {
            in_phase(run, Phase::Sanity, |run| {
                let check = |run: &mut Run| evaluate::<T, at::valid>(run, valid);
                run.operate_with::<at::sanity_check>(check).map(drop)
            })?;
        }
        while !run.is_over() {
            epoch::<T>(run, train, valid.as_deref_mut())?;
        }
        Ok(())
    })?;
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
) -> Result<()> {
    run.step.epoch = run.epochs_begun;
    run.step.batch_idx = 0;
    run.log.metrics.clear();
    run.epochs_begun += 1;
    let steps = run.step.optimizer_step;
    run.operate_with::<at::epoch>(|run| {
        let within = matches!(run.settings.validate_every, Some(Every::Steps(_) | Every::Fraction(_)));
        run.operate_with::<at::train_epoch>(|run| train_pass::<T>(run, train, valid.as_deref_mut()))?;
        run.requests.end_epoch = false; // it was about that pass
        let is_due = match run.settings.validate_every {
            Some(Every::Epochs(n)) => run.epochs_begun.is_multiple_of(n),
            _ => !within,
        };
        match valid {
            Some(valid) if is_due && !run.is_stopped() => validate_within::<T>(run, valid),
            _ => Ok(()),
        }
    })?;
    run.epochs_done += 1;
    run.log.record(run.step);
    if run.plan.epochs.is_none() && run.settings.max_time.is_none() && run.step.optimizer_step == steps {
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
) -> Result<()> {
    let order = if run.settings.repeats_batches() { 0 } else { run.step.epoch };
    let mut pass = Pass::begin(run, train, order)?;
    let accumulates = run.settings.accumulate_in(run.step.epoch) > 1 || run.window.filled > 0;
    loop {
        run.check_cancelled()?;
        run.look_at_the_clock();
        // A window that is open is closed by one more batch.
        if run.ends_pass() && run.window.filled == 0 {
            break;
        }
        let Some(batch) = pass.next()? else { break };
        run.window.last = accumulates && pass.is_last();
        let steps = run.step.optimizer_step;
        step::<T>(run, batch)?;
        if let Some(valid) = valid.as_deref_mut()
            && is_validation_due(run, steps)?
            && !run.is_stopped()
        {
            validate_within::<T>(run, valid)?;
            run.log.record(run.step);
        }
    }
    run.log.finish(run.phase)
}

/// Does the interval of a validation within the epoch end with the step that is done?
fn is_validation_due(run: &Run, steps_before: u64) -> Result<bool> {
    Ok(match run.settings.validate_every {
        Some(Every::Steps(n)) => run.step.optimizer_step / n > steps_before / n,
        Some(Every::Fraction(share)) => {
            let batches = run.batches.ok_or_else(|| {
                Error::usage(format!(
                    "`.validate_every(Every::Fraction({share:?}))` is a share, and the loader does not say how many batches it \
                     has: say `Every::Steps(…)`"
                ))
            })?;
            let ended = |done: u64| (done as f64 / (batches as f64 * share)) as u64;
            ended(run.step.batch_idx) > ended(run.step.batch_idx - 1)
        }
        _ => false,
    })
}

/// The operation `valid` in the middle of training.
fn validate_within<T: Task>(run: &mut Run, valid: &mut dyn Loader<T::Batch>) -> Result<()> {
    in_phase(run, Phase::Valid, |run| evaluate::<T, at::valid>(run, valid))
}

/// A pass in a phase within another: its batches are counted by themselves, and what is asked of it is.
fn in_phase(run: &mut Run, phase: Phase, body: impl FnOnce(&mut Run) -> Result<()>) -> Result<()> {
    let outer = (run.phase, run.step.batch_idx, run.batches, run.requests.end_epoch);
    (run.phase, run.requests.end_epoch) = (phase, false);
    let result = body(run);
    (run.phase, run.step.batch_idx, run.batches, run.requests.end_epoch) = outer;
    result
}

/// An operation that is a pass over data without gradients.
pub(super) fn evaluate<T: Task, O: AtOperation>(
    run: &mut Run,
    loader: &mut dyn Loader<T::Batch>,
) -> Result<()> {
    run.operate_with::<O>(|run| {
        let _no_grad = tch::no_grad_guard();
        each_batch(run, loader, &mut step::<T>)
    })?;
    Ok(())
}

/// The operation `predict`. Hands each prediction to `sink`.
pub(super) fn predict<T: Task>(
    run: &mut Run,
    data: &mut dyn Loader<T::Batch>,
    sink: &mut dyn FnMut(T::Pred) -> Result<()>,
) -> Result<()> {
    run.operate_with::<at::predict>(|run| {
        let _no_grad = tch::no_grad_guard();
        each_batch(run, data, &mut |run, batch| predict_step::<T>(run, batch, sink))
    })?;
    Ok(())
}
