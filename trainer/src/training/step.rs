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
use crate::run::{Instance, OperationOutput, Run, TASK};
use crate::task::{Mode, Task, TrainStep};
use crate::tree;

/// One batch, from the loader to the end of its use. What it made is dropped at the end.
pub(super) fn step<T: Task>(run: &mut Run, batch: T::Batch) -> Result<()> {
    begin::<T>(run, batch);
    run.fit.window.closes = false;
    let outer = std::mem::replace(&mut run.dispatch.operation, at::step::INFO);
    if let Err(error) = weigh::<T>(run) {
        run.clear_step();
        return Err(error);
    }
    run.dispatch.operation = outer;
    run.progress.batch_number = if run.progress.phase == Phase::Train {
        run.progress.train_batches += 1;
        run.progress.train_batches
    } else {
        run.progress.counters.batch_idx + 1
    };
    run.fit.failed_mid_step = true;
    let result = whole::<T>(run);
    run.fit.failed_mid_step = result.is_err();
    run.clear_step();
    result
}

/// What every kind of step begins with.
fn begin<T: Task>(run: &mut Run, batch: T::Batch) {
    let samples = batch.samples().unwrap_or(1);
    run.step.batch_len = Some(samples);
    run.step.weight = samples as f64;
    *typed(&mut run.step.batch) = Some(batch);
    run.step.is_batch_changed = false;
    run.requests.skip_step = false;
}

/// Asks the task for the weight of the batch.
fn weigh<T: Task>(run: &mut Run) -> Result<()> {
    run.step.is_batch_changed = false;
    let Some(batch) = typed::<T::Batch>(&mut run.step.batch) else { return Ok(()) };
    run.step.batch_len = Some(batch.samples().unwrap_or(1));
    let weight = task_in::<T>(&mut run.hooks.instances)?.weight(batch);
    if !(weight.is_finite() && weight >= 0.0) {
        return Err(run.locate(Error::usage(format!(
            "`Task::weight` returned {weight}: expected the number of elements that the loss is the mean over, \
             finite and not negative"
        ))));
    }
    run.step.weight = weight;
    Ok(())
}

/// Weighs the batch again if a hook may have changed it.
fn weigh_again<T: Task>(run: &mut Run) -> Result<()> {
    if run.step.is_batch_changed && run.progress.phase != Phase::Predict { weigh::<T>(run) } else { Ok(()) }
}

/// One batch of prediction. What the forward pass gave goes to `sink` in the end.
pub(super) fn predict_step<T: Task>(
    run: &mut Run,
    batch: T::Batch,
    sink: &mut dyn FnMut(T::Pred) -> Result<()>,
) -> Result<()> {
    begin::<T>(run, batch);
    run.progress.batch_number = run.progress.counters.batch_idx + 1;
    let result = whole_prediction::<T>(run, sink);
    run.clear_step();
    result
}

fn whole_prediction<T: Task>(run: &mut Run, sink: &mut dyn FnMut(T::Pred) -> Result<()>) -> Result<()> {
    run.fire::<at::before_predict_step>()?;
    run.dispatch.output_overridden = false;
    let done = run.inside::<at::predict_step>(|run| {
        transfer::<T>(run)?;
        pred::<T>(run)?;
        run.progress.counters.batch_idx += 1;
        Ok(())
    })?;
    if done != Done::Ran {
        run.progress.counters.batch_idx += 1; // a batch that was left out counts in the pass as well
    }
    if !done.took_place() {
        return Ok(());
    }
    run.check_output::<at::predict_step>(done, PREDICTION)?;
    run.fire::<at::after_predict_step>()?;
    match typed::<T::Pred>(&mut run.step.pred).take() {
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
                if run.progress.phase == Phase::Train {
                    run.fill_window();
                    let result = T::train_step(TrainStep::from_run(run)).map(drop);
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
    run.progress.counters.batch_idx += 1;
    if !took_place {
        return Ok(());
    }
    if run.progress.phase == Phase::Train {
        run.progress.counters.batches_seen += 1;
        run.progress.counters.samples_seen += run.step.batch_len.unwrap_or(1);
    }
    run.fire::<at::after_step>()
}

impl Run {
    /// What the backward pass multiplies the loss by.
    pub(crate) fn loss_factor(&self) -> f64 {
        self.step.loss_scale * self.model.optimizers.weight_factor(self.step.weight)
    }

    /// Drops what belongs to one batch alone.
    pub(crate) fn clear_step(&mut self) {
        (self.step.empty_slots)(self);
        self.step.loss = None;
        self.step.batch_len = None;
    }

    pub(crate) fn describe_batch(&self) -> String {
        if self.step.batch_len.is_none() {
            return String::new();
        }
        // The batch's own code, on a way out that no panic may leave.
        let text = catch_unwind(AssertUnwindSafe(|| (self.step.batch_text)(&self.step.batch)));
        text.unwrap_or_else(|_| " on a batch that cannot be described".to_owned())
    }
}

/// See [`Run::empty_slots`].
pub(crate) fn empty_slots<T: Task>(run: &mut Run) {
    *typed::<T::Batch>(&mut run.step.batch) = None;
    *typed::<T::Pred>(&mut run.step.pred) = None;
}

/// The operation `transfer`.
fn transfer<T: Task>(run: &mut Run) -> Result<()> {
    run.fire::<at::before_transfer>()?;
    run.produce::<at::transfer>(BATCH, |run| {
        let device = run.model.device;
        if let Some(batch) = typed::<T::Batch>(&mut run.step.batch) {
            batch.move_to(device);
        }
        Ok(())
    })?;
    run.fire::<at::after_transfer>()?;
    // Hooks may have put another in its place.
    if run.progress.phase == Phase::Predict {
        let samples = typed::<T::Batch>(&mut run.step.batch).as_ref().and_then(Batch::samples).unwrap_or(1);
        (run.step.batch_len, run.step.weight) = (Some(samples), samples as f64);
    }
    weigh_again::<T>(run)
}

const BATCH: OperationOutput = OperationOutput { name: "batch", setter: "set_batch" };
const PREDICTION: OperationOutput = OperationOutput { name: "prediction", setter: "set_pred" };

/// The operation `pred`. Gives the number of what it made, as those that follow do.
pub(crate) fn pred<T: Task>(run: &mut Run) -> Result<u64> {
    run.fire::<at::before_pred>()?;
    run.produce::<at::pred>(PREDICTION, |run| {
        let mode = if run.progress.phase == Phase::Train { Mode::Train } else { Mode::Eval };
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
    run.produce_with::<at::pred>(PREDICTION, |run| compute_pred(run, compute))?;
    after_pred(run)
}

fn after_pred(run: &mut Run) -> Result<u64> {
    run.step.preds += 1;
    run.fire::<at::after_pred>()?;
    Ok(run.step.preds)
}

fn compute_pred<T: Task>(
    run: &mut Run,
    compute: impl FnOnce(&mut T, &T::Batch) -> Result<T::Pred>,
) -> Result<()> {
    let batch = typed::<T::Batch>(&mut run.step.batch).as_ref().ok_or_else(|| missing("batch"))?;
    *typed(&mut run.step.pred) = Some(compute(task_in::<T>(&mut run.hooks.instances)?, batch)?);
    Ok(())
}

const LOSS_OUTPUT: OperationOutput = OperationOutput { name: "loss", setter: "set_loss" };

/// The operation `loss`.
pub(crate) fn loss<T: Task>(run: &mut Run, pred: u64) -> Result<u64> {
    newest(pred, run.step.preds, "prediction")?;
    if is_weightless::<T>(run)? {
        return Ok(no_loss(run));
    }
    run.fire::<at::before_loss>()?;
    run.produce::<at::loss>(LOSS_OUTPUT, |run| {
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
    run.produce::<at::loss>(LOSS_OUTPUT, |run| {
        compute_loss(run, |task: &mut T, pred, batch| task.eval_loss(pred, batch))
    })?;
    if run.step.loss.is_none() {
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
    newest(pred, run.step.preds, "prediction")?;
    if is_weightless::<T>(run)? {
        return Ok(no_loss(run));
    }
    run.fire::<at::before_loss>()?;
    run.produce_with::<at::loss>(LOSS_OUTPUT, |run| {
        compute_loss(run, |task, pred, batch| compute(task, pred, batch).map(Some))
    })?;
    after_loss::<T>(run)
}

/// Whether the batch has a weight of 0, so that there is nothing to compute a loss of.
#[inline]
fn is_weightless<T: Task>(run: &mut Run) -> Result<bool> {
    if run.step.weight == 0.0 {
        weigh_again::<T>(run)?;
    }
    Ok(run.step.weight == 0.0)
}

/// A batch of weight 0 has no loss. If it ends an accumulation window, hooks at the optimizer step read a 0.
#[cold]
fn no_loss(run: &mut Run) -> u64 {
    run.step.loss = Some(Tensor::zeros([0; 0], (Kind::Float, run.model.device)));
    run.step.loss_scale = 1.0;
    run.step.losses += 1;
    run.step.losses
}

fn compute_loss<T: Task>(
    run: &mut Run,
    compute: impl FnOnce(&mut T, &T::Pred, &T::Batch) -> Result<Option<Tensor>>,
) -> Result<()> {
    let pred = typed::<T::Pred>(&mut run.step.pred).as_ref().ok_or_else(|| missing("prediction"))?;
    let batch = typed::<T::Batch>(&mut run.step.batch).as_ref().ok_or_else(|| missing("batch"))?;
    run.step.loss = compute(task_in::<T>(&mut run.hooks.instances)?, pred, batch)?;
    Ok(())
}

/// Its mean over the epoch is the metric `loss`; within an operation of another lifecycle, which may have a loss of its
/// own, `<operation>/loss`.
fn after_loss<T: Task>(run: &mut Run) -> Result<u64> {
    weigh_again::<T>(run)?;
    if run.step.weight == 0.0 {
        return Ok(no_loss(run));
    }
    let loss = run.step.loss.as_ref().expect("made, or set by a hook");
    let weight = run.step.weight;
    let name = run.dispatch.custom_scopes.last().map_or(LOSS, |&operation| tree::moments()[operation].loss);
    if loss.numel() != 1 {
        let text = format!(
            "the loss has the shape {:?}, and is to be one number: reduce it, `.mean(Kind::Float)`",
            loss.size()
        );
        run.dispatch.operation = at::loss::INFO; // it is over, and yet the one to blame
        return Err(run.locate(Error::usage(text)));
    }
    run.log
        .add(run.progress.phase, Reduce::Mean, name, loss.into(), weight)
        .map_err(|error| run.locate(error))?;
    run.step.loss_scale = 1.0;
    run.step.losses += 1;
    run.fire::<at::after_loss>()?;
    Ok(run.step.losses)
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
    newest(loss, run.step.losses, "loss")?;
    let part = run.model.optimizers.choose(part)?;
    if run.step.weight == 0.0 {
        return Ok(part); // there is nothing to learn from it
    }
    run.model.optimizers.forget_dropped();
    run.fire::<at::before_backward>()?;
    let done = match run.inside::<at::backward>(compute_gradients) {
        Ok(done) => done,
        Err(error) => {
            let _ = run.model.optimizers.drop_grads();
            return Err(error);
        }
    };
    match done {
        Done::Ran => {}
        Done::Replaced => {
            if !run.model.optimizers.has_grads() {
                let text = "the hook replaced `backward` without computing a gradient: in the replacement, call \
                            `cx.backward(&cx.scaled_loss())`, or skip the operation";
                return Err(run.blame_responsible(at::backward::INFO, text.into()));
            }
        }
        Done::Skipped => {
            if run.model.optimizers.has_uncounted_grads()? {
                run.model.optimizers.drop_grads()?;
                let text = "the hook computed gradients without running `backward`, so that they would not count: call \
                            `next.replace(cx, |cx| …)` to replace the operation, or `cx.backward(&loss)`";
                return Err(run.blame_responsible(at::backward::INFO, text.into()));
            }
        }
        Done::Failed => run.model.optimizers.drop_grads()?,
    }
    if done.took_place() {
        run.model.optimizers.gather(run.step.weight)?;
        run.fire::<at::after_backward>()?;
    }
    Ok(part)
}

/// The built-in backward pass.
fn compute_gradients(run: &mut Run) -> Result<()> {
    let loss = run.step.loss.as_ref().expect("`LossDone` was made by `loss`, in this step");
    if !loss.requires_grad() {
        return Err(Error::usage(
            "the loss carries no gradient: is every parameter frozen, or the loss detached?",
        ));
    }
    run.model.optimizers.forget_dropped(); // by hooks on the way here
    let factor = run.loss_factor();
    if factor == 1.0 {
        run.model.optimizers.backward(loss)?;
    } else {
        run.model.optimizers.backward(&(loss * factor))?;
    }
    if run.progress.counters.batches_seen == 0
        && !run.model.vars.parameters().any(|var| var.tensor.grad().defined())
    {
        return Err(Error::usage(
            "no parameter of the task's `VarStore` took part in the loss: was the network built on another one?",
        ));
    }
    Ok(())
}

/// The operation `opt_step`, and `zero_grad` if it took place: of the optimizer that the gradients were computed for, at
/// the end of an accumulation window in which there were any.
pub(crate) fn opt_step(run: &mut Run, part: usize) -> Result<()> {
    if !run.fit.window.closes {
        return Ok(());
    }
    run.model.optimizers.choose_nth(part);
    run.model.optimizers.forget_dropped();
    if !run.model.optimizers.has_gathered() {
        return Ok(());
    }
    run.model.optimizers.make_mean()?;
    let steps = run.model.optimizers.current_steps();
    run.step.step_number = steps + 1;
    run.fire::<at::before_opt_step>()?;
    let done = run.inside::<at::opt_step>(|run| {
        if run.model.optimizers.step()? {
            run.progress.counters.optimizer_steps += 1;
        }
        Ok(())
    })?;
    if done == Done::Replaced {
        run.model.optimizers.count_step();
        run.progress.counters.optimizer_steps += 1;
    }
    // The built-in step does not take place if a hook dropped the gradients before it.
    if !done.took_place() || run.model.optimizers.current_steps() == steps {
        return Ok(());
    }
    run.fire::<at::after_opt_step>()?;
    run.fire::<at::before_zero_grad>()?;
    let done = run.inside::<at::zero_grad>(|run| run.model.optimizers.drop_grads())?;
    if done == Done::Replaced {
        run.model.optimizers.forget();
    }
    if done.took_place() { run.fire::<at::after_zero_grad>() } else { Ok(()) }
}

#[cold]
fn missing(what: &str) -> Error {
    Error::usage(format!("there is no {what}"))
}

/// The task of a run, to be changed.
pub(crate) fn task_mut<T: Task>(run: &mut Run) -> &mut T {
    task_in(&mut run.hooks.instances).expect("no hook of its own is running")
}

/// The task of a run.
pub(crate) fn task<T: Task>(run: &Run) -> &T {
    let task = run.hooks.instances[TASK].value.as_ref().and_then(|value| value.downcast_ref());
    task.expect("the builder put the task there")
}

/// See [`Run::store`](crate::run::Run::store).
pub(crate) fn store<T: Task>(run: &Run) -> Option<&nn::VarStore> {
    run.hooks.instances[TASK].value.as_ref()?.downcast_ref::<T>().map(Task::vars)
}

fn task_in<T: Task>(instances: &mut [Instance]) -> Result<&mut T> {
    let task = instances[TASK].value.as_mut().and_then(|value| value.downcast_mut());
    task.ok_or_else(|| Error::usage("a hook of the task's own is running, so that the task cannot compute"))
}

/// What lies in a slot, as the task's own type.
fn typed<V: 'static>(slot: &mut Box<dyn Any + Send>) -> &mut Option<V> {
    slot.downcast_mut().expect("the builder made it of the task's own types")
}
