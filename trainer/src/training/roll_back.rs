//! Keeps a copy of the state of a run, so that the run can return to it without a checkpoint.

use super::tape::{self, Recorder};
use super::{parts, records, save};
use crate::checkpoint::Saved;
use crate::error::{Error, Result};
use crate::hook::call::Loop;
use crate::log::record::RecordPlan;
use crate::run::{KeptState, Run};

/// Keeps a copy of the state. If several processes train together, every rank must call this.
#[cold]
pub(super) fn keep(run: &mut Run) -> Result<()> {
    run.requests_mut().keep_state(false);
    // A record that is in flight belongs to the state that is kept, as in a checkpoint.
    records::flush(run)?;
    let mut kept = parts::with_values(run, |_| true);
    kept.retain(|part| part.rolls_back(run.hooks()));
    let mut states = parts::save(run, &kept)?;
    states.values_mut().try_for_each(Saved::own_its_memory)?;
    *run.kept_mut() = Some(KeptState {
        states,
        rows: run.history().len(),
        epoch: run.counters().epoch,
        batch_idx: run.counters().batch_idx,
    });
    Ok(())
}

/// Returns to the kept state, except that the pass over the training data continues with its next
/// batch.
#[cold]
pub(super) fn roll_back(run: &mut Run) -> Result<()> {
    let Some(reason) = run.requests_mut().take_roll_back() else { return Ok(()) };
    let Some(kept) = run.kept_mut().take() else { return Err(run.locate(nothing_kept(&reason))) };
    save::complete(run)?;
    // What hooks have requested or logged since then is undone.
    run.requests_mut().keep_state(false);
    run.checkpoints_mut().requests.get_mut().clear();
    run.logs_mut().records.in_flight = None;
    run.logs_mut().records.plan = RecordPlan::Never;
    for part in parts::with_values(run, |_| true) {
        if let Some(saved) = kept.states.get(&*part.name()) {
            // Hooks may adopt the tensors without copying them, and the state may be needed again.
            let mut copy = saved.shallow_clone();
            copy.own_its_memory()?;
            part.roll_back(run, &copy)?;
        }
    }
    run.history_mut().truncate(kept.rows);
    run.checkpoints_mut().journal.rewind(kept.rows)?;
    tape::with(run, Recorder::resume)?;
    let done = run.counters().batch_idx;
    let skipped = done.saturating_sub(kept.batch_idx);
    let es = if skipped == 1 { "" } else { "es" };
    let text = format!(
        "rolled back from batch {done} to batch {} of epoch {}, skipped {skipped} batch{es}: {reason}",
        kept.batch_idx, kept.epoch
    );
    run.progress_mut().roll_backs.push(text.clone());
    run.reports().warn(text);
    *run.kept_mut() = Some(kept);
    Ok(())
}

fn nothing_kept(reason: &str) -> Error {
    Error::usage(format!(
        "a hook called `cx.roll_back(…)` ({reason}), but no state of this pass over the training data is kept: call \
         `cx.keep_state()` at `before_train_epoch`"
    ))
}
