//! Decisions of the loop that all ranks make together: a stop, the end of a pass, a cancellation, a
//! checkpoint, a skipped batch.

use tch::Device;

use super::pass::Pass;
use crate::data::Batch;
use crate::distributed::World;
use crate::error::{CancelledBy, Error, Result, shortened};
use crate::libtorch;
use crate::phase::Phase;
use crate::run::{BatchOfRanks, Run};

/// The name of the agreement in errors.
const AGREEMENT: &str = "the agreement on the next batch";

/// The state of one rank before a batch, which it sends to the others.
#[derive(Clone, Copy, Default)]
struct Report {
    sigint: bool,
    sigterm: bool,
    sighup: bool,
    token: bool,
    stop: bool,
    end_epoch: bool,
    saves: bool,
    /// Whether the rank has a next batch.
    has_batch: bool,
    /// Whether the next batch is the last one and therefore ends an accumulation window that is not
    /// full.
    is_last: bool,
    weight: f64,
    samples: f64,
    batches: f64,
    steps: f64,
    /// The sum of the weights of the batches in the accumulation window.
    accumulated: f64,
    /// A hash of the parameters that are trained.
    trained: f64,
}

impl Report {
    fn to_numbers(self) -> [f64; 15] {
        let flag = |flag: bool| f64::from(u8::from(flag));
        [
            flag(self.sigint),
            flag(self.sigterm),
            flag(self.sighup),
            flag(self.token),
            flag(self.stop),
            flag(self.end_epoch),
            flag(self.saves),
            flag(self.has_batch),
            flag(self.is_last),
            self.weight,
            self.samples,
            self.batches,
            self.steps,
            self.accumulated,
            self.trained,
        ]
    }

    fn from_numbers(numbers: &[f64; 15]) -> Self {
        let [sigint, sigterm, sighup, token, stop, end_epoch, saves, has_batch, is_last, rest @ ..] =
            *numbers;
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
            has_batch: is(has_batch),
            is_last: is(is_last),
            weight,
            samples,
            batches,
            steps,
            accumulated,
            trained,
        }
    }
}

impl Run {
    /// Agrees with the other ranks on what was requested on any of them.
    #[inline]
    pub(super) fn agree(&mut self) -> Result<()> {
        match self.ranks.world.clone() {
            None => Ok(()),
            Some(world) => self.exchange(&world, Report::default()).map(drop),
        }
    }

    /// Exchanges reports with the other ranks, and applies their requests.
    #[cold]
    fn exchange(&mut self, world: &World, next: Report) -> Result<Vec<Report>> {
        let by = self.cancel_request();
        let own = Report {
            sigint: by == Some(CancelledBy::Sigint),
            sigterm: by == Some(CancelledBy::Sigterm),
            sighup: by == Some(CancelledBy::Sighup),
            token: by == Some(CancelledBy::Token),
            stop: self.requests.stop.is_some(),
            end_epoch: self.requests.end_epoch,
            saves: !self.checkpoints.requests.is_empty(),
            batches: self.progress.counters.batches_seen as f64,
            steps: self.progress.counters.optimizer_steps as f64,
            accumulated: self.model.optimizers.accumulated(),
            trained: if self.place.phase == Phase::Train { self.trained_hash() } else { 0.0 },
            ..next
        };
        let all = world.table(own.to_numbers(), AGREEMENT)?;
        world.begin_batch();
        let all: Vec<Report> = all.iter().map(Report::from_numbers).collect();
        check_counters(&all)?;
        if all.iter().any(|report| report.trained != own.trained) {
            return Err(self.differently_frozen(world)?);
        }
        let any = |flag: fn(&Report) -> bool| all.iter().any(flag);
        let agreed = &mut self.ranks.agreed;
        agreed.cancelled = match () {
            () if any(|it| it.sigterm) => Some(CancelledBy::Sigterm),
            () if any(|it| it.sigint) => Some(CancelledBy::Sigint),
            () if any(|it| it.sighup) => Some(CancelledBy::Sighup),
            () if any(|it| it.token) => Some(CancelledBy::Token),
            () => None,
        };
        agreed.saves = any(|it| it.saves);
        agreed.end_epoch = any(|it| it.end_epoch);
        self.requests.end_epoch = agreed.end_epoch;
        if any(|it| it.stop) && !agreed.stop {
            agreed.stop = true;
            let reasons: Vec<Option<(String, bool)>> = world.gather_named(
                &self.requests.stop.clone().map(|why| (why, self.requests.is_of_clock)),
                "the agreement on a stop",
            )?;
            if let Some((why, is_of_clock)) = reasons.into_iter().flatten().next() {
                (self.requests.stop, self.requests.is_of_clock) = (Some(why), is_of_clock);
            }
        }
        Ok(all)
    }

    /// Returns a hash of the parameters that are trained, which is exact as a floating-point number.
    fn trained_hash(&self) -> f64 {
        let mix = |hash: u64, is_trained: bool| {
            (hash ^ u64::from(is_trained)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
        };
        let trained = self.model.vars.parameters().map(|var| var.tensor.requires_grad());
        (trained.fold(0, mix) >> 12) as f64
    }

    /// Returns the error for ranks that train different parameters. This is a collective.
    #[cold]
    fn differently_frozen(&self, world: &World) -> Result<Error> {
        let frozen = self.model.vars.parameters().filter(|var| !var.tensor.requires_grad());
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
    pub(super) fn agree_on_skip(&mut self) -> Result<()> {
        let Some(world) = &self.ranks.world else { return Ok(()) };
        if self.ranks.may_skip && self.place.phase == Phase::Train {
            self.requests.skip_step =
                world.any_named(self.requests.skip_step, "the agreement on a skipped batch")?;
        }
        Ok(())
    }

    /// Sums the weight of a training batch over all ranks again, after a hook may have changed the
    /// batch.
    pub(super) fn agree_on_weight(&mut self) -> Result<()> {
        let Some(world) = &self.ranks.world else { return Ok(()) };
        if self.place.phase != Phase::Train {
            return Ok(());
        }
        let samples = if self.ranks.batch.is_borrowed { 0 } else { self.step.batch_len.unwrap_or(1) };
        let own = [self.step.weight, samples as f64];
        let [weight, samples] = world.sums(own, "the agreement on the weight of a changed batch")?;
        (self.ranks.batch.weight, self.ranks.batch.samples) = (weight, samples);
        Ok(())
    }
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

/// Agrees with the other ranks before the next batch of a pass, and draws this batch ahead. `weigh`
/// returns the weight of the batch.
pub(super) fn agree_on_next<B: Batch>(
    run: &mut Run,
    pass: &mut Pass<'_, B>,
    weigh: &mut dyn FnMut(&mut Run, &B) -> Result<f64>,
) -> Result<()> {
    let Some(world) = run.ranks.world.clone() else { return Ok(()) };
    let is_train = run.place.phase == Phase::Train;
    run.ranks.random_before_draw =
        if pass.has_drawn() { None } else { Some(libtorch::random_state(Device::Cpu)?) };
    let is_borrowed = pass.is_borrowed(run);
    let mut own = Report::default();
    match pass.peek(run) {
        None => {}
        // The error is returned when the batch is taken.
        Some(Err(_)) => own.has_batch = true,
        Some(Ok(batch)) => {
            own.has_batch = true;
            if !is_borrowed {
                own.samples = batch.samples().unwrap_or(1) as f64;
                own.weight = if is_train { weigh(run, batch)? } else { own.samples };
            }
        }
    }
    own.is_last = is_train && own.has_batch && !run.fills_window() && pass.is_second_last(run);
    let all = run.exchange(&world, own)?;
    if is_train {
        check_batches(&all, run.progress.counters.batch_idx)?;
    }
    run.ranks.batch = BatchOfRanks {
        weight: all.iter().map(|it| it.weight).sum(),
        samples: all.iter().map(|it| it.samples).sum(),
        is_borrowed,
    };
    run.ranks.others_have_batches = all.iter().any(|it| it.has_batch);
    Ok(())
}

/// Returns an error if some ranks have another training batch and others do not, or if it is the
/// last one on some ranks only.
fn check_batches(all: &[Report], index: u64) -> Result<()> {
    let with = |flag: fn(&Report) -> bool| all.iter().position(flag);
    let end = |flag: fn(&Report) -> bool| all.iter().position(|report| !flag(report));
    for flag in [(|it: &Report| it.has_batch) as fn(&Report) -> bool, |it| !it.is_last] {
        if let (Some(longer), Some(shorter)) = (with(flag), end(flag)) {
            return Err(Error::usage(format!(
                "the training data of rank {shorter} ends before that of rank {longer}, at batch {index} or the one after it: use \
                 loaders that yield the same number of batches on all ranks"
            )));
        }
    }
    Ok(())
}
