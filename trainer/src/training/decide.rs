//! [`decide`]: determines the next action of the loop, together with all other ranks.

use super::{live, plan, replay, roll_back, save};
use crate::distributed::{Unequal, World, both, is_same};
use crate::error::{CancelledBy, Error, Result, shortened};
use crate::libtorch::Warnings;
use crate::phase::Phase;
use crate::run::{Amount, BackgroundSave, Run, cancel};
use crate::values::float::exact;

/// What error messages call the exchange of reports between the ranks.
const AGREEMENT: &str = "the agreement on the next batch";

/// The next action of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The pass, or the fit, continues.
    Go,
    /// The pass ends, because a hook requested it or because all steps have been taken.
    EndPass,
    /// The fit ends, because a stop was requested.
    Stop,
}

/// One rank's information about the next batch of a pass.
#[derive(Clone, Copy, Default)]
pub(super) struct NextBatch {
    /// Whether there is a next batch.
    pub(super) exists: bool,
    /// Whether the next batch is the last one. If so, it ends its accumulation window even if the
    /// window is not full. Also `true` if there is no next batch. Determined only in training, and
    /// only for a batch that does not fill its window.
    pub(super) is_last: bool,
    pub(super) weight: f64,
    pub(super) samples: f64,
}

/// The state of one rank before a batch. The ranks combine their reports into one. A flag in the
/// combined report is set if it is set on any rank.
#[derive(Clone, Copy)]
struct Report {
    sigint: bool,
    sigterm: bool,
    sighup: bool,
    token: bool,
    stop: bool,
    end_epoch: bool,
    saves: bool,
    /// Whether a thread of this rank is writing a checkpoint.
    is_writing: bool,
    keep_state: bool,
    roll_back: bool,
    /// Whether SIGUSR1 has requested a checkpoint.
    checkpoint: bool,
    next: NextBatch,
    /// The values that must be the same on all ranks.
    counters: Counters,
    /// A hash of the set of trained parameters.
    trained: f64,
    /// A hash of the settings of all optimizers.
    settings: f64,
}

/// The progress of a rank: the number of batches, the number of optimizer steps, and the total
/// weight of the batches in the accumulation window.
type Counters = (u64, u64, f64);

/// The values that differ between the ranks although they must be equal.
struct Differences {
    counters: bool,
    trained: bool,
    settings: bool,
}

/// The number of flags in a report. [`SAME`] is the number of values that must be equal on all
/// ranks.
const FLAGS: usize = 13;
const SAME: usize = 5;

/// The length of a report, which contains each value that must be equal and its negative.
const MAXIMA: usize = FLAGS + 2 * SAME;

impl Report {
    fn maxima(&self) -> [f64; MAXIMA] {
        let flag = |flag: bool| f64::from(u8::from(flag));
        let flags: [bool; FLAGS] = [
            self.sigint,
            self.sigterm,
            self.sighup,
            self.token,
            self.stop,
            self.end_epoch,
            self.saves,
            self.is_writing,
            self.keep_state,
            self.roll_back,
            self.checkpoint,
            self.next.exists,
            !self.next.is_last,
        ];
        let (batches, steps, accumulated) = self.counters;
        let same: [f64; SAME] = [batches as f64, steps as f64, accumulated, self.trained, self.settings];
        let mut maxima = [0.0; MAXIMA];
        maxima[..FLAGS].copy_from_slice(&flags.map(flag));
        for (pair, number) in maxima[FLAGS..].chunks_exact_mut(2).zip(same) {
            pair.copy_from_slice(&both(number));
        }
        maxima
    }

    /// Returns the combined report of all ranks, and the differences between the ranks. `self` is
    /// the report of this rank.
    fn joined(self, maxima: &[f64; MAXIMA], [weight, samples]: [f64; 2]) -> (Self, Differences) {
        let flags: [bool; FLAGS] = std::array::from_fn(|nth| maxima[nth] > 0.0);
        let [
            sigint,
            sigterm,
            sighup,
            token,
            stop,
            end_epoch,
            saves,
            is_writing,
            keep_state,
            roll_back,
            rest @ ..,
        ] = flags;
        let [checkpoint, exists, goes_on] = rest;
        let pairs: [[f64; 2]; SAME] =
            std::array::from_fn(|nth| [maxima[FLAGS + 2 * nth], maxima[FLAGS + 2 * nth + 1]]);
        let [batches, steps, accumulated, trained, settings] = pairs.map(is_same);
        let next = NextBatch { exists, is_last: !goes_on, weight, samples };
        let counters = batches && steps && accumulated;
        let differences = Differences { counters: !counters, trained: !trained, settings: !settings };
        let report = Report {
            sigint,
            sigterm,
            sighup,
            token,
            stop,
            end_epoch,
            saves,
            is_writing,
            keep_state,
            roll_back,
            checkpoint,
            next,
            ..self
        };
        (report, differences)
    }
}

/// Decides the next action of the loop: checks the clock, signals and the requests of hooks on any
/// rank, and writes the checkpoints that are due. In a pass on several ranks, `next` describes the
/// next batch of this rank.
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
    report_warnings(run);
    note_checkpoint_request(run);
    agree(run, next)?;
    if is_train {
        roll_back::fulfill_requests(run)?;
        save::save_requested(run)?;
    }
    check_cancelled(run)?;
    // A requested stop lets a validation finish, because metrics of half a validation would be
    // misleading.
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

/// Whether a stop was requested and all ranks know of the request.
#[inline]
fn stop_is_known(run: &Run) -> bool {
    run.requests.stop.is_some() && (run.ranks.world.is_solo() || run.ranks.agreed.stop)
}

/// Whether the end of the pass was requested and all ranks know of the request.
#[inline]
fn end_epoch_is_known(run: &Run) -> bool {
    run.requests.end_epoch && (run.ranks.world.is_solo() || run.ranks.agreed.end_epoch)
}

/// Returns an error if the run was cancelled and all ranks know that it was.
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
/// [stopped](is_stopped).
pub(super) fn is_stopped_by_now(run: &mut Run) -> Result<bool> {
    agree(run, None)?;
    Ok(is_stopped(run))
}

/// Whether the run returns to a kept state before the next batch. The answer is the same on all
/// ranks once they have [agreed](agree).
pub(super) fn rolls_back(run: &Run) -> bool {
    run.requests.roll_back.is_some()
}

/// Whether the fit is over, so that no further epoch begins.
pub(super) fn is_over(run: &Run) -> bool {
    plan::has_all_epochs(run) || plan::has_all_steps(run) || is_stopped(run)
}

/// Whether the pass over the training data ends early: by request, or because all steps have been
/// taken.
pub(super) fn ends_pass(run: &Run) -> bool {
    end_epoch_is_known(run) || plan::has_all_steps(run) || is_stopped(run)
}

/// Reports the warnings of libtorch since the last call.
#[inline]
pub(super) fn report_warnings(run: &Run) {
    while let Some(text) = Warnings::next() {
        run.warn(format!("libtorch: {text}"));
    }
}

/// If SIGUSR1 has requested a checkpoint, passes the request on to the hook that writes
/// checkpoints. Warns if no hook would write the checkpoint.
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
        is_writing: run.checkpoints.background.as_ref().is_some_and(BackgroundSave::is_busy),
        counters: (
            run.progress.counters.batches_seen,
            run.progress.counters.optimizer_steps,
            if run.ranks.train_separately { 0.0 } else { run.model.optimizers.accumulated() },
        ),
        trained: if run.place.phase == Phase::Train { trained_hash(run) } else { 0.0 },
        settings: if run.place.phase == Phase::Train { settings_hash(run) } else { 0.0 },
        next: next.unwrap_or_default(),
    };
    let (maxima, sums) = world.combine(own.maxima(), [own.next.weight, own.next.samples], AGREEMENT)?;
    world.begin_batch();
    let (all, differs) = own.joined(&maxima, sums);
    if differs.counters {
        return Err(out_of_step(own.counters, &world)?);
    }
    if differs.trained {
        return Err(differently_frozen(run, &world)?);
    }
    if differs.settings {
        return Err(differently_set(run, &world)?);
    }
    let agreed = &mut run.ranks.agreed;
    agreed.cancelled = match () {
        () if all.sigterm => Some(CancelledBy::Sigterm),
        () if all.sigint => Some(CancelledBy::Sigint),
        () if all.sighup => Some(CancelledBy::Sighup),
        () if all.token => Some(CancelledBy::Token),
        () => None,
    };
    agreed.saves = all.saves;
    agreed.is_writing = all.is_writing;
    agreed.end_epoch = all.end_epoch;
    // Rank 0 writes the checkpoint.
    run.checkpoints.is_requested.set(all.checkpoint && run.rank == 0);
    run.requests.end_epoch = agreed.end_epoch;
    run.requests.keep_state = all.keep_state;
    if all.roll_back {
        let reasons: Vec<Option<String>> =
            world.gather_named(&run.requests.roll_back, "the agreement on a roll-back")?;
        run.requests.roll_back = reasons.into_iter().flatten().next();
    }
    if all.stop && !agreed.stop {
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
        run.ranks.next = Some(Amount { weight: all.next.weight, samples: all.next.samples });
        run.ranks.others_have_batches = all.next.exists;
        run.ranks.is_last = all.next.is_last;
    }
    Ok(())
}

/// Returns a hash of the set of trained parameters. The hash has 52 bits, so an `f64` represents it
/// exactly.
fn trained_hash(run: &Run) -> f64 {
    hash(run.model.vars.parameters().map(|var| u64::from(var.tensor.requires_grad())))
}

/// Returns a hash of the current settings of all optimizers, such as their learning rates. Hooks
/// may have changed them since the ranks compared their programs. 0 if each rank trains by itself.
fn settings_hash(run: &Run) -> f64 {
    if run.ranks.train_separately {
        return 0.0;
    }
    let groups = run.model.optimizers.parts().flat_map(|(_, optimizer, ..)| optimizer.groups());
    hash(groups.flat_map(|group| group.settings().map(|(_, value)| value.to_bits())))
}

/// Returns a hash that an `f64` represents exactly: 52 bits.
fn hash(values: impl Iterator<Item = u64>) -> f64 {
    let mix = |hash: u64, value: u64| {
        (hash ^ value).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
    };
    (values.fold(0, mix) >> 12) as f64
}

/// Returns the error for ranks whose optimizers have different settings. Every rank must call this.
#[cold]
fn differently_set(run: &Run, world: &World) -> Result<Error> {
    let mut own: Vec<(String, String)> = Vec::new();
    for (part, optimizer, ..) in run.model.optimizers.parts() {
        let part = if part.is_empty() { String::new() } else { format!(" of `{part}`") };
        for (nth, group) in optimizer.groups().iter().enumerate() {
            let group_name =
                group.pattern().map_or_else(|| nth.to_string(), |pattern| format!("`{pattern}`"));
            let named =
                |name: &str| format!("`{name}` of the parameter group {group_name} of the optimizer{part}");
            own.extend(group.settings().map(|(name, value)| (named(name), exact(value))));
        }
    }
    let what = match world.difference(&own, "the comparison of the settings of the optimizers")? {
        None => String::new(),
        Some(Unequal { of_main, rank, of_rank }) => {
            let mut pairs = of_main.iter().zip(&of_rank);
            let pair = pairs.find(|(main, other)| main != other);
            pair.map_or_else(String::new, |((name, main), (_, other))| {
                format!(": {name} is {main} on rank 0, but {other} on rank {rank}")
            })
        }
    };
    Ok(Error::usage(format!(
        "the ranks are out of step, because their optimizers have different settings{what}; make hooks set the same values on every \
         rank, for example from numbers that are averaged over the ranks (`World::average`)"
    )))
}

/// Returns the error for ranks that train different parameters. Every rank must call this.
#[cold]
fn differently_frozen(run: &Run, world: &World) -> Result<Error> {
    let frozen = run.model.vars.parameters().filter(|var| !var.tensor.requires_grad());
    let frozen: Vec<String> = frozen.map(|var| var.name.clone()).collect();
    let what = match world.difference(&frozen, "the comparison of the frozen parameters")? {
        None => String::new(),
        Some(Unequal { of_main, rank, of_rank }) => {
            let [main, other] = [(&of_main, &of_rank), (&of_rank, &of_main)]
                .map(|(one, other)| one.iter().find(|name| !other.contains(name)));
            let (name, frozen, trained) = main.map_or((other, rank, 0), |name| (Some(name), 0, rank));
            let name = name.map_or("", String::as_str);
            format!(": `{}` is frozen on rank {frozen}, but trained on rank {trained}", shortened(name))
        }
    };
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
        let ([skips], []) = run.ranks.world.combine([skips], [], "the agreement on a skipped batch")?;
        run.requests.skip_batch = skips > 0.0;
    }
    Ok(())
}

/// In training, sums the weight and the number of samples of the batch over all ranks again. Called
/// if a hook may have changed the batch.
pub(super) fn agree_on_weight(run: &mut Run) -> Result<()> {
    if run.place.phase != Phase::Train {
        return Ok(());
    }
    let samples = if run.ranks.is_borrowed { 0 } else { run.step.batch_len.unwrap_or(1) };
    let own = [run.step.weight, samples as f64];
    let what = "the agreement on the weight of a changed batch";
    let ([], [weight, samples]) = run.ranks.world.combine([], own, what)?;
    run.step.total = Amount { weight, samples };
    Ok(())
}

/// Returns the error for ranks that have not trained the same number of batches and steps, or have
/// not accumulated the gradients of the same batches. Every rank must call this.
#[cold]
fn out_of_step(own: Counters, world: &World) -> Result<Error> {
    let what = match world.difference(&own, "the comparison of the counters")? {
        None => String::new(),
        Some(Unequal { of_main: (batches, steps, weight), rank, of_rank }) => {
            let (other_batches, other_steps, other_weight) = of_rank;
            let accumulated = if weight == other_weight {
                String::new()
            } else {
                format!(", and gradients of weight {weight} and {other_weight} are accumulated")
            };
            format!(
                ": rank 0 has trained {batches} batches and taken {steps} optimizer steps, but rank {rank} has trained \
                 {other_batches} and taken {other_steps}{accumulated}"
            )
        }
    };
    Ok(Error::usage(format!(
        "the ranks are out of step{what}; a hook skipped work on one rank only: make it decide the same way on every rank"
    )))
}
