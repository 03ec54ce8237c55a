//! The operations `step` and `predict_step`, which handle one batch.

use super::batch_weight::{weigh, weigh_again};
use super::erased::{PREDICTION, data_mut};
use super::task::{Task, TrainStep};
use super::{agreement, layout, operations, window};
use crate::data::Batch;
use crate::error::Result;
use crate::lifecycle::at;
use crate::moment::Moment;
use crate::phase::Phase;
use crate::run::dispatch::OperationOutput;
use crate::run::{Ending, Run, tape};

/// Runs the operation `step` for one batch.
pub(super) fn step<T: Task>(run: &mut Run, batch: T::Batch) -> Result<()> {
    with_batch::<T>(run, batch, run_step::<T>)
}

/// Runs the operation `predict_step` for one batch, and passes the prediction to `sink`.
pub(super) fn predict_step<T: Task>(
    run: &mut Run,
    batch: T::Batch,
    sink: &mut dyn FnMut(T::Pred) -> Result<()>,
) -> Result<()> {
    with_batch::<T>(run, batch, |run| run_prediction::<T>(run, sink))
}

/// Calls `body` with this batch. The batch, its prediction and its loss are dropped at the end.
fn with_batch<T: Task>(
    run: &mut Run,
    batch: T::Batch,
    body: impl FnOnce(&mut Run) -> Result<()>,
) -> Result<()> {
    let result = begin::<T>(run, batch).and_then(|()| {
        run.fit.failed_mid_step = true;
        let result = tape::loaded(run).and_then(|()| body(run));
        run.fit.failed_mid_step = result.is_err();
        result
    });
    run.clear_step();
    result
}

/// Stores a batch, resets the flags of the step, and counts the batch.
fn begin<T: Task>(run: &mut Run, batch: T::Batch) -> Result<()> {
    run.dispatch.origin.next_batch();
    data_mut::<T>(&mut run.step).batch = Some(batch);
    run.step.steps = 0;
    run.step.losses_before = run.step.losses;
    run.requests.skip_batch(false);
    run.fit.window.is_last_micro_batch = false;
    run.returning(|run| {
        run.place.operation = at::step::INFO; // for errors of `Task::weight`
        weigh::<T>(run)
    })?;
    run.progress.batch_number = if run.place.phase == Phase::Train {
        run.progress.train_batches += 1;
        run.progress.train_batches
    } else {
        run.progress.counters.batch_idx + 1
    };
    Ok(())
}

fn run_prediction<T: Task>(run: &mut Run, sink: &mut dyn FnMut(T::Pred) -> Result<()>) -> Result<()> {
    run.fire::<at::before_predict_step>()?;
    run.dispatch.output_overridden = false;
    let done = run.inside::<at::predict_step>(|run| {
        transfer::<T>(run)?;
        operations::pred::<T>(run)?;
        run.progress.counters.batch_idx += 1;
        Ok(())
    })?;
    if done != Ending::Ran {
        // A skipped or replaced batch counts toward the pass too.
        run.progress.counters.batch_idx += 1;
    }
    if !done.took_place() {
        return Ok(());
    }
    run.check_output::<at::predict_step>(done, PREDICTION)?;
    run.fire::<at::after_predict_step>()?;
    match data_mut::<T>(&mut run.step).pred.take() {
        // The row belongs to another rank.
        Some(_) if run.ranks.is_borrowed => Ok(()),
        Some(pred) => sink(pred).map_err(|error| run.locate(error)),
        None => Ok(()),
    }
}

/// Runs the operation `step` with its hooks, and updates the counters.
fn run_step<T: Task>(run: &mut Run) -> Result<()> {
    run.fire::<at::before_step>()?;
    agreement::agree_on_skip(run)?;
    let took_place = !run.requests.take_skip()
        && run
            .inside::<at::step>(|run| {
                transfer::<T>(run)?;
                if run.place.phase == Phase::Train {
                    window::fill(run);
                    let result = T::train_step(TrainStep::from_run(run)).map(drop);
                    match result {
                        Ok(()) => window::leave(run),
                        // If a hook handles the error, the gradients of the failed step must not
                        // enter the next one.
                        Err(_) => drop(window::discard(run)),
                    }
                    result
                } else {
                    operations::pred::<T>(run)?;
                    operations::eval_loss::<T>(run)
                }
            })?
            .took_place();
    // A skipped batch counts toward the pass too.
    run.progress.counters.batch_idx += 1;
    if !took_place {
        return Ok(());
    }
    if run.place.phase == Phase::Train {
        run.progress.counters.batches_seen += 1;
        run.progress.counters.samples_seen += run.step.total.samples as u64;
    }
    run.fire::<at::after_step>()
}

/// Runs the operation `transfer`.
fn transfer<T: Task>(run: &mut Run) -> Result<()> {
    run.fire::<at::before_transfer>()?;
    run.produce::<at::transfer>(BATCH, |run| {
        let device = run.model.device;
        let is_channels_last = run.settings.channels_last;
        if let Some(batch) = &mut data_mut::<T>(&mut run.step).batch {
            batch.move_to(device)?;
            if is_channels_last {
                layout::change_batch(batch)?;
            }
        }
        Ok(())
    })?;
    run.fire::<at::after_transfer>()?;
    weigh_again::<T>(run)
}

const BATCH: OperationOutput = OperationOutput { name: "batch", setter: "set_batch" };
