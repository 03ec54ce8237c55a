//! What the ranks agree on before a batch.

use super::ranks::Common;
use crate::error::{CancelledBy, Result};
use crate::phase::Phase;
use crate::run::{Amount, Run, SavesOfRanks};

/// What error messages call the exchange of reports between the ranks.
const AGREEMENT: &str = "the agreement on the next batch";

/// The next batch of a pass: that of one rank or, once the ranks have agreed, that of all ranks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NextBatch {
    /// Whether there is a next batch, on this rank or on any rank.
    pub(super) exists: bool,
    /// Whether the next batch is the last one. If so, it ends its accumulation window even if the
    /// window is not full. Also `true` if there is no next batch. Determined only in training, and
    /// only for a batch that may not fill its window.
    pub(super) is_last: bool,
    /// Its weight and its number of samples, in training.
    pub(super) amount: Amount,
}

/// What a rank reports before a batch. The largest report of any rank takes effect.
#[derive(Clone, Copy)]
enum Report {
    Sigterm,
    Sigint,
    Sighup,
    Token,
    Stop,
    EndPass,
    /// [`SavesOfRanks`].
    Saves,
    KeepState,
    RollBack,
    /// SIGUSR1 has requested a checkpoint.
    Checkpoint,
    HasNext,
    HasSecond,
}

/// The number of reports.
const REPORTS: usize = Report::HasSecond as usize + 1;

/// What cancels a run, in the order of precedence.
const CAUSES: [(Report, CancelledBy); 4] = [
    (Report::Sigterm, CancelledBy::Sigterm),
    (Report::Sigint, CancelledBy::Sigint),
    (Report::Sighup, CancelledBy::Sighup),
    (Report::Token, CancelledBy::Token),
];

/// Exchanges reports with the other ranks, and applies what was requested on any of them. Returns
/// the next batch of all ranks, or `next` if this process trains alone.
#[inline]
pub(super) fn agree(run: &mut Run, next: Option<NextBatch>) -> Result<Option<NextBatch>> {
    if run.world().is_solo() { Ok(next) } else { exchange(run, next) }
}

#[cold]
fn exchange(run: &mut Run, next: Option<NextBatch>) -> Result<Option<NextBatch>> {
    let world = run.world().clone();
    let is_train = run.phase() == Phase::Train;
    let by = run.cancellation().request();
    let new_stop = run.requests().new_stop().map(|(why, by)| (why.to_owned(), by));
    let NextBatch { exists, is_last, amount } = next.unwrap_or_default();
    // Each report, and what must be equal on all ranks.
    let mut own = [0.0; REPORTS + Common::LEN];
    let mut report = |what: Report, value: u8| own[what as usize] = f64::from(value);
    for (what, cause) in CAUSES {
        report(what, u8::from(by == Some(cause)));
    }
    report(Report::Stop, u8::from(new_stop.is_some()));
    report(Report::EndPass, u8::from(run.requests().has_end_of_pass()));
    report(Report::Saves, run.checkpoints().saves() as u8);
    report(Report::KeepState, u8::from(run.requests().keeps_state()));
    report(Report::RollBack, u8::from(run.requests().reason_to_roll_back().is_some()));
    report(Report::Checkpoint, u8::from(run.checkpoints().is_requested.take()));
    report(Report::HasNext, u8::from(exists));
    report(Report::HasSecond, u8::from(!is_last));
    let common = Common::of(run.counters(), run.model(), run.ranks(), is_train);
    for (own, number) in own[REPORTS..].iter_mut().zip(common.numbers()) {
        *own = number;
    }
    let (all, [weight, samples]) = world.combine(own, [amount.weight, amount.samples], AGREEMENT)?;
    world.begin_batch();
    common.check(&all[REPORTS..], run.model(), &world)?;
    let has = |report: Report| all[report as usize] > 0.0;
    let agreed = &mut run.ranks_mut().agreed;
    agreed.cancelled = CAUSES.into_iter().find(|(report, _)| has(*report)).map(|(_, by)| by);
    agreed.saves = SavesOfRanks::ALL[all[Report::Saves as usize] as usize];
    // Rank 0 writes the checkpoint.
    run.checkpoints().is_requested.set(has(Report::Checkpoint) && run.rank() == 0);
    let roll_back = if has(Report::RollBack) {
        let own = run.requests().reason_to_roll_back().map(str::to_owned);
        let reasons: Vec<Option<_>> = world.gather_named(&own, "the agreement on a roll-back")?;
        reasons.into_iter().flatten().next()
    } else {
        None
    };
    run.requests_mut().agree(has(Report::EndPass), has(Report::KeepState), roll_back);
    if has(Report::Stop) {
        let reasons: Vec<Option<_>> = world.gather_named(&new_stop, "the agreement on a stop")?;
        if let Some((why, by)) = reasons.into_iter().flatten().next() {
            run.requests_mut().agree_on_stop(why, by);
        }
    }
    Ok(next.map(|_| NextBatch {
        exists: has(Report::HasNext),
        is_last: !has(Report::HasSecond),
        amount: Amount { weight, samples },
    }))
}
