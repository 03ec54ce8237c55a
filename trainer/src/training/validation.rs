//! Evaluation passes over one loader or over several named loaders, and when they are due within a
//! fit.

use std::collections::HashSet;

use super::decide::{Before, decide};
use super::pass::Pass;
use super::replicas::Compared;
use super::step::step;
use super::task::Task;
use super::{records, replicas, run_folder};
use crate::checkpoint::progress::LoopState;
use crate::checkpoint::progress::{LoopPosition, Stage, Weighed};
use crate::data::{Batch, Loader, NamedLoader, not_one_loader};
use crate::error::{Error, Result};
use crate::hook::call::Loop;
use crate::lifecycle::at;
use crate::moment::AtOperation;
use crate::phase::Phase;
use crate::run::Run;
use crate::run::settings::Settings;
use crate::values::every::Every;

/// The validation or test loaders of an entry point, in the order of their passes.
pub(super) type Loaders<'l, B> = Vec<NamedLoader<'l, B>>;

/// Returns the loaders that a loader consists of: itself, or the loaders of a `NamedLoaders`.
///
/// # Errors
///
/// Returns an error if a `NamedLoaders` is empty or contains another one, or if a name is invalid
/// or used twice.
pub(super) fn loaders_of<'l, B: Batch>(loader: &'l mut (dyn Loader<B> + 'l)) -> Result<Loaders<'l, B>> {
    if loader.named().is_none() {
        return Ok(vec![NamedLoader { name: None, every: None, loader }]);
    }
    let mut loaders = loader.named().unwrap_or_default();
    if loaders.is_empty() {
        return Err(Error::usage("`NamedLoaders` has no loader: add one with `.add(\"name\", loader)`"));
    }
    let mut names = HashSet::new();
    for named in &mut loaders {
        let name = named.name().to_owned();
        if named.loader.named().is_some() {
            return Err(Error::usage(format!(
                "the loader `{name}` is a `NamedLoaders` itself: add its loaders to the outer one"
            )));
        }
        if name.is_empty() || name.contains(['/', '@']) || name.trim() != name {
            return Err(Error::usage(format!(
                "`{name}` cannot be the name of a loader, because it is part of the names of metrics: expected a \
                 nonempty name without `/`, `@` or surrounding spaces"
            )));
        }
        if !names.insert(name.clone()) {
            return Err(Error::usage(format!(
                "two loaders are named `{name}`: use a different name for each"
            )));
        }
    }
    Ok(loaders)
}

/// Sets the interval of each validation loader of a fit.
///
/// # Errors
///
/// Returns an error if an interval is invalid, or longer than the fit.
pub(super) fn set_intervals<B: Batch>(loaders: &mut Loaders<'_, B>, settings: &Settings) -> Result<()> {
    for loader in loaders {
        match loader.every {
            Some(every) if !settings.is_fast_dev_run() => {
                let mut mistakes = Vec::new();
                let call = |every: &str| format!("`.add_every({:?}, …, {every})`", loader.name());
                settings.check_interval(every, call, &mut mistakes);
                if let Some(mistake) = mistakes.pop() {
                    return Err(Error::usage(mistake));
                }
            }
            _ => loader.every = settings.validate_every,
        }
    }
    Ok(())
}

/// Returns an error if a fit was resumed in the middle of a validation whose loader no longer
/// exists.
pub(super) fn check_resumed<B: Batch>(position: LoopPosition, loaders: &Loaders<'_, B>) -> Result<()> {
    let is_validating = matches!(position.stage, Stage::Validating | Stage::ValidatingWithin);
    if !is_validating || position.loader < loaders.len() as u64 {
        return Ok(());
    }
    Err(Error::usage(if loaders.is_empty() {
        "the checkpoint was written in the middle of a validation, but `fit` was called without validation data: call \
         `fit(&mut train, Some(&mut valid))`"
            .to_owned()
    } else {
        format!(
            "the checkpoint was written in the middle of the validation of loader number {}, but the number of validation \
             loaders of this `fit` is {}: pass the same loaders as when it was written",
            position.loader + 1,
            loaders.len()
        )
    }))
}

/// Whether a validation with this interval is due at this stage, after the batch or epoch that just
/// ended.
fn is_due(progress: &LoopState, every: Option<Every>, stage: Stage, steps_before: u64) -> Result<bool> {
    let is_within = stage == Stage::ValidatingWithin;
    Ok(match every {
        None => !is_within,
        Some(Every::Epochs(n)) => !is_within && progress.epochs_begun.is_multiple_of(n),
        Some(every @ Every::Steps(_)) => is_within && every.is_due(steps_before, progress.counters, None),
        Some(every @ Every::Fraction(fraction)) if is_within => {
            let batches = progress.batches.ok_or_else(|| {
                Error::usage(format!(
                    "validating at `Every::Fraction({fraction:?})` requires the number of batches in an epoch, which the training \
                     loader does not report: use `Every::Steps(…)`"
                ))
            })?;
            every.is_due(steps_before, progress.counters, Some(batches))
        }
        // An epoch that ends before its announced length still ends with a validation.
        Some(every @ Every::Fraction(_)) => {
            progress.counters.batch_idx > 0 && every.is_due_after_epoch(progress.counters, progress.batches)
        }
    })
}

/// Whether the validation of any loader is due.
fn is_any_due<B: Batch>(
    progress: &LoopState,
    loaders: &Loaders<'_, B>,
    stage: Stage,
    steps_before: u64,
) -> Result<bool> {
    for loader in loaders {
        if is_due(progress, loader.every, stage, steps_before)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Validates each loader that is due at this stage of the loop, if the loop [continues](decide).
/// In a resumed run, continues these validations at the position of the loop. `steps_before` is the
/// number of optimizer steps before the batch that just ended. A stop that is requested during one
/// of these validations takes effect after the last of them.
#[inline]
pub(super) fn validate<T: Task>(
    run: &mut Run,
    loaders: &mut Loaders<'_, T::Batch>,
    (stage, steps_before): (Stage, u64),
    resumed: bool,
) -> Result<()> {
    if !resumed {
        if !is_any_due(run.progress(), loaders, stage, steps_before)?
            || !decide(run, Before::Validation(stage))?.goes_on
        {
            return Ok(());
        }
        let train = run.counters().batch_idx;
        run.fit_mut().position = LoopPosition { stage, train, steps_before, ..LoopPosition::default() };
    }
    let LoopPosition { loader: first, valid, .. } = run.fit().position;
    let mut begun = resumed.then_some(valid);
    for (nth, loader) in (0..).zip(loaders).skip_while(|(nth, _)| *nth < first) {
        if begun.is_none() {
            if !is_due(run.progress(), loader.every, stage, steps_before)? {
                continue;
            }
            run.fit_mut().position.loader = nth;
            run.fit_mut().position.valid = 0;
        }
        in_phase(run, Phase::Valid, |run| {
            evaluate::<T, at::valid>(run, loader, begun.take(), &mut |_| Ok(()))
        })?;
    }
    if stage == Stage::ValidatingWithin {
        run.add_row();
    }
    Ok(())
}

/// Runs an operation that is a pass over data without gradients, for each loader that `loader`
/// consists of. Passes each prediction of the phase `predict` to `sink`.
pub(super) fn evaluate_each<T: Task, O: AtOperation>(
    run: &mut Run,
    loader: &mut dyn Loader<T::Batch>,
    sink: &mut dyn FnMut(T::Pred) -> Result<()>,
) -> Result<()> {
    if run.phase() == Phase::Predict && loader.named().is_some() {
        return Err(not_one_loader());
    }
    let mut loaders = loaders_of(loader)?;
    let phase = run.phase();
    let described = run_folder::describe_data(run.folder_state_mut(), None, phase, &loaders);
    run_folder::only_warn(run.reports(), "cannot record the data of the run", described);
    loaders.iter_mut().try_for_each(|loader| evaluate::<T, O>(run, loader, None, sink))
}

/// Runs an operation that is a pass over data without gradients, or resumes it after `resumed`
/// batches. Passes each prediction of the phase `predict` to `sink`.
pub(super) fn evaluate<T: Task, O: AtOperation>(
    run: &mut Run,
    loader: &mut NamedLoader<'_, T::Batch>,
    resumed: Option<u64>,
    sink: &mut dyn FnMut(T::Pred) -> Result<()>,
) -> Result<()> {
    run.at_mut().set_loader(loader.name.as_ref());
    let result = run.resume_operation::<O>(resumed.is_some(), |run| {
        let _no_grad = tch::no_grad_guard();
        if run.phase() != Phase::Predict {
            replicas::compare(run.model(), run.ranks(), Compared::Weights, "before this evaluation")?;
        }
        let mut pass = Pass::begin(run, loader.loader, run.counters().epoch, resumed)?;
        // A resumed pass may have had batches with a weight.
        let mut weighed = if resumed.is_none() { Weighed::None } else { Weighed::default() };
        while let Some(batch) = pass.next::<T>()? {
            step::<T>(pass.run, batch, sink)?;
            weighed.add(pass.run.step().weight, false);
        }
        pass.run.requests_mut().take_end_of_pass(); // the request was for this pass
        pass.end(weighed)
    });
    let result = result.and_then(|()| records::emit_pass(run));
    run.at_mut().set_loader(None);
    result
}

/// Calls `body`, which runs passes in the given phase. Then restores the state of the outer pass:
/// its phase, its position, and the request to end it.
pub(super) fn in_phase<R>(
    run: &mut Run,
    phase: Phase,
    body: impl FnOnce(&mut Run) -> Result<R>,
) -> Result<R> {
    records::flush(run)?;
    let done = run.counters().batch_idx;
    let batches = run.progress().batches;
    let ends_outer = run.requests_mut().take_end_of_pass();
    let result = run.returning(|run| {
        run.place_mut().phase = phase;
        body(run)
    });
    run.progress_mut().counters.batch_idx = done;
    run.progress_mut().batches = batches;
    run.requests_mut().return_to(ends_outer);
    result
}
