//! [`decide`]: determines the next action of the loop, together with all other ranks.

use super::agreement::{NextBatch, agree};
use super::{plan, roll_back, save};
use crate::checkpoint::progress::FitState;
use crate::checkpoint::progress::LoopState;
use crate::checkpoint::progress::Stage;
use crate::error::Result;
use crate::libtorch::Warnings;
use crate::phase::Phase;
use crate::run::Requests;
use crate::run::reports::Reports;
use crate::run::{Run, StoppedBy, cancel};

/// What the loop is about to do.
#[derive(Clone, Copy)]
pub(super) enum Before {
    Epoch,
    /// The next batch of a pass. On several ranks, this describes the next batch of this rank.
    Batch(Option<NextBatch>),
    /// The validation that is due at this stage.
    Validation(Stage),
}

/// What the loop does next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decision {
    /// Whether the loop continues. Otherwise, the fit or the pass ends, or the validation is left
    /// out.
    pub(super) goes_on: bool,
    /// Whether the pass ends after its next batch, which ends the open accumulation window.
    pub(super) ends_window: bool,
    /// The next batch of all ranks.
    pub(super) next: Option<NextBatch>,
}

/// Decides the next action of the loop. Before an epoch or a batch, checks the clock, signals and
/// the requests of hooks on any rank, and writes the checkpoints that are due.
///
/// # Errors
///
/// Returns an error if the run was cancelled.
pub(super) fn decide(run: &mut Run, before: Before) -> Result<Decision> {
    let next = match before {
        Before::Epoch => carry_out(run, None)?,
        Before::Batch(next) => carry_out(run, next)?,
        Before::Validation(_) => agree(run, None)?,
    };
    let is_train = run.phase() == Phase::Train;
    // A requested stop lets a validation finish, because metrics of half a validation would be
    // misleading.
    let is_stopped = is_train && is_stopped(run.requests(), run.fit(), run.progress());
    let has_all_epochs = plan::has_all_epochs(run.fit(), run.progress());
    let has_all_steps = is_train && plan::has_all_steps(run.fit(), run.counters());
    let is_over = is_stopped
        || match before {
            Before::Epoch => has_all_epochs || has_all_steps,
            Before::Batch(_) => run.requests().ends_pass() || has_all_steps,
            Before::Validation(stage) => {
                stage == Stage::ValidatingWithin && run.requests().reason_to_roll_back().is_some()
            }
        };
    let is_in_window = matches!(before, Before::Batch(_)) && is_train && run.fit().window.is_open();
    let goes_on = !is_over || is_in_window;
    if !goes_on && is_stopped && !(matches!(before, Before::Epoch) && has_all_epochs) {
        run.requests_mut().cut_short();
    }
    Ok(Decision { goes_on, ends_window: is_over && is_in_window, next })
}

/// Carries out what the clock, signals and the hooks on any rank have requested.
fn carry_out(run: &mut Run, next: Option<NextBatch>) -> Result<Option<NextBatch>> {
    let is_train = run.phase() == Phase::Train;
    if is_train
        && !run.is_replay()
        && let Some(reason) = plan::deadline_reached(run.fit(), run.settings(), run.requests())
    {
        let is_solo = run.world().is_solo();
        run.requests_mut().stop(reason, StoppedBy::Clock, is_solo);
    }
    report_warnings(run.reports());
    // SIGUSR1 requests a checkpoint.
    let takes_request = (is_train || !run.fit().is_running) && run.cancellation().handles_signals();
    if takes_request && cancel::take_checkpoint_request() {
        match run.why_no_checkpoint() {
            None => run.checkpoints().is_requested.set(true),
            Some(why) => {
                run.reports().warn(format!("SIGUSR1 requests a checkpoint, but none is written: {why}"));
            }
        }
    }
    let next = agree(run, next)?;
    if is_train {
        if run.requests().reason_to_roll_back().is_some() {
            roll_back::roll_back(run)?;
        }
        if run.requests().keeps_state() {
            roll_back::keep(run)?;
        }
        save::save_requested(run)?;
    }
    check_cancelled(run)?;
    Ok(next)
}

/// Returns an error if the run was cancelled and all ranks know that it was.
#[inline]
pub(super) fn check_cancelled(run: &Run) -> Result<()> {
    let cancellation = run.cancellation();
    let by = if run.world().is_solo() { cancellation.request() } else { run.ranks().agreed.cancelled };
    by.or(cancellation.end_of_replay(run.phase())).map_or(Ok(()), |by| Err(run.cancelled(by)))
}

/// Whether a stop was requested and the minimum number of epochs and steps is reached.
#[inline]
fn is_stopped(requests: &Requests, fit: &FitState, progress: &LoopState) -> bool {
    requests.has_stop()
        && progress.epochs_done >= fit.plan.min_epochs
        && progress.counters.optimizer_steps >= fit.plan.min_steps
}

/// Whether the pass over the training data ends after the current batch, as far as it is known: by
/// request, or because all steps have been taken.
pub(super) fn ends_pass(requests: &Requests, fit: &FitState, progress: &LoopState) -> bool {
    requests.ends_pass() || plan::has_all_steps(fit, progress.counters) || is_stopped(requests, fit, progress)
}

/// Reports the warnings of libtorch since the last call.
#[inline]
pub(super) fn report_warnings(reports: &Reports) {
    while let Some(text) = Warnings::next() {
        reports.warn(format!("libtorch: {text}"));
    }
}
