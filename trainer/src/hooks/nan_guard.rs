//! A guard against NaN and infinite values.

use super::watched_metric::log_once;
use super::{refused, stages};
use crate::checkpoint::{Saved, SettingList, Settings, State};
use crate::lifecycle::{CanLog, CanStop, HasGrads};
use crate::prelude::own::*;

/// Checks the loss, the gradients and the buffers for NaN and infinite values before they reach the
/// weights, and the results of validation.
///
/// Use [`fail`](NanGuard::fail) when such a value indicates a mistake that you want to find,
/// [`stop`](NanGuard::stop) when the program should continue with the weights from before the value
/// occurred, and [`skip_batch`](NanGuard::skip_batch) when only individual batches are bad. To
/// return to an earlier state, use [`SpikeGuard`](super::SpikeGuard).
///
/// ```
/// use trainer::hooks::NanGuard;
/// use trainer::prelude::*;
///
/// # fn main() -> Result<()> {
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let trainer = Trainer::builder(task)
///     .optimizer(AdamW::new(1e-3))
///     .hook(NanGuard::fail())
///     .build()?;
/// # Ok(())
/// # }
/// ```
///
/// - **What happens**: [`fail`](NanGuard::fail) ends the run with an error that names the batch
///   and, for gradients and buffers, the variables; [`stop`](NanGuard::stop) ends training as
///   [`Cx::stop`] does; [`skip_batch`](NanGuard::skip_batch) continues with the next batch. In all
///   cases, the optimizer takes no step with such a value: the gradients of the whole accumulation
///   window are dropped, and the step is not counted. The weights and the optimizer's state do not
///   change. If the loss is not finite, the buffers, such as the running statistics of batch norm,
///   get the values back that they had before the batch, unless the run ends with an error.
/// - **What it costs**: each check synchronizes with the device once. A check of the loss waits for
///   the forward pass, and a check of the gradients waits for the backward pass and the norms of
///   the gradients. [`every`](NanGuard::every) checks less often. By default, only the loss is
///   checked, in each training batch. [`stop`](NanGuard::stop) and
///   [`skip_batch`](NanGuard::skip_batch) also copy the floating-point buffers before each batch
///   that is checked.
/// - **The metrics** include every logged value: the mean `train/loss` of an epoch that contains a
///   NaN is NaN, even if the step was skipped. [`found`](NanGuard::found) returns the number of
///   checks that found such a value. Checkpoints save this number.
/// - **The records** contain the metric `train/nan_guard/found`: the number of checks that found
///   such a value in the steps or the epoch that the record covers. The text
///   `train/nan_guard/findings` lists up to 100 findings, each with its optimizer step, epoch and
///   batch, and the loss or the parameters. The text is part of the next record of a step that was
///   not skipped. If there is no such step, the last record of the epoch contains the text. If the
///   run ends before that with an error or a cancellation, the last record of the run contains it.
///
/// With several optimizers, the loss and the gradients of each are checked separately.
#[doc(alias("TerminateOnNaN", "TerminateOnNaNCallback", "detect_anomaly"))]
#[derive(Debug)]
pub struct NanGuard {
    action: Action,
    every: u64,
    checks_loss: bool,
    checks_grads: bool,
    checks_buffers: bool,
    checks_validation: bool,
    found: u64,
    /// The parts of the model whose current accumulation window contains a NaN or infinite value.
    affected_parts: Vec<String>,
    /// The findings that are not part of a record yet.
    findings: Vec<String>,
    /// The number of optimizer steps before the current batch.
    steps: u64,
    /// The floating-point buffers, each with a copy of its value before the current batch; `None`
    /// before the first batch.
    buffers: Option<Vec<(Tensor, Tensor)>>,
}

/// The maximum number of findings in the text of a record.
const MAX_FINDINGS: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Fail,
    Stop,
    SkipStep,
}

impl NanGuard {
    fn new(action: Action) -> Self {
        NanGuard {
            action,
            every: 1,
            checks_loss: true,
            checks_grads: false,
            checks_buffers: false,
            checks_validation: false,
            found: 0,
            affected_parts: Vec::new(),
            findings: Vec::new(),
            steps: 0,
            buffers: None,
        }
    }

    /// Ends the run with an error when a value is NaN or infinite.
    #[must_use]
    pub fn fail() -> Self {
        NanGuard::new(Action::Fail)
    }

    /// When a value is NaN or infinite, skips the optimizer step, and stops training as
    /// [`Cx::stop`] does. The summary contains the reason.
    #[must_use]
    pub fn stop() -> Self {
        NanGuard::new(Action::Stop)
    }

    /// When a value is NaN or infinite, skips the optimizer step, drops its gradients, and
    /// continues with the next batch.
    #[must_use]
    pub fn skip_batch() -> Self {
        NanGuard::new(Action::SkipStep)
    }

    /// Whether the loss is checked before the backward pass. Defaults to `true`.
    #[must_use]
    pub fn loss(mut self, check: bool) -> Self {
        self.checks_loss = check;
        self
    }

    /// Whether the gradients are checked before the optimizer step. Defaults to `false`.
    #[must_use]
    pub fn gradients(mut self, check: bool) -> Self {
        self.checks_grads = check;
        self
    }

    /// Whether the floating-point buffers, such as the running statistics of batch norm, are
    /// checked before the optimizer step. They enter the results of evaluation only, so a training
    /// loss does not show that they are NaN. They change in the forward pass, so only
    /// [`fail`](NanGuard::fail) and [`stop`](NanGuard::stop) allow this check. Infinite values that
    /// a buffer contained from the beginning, such as those of a mask, are allowed. Defaults to
    /// `false`.
    #[must_use]
    pub fn buffers(mut self, check: bool) -> Self {
        self.checks_buffers = check;
        self
    }

    /// Whether the metrics of each validation are checked, `valid/loss` among them. Nothing is left
    /// to skip then, so only [`fail`](NanGuard::fail) and [`stop`](NanGuard::stop) allow this
    /// check. Defaults to `false`, because a metric may be undefined.
    #[must_use]
    pub fn validation(mut self, check: bool) -> Self {
        self.checks_validation = check;
        self
    }

    /// Checks the loss in every `n`-th training batch, and the gradients and the buffers before
    /// every `n`-th optimizer step. Defaults to 1.
    ///
    /// A NaN that occurs between two checks reaches the weights, so only [`fail`](NanGuard::fail)
    /// and [`stop`](NanGuard::stop) allow an `n` above 1.
    #[must_use]
    pub fn every(mut self, n: u64) -> Self {
        self.every = n;
        self
    }

    /// Returns the number of checks that found a NaN or infinite value, over all fits.
    #[must_use]
    pub fn found(&self) -> u64 {
        self.found
    }

    /// Records a NaN or infinite value. Then fails, requests a stop or continues, as configured.
    fn act<P: CanStop + CanLog>(&mut self, what: &str, cx: &mut Cx<P>) -> Result<()> {
        self.found += 1;
        let Counters { epoch, batch_idx, .. } = cx.counters();
        let part = if cx.part().is_empty() { String::new() } else { format!(" of `{}`", cx.part()) };
        let step = self.steps + 1;
        let at = match cx.phase() {
            Phase::Train => format!("batch {batch_idx}"),
            _ => "the validation".to_owned(),
        };
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(format!("step {step}{part}, epoch {epoch}, {at}: {what}"));
        }
        log_once(cx, "nan_guard/found");
        let text = format!("{what} in {at} of epoch {epoch}");
        match self.action {
            Action::Fail => return Err(Error::msg(text)),
            Action::Stop => cx.stop(text),
            Action::SkipStep => {}
        }
        Ok(())
    }

    /// Logs the findings, if there are any and a record is due.
    fn log_findings<P: CanLog>(&self, cx: &Cx<P>) {
        if !self.findings.is_empty() && cx.is_record_due() {
            cx.log_text("nan_guard/findings", self.findings.join("\n"));
        }
    }

    /// Copies the buffers, so that [`restore_buffers`](NanGuard::restore_buffers) can restore them.
    fn copy_buffers<P>(&mut self, cx: &Cx<P>) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        match &mut self.buffers {
            Some(buffers) => buffers.iter_mut().try_for_each(|(buffer, copy)| Ok(copy.f_copy_(buffer)?)),
            None => {
                let vars = cx.vars();
                let buffers = vars.iter().filter(|var| !var.is_parameter && var.tensor.is_floating_point());
                let copied = |tensor: Tensor| (tensor.shallow_clone(), tensor.copy());
                self.buffers = Some(buffers.map(|var| copied(var.tensor.detach())).collect());
                Ok(())
            }
        }
    }

    /// Restores the buffers as they were before the batch.
    fn restore_buffers(&mut self) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        let mut buffers = self.buffers.iter_mut().flatten();
        buffers.try_for_each(|(buffer, copy)| Ok(buffer.f_copy_(copy)?))
    }

    /// Whether the loss of the current training batch is checked.
    fn is_loss_due<P>(&self, cx: &Cx<P>) -> bool {
        self.checks_loss && cx.counters().batches_seen.is_multiple_of(self.every)
    }

    /// Whether the accumulation window of the current part contains a NaN or infinite value.
    fn is_affected<P>(&self, cx: &Cx<P>) -> bool {
        self.affected_parts.iter().any(|part| part == cx.part())
    }
}

/// Returns the name and the largest magnitude of each nonempty gradient of the current optimizer.
/// The magnitude is NaN if any element is NaN.
fn magnitudes<P: HasGrads>(cx: &Cx<P>) -> Result<Vec<(trainer::VarName, Tensor)>> {
    let part = cx.part().to_owned();
    let own = cx.grads().filter(move |(name, grad)| grad.numel() > 0 && name.is_in(&part));
    own.map(|(name, grad)| {
        let grad = if grad.is_sparse() { grad.f_to_dense(None, false)? } else { grad };
        Ok((name, magnitude(&grad)?))
    })
    .collect()
}

/// Returns the largest magnitude of an element, or NaN if any element is NaN.
fn magnitude(tensor: &Tensor) -> Result<Tensor> {
    Ok(tensor.f_reshape([-1])?.f_linalg_norm(f64::INFINITY, None::<&[i64]>, false, None)?)
}

/// Returns the names of the gradients of the current optimizer that are not finite.
fn bad_gradients<P: HasGrads>(cx: &Cx<P>) -> Result<Vec<String>> {
    let own = magnitudes(cx)?;
    let largest = own.iter().map(|(_, own)| own.shallow_clone()).reduce(|one, other| one.maximum(&other));
    if largest.is_none_or(|largest| largest.double_value(&[]).is_finite()) {
        return Ok(Vec::new());
    }
    let names = own.iter().filter(|(_, own)| !own.double_value(&[]).is_finite());
    Ok(names.map(|(name, _)| format!("`{name}`")).collect())
}

/// Returns the names of the buffers that are not finite.
fn bad_buffers<P>(cx: &Cx<P>) -> Result<Vec<String>> {
    let vars = cx.vars();
    let buffers = vars.iter().filter(|var| !var.is_parameter && var.tensor.is_floating_point());
    let largest = buffers.filter(|var| var.tensor.numel() > 0).map(|var| magnitude(&var.tensor.detach()));
    let largest = largest.collect::<Result<Vec<_>>>()?.into_iter();
    let largest =
        largest.reduce(|one, other| one.to_kind(Kind::Double).maximum(&other.to_kind(Kind::Double)));
    if largest.is_none_or(|largest| largest.double_value(&[]).is_finite()) {
        return Ok(Vec::new());
    }
    let is_buffer = |name: &String| vars.iter().any(|var| var.name == *name && !var.is_parameter);
    Ok(cx.not_finite_vars()?.into_iter().filter(is_buffer).map(|name| format!("`{name}`")).collect())
}

#[hook(in = stages::StepControl, state, settings, trial = false)]
impl NanGuard {
    /// Clears the affected parts and the findings of an earlier fit.
    #[hook(only = train)]
    fn setup(&mut self, _: &Cx<Setup>) {
        self.affected_parts.clear();
        self.findings.clear();
        self.buffers = None;
    }

    /// Copies the buffers, which the forward pass may change, unless a finding ends the run.
    #[hook(only = train)]
    fn before_pred(&mut self, cx: &Cx<BeforePred>) -> Result<()> {
        let copies = self.action != Action::Fail && self.is_loss_due(cx);
        if copies { self.copy_buffers(cx) } else { Ok(()) }
    }

    /// Checks the loss, and skips the backward pass if the loss is NaN or infinite on any rank.
    fn check_loss(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        self.steps = cx.counters().optimizer_steps;
        if self.is_loss_due(cx) {
            let loss = cx.loss().double_value(&[]);
            // All ranks skip the backward pass, or none does.
            if cx.world().any("a loss that is NaN or infinite", !loss.is_finite())? {
                if !self.is_affected(cx) {
                    self.affected_parts.push(cx.part().to_owned());
                }
                let elsewhere =
                    if loss.is_finite() { " here, and NaN or infinite on another rank" } else { "" };
                self.act(&format!("the loss is {loss}{elsewhere}"), cx)?;
                self.restore_buffers()?;
                return Ok(next.skip());
            }
        }
        next.run(cx)
    }

    /// Checks the gradients and the buffers, and skips the optimizer step if the accumulation
    /// window contains a NaN or infinite value.
    fn check_gradients(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        if !self.is_affected(cx) {
            if !cx.counters().optimizer_steps.is_multiple_of(self.every) {
                return next.run(cx);
            }
            let mut gradients = if self.checks_grads { bad_gradients(cx)? } else { Vec::new() };
            // Each rank has gradients of its own, so each of them skips the step, or none does.
            if self.checks_grads
                && cx.grads_are_divided()
                && cx.world().any("a gradient that is NaN or infinite", !gradients.is_empty())?
                && gradients.is_empty()
            {
                gradients.push("another rank".to_owned());
            }
            let buffers = if self.checks_buffers { bad_buffers(cx)? } else { Vec::new() };
            let what = match () {
                () if !gradients.is_empty() => format!("the gradients of {}", gradients.join(", ")),
                // The ranks have their own buffers, so each of them skips the step, or none does.
                () if self.checks_buffers
                    && cx.world().any("a buffer that is NaN or infinite", !buffers.is_empty())? =>
                {
                    let names =
                        if buffers.is_empty() { "another rank".to_owned() } else { buffers.join(", ") };
                    format!("the buffers of {names}")
                }
                () => return next.run(cx),
            };
            self.act(&format!("{what} are NaN or infinite"), cx)?;
        }
        cx.optimizer_mut()?.zero_grad()?;
        Ok(next.skip())
    }

    /// Clears the affected parts at the end of an accumulation window, and logs the findings after
    /// an optimizer step.
    #[hook(only = train)]
    fn after_step(&mut self, cx: &Cx<AfterStep>) {
        if cx.is_boundary() {
            self.affected_parts.clear();
        }
        // Text logged in a batch without an optimizer step is not part of any record.
        if cx.counters().optimizer_steps > self.steps && cx.is_record_due() {
            self.log_findings(cx);
            self.findings.clear();
        }
    }

    /// Checks the metrics of a validation.
    #[hook(only = valid)]
    fn after_valid(&mut self, cx: &mut Cx<AfterValid>) -> Result<()> {
        if !self.checks_validation {
            return Ok(());
        }
        let metrics = cx.metrics();
        let is_bad = |(name, value): &(&str, f64)| name.starts_with("valid/") && !value.is_finite();
        match metrics.iter().find(is_bad) {
            Some((name, value)) => {
                self.steps = cx.counters().optimizer_steps;
                self.act(&format!("`{name}` is {value}"), cx)
            }
            None => Ok(()),
        }
    }

    /// Logs the findings that are not part of a record yet, or drops them if no record is due.
    fn after_train_epoch(&mut self, cx: &Cx<AfterTrainEpoch>) {
        self.log_findings(cx);
        self.findings.clear(); // no record is due without a logger
    }

    /// Logs all findings that are not part of a record yet, after an error ended the run.
    #[hook(only = train)]
    fn after_error(&mut self, cx: &Cx<AfterError>) {
        self.log_findings(cx); // keeps them, because a checkpoint may be written afterwards
    }

    /// Logs all findings that are not part of a record yet, after the run was cancelled.
    #[hook(only = train)]
    fn after_cancel(&mut self, cx: &Cx<AfterCancel>) {
        self.log_findings(cx); // keeps them, because a checkpoint may be written afterwards
    }
}

/// Saves the count, the affected parts, and the findings that are not part of a record yet. The
/// settings come from the program.
#[diagnostic::do_not_recommend]
impl State for NanGuard {
    fn save(&self) -> Result<Saved> {
        let mut saved = Saved::new();
        saved.set("found", &self.found)?;
        saved.set("affected_parts", &self.affected_parts)?;
        saved.set("findings", &self.findings)?;
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        self.found = saved.get("found")?;
        self.affected_parts = saved.get("affected_parts")?;
        self.findings = saved.get("findings")?;
        Ok(())
    }
}

#[diagnostic::do_not_recommend]
impl Settings for NanGuard {
    fn settings(&self) -> SettingList {
        let NanGuard {
            action,
            every,
            checks_loss,
            checks_grads,
            checks_buffers,
            checks_validation,
            found: _,
            affected_parts: _,
            findings: _,
            steps: _,
            buffers: _,
        } = self;
        SettingList::new()
            .with("action", action)
            .with("every", every)
            .with("loss", checks_loss)
            .with("gradients", checks_grads)
            .with("buffers", checks_buffers)
            .with("validation", checks_validation)
    }

    fn mistakes(&self) -> Vec<String> {
        let n = self.every;
        refused([
            (
                !(self.checks_loss || self.checks_grads || self.checks_buffers || self.checks_validation),
                "`NanGuard` checks nothing: enable `.loss(true)`, `.gradients(true)`, `.buffers(true)` or `.validation(true)`"
                    .to_owned(),
            ),
            (
                self.action == Action::SkipStep && (self.checks_buffers || self.checks_validation),
                format!(
                    "`NanGuard::skip_batch().{}(true)`: skipping later steps does not repair what this check finds: use \
                     `NanGuard::fail()` or `NanGuard::stop()`",
                    if self.checks_buffers { "buffers" } else { "validation" }
                ),
            ),
            (n == 0, "`.every(0)`: expected at least 1".to_owned()),
            (
                n > 1 && self.action == Action::SkipStep,
                format!(
                    "`NanGuard::skip_batch().every({n})`: a NaN between two checks reaches the weights, and skipping later steps does not \
                     repair them: check every step, or use `NanGuard::fail()`"
                ),
            ),
        ])
    }
}
