//! What the loop does next: [`decide`], which all ranks decide together.

use super::{live, plan, replay, roll_back, save};
use crate::distributed::World;
use crate::error::{CancelledBy, Error, Result, shortened};
use crate::phase::Phase;
use crate::run::{Amount, Run, cancel};

/// The name of the agreement in errors.
const AGREEMENT: &str = "the agreement on the next batch";

/// What the loop does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The pass, or the fit, goes on.
    Go,
    /// The pass ends, because a hook requested that or all steps are taken.
    EndPass,
    /// The fit ends, because a stop was requested.
    Stop,
}

/// What a rank knows of the next batch of a pass.
#[derive(Clone, Copy, Default)]
pub(super) struct NextBatch {
    /// Whether there is one.
    pub(super) exists: bool,
    /// Whether it is the last one and therefore ends an accumulation window that is not full.
    pub(super) is_last: bool,
    pub(super) weight: f64,
    pub(super) samples: f64,
}

/// The state of one rank before a batch, which it sends to the others.
#[derive(Clone, Copy)]
struct Report {
    sigint: bool,
    sigterm: bool,
    sighup: bool,
    token: bool,
    stop: bool,
    end_epoch: bool,
    saves: bool,
    keep_state: bool,
    roll_back: bool,
    /// Whether SIGUSR1 has requested a checkpoint.
    checkpoint: bool,
    next: NextBatch,
    batches: f64,
    steps: f64,
    /// The sum of the weights of the batches in the accumulation window.
    accumulated: f64,
    /// A hash of the parameters that are trained.
    trained: f64,
}

impl Report {
    fn to_numbers(self) -> [f64; 18] {
        let flag = |flag: bool| f64::from(u8::from(flag));
        [
            flag(self.sigint),
            flag(self.sigterm),
            flag(self.sighup),
            flag(self.token),
            flag(self.stop),
            flag(self.end_epoch),
            flag(self.saves),
            flag(self.keep_state),
            flag(self.roll_back),
            flag(self.checkpoint),
            flag(self.next.exists),
            flag(self.next.is_last),
            self.next.weight,
            self.next.samples,
            self.batches,
            self.steps,
            self.accumulated,
            self.trained,
        ]
    }

    fn from_numbers(numbers: &[f64; 18]) -> Self {
        let [sigint, sigterm, sighup, token, stop, end_epoch, saves, keep_state, roll_back, rest @ ..] =
            *numbers;
        let [checkpoint, exists, is_last, rest @ ..] = rest;
        let [weight, samples, batches, steps, accumulated, trained] = rest;
        let is = |flag: f64| flag > 0.0;
        Report {
            sigint: is(sigint),
            sigterm: is(sigterm),
            sighup: is(sighup),
            token: is(token),
            stop: is(stop),
            end_epoch: is(end_epoch),
            saves: is(saves),
            keep_state: is(keep_state),
            roll_back: is(roll_back),
            checkpoint: is(checkpoint),
            next: NextBatch { exists: is(exists), is_last: is(is_last), weight, samples },
            batches,
            steps,
            accumulated,
            trained,
        }
    }
}

/// Decides what the loop does next: looks at the clock, at signals, and at what hooks have
/// requested on any rank, and writes the checkpoints that are due. `next` is what this rank
/// knows of the next batch, in a pass on several ranks.
///
/// # Errors
///
/// Returns an error if the run was cancelled.
pub(super) fn decide(run: &mut Run, next: Option<NextBatch>) -> Result<Decision> {
    let is_train = run.place.phase == Phase::Train;
    replay::check_end(run)?;
    if is_train {
        plan::check_deadline(run);
    }
    live::write_if_due(run);
    note_checkpoint_request(run);
    agree(run, next)?;
    if is_train {
        roll_back::fulfill_requests(run)?;
        save::save_requested(run)?;
    }
    check_cancelled(run)?;
    // A requested stop lets a validation finish: a metric of half of one would be misleading.
    Ok(match () {
        () if is_train && is_stopped(run) => Decision::Stop,
        () if end_epoch_is_known(run) || is_train && plan::has_all_steps(run) => Decision::EndPass,
        () => Decision::Go,
    })
}

/// Exchanges reports with the other ranks, if there are any, and applies what was requested on
/// any of them.
#[inline]
pub(super) fn agree(run: &mut Run, next: Option<NextBatch>) -> Result<()> {
    if run.ranks.world.is_solo() { Ok(()) } else { exchange(run, next) }
}

/// Whether a stop was requested, and all ranks know of it.
#[inline]
fn stop_is_known(run: &Run) -> bool {
    run.requests.stop.is_some() && (run.ranks.world.is_solo() || run.ranks.agreed.stop)
}

/// Whether the end of the pass was requested, and all ranks know of it.
#[inline]
fn end_epoch_is_known(run: &Run) -> bool {
    run.requests.end_epoch && (run.ranks.world.is_solo() || run.ranks.agreed.end_epoch)
}

/// Returns an error if the run was cancelled, and all ranks know of it.
#[inline]
pub(super) fn check_cancelled(run: &Run) -> Result<()> {
    let by = if run.ranks.world.is_solo() { run.cancel_request() } else { run.ranks.agreed.cancelled };
    by.map_or(Ok(()), |by| Err(run.cancelled(by)))
}

/// Whether a stop was requested and the minimum number of epochs and steps is reached.
pub(super) fn is_stopped(run: &Run) -> bool {
    stop_is_known(run)
        && run.progress.epochs_done >= run.fit.plan.min_epochs
        && run.progress.counters.optimizer_steps >= run.fit.plan.min_steps
}

/// Agrees with the other ranks on pending requests, and returns whether the run is
/// [stopped](Run::is_stopped).
pub(super) fn is_stopped_by_now(run: &mut Run) -> Result<bool> {
    agree(run, None)?;
    Ok(is_stopped(run))
}

/// Whether the run returns to a kept state before the next batch. All ranks know it once they have
/// [agreed](agree).
pub(super) fn rolls_back(run: &Run) -> bool {
    run.requests.roll_back.is_some()
}

/// Whether the fit is over, so that no further epoch begins.
pub(super) fn is_over(run: &Run) -> bool {
    plan::has_all_epochs(run) || plan::has_all_steps(run) || is_stopped(run)
}

/// Whether the pass over the training data ends early: by request, or because all steps are
/// taken.
pub(super) fn ends_pass(run: &Run) -> bool {
    end_epoch_is_known(run) || plan::has_all_steps(run) || is_stopped(run)
}

/// Notes that SIGUSR1 has requested a checkpoint, for the hook that writes it, or warns if none
/// will.
#[inline]
fn note_checkpoint_request(run: &mut Run) {
    let is_due = run.place.phase == Phase::Train || !run.fit.is_running;
    if is_due && run.handles_signals && cancel::take_checkpoint_request() {
        accept_checkpoint_request(run);
    }
}

#[cold]
fn accept_checkpoint_request(run: &mut Run) {
    match run.why_no_checkpoint() {
        None => run.checkpoints.is_requested.set(true),
        Some(why) => run.warn(format!("SIGUSR1 requests a checkpoint, but none is written: {why}")),
    }
}

#[cold]
fn exchange(run: &mut Run, next: Option<NextBatch>) -> Result<()> {
    let world = run.ranks.world.clone();
    let is_requested = run.checkpoints.is_requested.take();
    let by = run.cancel_request();
    let own = Report {
        sigint: by == Some(CancelledBy::Sigint),
        sigterm: by == Some(CancelledBy::Sigterm),
        sighup: by == Some(CancelledBy::Sighup),
        token: by == Some(CancelledBy::Token),
        stop: run.requests.stop.is_some(),
        end_epoch: run.requests.end_epoch,
        checkpoint: is_requested,
        keep_state: run.requests.keep_state,
        roll_back: run.requests.roll_back.is_some(),
        saves: !run.checkpoints.requests.borrow().is_empty(),
        batches: run.progress.counters.batches_seen as f64,
        steps: run.progress.counters.optimizer_steps as f64,
        accumulated: run.model.optimizers.accumulated(),
        trained: if run.place.phase == Phase::Train { trained_hash(run) } else { 0.0 },
        next: next.unwrap_or_default(),
    };
    let all = world.table(own.to_numbers(), AGREEMENT)?;
    world.begin_batch();
    let all: Vec<Report> = all.iter().map(Report::from_numbers).collect();
    check_counters(&all)?;
    if all.iter().any(|report| report.trained != own.trained) {
        return Err(differently_frozen(run, &world)?);
    }
    let any = |flag: fn(&Report) -> bool| all.iter().any(flag);
    let agreed = &mut run.ranks.agreed;
    agreed.cancelled = match () {
        () if any(|report| report.sigterm) => Some(CancelledBy::Sigterm),
        () if any(|report| report.sigint) => Some(CancelledBy::Sigint),
        () if any(|report| report.sighup) => Some(CancelledBy::Sighup),
        () if any(|report| report.token) => Some(CancelledBy::Token),
        () => None,
    };
    agreed.saves = any(|report| report.saves);
    agreed.end_epoch = any(|report| report.end_epoch);
    // Rank 0 writes it.
    run.checkpoints.is_requested.set(any(|report| report.checkpoint) && run.rank == 0);
    run.requests.end_epoch = agreed.end_epoch;
    run.requests.keep_state = any(|report| report.keep_state);
    if any(|report| report.roll_back) {
        let reasons: Vec<Option<String>> =
            world.gather_named(&run.requests.roll_back, "the agreement on a roll-back")?;
        run.requests.roll_back = reasons.into_iter().flatten().next();
    }
    if any(|report| report.stop) && !agreed.stop {
        agreed.stop = true;
        let reasons: Vec<Option<(String, bool)>> = world.gather_named(
            &run.requests.stop.clone().map(|why| (why, run.requests.is_of_clock)),
            "the agreement on a stop",
        )?;
        if let Some((why, is_of_clock)) = reasons.into_iter().flatten().next() {
            run.requests.stop = Some(why);
            run.requests.is_of_clock = is_of_clock;
        }
    }
    if next.is_some() {
        if run.place.phase == Phase::Train {
            check_batches(&all, run.progress.counters.batch_idx)?;
        }
        run.ranks.next = Some(Amount {
            weight: all.iter().map(|report| report.next.weight).sum(),
            samples: all.iter().map(|report| report.next.samples).sum(),
        });
        run.ranks.others_have_batches = all.iter().any(|report| report.next.exists);
    }
    Ok(())
}

/// Returns a hash of the parameters that are trained, which is exact as a floating-point number.
fn trained_hash(run: &Run) -> f64 {
    let mix = |hash: u64, is_trained: bool| {
        (hash ^ u64::from(is_trained)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
    };
    let trained = run.model.vars.parameters().map(|var| var.tensor.requires_grad());
    (trained.fold(0, mix) >> 12) as f64
}

/// Returns the error for ranks that train different parameters. This is a collective.
#[cold]
fn differently_frozen(run: &Run, world: &World) -> Result<Error> {
    let frozen = run.model.vars.parameters().filter(|var| !var.tensor.requires_grad());
    let frozen: Vec<String> = frozen.map(|var| var.name.clone()).collect();
    let all = world.gather_named(&frozen, "the comparison of the frozen parameters")?;
    let difference = all.iter().enumerate().find_map(|(rank, own)| {
        let others = all.iter().enumerate();
        let lacks = |name: &&String| others.clone().find(|(_, other)| !other.contains(name));
        own.iter().find_map(|name| lacks(&name).map(|(other, _)| (name, rank, other)))
    });
    let what = difference.map_or_else(String::new, |(name, rank, other)| {
        format!(": `{}` is frozen on rank {rank}, but trained on rank {other}", shortened(name))
    });
    Ok(Error::usage(format!(
        "the ranks are out of step, because they train different parameters{what}; make hooks freeze and thaw the same \
         parameters on every rank"
    )))
}

/// In training, skips the batch on all ranks if a hook at `before_step` skips it on any of
/// them.
#[inline]
pub(super) fn agree_on_skip(run: &mut Run) -> Result<()> {
    if run.ranks.may_skip && run.place.phase == Phase::Train {
        let skips = f64::from(u8::from(run.requests.skip_batch));
        let [skips] = run.ranks.world.sums([skips], "the agreement on a skipped batch")?;
        run.requests.skip_batch = skips > 0.0;
    }
    Ok(())
}

/// Sums the weight of a training batch over all ranks again, after a hook may have changed the
/// batch.
pub(super) fn agree_on_weight(run: &mut Run) -> Result<()> {
    if run.place.phase != Phase::Train {
        return Ok(());
    }
    let samples = if run.ranks.is_borrowed { 0 } else { run.step.batch_len.unwrap_or(1) };
    let own = [run.step.weight, samples as f64];
    let what = "the agreement on the weight of a changed batch";
    let [weight, samples] = run.ranks.world.sums(own, what)?;
    run.step.total = Amount { weight, samples };
    Ok(())
}

/// Returns an error if the ranks have not trained the same number of batches and steps, or have not
/// accumulated the gradients of the same batches.
fn check_counters(all: &[Report]) -> Result<()> {
    let count = |report: &Report| (report.batches, report.steps, report.accumulated);
    let Some(rank) = all.iter().position(|report| count(report) != count(&all[0])) else { return Ok(()) };
    let ((batches, steps, weight), (other_batches, other_steps, other_weight)) =
        (count(&all[0]), count(&all[rank]));
    let accumulated = if weight == other_weight {
        String::new()
    } else {
        format!(", and gradients of weight {weight} and {other_weight} are accumulated")
    };
    Err(Error::usage(format!(
        "the ranks are out of step: rank 0 has trained {batches} batches and taken {steps} optimizer steps, but rank {rank} \
         has trained {other_batches} and taken {other_steps}{accumulated}; a hook skipped work on one rank only: make it decide \
         the same way on every rank"
    )))
}

/// Returns an error if some ranks have another training batch and others do not, or if it is the
/// last one on some ranks only.
fn check_batches(all: &[Report], index: u64) -> Result<()> {
    let with = |flag: fn(&Report) -> bool| all.iter().position(flag);
    let end = |flag: fn(&Report) -> bool| all.iter().position(|report| !flag(report));
    for flag in [(|report: &Report| report.next.exists) as fn(&Report) -> bool, |report| !report.next.is_last]
    {
        if let (Some(longer), Some(shorter)) = (with(flag), end(flag)) {
            return Err(Error::usage(format!(
                "the training data of rank {shorter} ends before that of rank {longer}, at batch {index} or the one after it: use \
                 loaders that yield the same number of batches on all ranks"
            )));
        }
    }
    Ok(())
}
