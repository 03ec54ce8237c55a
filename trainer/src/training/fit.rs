//! The training loop and the passes over data within it.

use super::decide::{Before, decide};
use super::erased::steps_per_batch;
use super::pass::Pass;
use super::ranks::{PassLength, agree_on_length};
use super::replicas::Compared;
use super::resume::{self, DataFingerprint};
use super::step::step;
use super::task::Task;
use super::validation::{Loaders, check_resumed, evaluate, in_phase, loaders_of, set_intervals, validate};
use super::{never_ran, plan, ranks, records, replicas, run_folder, variables, window};
use crate::checkpoint::progress::{LoopPosition, Stage, Weighed};
use crate::data::{Loader, not_one_loader};
use crate::error::Result;
use crate::hook::call::Loop;
use crate::lifecycle::at;
use crate::moments::counters::Counters;
use crate::phase::Phase;
use crate::run::Run;

/// Runs the operation `fit`. A resumed fit continues where it was interrupted: points that have
/// already fired do not fire again.
pub(super) fn fit<T: Task>(
    run: &mut Run,
    train: &mut dyn Loader<T::Batch>,
    mut valid: Option<&mut dyn Loader<T::Batch>>,
) -> Result<()> {
    run.optimizers().require()?;
    if train.named().is_some() {
        return Err(not_one_loader());
    }
    if valid.is_none() {
        run.settings().check_without_validation()?;
    }
    let share = run.world().share();
    train.share(share)?;
    if let Some(valid) = valid.as_deref_mut() {
        valid.share(share)?;
    }
    let data = DataFingerprint::of(train, valid.as_deref());
    ranks::compare_data(run.world(), &data.fingerprints)?;
    run.progress_mut().fits_begun += 1;
    let mut valid = valid.map_or_else(|| Ok(Vec::new()), |valid| loaders_of(valid))?;
    set_intervals(&mut valid, run.settings())?;
    let resumed = resume::resume(run, &data)?;
    let described = run_folder::describe_data(run.folder_state_mut(), Some(&*train), Phase::Valid, &valid);
    run_folder::only_warn(run.reports(), "cannot record the data of the run", described);
    if resumed {
        check_resumed(run.fit().position, &valid)?;
    } else {
        // Gradients left by an earlier run, or by the program, must not enter the first step.
        window::discard(run)?;
        run.fit_mut().position = LoopPosition::default();
        run.fit_mut().start = run.progress_mut().begin_fit();
    }
    run.fit_mut().is_running = true;
    run.fit_mut().data = data.fingerprints;
    let PassLength { known, .. } = agree_on_length(run.world(), train.len())?;
    let steps_per_batch = steps_per_batch::<T>(run.hooks())?;
    let (_, batches) = run.settings().batches_of(Phase::Train, known)?;
    run.fit_mut().plan = plan::plan(run.fit(), run.settings(), batches, steps_per_batch, &valid);
    plan::warn_of_short_fractions(run.settings(), run.reports(), batches, &valid);
    run.resume_operation::<at::fit>(resumed, |run| {
        if !resumed || run.fit().position.stage == Stage::SanityCheck {
            sanity_check::<T>(run, &mut valid)?;
        }
        let mut has_trained = run.fit().position.stage != Stage::BetweenEpochs;
        if has_trained {
            epoch::<T>(run, train, &mut valid, true)?;
        }
        let is_unbounded = run.fit().plan.epochs.is_none() && run.settings().max_time.is_none();
        let mut is_idle = false;
        while decide(run, Before::Epoch)?.goes_on {
            if is_unbounded && is_idle {
                return Err(plan::never_ends());
            }
            let steps = run.counters().optimizer_steps;
            epoch::<T>(run, train, &mut valid, false)?;
            is_idle = run.counters().optimizer_steps == steps && !run.fit().window.is_open();
            has_trained = true;
        }
        if resumed && !has_trained {
            run.reports().notice(&plan::nothing_left(run.fit(), run.progress(), run.requests()));
        }
        records::warn_of_unrecorded(run.settings(), &run.logs(), run.reports(), !resumed);
        if run.progress().fits_begun == 1 && !resumed && !run.is_replay() && !run.settings().is_fast_dev_run()
        {
            never_ran::note_hooks_that_never_ran(run.hooks().table.hooks(), run.dispatch(), run.reports());
        }
        Ok(())
    })?;
    replicas::compare(run.model(), run.ranks(), Compared::WeightsAndOptimizers, "at the end of the fit")
}

/// Runs the operation `sanity_check`, if it is enabled.
fn sanity_check<T: Task>(run: &mut Run, valid: &mut Loaders<'_, T::Batch>) -> Result<()> {
    if run.settings().sanity_batches > 0 {
        run.fit_mut().position.stage = Stage::SanityCheck;
        in_phase(run, Phase::Sanity, |run| {
            run.operate::<at::sanity_check>(|run| {
                valid
                    .iter_mut()
                    .try_for_each(|loader| evaluate::<T, at::valid>(run, loader, None, &mut |_| Ok(())))
            })
        })?;
    }
    run.fit_mut().position.stage = Stage::BetweenEpochs;
    Ok(())
}

/// Runs the operation `epoch`.
fn epoch<T: Task>(
    run: &mut Run,
    train: &mut dyn Loader<T::Batch>,
    valid: &mut Loaders<'_, T::Batch>,
    resumed: bool,
) -> Result<()> {
    if !resumed {
        run.progress_mut().begin_epoch();
        run.logs_mut().begin_epoch();
    }
    run.resume_operation::<at::epoch>(resumed, |run| {
        let is_validating = resumed && run.fit().position.stage == Stage::Validating;
        if !is_validating {
            run.resume_operation::<at::train_epoch>(resumed, |run| {
                train_pass::<T>(run, train, valid, resumed)
            })?;
            records::emit_pass(run)?;
            run.requests_mut().take_end_of_pass(); // the request was for that pass
        }
        validate::<T>(run, valid, (Stage::Validating, 0), is_validating)
    })?;
    records::emit_pass(run)?; // the values logged at `after_epoch`
    run.fit_mut().position = LoopPosition::default();
    run.progress_mut().epochs_done += 1;
    run.add_row();
    Ok(())
}

/// Runs one pass over the training data, including the validations that are due within it.
fn train_pass<T: Task>(
    run: &mut Run,
    train: &mut dyn Loader<T::Batch>,
    valid: &mut Loaders<'_, T::Batch>,
    resumed: bool,
) -> Result<()> {
    let order = if run.settings().repeats_batches() { 0 } else { run.counters().epoch };
    let begun = resumed.then_some(run.fit().position.train);
    if !resumed {
        *run.kept_mut() = None; // left by a fit that failed: a roll-back stays within a pass
        run.fit_mut().weighed = Weighed::None;
    }
    let mut pass = Pass::begin(run, train, order, begun)?;
    let LoopPosition { stage, steps_before, .. } = pass.run.fit().position;
    if resumed && stage == Stage::ValidatingWithin {
        validate::<T>(pass.run, valid, (stage, steps_before), true)?;
    }
    while let Some(batch) = pass.next::<T>()? {
        let run = &mut *pass.run;
        let Counters { optimizer_steps: steps_before, batches_seen, .. } = run.counters();
        run.logs_mut().records.plan = records::planned(run.settings(), run.fit(), run.counters());
        step::<T>(run, batch, &mut |_| Ok(()))?;
        let weight = run.step().total.weight;
        let is_skipped = run.counters().batches_seen == batches_seen;
        run.fit_mut().weighed.add(weight, is_skipped);
        let steps = run.counters().optimizer_steps;
        if run.logs_mut().end_batch(steps) {
            records::emit_steps(run)?;
        }
        if steps > steps_before && !run.fit().plan.unused.is_empty() {
            let in_batch = run.step().steps;
            let warnings = run.fit_mut().plan.take_unused(in_batch);
            warnings.into_iter().for_each(|text| run.reports().warn(text));
        }
        validate::<T>(run, valid, (Stage::ValidatingWithin, steps_before), false)?;
    }
    *pass.run.kept_mut() = None;
    let store = pass.run.step().store(pass.run.hooks().task());
    store.map_or(Ok(()), |store| variables::check(pass.run.vars(), store))?;
    records::warn_of_unrecorded(pass.run.settings(), &pass.run.logs(), pass.run.reports(), false);
    let weighed = pass.run.fit().weighed;
    pass.end(weighed)?;
    if run.fit().plan.has_warned_of_divergence {
        return Ok(());
    }
    let loss = run.logs_mut().metric("train/loss");
    if let Some(text) = plan::divergence(loss, run.history(), run.model(), run.counters().epoch)? {
        run.fit_mut().plan.has_warned_of_divergence = true;
        run.reports().warn(text);
    }
    Ok(())
}
