//! A run made what it was when a checkpoint was written.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use tch::{Device, Tensor};

use super::folder::in_file;
use super::manifest::{self, Manifest, RunState};
use super::{
    MODEL, Named, OPTIMIZER, Open, REST, Resume, Saved, StateOf, folder, stateful, tensors, value, weights,
    within,
};
use crate::error::{Error, Result};
use crate::hooks;
use crate::libtorch;
use crate::lifecycle::at;
use crate::metrics::LogState;
use crate::run::Run;
use crate::training::{Began, Window};

/// What a fit is given, as far as it matters to one that is resumed.
pub(crate) struct Data {
    /// Its loaders give the same batches again.
    pub(crate) repeats: bool,
    /// What decides which batches those of training and of validation give.
    pub(crate) told: [Option<String>; 2],
}

/// Does a fit go on from a checkpoint?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resumed {
    No,
    Yes,
    /// A later one does: this one was over when the checkpoint was written.
    Later,
}

/// Makes the run what it was when a checkpoint was written, if that is asked for.
pub(crate) fn resume(run: &mut Run, data: &Data) -> Result<Resumed> {
    let Some(resume) = run.resume.clone() else { return Ok(Resumed::No) };
    let Some(folder) = find(run, &resume)? else {
        run.resume = None;
        return Ok(Resumed::No);
    };
    // A program that fits more than once comes to the one that was interrupted in its turn.
    let manifest = Manifest::load(&folder)?;
    if manifest.run.fits > run.fits_begun {
        return Ok(Resumed::Later);
    }
    run.checkpoint = Some(Open { folder, saved: Saved::new() });
    let result = run.operate_with::<at::load_checkpoint>(|run| read(run, data));
    run.checkpoint = None;
    let took_place = result?;
    run.resume = None;
    Ok(if took_place { Resumed::Yes } else { Resumed::No })
}

/// The checkpoint that is meant.
fn find(run: &Run, resume: &Resume) -> Result<Option<PathBuf>> {
    let path = match resume {
        Resume::From(path) => path.clone(),
        Resume::Auto => {
            let hook = run.values::<hooks::Checkpoint>().next().ok_or_else(|| {
                Error::usage("`.resume(\"auto\")` looks into the folder of the `Checkpoint` hook: add one, `.hook(Checkpoint::new(\"runs/first\"))`")
            })?;
            hook.folder().to_owned()
        }
    };
    let own = folder::present(&path);
    if own.join(manifest::NAME).exists() {
        return Ok(Some(own));
    }
    let mut damaged = Vec::new();
    for candidate in newest_first(&path) {
        match verify(&candidate) {
            Ok(()) => {
                for error in damaged {
                    eprintln!("a checkpoint was left out: {error}");
                }
                return Ok(Some(candidate));
            }
            Err(error) => damaged.push(error),
        }
    }
    match (resume, damaged.is_empty()) {
        (Resume::Auto, true) => Ok(None),
        (Resume::From(given), true) if given.as_os_str().eq_ignore_ascii_case("auto") => Err(in_file(
            &path,
            "there is no checkpoint here; for the folder of the `Checkpoint` hook, write `.resume(\"auto\")`",
        )),
        (_, true) => Err(in_file(&path, "there is no checkpoint here")),
        (_, false) => {
            let listed: String = damaged.iter().map(|error| format!("\n- {error}")).collect();
            Err(in_file(&path, format!("none of its checkpoints is whole:{listed}")))
        }
    }
}

/// The checkpoints in a folder, the one that was written last first.
pub(crate) fn newest_first(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_one = |path: &PathBuf| !folder::is_aside(path) && path.join(manifest::NAME).exists();
    let mut found: Vec<_> = entries.filter(is_one).map(|path| (order_of(&path), path)).collect();
    found.sort_by(|one, other| other.cmp(one));
    found.into_iter().map(|(_, path)| path).collect()
}

/// When a checkpoint was written, as its manifest says; the folder's own time for one that is damaged.
fn order_of(path: &Path) -> u64 {
    Manifest::written_at(path).unwrap_or_else(|| {
        let modified = fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
        let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or_default()
    })
}

/// The newest checkpoint in a folder that is whole, if there is one.
#[must_use]
pub fn newest(folder: impl AsRef<Path>) -> Option<PathBuf> {
    newest_first(folder.as_ref()).into_iter().find(|candidate| verify(candidate).is_ok())
}

/// Is all of a checkpoint as it was written?
///
/// # Errors
///
/// What is not, with the file and, where it is one, the field.
pub fn verify(folder: impl AsRef<Path>) -> Result<()> {
    let folder = folder.as_ref();
    let manifest = Manifest::load(folder)?;
    files_of(folder, &manifest).map(drop)
}

/// The tensors of its three files.
fn files_of(folder: &Path, manifest: &Manifest) -> Result<[BTreeMap<String, Tensor>; 3]> {
    let load = |name: &str| {
        let seal = manifest.files.get(name);
        let seal = seal.ok_or_else(|| {
            in_file(&folder.join(manifest::NAME), format!("its field `files` has no `{name}`"))
        })?;
        tensors::load(&folder.join(name), Some(seal))
    };
    Ok([load(MODEL)?, load(OPTIMIZER)?, load(REST)?])
}

fn read(run: &mut Run, data: &Data) -> Result<()> {
    let folder = run.checkpoint.as_ref().map(|open| open.folder.clone()).unwrap_or_default();
    let manifest = Manifest::load(&folder)?;
    let [model, optimizer, mut rest] = files_of(&folder, &manifest)?;
    let (model_path, optimizer_path) = (folder.join(MODEL), folder.join(OPTIMIZER));

    // What can be known to be wrong is, before anything is changed.
    let own: Named = run.vars.iter().map(|var| (var.name.clone(), var.tensor.shallow_clone())).collect();
    let copies = weights::fitting(&model_path, own, &model)?;
    let log: LogState = value::from_json(&manifest.run.log)
        .map_err(|error| in_file(&folder.join(manifest::NAME), format!("its field `run.log`: {error}")))?;
    let states = states_of(run, &manifest, &mut rest);
    let mut why = why_not_exact(run, &manifest, data, &rest);
    why.extend(states.1);
    refuse_or_tell(run, &folder, &why)?;

    restore_optimizers(run, &manifest, &optimizer_path, &optimizer)?;
    for (slot, state, saved) in states.0 {
        let name = (state.name)();
        let value = run.instances[slot].value.as_mut();
        let value = value.ok_or_else(|| {
            Error::usage(format!("`{name}` is running, so that its state cannot be loaded"))
        })?;
        (state.load)(value, &saved)
            .map_err(|error| in_file(&folder, format!("the state of `{name}`: {error}")))?;
    }
    weights::copy(copies)?;
    restore_gradients(run, &manifest.run.frozen, &rest)?;
    restore_random_state(run, &rest)?;
    let device = run.device;
    run.log.restore(log, |name| Some(rest.get(&format!("log/{name}"))?.to_device(device)));
    restore_counters(run, manifest.run, &folder);
    let mut saved = Saved { values: manifest.saved, tensors: BTreeMap::new() };
    for (name, tensor) in rest {
        if let Some(key) = name.strip_prefix("saved/") {
            saved.tensors.insert(key.to_owned(), tensor);
        }
    }
    run.checkpoint = Some(Open { folder, saved });
    Ok(())
}

/// A run that will not be the same is refused, unless the program lets it; then what differs is told.
fn refuse_or_tell(run: &Run, folder: &Path, why: &[String]) -> Result<()> {
    if why.is_empty() || run.settings.inexact {
        for reason in why {
            eprintln!("resumed from {}, not exactly: {reason}", folder.display());
        }
        return Ok(());
    }
    let listed: String = why.iter().map(|reason| format!("\n- {reason}")).collect();
    let text = format!("the run cannot go on from here exactly; `.allow_inexact_resume()` lets it:{listed}");
    Err(in_file(folder, text))
}

/// Which parameters are trained, and the gradients that were not used yet.
fn restore_gradients(run: &mut Run, frozen: &[String], rest: &BTreeMap<String, Tensor>) -> Result<()> {
    for var in run.vars.parameters() {
        let is_trained = !frozen.contains(&var.name);
        if var.tensor.requires_grad() != is_trained {
            let _ = var.tensor.set_requires_grad(is_trained);
        }
    }
    run.optimizers.zero_grad()?;
    for var in run.vars.parameters() {
        if let Some(grad) = rest.get(&format!("grad/{}", var.name)) {
            libtorch::set_grad(&var.tensor, grad)?;
        }
    }
    Ok(())
}

fn restore_random_state(run: &Run, rest: &BTreeMap<String, Tensor>) -> Result<()> {
    if let Some(state) = rest.get("random/cpu") {
        libtorch::set_random_state(Device::Cpu, state)?;
    }
    if let (Device::Cuda(_), Some(state)) = (run.device, rest.get("random/cuda")) {
        libtorch::set_random_state(run.device, state)?;
    }
    Ok(())
}

/// The counters, the place in the epoch, and what was asked of the loop.
fn restore_counters(run: &mut Run, state: RunState, folder: &Path) {
    run.step = state.step;
    (run.epochs_begun, run.epochs_done) = (state.epochs_begun, state.epochs_done);
    (run.train_batches, run.place) = (state.train_batches, state.place);
    run.window = Window { closes: false, ..state.window };
    run.began = Began::now(state.began.0, state.began.1, state.spent);
    run.batches = state.batches;
    if let Some(reason) = &state.stop {
        eprintln!("resumed from {}: a hook has asked that run to stop ({reason})", folder.display());
    }
    (run.requests.stop, run.requests.end_epoch) = (state.stop, state.end_epoch);
    run.requests.is_cut_short = state.is_cut_short;
    run.optimizers.choose_if_there(&state.optimizer);
}

/// What a value of a hook is to take up, by its place among the instances.
type HookStates = Vec<(usize, StateOf, Saved)>;

/// The states of hooks that are there on both sides, and what is there on one alone.
fn states_of(
    run: &Run,
    manifest: &Manifest,
    rest: &mut BTreeMap<String, Tensor>,
) -> (HookStates, Vec<String>) {
    let (mut states, mut why) = (Vec::new(), Vec::new());
    let own = stateful(&run.instances);
    for (hook, nth, instance, state) in &own {
        let saved = manifest.states.iter().find(|saved| saved.hook == *hook && saved.nth == *nth);
        let Some(saved) = saved else {
            why.push(format!("the hook `{hook}` was not there when it was written, and begins anew"));
            continue;
        };
        let tensors = saved
            .tensors
            .iter()
            .filter_map(|key| Some((key.clone(), rest.remove(&format!("hook/{hook}/{nth}/{key}"))?)));
        let saved = Saved { values: saved.values.clone(), tensors: tensors.collect() };
        if let Some(slot) = run.instances.iter().position(|other| std::ptr::eq(other, *instance)) {
            states.push((slot, *state, saved));
        }
    }
    for saved in &manifest.states {
        if !own.iter().any(|(hook, nth, ..)| saved.hook == *hook && saved.nth == *nth) {
            why.push(format!("the hook `{}`, whose state is in it, is not in this trainer", saved.hook));
        }
    }
    (states, why)
}

fn why_not_exact(
    run: &Run,
    manifest: &Manifest,
    data: &Data,
    rest: &BTreeMap<String, Tensor>,
) -> Vec<String> {
    let mut why = manifest.inexact.clone();
    let (threads, device) = (tch::get_num_threads(), format!("{:?}", run.device));
    if manifest.threads != threads {
        why.push(format!(
            "it was written with {} threads of libtorch, and there are {threads} now: the last bits differ; set as many with \
             `tch::set_num_threads({})`, or `OMP_NUM_THREADS`",
            manifest.threads, manifest.threads
        ));
    }
    let version = libtorch::version();
    if manifest.libtorch != version {
        why.push(format!("it was written with libtorch {}, and this is {version}", manifest.libtorch));
    }
    if manifest.device != device {
        why.push(format!("it was written on {}, and the task is on {device}", manifest.device));
    }
    if !data.repeats {
        why.push(
            "a loader does not say that an epoch is the same batches each time it is asked for: for `from_fn`, say \
             `.repeatable()`"
                .to_owned(),
        );
    }
    for ((here, there), what) in data.told.iter().zip(&manifest.run.data).zip(["training", "validation"]) {
        if let (Some(here), Some(there)) = (here, there)
            && here != there
        {
            why.push(format!("the {what} data was {there} when it was written, and is {here} now"));
        }
    }
    let own = run.settings.told();
    for (setting, here) in &own {
        match manifest.settings.get(setting) {
            Some(there) if there == here => {}
            there => {
                let there = there.map_or("not set", String::as_str);
                why.push(format!("`.{setting}(…)` was {there} when it was written, and is {here} now"));
            }
        }
    }
    if matches!(run.device, Device::Cuda(_)) && !rest.contains_key("random/cuda") {
        why.push("the random state of the GPU is not in it".to_owned());
    }
    why
}

/// Hyperparameters first: by them it is known which tensors there are.
fn restore_optimizers(
    run: &mut Run,
    manifest: &Manifest,
    path: &Path,
    tensors: &BTreeMap<String, Tensor>,
) -> Result<()> {
    let parts: Vec<String> = run.optimizers.parts().map(|(part, ..)| part.to_owned()).collect();
    if let Some(saved) = manifest.optimizers.iter().find(|saved| !parts.contains(&saved.part)) {
        let part = &saved.part;
        return Err(in_file(
            path,
            format!("the part `{part}` has an optimizer of its own there, and none here"),
        ));
    }
    for part in parts {
        let saved = manifest.optimizers.iter().find(|saved| saved.part == part);
        let saved =
            saved.ok_or_else(|| in_file(path, format!("there is no optimizer of the part `{part}`")))?;
        let groups: Vec<BTreeMap<String, f64>> = value::from_json(&saved.groups)?;
        let optimizer = run.optimizers.of(&part)?;
        let own = optimizer.groups_mut();
        if own.len() != groups.len() || own.len() != saved.rules.len() {
            let (there, here) = (groups.len(), own.len());
            return Err(in_file(
                path,
                format!("the optimizer has {there} parameter groups there, and {here} here"),
            ));
        }
        for ((group, values), rule) in own.iter_mut().zip(groups).zip(&saved.rules) {
            if group.rule() != rule {
                let here = group.rule();
                return Err(in_file(path, format!("the optimizer is {rule} there, and {here} here")));
            }
            for (name, value) in values {
                let own = group.get(&name).map_err(|error| in_file(path, error))?;
                if own.to_bits() != value.to_bits() {
                    group.set(&name, value).map_err(|error| in_file(path, error))?;
                }
            }
        }
        let prefix = within(&part, "");
        let own = |(name, tensor): (&String, &Tensor)| {
            Some((name.strip_prefix(&prefix)?.to_owned(), tensor.shallow_clone()))
        };
        let state: Named = tensors.iter().filter_map(own).collect();
        optimizer.load_state(&state).map_err(|error| in_file(path, error))?;
        run.optimizers.restore(&part, value::from_json(&saved.used_lrs)?, saved.steps);
    }
    Ok(())
}
