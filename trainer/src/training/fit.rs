//! The passes over data: epochs of training and validation, and testing.

use super::step::{predict_step, step};
use crate::data::Loader;
use crate::error::{Error, Result};
use crate::lifecycle::at;
use crate::metrics::Metrics;
use crate::moment::AtOperation;
use crate::phase::Phase;
use crate::run::Run;
use crate::task::Task;

/// The operation `fit`. Gives the metrics of each epoch.
pub(super) fn fit<T: Task>(
    run: &mut Run,
    train: &mut dyn Loader<T::Batch>,
    mut valid: Option<&mut dyn Loader<T::Batch>>,
    epochs: u64,
    sanity_steps: u64,
) -> Result<Vec<Metrics>> {
    // What a run before has left, or the program itself, is no gradient of the first step.
    run.optimizers.require()?;
    run.optimizers.zero_grad()?;
    let mut history = Vec::new();
    run.epochs = run.epochs_begun + epochs;
    run.operate_with::<at::fit>(|run| {
        if sanity_steps > 0 {
            let valid = valid.as_deref_mut().ok_or_else(nothing_to_check)?;
            in_phase(run, Phase::Sanity, |run| {
                let check = |run: &mut Run| evaluate::<T, at::valid>(run, valid, Some(sanity_steps));
                run.operate_with::<at::sanity_check>(check).map(drop)
            })?;
        }
        while run.epochs_begun < run.epochs && run.requests.stop.is_none() {
            run.step.epoch = run.epochs_begun;
            run.step.batch_idx = 0;
            run.log.metrics.clear();
            run.epochs_begun += 1;
            let took_place = run.operate_with::<at::epoch>(|run| {
                run.operate_with::<at::train_epoch>(|run| pass::<T>(run, train))?;
                run.requests.end_epoch = false; // it was about that pass
                match valid.as_deref_mut() {
                    Some(valid) if run.requests.stop.is_none() => {
                        in_phase(run, Phase::Valid, |run| evaluate::<T, at::valid>(run, valid, None))
                    }
                    _ => Ok(()),
                }
            })?;
            if took_place {
                history.push(run.log.metrics.clone());
            }
        }
        Ok(())
    })?;
    Ok(history)
}

/// The operation `valid`, as an entry of its own.
pub(super) fn validate<T: Task>(run: &mut Run, valid: &mut dyn Loader<T::Batch>) -> Result<Vec<Metrics>> {
    evaluate::<T, at::valid>(run, valid, None)?;
    Ok(vec![run.log.metrics.clone()])
}

/// The operation `test`.
pub(super) fn test<T: Task>(run: &mut Run, test: &mut dyn Loader<T::Batch>) -> Result<Vec<Metrics>> {
    evaluate::<T, at::test>(run, test, None)?;
    Ok(vec![run.log.metrics.clone()])
}

/// The operation `predict`. Hands each prediction to `sink`.
pub(super) fn predict<T: Task>(
    run: &mut Run,
    data: &mut dyn Loader<T::Batch>,
    sink: &mut dyn FnMut(T::Pred) -> Result<()>,
) -> Result<Vec<Metrics>> {
    run.operate_with::<at::predict>(|run| {
        let _no_grad = tch::no_grad_guard();
        pass_with::<T>(run, data, None, &mut |run, batch| predict_step::<T>(run, batch, sink))
    })?;
    Ok(vec![run.log.metrics.clone()])
}

/// A pass in a phase within another; its batches are counted by themselves.
fn in_phase(run: &mut Run, phase: Phase, body: impl FnOnce(&mut Run) -> Result<()>) -> Result<()> {
    let outer = (run.phase, run.step.batch_idx, run.batches);
    run.phase = phase;
    let result = body(run);
    (run.phase, run.step.batch_idx, run.batches) = outer;
    result
}

/// An operation that is a pass over data without gradients, over so many batches at most.
fn evaluate<T: Task, O: AtOperation>(
    run: &mut Run,
    loader: &mut dyn Loader<T::Batch>,
    limit: Option<u64>,
) -> Result<()> {
    run.operate_with::<O>(|run| {
        let _no_grad = tch::no_grad_guard();
        pass_with::<T>(run, loader, limit, &mut step::<T>)
    })?;
    run.requests.end_epoch = false;
    Ok(())
}

/// One pass over the data of a loader, step by step.
fn pass<T: Task>(run: &mut Run, loader: &mut dyn Loader<T::Batch>) -> Result<()> {
    pass_with::<T>(run, loader, None, &mut step::<T>)
}

/// One pass over the data of a loader, or over so many batches of it, with this for each.
fn pass_with<T: Task>(
    run: &mut Run,
    loader: &mut dyn Loader<T::Batch>,
    limit: Option<u64>,
    each: &mut dyn FnMut(&mut Run, T::Batch) -> Result<()>,
) -> Result<()> {
    run.step.batch_idx = 0;
    run.batches = loader.len().map(|len| limit.map_or(len, |limit| len.min(limit)));
    run.log.restart(run.phase);
    let mut batches = loader.batches(run.step.epoch, 0)?;
    let is_enough = |run: &Run| limit.is_some_and(|limit| run.step.batch_idx >= limit);
    // A stop lets a validation finish: half of one would give a metric that is not what it says.
    while !(is_enough(run)
        || run.requests.end_epoch
        || run.phase == Phase::Train && run.requests.stop.is_some())
    {
        match batches.next() {
            Some(Ok(batch)) => each(run, batch)?,
            Some(Err(error)) => return Err(error),
            None if run.step.batch_idx == 0 => return Err(no_batch()),
            None => break,
        }
    }
    run.log.finish(run.phase)
}

fn nothing_to_check() -> Error {
    Error::usage(
        "`.sanity_steps(…)` asks for a check before training, and `fit` was given no validation data for it",
    )
}

fn no_batch() -> Error {
    Error::usage("the loader gave no batch: is there data in it, and with `drop_last` as much as one batch?")
}
