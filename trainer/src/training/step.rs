//! The operations `step` and `predict_step`, which handle one batch.

use super::batch_weight::{weigh, weigh_again};
use super::decide::ends_pass;
use super::erased::{PREDICTION, data_mut};
use super::pass::Drawn;
use super::task::{Task, TrainStep};
use super::{layout, window};
use crate::data::Batch;
use crate::error::Result;
use crate::hook::call::Loop;
use crate::hook::frame::Ending;
use crate::lifecycle::at;
use crate::moment::Moment;
use crate::phase::Phase;
use crate::run::Run;
use crate::run::dispatch::OperationOutput;

/// Runs the operation `step` for one batch, or in the phase `predict` the operation `predict_step`,
/// which passes the prediction to `sink`. The batch, its prediction and its loss are dropped at the
/// end.
pub(super) fn step<T: Task>(
    run: &mut Run,
    drawn: Drawn<T::Batch>,
    sink: &mut dyn FnMut(T::Pred) -> Result<()>,
) -> Result<()> {
    run.dispatch_mut().origin.next_batch();
    data_mut::<T>(run.step_mut()).batch = Some(drawn.batch);
    run.step_mut().steps = 0;
    run.step_mut().losses_before = run.step().losses;
    run.requests_mut().skip_batch(false);
    let weighed = run.returning(|run| {
        run.place_mut().operation = at::step::INFO; // for errors of `Task::weight`
        weigh::<T>(run, drawn.of_ranks)
    });
    let result = weighed.and_then(|()| {
        run.progress_mut().batch_number = if run.phase() == Phase::Train {
            run.progress_mut().train_batches += 1;
            run.progress().train_batches
        } else {
            run.fit_mut().window.begin_batch(false);
            run.counters().batch_idx + 1
        };
        run.fit_mut().failed_mid_step = true;
        let result = match run.phase() {
            Phase::Predict => run_prediction::<T>(run, sink),
            _ => run_step::<T>(run),
        };
        run.fit_mut().failed_mid_step = result.is_err();
        result
    });
    run.step_mut().clear();
    result
}

fn run_prediction<T: Task>(run: &mut Run, sink: &mut dyn FnMut(T::Pred) -> Result<()>) -> Result<()> {
    run.fire::<at::before_predict_step>()?;
    run.dispatch_mut().output_overridden = false;
    let done = run.inside::<at::predict_step>(|run| {
        transfer::<T>(run)?;
        let _ = TrainStep::<T, at::predict_step>::from_run(run).pred()?;
        run.progress_mut().counters.batch_idx += 1;
        Ok(())
    })?;
    if done != Ending::Ran {
        // A skipped or replaced batch counts toward the pass too.
        run.progress_mut().counters.batch_idx += 1;
    }
    if !done.took_place() {
        return Ok(());
    }
    run.check_output::<at::predict_step>(done, PREDICTION)?;
    run.fire::<at::after_predict_step>()?;
    match data_mut::<T>(run.step_mut()).pred.take() {
        // The row belongs to another rank.
        Some(_) if run.ranks().is_borrowed => Ok(()),
        Some(pred) => sink(pred).map_err(|error| run.locate(error)),
        None => Ok(()),
    }
}

/// Runs the operation `step` with its hooks, and updates the counters.
fn run_step<T: Task>(run: &mut Run) -> Result<()> {
    run.fire::<at::before_step>()?;
    let mut skips = run.requests_mut().take_skip();
    if run.ranks().may_skip && run.phase() == Phase::Train {
        skips = run.world().is_set(skips, "the agreement on a skipped batch")?;
    }
    let took_place = !skips
        && run
            .inside::<at::step>(|run| {
                transfer::<T>(run)?;
                if run.phase() == Phase::Train {
                    let full = run.settings().accumulate_in(run.counters().epoch);
                    let ends_pass = ends_pass(run.requests(), run.fit(), run.progress());
                    run.fit_mut().window.add_batch(full, ends_pass);
                    run.optimizers_mut().next_batch();
                    let result = T::train_step(TrainStep::from_run(run)).map(drop);
                    match result {
                        Ok(()) => run.fit_mut().window.end_batch(),
                        // If a hook handles the error, the gradients of the failed step must not
                        // enter the next one.
                        Err(_) => drop(window::discard(run)),
                    }
                    result
                } else {
                    let step = TrainStep::<T, at::step>::from_run(run);
                    let _ = step.pred()?;
                    step.eval_loss()
                }
            })?
            .took_place();
    // A skipped batch counts toward the pass too.
    run.progress_mut().counters.batch_idx += 1;
    if !took_place {
        return Ok(());
    }
    if run.phase() == Phase::Train {
        run.progress_mut().counters.batches_seen += 1;
        run.progress_mut().counters.samples_seen += run.step().total.samples as u64;
    }
    run.fire::<at::after_step>()
}

/// Runs the operation `transfer`.
fn transfer<T: Task>(run: &mut Run) -> Result<()> {
    run.fire::<at::before_transfer>()?;
    run.produce::<at::transfer>(BATCH, |run| {
        let device = run.device();
        let is_channels_last = run.settings().channels_last;
        if let Some(batch) = &mut data_mut::<T>(run.step_mut()).batch {
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
