//! What the ranks agree on before a batch, and the errors of ranks that are out of step.

use crate::distributed::{Unequal, World, both, is_same};
use crate::error::{CancelledBy, Error, Result, shortened};
use crate::phase::Phase;
use crate::run::{Amount, BackgroundSave, Run, SavesOfRanks, Upcoming};
use crate::values::float::exact;

/// What error messages call the exchange of reports between the ranks.
const AGREEMENT: &str = "the agreement on the next batch";

/// One rank's information about the next batch of a pass.
#[derive(Clone, Copy, Default)]
pub(super) struct NextBatch {
    /// Whether there is a next batch.
    pub(super) exists: bool,
    /// Whether the next batch is the last one. If so, it ends its accumulation window even if the
    /// window is not full. Also `true` if there is no next batch. Determined only in training, and
    /// only for a batch that does not fill its window.
    pub(super) is_last: bool,
    pub(super) amount: Amount,
}

/// What a rank reports before a batch. A flag takes effect if any rank sets it.
#[derive(Clone, Copy)]
enum Flag {
    Sigterm,
    Sigint,
    Sighup,
    Token,
    Stop,
    EndPass,
    Saves,
    /// A thread of the rank is writing a checkpoint.
    IsWriting,
    KeepState,
    RollBack,
    /// SIGUSR1 has requested a checkpoint.
    Checkpoint,
    HasNext,
    HasSecond,
}

/// The number of flags, and of values that must be equal on all ranks.
const FLAGS: usize = Flag::HasSecond as usize + 1;
const SAME: usize = 5;

/// The progress of a rank: the number of batches, the number of optimizer steps, and the total
/// weight of the batches in the accumulation window.
type Counters = (u64, u64, f64);

/// Exchanges reports with the other ranks, if there are any, and applies what was requested on
/// any of them.
#[inline]
pub(super) fn agree(run: &mut Run, next: Option<NextBatch>) -> Result<()> {
    if run.ranks.world.is_solo() { Ok(()) } else { exchange(run, next) }
}

#[cold]
fn exchange(run: &mut Run, next: Option<NextBatch>) -> Result<()> {
    let world = run.ranks.world.clone();
    let is_train = run.place.phase == Phase::Train;
    let by = run.cancel_request();
    let new_stop = run.requests.new_stop().map(|(why, by)| (why.to_owned(), by));
    let NextBatch { exists, is_last, amount } = next.unwrap_or_default();
    // Each flag, and each value that must be equal with its negative.
    let mut own = [0.0; FLAGS + 2 * SAME];
    for (flag, is_set) in [
        (Flag::Sigterm, by == Some(CancelledBy::Sigterm)),
        (Flag::Sigint, by == Some(CancelledBy::Sigint)),
        (Flag::Sighup, by == Some(CancelledBy::Sighup)),
        (Flag::Token, by == Some(CancelledBy::Token)),
        (Flag::Stop, new_stop.is_some()),
        (Flag::EndPass, run.requests.has_end_of_pass()),
        (Flag::Saves, !run.checkpoints.requests.borrow().is_empty()),
        (Flag::IsWriting, run.checkpoints.background.as_ref().is_some_and(BackgroundSave::is_busy)),
        (Flag::KeepState, run.requests.keeps_state()),
        (Flag::RollBack, run.requests.reason_to_roll_back().is_some()),
        (Flag::Checkpoint, run.checkpoints.is_requested.take()),
        (Flag::HasNext, exists),
        (Flag::HasSecond, !is_last),
    ] {
        own[flag as usize] = f64::from(u8::from(is_set));
    }
    let counters: Counters = (
        run.progress.counters.batches_seen,
        run.progress.counters.optimizer_steps,
        if run.ranks.train_separately { 0.0 } else { run.model.optimizers.accumulated() },
    );
    let [trained, settings] = if is_train { [trained_hash(run), settings_hash(run)] } else { [0.0; 2] };
    let same: [f64; SAME] = [counters.0 as f64, counters.1 as f64, counters.2, trained, settings];
    for (pair, number) in own[FLAGS..].chunks_exact_mut(2).zip(same) {
        pair.copy_from_slice(&both(number));
    }
    let (all, [weight, samples]) = world.combine(own, [amount.weight, amount.samples], AGREEMENT)?;
    world.begin_batch();
    let pairs = all[FLAGS..].chunks_exact(2).map(|pair| is_same([pair[0], pair[1]]));
    match pairs.zip(0..).find(|(is_same, _)| !is_same) {
        None => {}
        Some((_, 0..=2)) => return Err(out_of_step(counters, &world)?),
        Some((_, 3)) => return Err(differently_frozen(run, &world)?),
        Some(_) => return Err(differently_set(run, &world)?),
    }
    let has = |flag: Flag| all[flag as usize] > 0.0;
    let agreed = &mut run.ranks.agreed;
    let causes = [
        (Flag::Sigterm, CancelledBy::Sigterm),
        (Flag::Sigint, CancelledBy::Sigint),
        (Flag::Sighup, CancelledBy::Sighup),
        (Flag::Token, CancelledBy::Token),
    ];
    agreed.cancelled = causes.into_iter().find(|(flag, _)| has(*flag)).map(|(_, by)| by);
    agreed.saves = match () {
        () if has(Flag::Saves) => SavesOfRanks::Requested,
        () if has(Flag::IsWriting) => SavesOfRanks::Writing,
        () => SavesOfRanks::None,
    };
    // Rank 0 writes the checkpoint.
    run.checkpoints.is_requested.set(has(Flag::Checkpoint) && run.rank == 0);
    let roll_back = if has(Flag::RollBack) {
        let own = run.requests.reason_to_roll_back().map(str::to_owned);
        let reasons: Vec<Option<_>> = world.gather_named(&own, "the agreement on a roll-back")?;
        reasons.into_iter().flatten().next()
    } else {
        None
    };
    run.requests.agree(has(Flag::EndPass), has(Flag::KeepState), roll_back);
    if has(Flag::Stop) {
        let reasons: Vec<Option<_>> = world.gather_named(&new_stop, "the agreement on a stop")?;
        if let Some((why, by)) = reasons.into_iter().flatten().next() {
            run.requests.agree_on_stop(why, by);
        }
    }
    if next.is_some() {
        run.ranks.next = Some(Amount { weight, samples });
        run.ranks.upcoming = match (has(Flag::HasNext), has(Flag::HasSecond)) {
            (false, _) => Upcoming::None,
            (true, false) => Upcoming::Last,
            (true, true) => Upcoming::More,
        };
    }
    Ok(())
}

/// In training, skips the batch on all ranks if a hook at `before_step` skips it on any of
/// them.
#[inline]
pub(super) fn agree_on_skip(run: &mut Run) -> Result<()> {
    if run.ranks.may_skip && run.place.phase == Phase::Train {
        let skips = f64::from(u8::from(run.requests.skips_batch()));
        let ([skips], []) = run.ranks.world.combine([skips], [], "the agreement on a skipped batch")?;
        run.requests.skip_batch(skips > 0.0);
    }
    Ok(())
}

/// In training, sums the weight and the number of samples of the batch over all ranks again. Called
/// if a hook may have changed the batch.
pub(super) fn agree_on_weight(run: &mut Run) -> Result<()> {
    if run.place.phase != Phase::Train {
        return Ok(());
    }
    let Amount { weight, samples } = run.step.total;
    let own = [weight, samples];
    let what = "the agreement on the weight of a changed batch";
    let ([], [weight, samples]) = run.ranks.world.combine([], own, what)?;
    run.step.total = Amount { weight, samples };
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
