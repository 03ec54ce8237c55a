//! One batch: the operations of a step.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tch::{Kind, Tensor, nn};

use crate::data::Batch;
use crate::error::{Error, Result};
use crate::lifecycle::at;
use crate::metrics::{LOSS, Reduce};
use crate::moment::Moment;
use crate::next::Done;
use crate::phase::Phase;
use crate::run::{Instance, Made, Run, TASK};
use crate::task::{Mode, Task, TrainStep};
use crate::tree;

/// One batch, from the loader to the end of its use. What it made is dropped at the end.
pub(super) fn step<T: Task>(run: &mut Run, batch: T::Batch) -> Result<()> {
    begin::<T>(run, batch);
    run.window.closes = false;
    let outer = std::mem::replace(&mut run.operation, at::step::INFO);
    if let Err(error) = weigh::<T>(run) {
        run.clear_step();
        return Err(error);
    }
    run.operation = outer;
    run.batch_number = if run.phase == Phase::Train {
        run.train_batches += 1;
        run.train_batches
    } else {
        run.counters.batch_idx + 1
    };
    run.failed_mid_step = true;
    let result = whole::<T>(run);
    run.failed_mid_step = result.is_err();
    run.clear_step();
    result
}

/// What every kind of step begins with.
fn begin<T: Task>(run: &mut Run, batch: T::Batch) {
    let samples = batch.samples().unwrap_or(1);
    run.batch_len = Some(samples);
    run.weight = samples as f64;
    *typed(&mut run.batch) = Some(batch);
    run.is_batch_changed = false;
    run.requests.skip_step = false;
}

/// Asks the task for the weight of the batch.
fn weigh<T: Task>(run: &mut Run) -> Result<()> {
    run.is_batch_changed = false;
    let Some(batch) = typed::<T::Batch>(&mut run.batch) else { return Ok(()) };
    run.batch_len = Some(batch.samples().unwrap_or(1));
    let weight = task_in::<T>(&mut run.instances)?.weight(batch);
    if !(weight.is_finite() && weight >= 0.0) {
        return Err(run.locate(Error::usage(format!(
            "`Task::weight` returned {weight}: expected the number of elements that the loss is the mean over, \
             finite and not negative"
        ))));
    }
    run.weight = weight;
    Ok(())
}

/// Weighs the batch again if a hook may have changed it.
fn weigh_again<T: Task>(run: &mut Run) -> Result<()> {
    if run.is_batch_changed && run.phase != Phase::Predict { weigh::<T>(run) } else { Ok(()) }
}

/// One batch of prediction. What the forward pass gave goes to `sink` in the end.
pub(super) fn predict_step<T: Task>(
    run: &mut Run,
    batch: T::Batch,
    sink: &mut dyn FnMut(T::Pred) -> Result<()>,
) -> Result<()> {
    begin::<T>(run, batch);
    run.batch_number = run.counters.batch_idx + 1;
    let result = whole_prediction::<T>(run, sink);
    run.clear_step();
    result
}

fn whole_prediction<T: Task>(run: &mut Run, sink: &mut dyn FnMut(T::Pred) -> Result<()>) -> Result<()> {
    run.fire::<at::before_predict_step>()?;
    run.made = false;
    let done = run.inside::<at::predict_step>(|run| {
        transfer::<T>(run)?;
        pred::<T>(run)?;
        run.counters.batch_idx += 1;
        Ok(())
    })?;
    if done != Done::Ran {
        run.counters.batch_idx += 1; // a batch that was left out counts in the pass as well
    }
    if !done.took_place() {
        return Ok(());
    }
    run.is_made::<at::predict_step>(done, PREDICTION)?;
    run.fire::<at::after_predict_step>()?;
    match typed::<T::Pred>(&mut run.pred).take() {
        Some(pred) => sink(pred).map_err(|error| run.locate(error)),
        None => Ok(()),
    }
}

fn whole<T: Task>(run: &mut Run) -> Result<()> {
    run.fire::<at::before_step>()?;
    let took_place = !std::mem::take(&mut run.requests.skip_step)
        && run
            .inside::<at::step>(|run| {
                transfer::<T>(run)?;
                if run.phase == Phase::Train {
                    run.fill_window();
                    let result = T::train_step(TrainStep::of(run)).map(drop);
                    match result {
                        Ok(()) => run.leave_window(),
                        // Half a step's gradients must not count in the next, if a hook deals with the error.
                        Err(_) => drop(run.drop_window()),
                    }
                    result
                } else {
                    pred::<T>(run)?;
                    eval_loss::<T>(run)
                }
            })?
            .took_place();
    // A batch that was left out has its place in the pass all the same.
    run.counters.batch_idx += 1;
    if !took_place {
        return Ok(());
    }
    if run.phase == Phase::Train {
        run.counters.batches_seen += 1;
        run.counters.samples_seen += run.batch_len.unwrap_or(1);
    }
    run.fire::<at::after_step>()
}

impl Run {
    /// What the backward pass multiplies the loss by.
    pub(crate) fn loss_factor(&self) -> f64 {
        self.loss_scale * self.optimizers.weight_factor(self.weight)
    }

    /// Drops what belongs to one batch alone.
    pub(crate) fn clear_step(&mut self) {
        (self.empty_slots)(self);
        self.loss = None;
        self.batch_len = None;
    }

    pub(crate) fn describe_batch(&self) -> String {
        if self.batch_len.is_none() {
            return String::new();
        }
        // The batch's own code, on a way out that no panic may leave.
        let text = catch_unwind(AssertUnwindSafe(|| (self.batch_text)(&self.batch)));
        text.unwrap_or_else(|_| " on a batch that cannot be described".to_owned())
    }
}

/// See [`Run::empty_slots`].
pub(crate) fn empty_slots<T: Task>(run: &mut Run) {
    *typed::<T::Batch>(&mut run.batch) = None;
    *typed::<T::Pred>(&mut run.pred) = None;
}

/// The operation `transfer`.
fn transfer<T: Task>(run: &mut Run) -> Result<()> {
    run.fire::<at::before_transfer>()?;
    run.make::<at::transfer>(("batch", "set_batch"), |run| {
        let device = run.device;
        if let Some(batch) = typed::<T::Batch>(&mut run.batch) {
            batch.move_to(device);
        }
        Ok(())
    })?;
    run.fire::<at::after_transfer>()?;
    // Hooks may have put another in its place.
    if run.phase == Phase::Predict {
        let samples = typed::<T::Batch>(&mut run.batch).as_ref().and_then(Batch::samples).unwrap_or(1);
        (run.batch_len, run.weight) = (Some(samples), samples as f64);
    }
    weigh_again::<T>(run)
}

const PREDICTION: Made = ("prediction", "set_pred");

/// The operation `pred`. Gives the number of what it made, as those that follow do.
pub(crate) fn pred<T: Task>(run: &mut Run) -> Result<u64> {
    run.fire::<at::before_pred>()?;
    run.make::<at::pred>(PREDICTION, |run| {
        let mode = if run.phase == Phase::Train { Mode::Train } else { Mode::Eval };
        compute_pred(run, |task: &mut T, batch| task.pred(batch, mode))
    })?;
    after_pred(run)
}

/// The operation `pred`, computed in this way.
pub(crate) fn pred_with<T: Task>(
    run: &mut Run,
    compute: impl FnOnce(&mut T, &T::Batch) -> Result<T::Pred>,
) -> Result<u64> {
    run.fire::<at::before_pred>()?;
    run.make_with::<at::pred>(PREDICTION, |run| compute_pred(run, compute))?;
    after_pred(run)
}

fn after_pred(run: &mut Run) -> Result<u64> {
    run.preds += 1;
    run.fire::<at::after_pred>()?;
    Ok(run.preds)
}

fn compute_pred<T: Task>(
    run: &mut Run,
    compute: impl FnOnce(&mut T, &T::Batch) -> Result<T::Pred>,
) -> Result<()> {
    let batch = typed::<T::Batch>(&mut run.batch).as_ref().ok_or_else(|| missing("batch"))?;
    *typed(&mut run.pred) = Some(compute(task_in::<T>(&mut run.instances)?, batch)?);
    Ok(())
}

const LOSS_MADE: Made = ("loss", "set_loss");

/// The operation `loss`.
pub(crate) fn loss<T: Task>(run: &mut Run, pred: u64) -> Result<u64> {
    newest(pred, run.preds, "prediction")?;
    if is_weightless::<T>(run)? {
        return Ok(no_loss(run));
    }
    run.fire::<at::before_loss>()?;
    run.make::<at::loss>(LOSS_MADE, |run| {
        compute_loss(run, |task: &mut T, pred, batch| task.loss(pred, batch).map(Some))
    })?;
    after_loss::<T>(run)
}

/// The operation `loss` outside of training, where the task may decline.
fn eval_loss<T: Task>(run: &mut Run) -> Result<()> {
    if is_weightless::<T>(run)? {
        return Ok(());
    }
    run.fire::<at::before_loss>()?;
    run.make::<at::loss>(LOSS_MADE, |run| {
        compute_loss(run, |task: &mut T, pred, batch| task.eval_loss(pred, batch))
    })?;
    if run.loss.is_none() {
        return Ok(());
    }
    after_loss::<T>(run).map(drop)
}

/// The operation `loss`, computed in this way.
pub(crate) fn loss_with<T: Task>(
    run: &mut Run,
    pred: u64,
    compute: impl FnOnce(&mut T, &T::Pred, &T::Batch) -> Result<Tensor>,
) -> Result<u64> {
    newest(pred, run.preds, "prediction")?;
    if is_weightless::<T>(run)? {
        return Ok(no_loss(run));
    }
    run.fire::<at::before_loss>()?;
    run.make_with::<at::loss>(LOSS_MADE, |run| {
        compute_loss(run, |task, pred, batch| compute(task, pred, batch).map(Some))
    })?;
    after_loss::<T>(run)
}

/// Whether the batch has a weight of 0, so that there is nothing to compute a loss of.
#[inline]
fn is_weightless<T: Task>(run: &mut Run) -> Result<bool> {
    if run.weight == 0.0 {
        weigh_again::<T>(run)?;
    }
    Ok(run.weight == 0.0)
}

/// A batch of weight 0 has no loss. If it ends an accumulation window, hooks at the optimizer step read a 0.
#[cold]
fn no_loss(run: &mut Run) -> u64 {
    run.loss = Some(Tensor::zeros([0; 0], (Kind::Float, run.device)));
    run.loss_scale = 1.0;
    run.losses += 1;
    run.losses
}

fn compute_loss<T: Task>(
    run: &mut Run,
    compute: impl FnOnce(&mut T, &T::Pred, &T::Batch) -> Result<Option<Tensor>>,
) -> Result<()> {
    let pred = typed::<T::Pred>(&mut run.pred).as_ref().ok_or_else(|| missing("prediction"))?;
    let batch = typed::<T::Batch>(&mut run.batch).as_ref().ok_or_else(|| missing("batch"))?;
    run.loss = compute(task_in::<T>(&mut run.instances)?, pred, batch)?;
    Ok(())
}

/// Its mean over the epoch is the metric `loss`; within an operation of another lifecycle, which may have a loss of its
/// own, `<operation>/loss`.
fn after_loss<T: Task>(run: &mut Run) -> Result<u64> {
    weigh_again::<T>(run)?;
    if run.weight == 0.0 {
        return Ok(no_loss(run));
    }
    let loss = run.loss.as_ref().expect("made, or set by a hook");
    let weight = run.weight;
    let name = run.custom_scopes.last().map_or(LOSS, |&operation| tree::moments()[operation].loss);
    if loss.numel() != 1 {
        let text = format!(
            "the loss has the shape {:?}, and is to be one number: reduce it, `.mean(Kind::Float)`",
            loss.size()
        );
        run.operation = at::loss::INFO; // it is over, and yet the one to blame
        return Err(run.locate(Error::usage(text)));
    }
    run.log.add(run.phase, Reduce::Mean, name, loss.into(), weight).map_err(|error| run.locate(error))?;
    run.loss_scale = 1.0;
    run.losses += 1;
    run.fire::<at::after_loss>()?;
    Ok(run.losses)
}

/// What an operation takes is what was made last: there is one prediction, and one loss, at a time.
fn newest(nth: u64, newest: u64, what: &str) -> Result<()> {
    if nth == newest {
        Ok(())
    } else {
        Err(Error::usage(format!(
            "a newer {what} has taken the place of this one: use each before the next is made"
        )))
    }
}

/// The operation `backward`, for the whole model or for a part of it. Returns the index of the optimizer that the
/// gradients are for.
///
/// After an error that part has no gradients: what a pass that broke off left is not the gradient of anything.
pub(crate) fn backward(run: &mut Run, loss: u64, part: Option<&str>) -> Result<usize> {
    newest(loss, run.losses, "loss")?;
    let part = run.optimizers.select(part)?;
    if run.weight == 0.0 {
        return Ok(part); // there is nothing to learn from it
    }
    run.optimizers.reset_if_dropped();
    run.fire::<at::before_backward>()?;
    let done = match run.inside::<at::backward>(compute_gradients) {
        Ok(done) => done,
        Err(error) => {
            let _ = run.optimizers.drop_grads();
            return Err(error);
        }
    };
    match done {
        Done::Ran => {}
        Done::Replaced => {
            if !run.optimizers.has_grads() {
                let text = "the hook replaced `backward` without computing a gradient: in the replacement, call \
                            `cx.backward(&cx.scaled_loss())`, or skip the operation";
                return Err(run.blame_responsible(at::backward::INFO, text.into()));
            }
        }
        Done::Skipped => {
            if run.optimizers.has_uncounted_grads()? {
                run.optimizers.drop_grads()?;
                let text = "the hook computed gradients without running `backward`, so that they would not count: call \
                            `next.replace(cx, |cx| …)` to replace the operation, or `cx.backward(&loss)`";
                return Err(run.blame_responsible(at::backward::INFO, text.into()));
            }
        }
        Done::Failed => run.optimizers.drop_grads()?,
    }
    if done.took_place() {
        run.optimizers.gather(run.weight)?;
        run.fire::<at::after_backward>()?;
    }
    Ok(part)
}

/// The built-in backward pass.
fn compute_gradients(run: &mut Run) -> Result<()> {
    let loss = run.loss.as_ref().expect("`LossDone` was made by `loss`, in this step");
    if !loss.requires_grad() {
        return Err(Error::usage(
            "the loss carries no gradient: is every parameter frozen, or the loss detached?",
        ));
    }
    run.optimizers.reset_if_dropped(); // by hooks on the way here
    let factor = run.loss_factor();
    if factor == 1.0 {
        run.optimizers.backward(loss)?;
    } else {
        run.optimizers.backward(&(loss * factor))?;
    }
    if run.counters.batches_seen == 0 && !run.vars.parameters().any(|var| var.tensor.grad().defined()) {
        return Err(Error::usage(
            "no parameter of the task's `VarStore` took part in the loss: was the network built on another one?",
        ));
    }
    Ok(())
}

/// The operation `opt_step`, and `zero_grad` if it took place: of the optimizer that the gradients were computed for, at
/// the end of an accumulation window in which there were any.
pub(crate) fn opt_step(run: &mut Run, part: usize) -> Result<()> {
    if !run.window.closes {
        return Ok(());
    }
    run.optimizers.select_index(part);
    run.optimizers.reset_if_dropped();
    if !run.optimizers.has_gathered() {
        return Ok(());
    }
    run.optimizers.make_mean()?;
    let steps = run.optimizers.current_steps();
    run.step_number = steps + 1;
    run.fire::<at::before_opt_step>()?;
    let done = run.inside::<at::opt_step>(|run| {
        if run.optimizers.step()? {
            run.counters.optimizer_steps += 1;
        }
        Ok(())
    })?;
    if done == Done::Replaced {
        run.optimizers.count_step();
        run.counters.optimizer_steps += 1;
    }
    // The built-in step does not take place if a hook dropped the gradients before it.
    if !done.took_place() || run.optimizers.current_steps() == steps {
        return Ok(());
    }
    run.fire::<at::after_opt_step>()?;
    run.fire::<at::before_zero_grad>()?;
    let done = run.inside::<at::zero_grad>(|run| run.optimizers.drop_grads())?;
    if done == Done::Replaced {
        run.optimizers.reset_gathered();
    }
    if done.took_place() { run.fire::<at::after_zero_grad>() } else { Ok(()) }
}

#[cold]
fn missing(what: &str) -> Error {
    Error::usage(format!("there is no {what}"))
}

/// The task of a run, to be changed.
pub(crate) fn task_mut<T: Task>(run: &mut Run) -> &mut T {
    task_in(&mut run.instances).expect("no hook of its own is running")
}

/// The task of a run.
pub(crate) fn task<T: Task>(run: &Run) -> &T {
    let task = run.instances[TASK].value.as_ref().and_then(|value| value.downcast_ref());
    task.expect("the builder put the task there")
}

/// See [`Run::store`](crate::run::Run::store).
pub(crate) fn store<T: Task>(run: &Run) -> Option<&nn::VarStore> {
    run.instances[TASK].value.as_ref()?.downcast_ref::<T>().map(Task::vars)
}

fn task_in<T: Task>(instances: &mut [Instance]) -> Result<&mut T> {
    let task = instances[TASK].value.as_mut().and_then(|value| value.downcast_mut());
    task.ok_or_else(|| Error::usage("a hook of the task's own is running, so that the task cannot compute"))
}

/// What lies in a slot, as the task's own type.
fn typed<V: 'static>(slot: &mut Box<dyn Any + Send>) -> &mut Option<V> {
    slot.downcast_mut().expect("the builder made it of the task's own types")
}
