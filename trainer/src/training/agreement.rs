//! What the ranks agree on before a batch.

use super::ranks::Common;
use crate::error::{CancelledBy, Result};
use crate::phase::Phase;
use crate::run::{Amount, BackgroundSave, Run, SavesOfRanks, Upcoming};

/// What error messages call the exchange of reports between the ranks.
const AGREEMENT: &str = "the agreement on the next batch";

/// One rank's information about the next batch of a pass.
#[derive(Clone, Copy, Default)]
pub(super) struct NextBatch {
    /// Whether there is a next batch.
    pub(super) exists: bool,
    /// Whether the next batch is the last one. If so, it ends its accumulation window even if the
    /// window is not full. Also `true` if there is no next batch. Determined only in training, and
    /// only for a batch that may not fill its window.
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

/// The number of flags.
const FLAGS: usize = Flag::HasSecond as usize + 1;

/// Exchanges reports with the other ranks, if there are any, and applies what was requested on
/// any of them.
#[inline]
pub(super) fn agree(run: &mut Run, next: Option<NextBatch>) -> Result<()> {
    if run.world().is_solo() { Ok(()) } else { exchange(run, next) }
}

#[cold]
fn exchange(run: &mut Run, next: Option<NextBatch>) -> Result<()> {
    let world = run.world().clone();
    let is_train = run.phase() == Phase::Train;
    let by = run.cancellation().request();
    let new_stop = run.requests().new_stop().map(|(why, by)| (why.to_owned(), by));
    let NextBatch { exists, is_last, amount } = next.unwrap_or_default();
    // Each flag, and what must be equal on all ranks.
    let mut own = [0.0; FLAGS + Common::LEN];
    for (flag, is_set) in [
        (Flag::Sigterm, by == Some(CancelledBy::Sigterm)),
        (Flag::Sigint, by == Some(CancelledBy::Sigint)),
        (Flag::Sighup, by == Some(CancelledBy::Sighup)),
        (Flag::Token, by == Some(CancelledBy::Token)),
        (Flag::Stop, new_stop.is_some()),
        (Flag::EndPass, run.requests().has_end_of_pass()),
        (Flag::Saves, !run.checkpoints().requests.borrow().is_empty()),
        (Flag::IsWriting, run.checkpoints().background.as_ref().is_some_and(BackgroundSave::is_busy)),
        (Flag::KeepState, run.requests().keeps_state()),
        (Flag::RollBack, run.requests().reason_to_roll_back().is_some()),
        (Flag::Checkpoint, run.checkpoints().is_requested.take()),
        (Flag::HasNext, exists),
        (Flag::HasSecond, !is_last),
    ] {
        own[flag as usize] = f64::from(u8::from(is_set));
    }
    let common = Common::of(run.counters(), run.model(), run.ranks(), is_train);
    for (own, number) in own[FLAGS..].iter_mut().zip(common.numbers()) {
        *own = number;
    }
    let (all, [weight, samples]) = world.combine(own, [amount.weight, amount.samples], AGREEMENT)?;
    world.begin_batch();
    common.check(&all[FLAGS..], run.model(), &world)?;
    let has = |flag: Flag| all[flag as usize] > 0.0;
    let agreed = &mut run.ranks_mut().agreed;
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
    run.checkpoints().is_requested.set(has(Flag::Checkpoint) && run.rank() == 0);
    let roll_back = if has(Flag::RollBack) {
        let own = run.requests().reason_to_roll_back().map(str::to_owned);
        let reasons: Vec<Option<_>> = world.gather_named(&own, "the agreement on a roll-back")?;
        reasons.into_iter().flatten().next()
    } else {
        None
    };
    run.requests_mut().agree(has(Flag::EndPass), has(Flag::KeepState), roll_back);
    if has(Flag::Stop) {
        let reasons: Vec<Option<_>> = world.gather_named(&new_stop, "the agreement on a stop")?;
        if let Some((why, by)) = reasons.into_iter().flatten().next() {
            run.requests_mut().agree_on_stop(why, by);
        }
    }
    if next.is_some() {
        run.ranks_mut().next = Some(Amount { weight, samples });
        run.ranks_mut().upcoming = match (has(Flag::HasNext), has(Flag::HasSecond)) {
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
    if run.ranks().may_skip && run.phase() == Phase::Train {
        let skips = f64::from(u8::from(run.requests().skips_batch()));
        let ([skips], []) = run.world().combine([skips], [], "the agreement on a skipped batch")?;
        run.requests_mut().skip_batch(skips > 0.0);
    }
    Ok(())
}
