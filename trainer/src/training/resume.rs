//! Restoring a run from a checkpoint.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tch::{Device, Tensor};

use super::rank_states;
use crate::checkpoint::files::{MANIFEST, MAX_MANIFEST_BYTES, MODEL, OPTIMIZER, STATE, present};
use crate::checkpoint::folder::newest_first;
use crate::checkpoint::manifest::{Manifest, OptimizerState, RunState};
use crate::checkpoint::read::{load_journal, load_tensors};
use crate::checkpoint::{
    ActiveCheckpoint, NamedTensors, Resume, Saved, StateOf, optimizer_tensor, verify, weights,
};
use crate::error::{Error, Result, shortened};
use crate::facts::{Difference, Facts};
use crate::files::{Links, in_file, is_file, lock_identity, open, read_start};
use crate::float::Float;
use crate::hook::definition::public_path;
use crate::hook::instance::Instance;
use crate::libtorch;
use crate::lifecycle::at;
use crate::phase::Phase;
use crate::progress::LoopState;
use crate::run::{ResumeFrom, Run};
use crate::summary::Summary;

/// The identity of the data of a fit, which is compared on a resume.
pub(crate) struct DataFingerprint {
    /// Whether all loaders are deterministic.
    pub(crate) is_deterministic: bool,
    /// The fingerprints of the training and the validation data.
    pub(crate) fingerprints: [String; 2],
}

/// Returns the recorded result of an entry point that had ended when the checkpoint to resume from
/// was written. Returns `None` if there is no such checkpoint, and for a `fit` that had not ended
/// or whose checkpoint cannot be read.
///
/// A program that calls several entry points thus reaches the interrupted fit without repeating
/// those before it.
///
/// # Errors
///
/// For an entry point other than `fit`, returns an error if it had not ended, or if the checkpoint
/// cannot be read.
pub(crate) fn replay(run: &mut Run, entry: Phase) -> Result<Option<Result<Summary>>> {
    let Some(resume) = run.checkpoints.resume.clone() else { return Ok(None) };
    let loaded = find(run, &resume, |_| {}).and_then(|folder| {
        let Some(folder) = folder else { return Ok(None) };
        let manifest = Manifest::load(&folder)?;
        let (journal, _) = load_journal(&folder, &manifest)?;
        Ok(Some((folder, manifest, journal)))
    });
    let (folder, manifest, journal) = match loaded {
        Ok(None) => return Ok(None),
        Ok(Some(loaded)) => loaded,
        Err(_) if entry == Phase::Train => return Ok(None), // `resume` reports it
        Err(error) => return Err(error),
    };
    let nth = run.checkpoints.replayed[entry as usize];
    let outcome = if entry == Phase::Predict {
        (nth < usize::try_from(manifest.run.predictions).unwrap_or(usize::MAX))
            .then(|| Ok(Summary::default()))
    } else {
        journal.finished(entry, nth).map(|it| it.outcome.clone().map_err(Error::usage))
    };
    let name = if entry == Phase::Train { "fit" } else { entry.name() };
    match outcome {
        Some(outcome) => {
            run.checkpoints.replayed[entry as usize] += 1;
            run.progress.fits_begun += u64::from(entry == Phase::Train);
            let (nth, folder) = (nth + 1, folder.display());
            run.notice(&format!(
                "skipped `{name}` number {nth}: it had ended when {folder} was written; a later `fit` resumes"
            ));
            Ok(Some(outcome))
        }
        None if entry == Phase::Train => Ok(None),
        None => Err(Error::usage(format!(
            "`{name}` cannot run before the `fit` that `.resume(…)` continues: call `fit` first; to load only the weights \
             of a checkpoint, use `load_weights(\"runs/first/step-…\", …)` instead of `.resume(…)`"
        ))),
    }
}

/// Restores the run from a checkpoint, if a resume was requested and a checkpoint exists. Returns
/// whether the run was restored.
pub(crate) fn resume(run: &mut Run, data: &DataFingerprint) -> Result<bool> {
    let Some(resume) = run.checkpoints.resume.clone() else { return Ok(false) };
    check_shared(run, &resume)?;
    let skipped = RefCell::new(Vec::new());
    let found = find(run, &resume, |error| skipped.borrow_mut().push(error.to_string()));
    for error in skipped.into_inner() {
        run.warn(format!("skipped a damaged checkpoint: {error}"));
    }
    let Some(folder) = found_by_all(run, found)? else {
        run.checkpoints.resume = None;
        return Ok(false);
    };
    run.checkpoints.active = Some(ActiveCheckpoint { folder, saved: Saved::new() });
    // A hook may replace the operation with its own. The fit then begins instead of resuming.
    let mut is_read = false;
    let result = run.operate::<at::load_checkpoint>(|run| {
        is_read = read(run, data).map(|()| true)?;
        Ok(())
    });
    run.checkpoints.active = None;
    result?;
    run.checkpoints.resume = None;
    Ok(is_read)
}

/// Returns an error if another rank does not see the folder in which the `Checkpoint` hook of rank
/// 0 will write, and therefore could not resume.
fn check_shared(run: &Run, resume: &ResumeFrom) -> Result<()> {
    let world = &run.ranks.world;
    if world.is_solo() {
        return Ok(());
    }
    let own = (resume.folder)(run).map(|folder| (folder.display().to_string(), lock_identity(&folder)));
    let all = world.gather_named(&own, "the comparison of the folders of checkpoints")?;
    let Some((of_main, Some(lock))) = &all[0] else { return Ok(()) };
    let sees = |other: &Option<(String, Option<String>)>| {
        other.as_ref().is_some_and(|(_, other)| other.as_ref() == Some(lock))
    };
    let Some(rank) = all.iter().position(|other| !sees(other)) else { return Ok(()) };
    let other = all[rank].as_ref().map_or_else(|| "none".to_owned(), |(folder, _)| format!("`{folder}`"));
    Err(Error::usage(format!(
        "rank {rank} could not resume, because it does not see the checkpoint folder of rank 0 (`{of_main}` on rank 0, {other} \
         on rank {rank}): use one folder that all ranks can read"
    )))
}

/// Returns the checkpoint that was found, or an error if not all ranks have found the same one.
fn found_by_all(run: &Run, found: Result<Option<PathBuf>>) -> Result<Option<PathBuf>> {
    let world = &run.ranks.world;
    if world.is_solo() {
        return found;
    }
    let own = match &found {
        Ok(None) => "no checkpoint".to_owned(),
        Ok(Some(folder)) => {
            let path = folder.join(MANIFEST);
            let bytes = open(&path, Links::Refuse)
                .and_then(|(file, length)| read_start(&path, &file, length.min(MAX_MANIFEST_BYTES)));
            let hash = bytes.map(|bytes| blake3::hash(&bytes).to_hex().to_string());
            format!("{} (manifest hash {})", folder.display(), hash.unwrap_or_default())
        }
        Err(error) => format!("an error ({error})"),
    };
    let all = world.gather_named(&own, "the search for a checkpoint")?;
    match all.iter().position(|other| *other != all[0]) {
        None => found,
        Some(rank) => Err(Error::usage(format!(
            "the ranks do not resume from the same checkpoint: the search returned {} on rank 0, but {} on rank {rank}; use one \
             checkpoint folder that all ranks can read",
            all[0], all[rank]
        ))),
    }
}

/// Returns the checkpoint to resume from; `None` if `Resume::Auto` finds none. Passes the errors of
/// newer, damaged ones to `report`.
fn find(run: &Run, resume: &ResumeFrom, report: impl Fn(&Error)) -> Result<Option<PathBuf>> {
    let path = match &resume.what {
        Resume::From(path) => path.clone(),
        Resume::Auto => (resume.folder)(run).ok_or_else(|| {
            Error::usage(
                "`.resume(Resume::Auto)` has no folder to search: add `.hook(Checkpoint::new(\"runs/first\"))`, or \
                     `.run_folder(…)` for `Checkpoint::in_run_folder()`",
            )
        })?,
    };
    let own = present(&path);
    if is_file(&own.join(MANIFEST)) {
        return Ok(Some(own));
    }
    let mut damaged = Vec::new();
    for candidate in newest_first(&path) {
        match verify(&candidate) {
            Ok(()) => {
                damaged.iter().for_each(report);
                return Ok(Some(candidate));
            }
            Err(error) => damaged.push(error),
        }
    }
    match (&resume.what, damaged.is_empty()) {
        (Resume::Auto, true) => Ok(None),
        (Resume::From(given), true) if given.as_os_str().eq_ignore_ascii_case("auto") => Err(in_file(
            &path,
            "there is no checkpoint in this folder; for the folder of the `Checkpoint` hook, write `.resume(Resume::Auto)`",
        )),
        (_, true) if !path.exists() => Err(in_file(
            &path,
            "`.resume(…)` found no folder at this path: check the path, or write `.resume(Resume::Auto)` to start anew \
             if there is no checkpoint",
        )),
        (_, true) => Err(in_file(
            &path,
            "`.resume(…)` found no checkpoint in this folder: pass the path of a checkpoint, or of the folder of a \
             `Checkpoint` hook",
        )),
        (_, false) => {
            let listed: String = damaged.iter().map(|error| format!("\n- {error}")).collect();
            let text = format!(
                "all checkpoints in this folder are incomplete or damaged; restore one of them, or choose another folder:{listed}"
            );
            Err(in_file(&path, text))
        }
    }
}

fn read(run: &mut Run, data: &DataFingerprint) -> Result<()> {
    let folder = run.checkpoints.active.as_ref().map(|active| active.folder.clone()).unwrap_or_default();
    let mut manifest = Manifest::load(&folder)?;
    let (journal, history) = load_journal(&folder, &manifest)?;
    let [model, optimizer, mut rest, averages] = load_tensors(&folder, &manifest)?;
    let ranks = run.ranks.world.size();
    let other_ranks = rank_states::select(&mut manifest, &mut rest, run.rank, ranks);
    let (model_path, optimizer_path) = (folder.join(MODEL), folder.join(OPTIMIZER));

    // Everything that can be checked is checked before anything changes.
    let own: NamedTensors =
        run.model.vars.iter().map(|var| (var.name.clone(), var.tensor.shallow_clone())).collect();
    let copies = weights::fitting(&model_path, own, &model)?;
    check_optimizers(run, &manifest, &optimizer_path)?;
    let states = states_of(run, &manifest, &mut rest, averages);
    let mut why = why_not_exact(run, &manifest, data, &rest);
    why.extend(states.1);
    why.extend(different_facts(run, &manifest, &why));
    why.extend(other_ranks);
    refuse_or_report(run, &folder, &why)?;
    let differences = differences(run, &manifest);

    restore_optimizers(run, &manifest, &optimizer_path, &optimizer)?;
    for (slot, state, saved) in states.0 {
        let name = public_path((state.name)());
        let value = run.hooks.instances[slot].value.as_mut();
        let value = value.ok_or_else(|| {
            Error::usage(format!(
                "the state of `{name}` cannot be restored while one of its hooks is running: \
                 move that hook to a separate type, or to a free function"
            ))
        })?;
        (state.load)(value, &saved).map_err(|error| {
            in_file(&folder, format!("the state of `{name}` cannot be restored: {error}"))
        })?;
    }
    weights::copy(copies)?;
    restore_gradients(run, &manifest.optimizers, &manifest.run.frozen, &rest)?;
    restore_random_state(run, &rest).map_err(|error| in_file(&folder.join(STATE), error))?;
    let device = run.model.device;
    let unread = |name: &str| Some(rest.get(&format!("log/{name}"))?.to_device(device));
    run.log.restore(&manifest.run.log, history, unread);
    run.records.restore(&manifest.run.media, manifest.run.records, unread);
    run.checkpoints.journal = journal;
    restore_loop(run, manifest.run);
    report_resumed(run, &folder, &differences);
    warn_of_versions(run, &manifest.facts);
    let mut saved = Saved { values: manifest.saved, ..Saved::new() };
    for (name, tensor) in rest {
        if let Some(key) = name.strip_prefix("saved/") {
            saved.tensors.insert(key.to_owned(), tensor);
        }
    }
    run.checkpoints.active = Some(ActiveCheckpoint { folder, saved });
    Ok(())
}

/// Returns an error if the resume is not exact, unless the program allows that; then warns of the
/// reasons.
fn refuse_or_report(run: &mut Run, folder: &Path, why: &[String]) -> Result<()> {
    if why.is_empty() || run.settings.inexact {
        for reason in why {
            run.warn(format!("resuming from {}, not exactly: {reason}", folder.display()));
        }
        return Ok(());
    }
    let listed: String = why.iter().map(|reason| format!("\n- {reason}")).collect();
    let text = format!(
        "cannot resume exactly from this checkpoint (`.allow_inexact_resume(true)` overrides):{listed}"
    );
    Err(in_file(folder, text))
}

/// Describes the settings that differ between the program and the checkpoint but that a resumed run
/// may change.
fn differences(run: &Run, manifest: &Manifest) -> Vec<String> {
    let differs = |(setting, here): (&str, String)| {
        let there = manifest.length.get(setting).map_or("not set", String::as_str);
        (there != here).then(|| {
            let there = shortened(there);
            format!("`.{setting}(…)` was {there} when it was written; the current value, {here}, applies")
        })
    };
    run.settings.length().into_iter().filter_map(differs).collect()
}

/// Describes the settings, optimizers and hooks that decide the result and that differ between the
/// program and the checkpoint, except the hooks that `known` reports.
fn different_facts(run: &Run, manifest: &Manifest, known: &[String]) -> Vec<String> {
    let own = run.checkpoints.facts.clone().unwrap_or_default();
    let differences = manifest.facts.differences(&own).into_iter();
    let is_new = |it: &Difference| !known.iter().any(|line| line.contains(&it.what));
    let line = |Difference { what, one, other }: Difference| {
        let help = if what.starts_with("`optimizer") {
            "; the value in the checkpoint applies: to change it on purpose, set it at `after_load_checkpoint`"
        } else {
            ""
        };
        format!("{what} was {one} when it was written, and is {other} now{help}")
    };
    differences.filter(is_new).map(line).collect()
}

/// Warns of crates whose hooks have another version than when the checkpoint was written.
fn warn_of_versions(run: &mut Run, there: &Facts) {
    let own = run.checkpoints.facts.clone().unwrap_or_default();
    for [krate, there, here] in there.versions(&own) {
        if run.rank == 0 {
            run.warn(format!(
                "the hooks of `{krate}` are those of version {here}, but the run that is resumed used version {there}: results may differ"
            ));
        }
    }
}

/// Prints a line about the resumed checkpoint, one for each difference, and one if a stop was
/// requested.
fn report_resumed(run: &Run, folder: &Path, differences: &[String]) {
    let (folder, step) = (folder.display(), run.progress.counters);
    let batches = run.progress.batches.map_or_else(String::new, |batches| format!(" of {batches}"));
    run.notice(&format!(
        "resumed from {folder}: epoch {}, batch {}{batches}, {} optimizer steps",
        step.epoch, step.batch_idx, step.optimizer_steps
    ));
    for difference in differences {
        run.notice(&format!("resumed from {folder}: {difference}"));
    }
    if let Some(reason) = &run.requests.stop {
        run.notice(&format!("resumed from {folder}: a hook had requested a stop ({})", shortened(reason)));
    }
}

/// Restores which parameters are trained, the accumulated batch weights, and the gradients: those
/// of an open accumulation window, and those that a hook kept by skipping an optimizer step.
fn restore_gradients(
    run: &mut Run,
    optimizers: &[OptimizerState],
    frozen: &[String],
    rest: &BTreeMap<String, Tensor>,
) -> Result<()> {
    for var in run.model.vars.parameters() {
        let is_trained = !frozen.contains(&var.name);
        if var.tensor.requires_grad() != is_trained {
            let _ = var.tensor.set_requires_grad(is_trained);
        }
    }
    run.model.optimizers.zero_grad()?;
    for saved in optimizers {
        run.model.optimizers.restore_accumulated(&saved.part, saved.accumulated);
    }
    for var in run.model.vars.parameters() {
        if let Some(grad) = rest.get(&format!("grad/{}", var.name)) {
            libtorch::set_grad(&var.name, &var.tensor, grad)?;
        }
    }
    Ok(())
}

fn restore_random_state(run: &Run, rest: &BTreeMap<String, Tensor>) -> Result<()> {
    if let Some(state) = rest.get("random/cpu") {
        libtorch::set_random_state(Device::Cpu, state)?;
    }
    if let (Device::Cuda(_), Some(state)) = (run.model.device, rest.get("random/cuda")) {
        libtorch::set_random_state(run.model.device, state)?;
    }
    Ok(())
}

/// Restores the counters, the state of the fit, the pending requests of hooks, and which optimizer
/// is current.
fn restore_loop(run: &mut Run, state: RunState) {
    run.progress = LoopState { fits_begun: run.progress.fits_begun, ..state.progress };
    run.fit = state.fit;
    run.fit.window.is_last_micro_batch = false;
    run.checkpoints.predictions = state.predictions;
    (run.requests.stop, run.requests.end_epoch) = (state.stop, state.end_epoch);
    run.requests.is_cut_short = state.is_cut_short;
    run.model.optimizers.select_if_present(&state.optimizer);
}

/// For each value whose state is restored: the index of its instance, the functions that save and
/// load its state, and the saved state.
type HookStates = Vec<(usize, StateOf, Saved)>;

/// Pairs the saved states with the values of this trainer. Also describes the values for which the
/// checkpoint has no state, and the states for which the trainer has no value.
fn states_of(
    run: &Run,
    manifest: &Manifest,
    rest: &mut BTreeMap<String, Tensor>,
    mut averages: BTreeMap<String, Tensor>,
) -> (HookStates, Vec<String>) {
    let (mut states, mut why) = (Vec::new(), Vec::new());
    let own = stateful(&run.hooks.instances);
    for (hook, nth, instance, state) in &own {
        let saved = manifest.states.iter().find(|saved| saved.hook == *hook && saved.nth == *nth);
        let Some(saved) = saved else {
            if instance.is_left_out() {
                continue;
            }
            let hook = public_path(hook);
            why.push(format!("the hook `{hook}` is new: the checkpoint has no state for it"));
            continue;
        };
        let tensors = saved
            .tensors
            .iter()
            .filter_map(|key| Some((key.clone(), rest.remove(&format!("hook/{hook}/{nth}/{key}"))?)));
        let averages = if saved.has_averages { std::mem::take(&mut averages) } else { BTreeMap::new() };
        let saved = Saved { values: saved.values.clone(), tensors: tensors.collect(), averages };
        if let Some(slot) = run.hooks.instances.iter().position(|other| std::ptr::eq(other, *instance)) {
            states.push((slot, *state, saved));
        }
    }
    for saved in &manifest.states {
        let is_here = own.iter().any(|(hook, nth, ..)| saved.hook == *hook && saved.nth == *nth);
        if !is_here && !saved.is_left_out {
            let hook = public_path(&saved.hook);
            let hook = shortened(&hook);
            why.push(format!(
                "the checkpoint has the state of the hook `{hook}`, which this trainer does not have"
            ));
        }
    }
    (states, why)
}

/// Returns the reasons why the resume would not be exact, except those that concern the states of
/// hooks and the number of ranks.
fn why_not_exact(
    run: &Run,
    manifest: &Manifest,
    data: &DataFingerprint,
    rest: &BTreeMap<String, Tensor>,
) -> Vec<String> {
    let mut why = manifest.inexact.clone();
    let (threads, device) = (tch::get_num_threads(), format!("{:?}", run.model.device));
    if manifest.threads != threads {
        why.push(format!(
            "the number of libtorch threads was {} when it was written, and is {threads} now, so results differ in their last \
             bits: call `tch::set_num_threads({})` or set `OMP_NUM_THREADS`",
            manifest.threads, manifest.threads
        ));
    }
    let version = libtorch::version();
    if manifest.libtorch != version {
        why.push(format!(
            "it was written with libtorch {}, and this program uses {version}",
            shortened(&manifest.libtorch)
        ));
    }
    if manifest.device != device {
        why.push(format!("it was written on {}, and the task is on {device}", shortened(&manifest.device)));
    }
    if !data.is_deterministic {
        why.push(
            "a loader may yield different batches for the same epoch: if it always yields the same ones, declare that, as \
             `from_fn(…).deterministic(true)` does"
                .to_owned(),
        );
    }
    for ((here, there), what) in
        data.fingerprints.iter().zip(&manifest.run.fit.data).zip(["training", "validation"])
    {
        if here != there {
            let there = shortened(there);
            why.push(format!("the {what} data was {there} when it was written, and is {here} now"));
        }
    }
    if !rest.contains_key("random/cpu") {
        why.push("it does not contain the random state of the CPU".to_owned());
    }
    if matches!(run.model.device, Device::Cuda(_)) && !rest.contains_key("random/cuda") {
        why.push("it does not contain the random state of the GPU".to_owned());
    }
    why
}

/// Describes the optimizer of a part, or of the entire model if the part is empty.
fn optimizer_of(part: &str) -> String {
    match part {
        "" => "an optimizer of the entire model".to_owned(),
        part => format!("an optimizer of the part `{}`", shortened(part)),
    }
}

/// Returns an error if the checkpoint is of other optimizers or parameter groups than this
/// trainer's, whose state cannot be restored.
fn check_optimizers(run: &Run, manifest: &Manifest, path: &Path) -> Result<()> {
    let unknown = |saved: &&OptimizerState| run.model.optimizers.get(Some(&saved.part)).is_none();
    if let Some(saved) = manifest.optimizers.iter().find(unknown) {
        let text = format!(
            "the checkpoint has {}, but this trainer does not: use the same optimizers as when it was written",
            optimizer_of(&saved.part)
        );
        return Err(in_file(path, text));
    }
    for (part, optimizer, ..) in run.model.optimizers.parts() {
        let saved = manifest.optimizers.iter().find(|saved| saved.part == part);
        let saved = saved.ok_or_else(|| {
            let text = format!(
                "this trainer has {}, but the checkpoint does not: use the same optimizers as when it was written",
                optimizer_of(part)
            );
            in_file(path, text)
        })?;
        let named = if part.is_empty() { String::new() } else { format!(" `{part}`") };
        let own = optimizer.groups();
        if own.len() != saved.groups.len() {
            let (there, here) = (saved.groups.len(), own.len());
            return Err(in_file(
                path,
                format!(
                    "the number of parameter groups of the optimizer{named} is {there} in the checkpoint, but {here} in this \
                     trainer: define the same groups as when it was written"
                ),
            ));
        }
        if let Some((group, rule)) =
            own.iter().zip(&saved.rules).find(|(group, rule)| group.algorithm() != rule.as_str())
        {
            let (rule, here) = (shortened(rule), group.algorithm());
            return Err(in_file(
                path,
                format!(
                    "the optimizer{named} is {rule} in the checkpoint, but {here} in this trainer: use the same optimizer as \
                     when it was written"
                ),
            ));
        }
    }
    Ok(())
}

/// Restores the optimizers: hyperparameters first, because they determine which tensors exist.
fn restore_optimizers(
    run: &mut Run,
    manifest: &Manifest,
    path: &Path,
    tensors: &BTreeMap<String, Tensor>,
) -> Result<()> {
    for saved in &manifest.optimizers {
        let optimizer = run.model.optimizers.for_part(&saved.part)?;
        for (group, values) in optimizer.groups_mut().iter_mut().zip(&saved.groups) {
            for (name, Float(value)) in values {
                let own = group.get(name).map_err(|error| in_file(path, error))?;
                if own.to_bits() != value.to_bits() && !(own.is_nan() && value.is_nan()) {
                    group.set(name, *value).map_err(|error| in_file(path, error))?;
                }
            }
        }
        let prefix = optimizer_tensor(&saved.part, "");
        let own = |(name, tensor): (&String, &Tensor)| {
            Some((name.strip_prefix(&prefix)?.to_owned(), tensor.shallow_clone()))
        };
        let state: NamedTensors = tensors.iter().filter_map(own).collect();
        optimizer.load_state(&state).map_err(|error| in_file(path, error))?;
        let used_lrs = saved.used_lrs.iter().map(|Float(lr)| *lr).collect();
        let steps = saved.steps;
        run.model.optimizers.restore(&saved.part, used_lrs, steps).map_err(|error| in_file(path, error))?;
    }
    Ok(())
}

/// Returns the task and the hook values whose state is saved, each with the name of its type, its
/// index among values of that type, and the functions that save and load its state.
pub(super) fn stateful(instances: &[Instance]) -> Vec<(&'static str, usize, &Instance, StateOf)> {
    let mut found: Vec<(&'static str, usize, &Instance, StateOf)> = Vec::new();
    for instance in instances {
        if let Some(state) = instance.state {
            let name = (state.name)();
            let nth = found.iter().filter(|(other, ..)| *other == name).count();
            found.push((name, nth, instance, state));
        }
    }
    found
}
