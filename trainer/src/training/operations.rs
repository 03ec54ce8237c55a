//! The operations within a step: the forward pass, the loss, the backward pass and the optimizer
//! step.

use tch::Tensor;

use super::batch_weight::{is_weightless, no_loss, weigh_again};
use super::erased::{LOSS_OUTPUT, PREDICTION, compute_loss, compute_pred};
use super::task::{Mode, Task};
use crate::error::{Error, Result};
use crate::libtorch;
use crate::lifecycle::at;
use crate::log::LOSS;
use crate::moment::Moment;
use crate::moments::tree;
use crate::phase::Phase;
use crate::run::{Ending, Run};

/// Runs the operation `pred`. Returns the sequence number of the prediction, for the token to hold.
pub(super) fn pred<T: Task>(run: &mut Run) -> Result<u64> {
    let mode = if run.phase() == Phase::Train { Mode::Train } else { Mode::Eval };
    pred_with(run, |task: &mut T, batch| task.pred(batch, mode))
}

/// Runs the operation `pred` with the given forward pass.
pub(super) fn pred_with<T: Task>(
    run: &mut Run,
    compute: impl FnOnce(&mut T, &T::Batch) -> Result<T::Pred>,
) -> Result<u64> {
    run.fire::<at::before_pred>()?;
    run.produce::<at::pred>(PREDICTION, |run| compute_pred(run, compute))?;
    run.step_mut().preds += 1;
    run.fire::<at::after_pred>()?;
    Ok(run.step().preds)
}

/// Runs the operation `loss` with the given loss function, or sets the loss to 0 for a batch of
/// weight 0. Returns the sequence number of the loss, for the token to hold.
pub(super) fn loss_with<T: Task>(
    run: &mut Run,
    pred: u64,
    compute: impl FnOnce(&mut T, &T::Pred, &T::Batch) -> Result<Tensor>,
) -> Result<u64> {
    check_not_stale(pred, run.step().preds, "prediction")?;
    if is_weightless::<T>(run)? {
        return Ok(no_loss(run));
    }
    produce_loss(run, |task: &mut T, pred, batch| compute(task, pred, batch).map(Some))
}

/// Runs the operation `loss` outside of training, where the task may return no loss.
pub(super) fn eval_loss<T: Task>(run: &mut Run) -> Result<()> {
    if is_weightless::<T>(run)? {
        return Ok(());
    }
    produce_loss(run, |task: &mut T, pred, batch| task.eval_loss(pred, batch)).map(drop)
}

/// Runs the operation `loss`, and checks and logs the loss. Without a loss, the operation has ended.
fn produce_loss<T: Task>(
    run: &mut Run,
    compute: impl FnOnce(&mut T, &T::Pred, &T::Batch) -> Result<Option<Tensor>>,
) -> Result<u64> {
    run.fire::<at::before_loss>()?;
    run.produce::<at::loss>(LOSS_OUTPUT, |run| compute_loss(run, compute))?;
    if run.step().loss.is_none() { Ok(run.step().losses) } else { after_loss::<T>(run) }
}

/// Returns an error unless the loss is a scalar whose value can be read.
fn check_loss(loss: &Tensor) -> Result<()> {
    libtorch::check_readable(loss, "the loss")?;
    if loss.numel() == 1 {
        return Ok(());
    }
    Err(Error::usage(format!(
        "the loss must be a scalar, but has shape {:?}: reduce it, for example with `.mean(Kind::Float)`",
        loss.size()
    )))
}

/// Checks and logs the loss, and fires `after_loss`. The name of the metric is `loss`, or
/// `<operation>/loss` within an operation of a custom lifecycle.
fn after_loss<T: Task>(run: &mut Run) -> Result<u64> {
    weigh_again::<T>(run)?;
    if run.step().weight == 0.0 {
        return Ok(no_loss(run));
    }
    let loss = run.step().loss.as_ref().expect("computed, or set by a hook");
    let name = run.scopes().last().map_or(LOSS, |&operation| tree::moments()[operation].loss);
    if let Err(error) = check_loss(loss) {
        // `loss` has ended, but the error concerns its output.
        run.place_mut().operation = at::loss::INFO;
        return Err(run.locate(error));
    }
    let loss = loss.into();
    run.log_loss(name, loss).map_err(|error| run.locate(error))?;
    run.step_mut().loss_scale = 1.0;
    run.step_mut().losses += 1;
    run.fire::<at::after_loss>()?;
    if run.phase() == Phase::Train {
        run.rehearse_loss(name)?;
    }
    Ok(run.step().losses)
}

/// Returns an error unless a token belongs to the newest prediction or loss, because older ones are
/// not stored.
fn check_not_stale(nth: u64, newest: u64, what: &str) -> Result<()> {
    if nth == newest {
        Ok(())
    } else {
        Err(Error::usage(format!(
            "stale {what}: it was replaced by a newer one; use each {what} before creating the next"
        )))
    }
}

/// Runs the operation `backward`, for the whole model or for a part of it. Returns the index of the
/// optimizer that uses the gradients.
///
/// If the operation fails, the gradients of that part are dropped, because they are incomplete,
/// even if a hook handles the error.
pub(super) fn backward(run: &mut Run, loss: u64, part: Option<&str>) -> Result<usize> {
    check_not_stale(loss, run.step().losses, "loss")?;
    let part = run.optimizers_mut().select(part)?;
    if run.step().total.weight == 0.0 {
        return Ok(part); // its gradients are 0
    }
    run.optimizers_mut().reset_if_dropped();
    run.fire::<at::before_backward>()?;
    let done = match run.inside::<at::backward>(compute_gradients) {
        Ok(done) => done,
        Err(error) => {
            let _ = run.optimizers_mut().drop_grads();
            return Err(error);
        }
    };
    match done {
        Ending::Ran => {}
        Ending::Replaced => {
            if !run.optimizers().has_grads() {
                let text = "the hook replaced `backward` without computing a gradient: in the replacement, call \
                            `cx.backward(&cx.scaled_loss())`, or skip the operation";
                return Err(run.blame_responsible(at::backward::INFO, text.into()));
            }
        }
        Ending::Open | Ending::Skipped => {
            if run.optimizers().has_uncounted_grads()? {
                run.optimizers_mut().drop_grads()?;
                let text = "the hook computed gradients without running `backward`, so they would not count: call \
                            `next.replace(cx, |cx| …)` to replace the operation, or `cx.backward(&loss)`";
                return Err(run.blame_responsible(at::backward::INFO, text.into()));
            }
        }
        Ending::Failed => run.optimizers_mut().drop_grads()?,
    }
    if done.took_place() {
        let weight = run.gradient_weight();
        run.optimizers_mut().accumulate(weight)?;
        run.fire::<at::after_backward>()?;
    }
    Ok(part)
}

/// Computes the gradients, as the operation `backward` does unless a hook replaces it.
fn compute_gradients(run: &mut Run) -> Result<()> {
    run.note_own_gradients();
    run.optimizers_mut().reset_if_dropped(); // by hooks since the loss
    run.forget_module_gradients();
    let factor = run.loss_factor();
    let loss = run.step().loss.as_ref().expect("the token of `loss` is from this step");
    if !loss.requires_grad() {
        return Err(Error::usage(
            "the loss does not require gradients: check that some parameters are trained, and that the loss is not detached",
        ));
    }
    if factor == 1.0 {
        run.optimizers().backward(loss)?;
    } else {
        run.optimizers().backward(&(loss * factor))?;
    }
    if run.counters().batches_seen == 0 && !run.vars().parameters().any(|var| var.tensor.grad().defined()) {
        return Err(Error::usage(
            "no parameter of the task's `VarStore` has a gradient: check that the network was built on this `VarStore`",
        ));
    }
    run.fire_module_gradients()
}

/// Runs the operation `opt_step` of the optimizer that the gradients were computed for, and then
/// `zero_grad` if the optimizer step took place. Does nothing before the end of an accumulation
/// window, or if the window has no gradient.
pub(super) fn opt_step(run: &mut Run, part: usize) -> Result<()> {
    if !run.fit().window.ends_here() {
        return Ok(());
    }
    run.optimizers_mut().select_index(part);
    run.optimizers_mut().reset_if_dropped();
    if !run.optimizers().has_accumulated() {
        return Ok(());
    }
    run.optimizers_mut().make_mean()?;
    let steps = run.optimizers().current_steps();
    let in_batch = run.optimizers().steps_in_batch();
    run.step_mut().step_number = run.counters().optimizer_steps - run.step().steps + in_batch + 1;
    if in_batch >= run.fit().plan.steps_per_batch {
        run.fit_mut().plan.planned_steps = run.fit().plan.max_steps; // the epochs have more steps than planned
    }
    run.fire::<at::before_opt_step>()?;
    let done = run.inside::<at::opt_step>(|run| {
        if run.optimizers_mut().step()? {
            count_step(run);
        }
        Ok(())
    })?;
    if done == Ending::Replaced {
        run.optimizers_mut().count_step();
        count_step(run);
    }
    // The built-in step does not take place if a hook dropped the gradients before it.
    if !done.took_place() || run.optimizers().current_steps() == steps {
        return Ok(());
    }
    run.fire::<at::after_opt_step>()?;
    run.fire::<at::before_zero_grad>()?;
    let done = run.inside::<at::zero_grad>(|run| run.optimizers_mut().drop_grads())?;
    if done == Ending::Replaced {
        run.optimizers_mut().reset_accumulated();
    }
    if done.took_place() { run.fire::<at::after_zero_grad>() } else { Ok(()) }
}

/// Increments `optimizer_steps`, unless another optimizer has already taken as many steps in this
/// batch as the current one.
fn count_step(run: &mut Run) {
    let in_batch = run.optimizers().steps_in_batch();
    if in_batch > run.step().steps {
        run.step_mut().steps = in_batch;
        run.progress_mut().counters.optimizer_steps += 1;
    }
}
