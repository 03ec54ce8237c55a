//! Checkpoints: all that a run is, on disk, so that a program that was killed goes on as if nothing had happened.
//!
//! ```no_run
//! use trainer::hooks::Checkpoint;
//! use trainer::prelude::*;
//!
//! # fn train(task: impl Task<Batch = Tensor>, train: &mut InMemory<Tensor>) -> Result<()> {
//! let mut trainer = Trainer::builder(task)
//!     .optimizer(AdamW::new(1e-3))
//!     .epochs(100)
//!     .hook(Checkpoint::new("runs/first").every(Every::Steps(500)))
//!     .resume("auto") // from the newest in there, if there is one
//!     .build()?;
//! trainer.fit(train, None)?;
//! # Ok(())
//! # }
//! ```
//!
//! A checkpoint is a folder: `manifest.json`, to be read by people too; `model.safetensors`, which Python reads as it is;
//! `optimizer.safetensors`, and `state.safetensors` with the rest. It is written aside, handed to the disk, and renamed, so
//! that it is there whole or not at all. Each file is known by its length and its hash; nothing in it is executed.
//!
//! # What is in it
//!
//! Parameters and buffers; the optimizers' tensors and hyperparameters; the counters and the place in the epoch, within
//! a validation too; the accumulation window with its gradients; the random state of libtorch; what was logged; and of hooks what
//! they say: the [`State`] of each value whose block says `#[hook(state)]`, and what `before_save_checkpoint` adds.
//!
//! # A resumed fit
//!
//! `setup` fires, then `load_checkpoint` runs with its hooks, and then the fit goes on where it was: what has fired before the checkpoint
//! does not fire again, `before_fit` and the `before_epoch` of that epoch neither. Hooks *around* an operation that is open there are
//! entered again.
//!
//! It ends with the same bits if the program is the same, on the same number of threads of the same machine, and its loaders
//! give the same batches [again](crate::data::Loader::repeats). Where it would not, it is refused with the reasons, unless
//! [`allow_inexact_resume`](crate::TrainerBuilder::allow_inexact_resume) is set.

mod folder;
mod manifest;
mod state;
mod tensors;
mod value;
mod weights;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use tch::{Device, Tensor};

use folder::in_file;
pub(crate) use folder::{Lock, remove};
use manifest::{HookState, Manifest, OptimizerState, RunState};
#[doc(hidden)]
pub use state::StateOf;
pub use state::{Saved, State};
pub use weights::{LoadWeights, Loaded};

use crate::error::{Error, Result};
use crate::hook::HookTable;
use crate::hooks;
use crate::libtorch;
use crate::lifecycle::at;
use crate::metrics::LogState;
use crate::optim::ParamGroup;
use crate::phase::Phase;
use crate::run::{Instance, Run, panic_text};
use crate::training::{Began, Stage, Window};

/// What a fit is to go on with: [`TrainerBuilder::resume`](crate::TrainerBuilder::resume).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resume {
    /// The newest checkpoint in the folder of the [`Checkpoint`](crate::hooks::Checkpoint) hook; nothing if there is none.
    Auto,
    /// This checkpoint, or the newest in this folder of checkpoints.
    From(PathBuf),
}

impl From<&str> for Resume {
    fn from(text: &str) -> Self {
        if text == "auto" { Resume::Auto } else { Resume::From(text.into()) }
    }
}

impl From<String> for Resume {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<PathBuf> for Resume {
    fn from(path: PathBuf) -> Self {
        Resume::From(path)
    }
}

impl From<&Path> for Resume {
    fn from(path: &Path) -> Self {
        Resume::From(path.to_owned())
    }
}

/// A checkpoint that is being written or read.
#[derive(Debug, Default)]
pub(crate) struct Open {
    pub(crate) folder: PathBuf,
    /// What hooks add to it.
    pub(crate) saved: Saved,
}

const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const REST: &str = "state.safetensors";

/// Tensors by name.
type Named = Vec<(String, Tensor)>;

/// A checkpoint that a hook has asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    folder: PathBuf,
    in_background: bool,
}

/// A checkpoint that a thread is writing.
pub(crate) struct Writing {
    open: Open,
    thread: JoinHandle<Result<()>>,
}

impl Run {
    pub(crate) fn ask_for_checkpoint(&mut self, folder: PathBuf, in_background: bool) {
        let asked = &mut self.requests.checkpoints;
        asked.retain(|asked| asked.folder != folder);
        asked.push(Asked { folder, in_background });
    }
}

/// Writes the checkpoints that hooks have asked for, and closes one that a thread has written.
#[inline]
pub(crate) fn save_if_asked(run: &mut Run) -> Result<()> {
    if run.requests.checkpoints.is_empty() && run.writing.is_none() { Ok(()) } else { save_all(run) }
}

/// The same, and waits for the thread.
pub(crate) fn finish(run: &mut Run) -> Result<()> {
    let asked = save_if_asked(run);
    asked.and(close(run))
}

#[cold]
fn save_all(run: &mut Run) -> Result<()> {
    if run.writing.as_ref().is_some_and(|writing| writing.thread.is_finished()) {
        close(run)?;
    }
    for Asked { folder, in_background } in std::mem::take(&mut run.requests.checkpoints) {
        if !run.fits {
            return Err(Error::usage("a checkpoint is one of a `fit`, and none is running"));
        }
        close(run)?; // one at a time
        run.checkpoint = Some(Open { folder, saved: Saved::new() });
        let result = save(run, in_background);
        run.checkpoint = None;
        result?;
    }
    Ok(())
}

/// The operation `save_checkpoint`. In the background, the point after it comes when the thread is done.
fn save(run: &mut Run, in_background: bool) -> Result<()> {
    if !in_background {
        return run.operate_with::<at::save_checkpoint>(|run| snapshot(run)?.write()).map(drop);
    }
    run.fire::<at::before_save_checkpoint>()?;
    run.inside_with::<at::save_checkpoint>(|run| {
        let mut snapshot = snapshot(run)?;
        snapshot.own_its_memory()?;
        let open = run.checkpoint.take().unwrap_or_default();
        let thread = thread::Builder::new().name("checkpoint".into()).spawn(move || snapshot.write())?;
        run.writing = Some(Writing { open, thread });
        Ok(())
    })
    .map(drop)
}

/// Waits for the thread that writes, if there is one, and fires the point after it.
fn close(run: &mut Run) -> Result<()> {
    let Some(Writing { open, thread }) = run.writing.take() else { return Ok(()) };
    let written = thread.join().unwrap_or_else(|panic| Err(Error::Panic(Box::new(panic_text(&*panic)))));
    written.map_err(|error| in_file(&open.folder, error))?;
    run.checkpoint = Some(open);
    let result = run.fire::<at::after_save_checkpoint>();
    run.checkpoint = None;
    result
}

/// All that a checkpoint is to hold, before it is written.
struct Snapshot {
    folder: PathBuf,
    manifest: Manifest,
    model: Named,
    optimizer: Named,
    rest: Named,
}

impl Snapshot {
    /// Copies what the run goes on changing.
    fn own_its_memory(&mut self) -> Result<()> {
        for (_, tensor) in self.model.iter_mut().chain(&mut self.optimizer).chain(&mut self.rest) {
            *tensor = tensor.f_to_device_(Device::Cpu, tensor.kind(), false, true)?;
        }
        Ok(())
    }

    fn write(mut self) -> Result<()> {
        folder::write_whole(&self.folder, |aside| {
            for (name, tensors) in [(MODEL, &self.model), (OPTIMIZER, &self.optimizer), (REST, &self.rest)] {
                self.manifest.files.insert(name.to_owned(), tensors::write(&aside.join(name), tensors)?);
            }
            self.manifest.write(aside)
        })
    }
}

/// What a run is now. The tensors share their storage with it.
fn snapshot(run: &Run) -> Result<Snapshot> {
    let nothing = Open::default();
    let Open { folder, saved } = run.checkpoint.as_ref().unwrap_or(&nothing);
    let mut rest = Named::new();
    let (log, unread) = run.log.state()?;
    rest.extend(unread.into_iter().map(|(name, tensor)| (format!("log/{name}"), tensor)));
    let state = RunState {
        step: run.step,
        epochs_begun: run.epochs_begun,
        epochs_done: run.epochs_done,
        train_batches: run.train_batches,
        place: run.place,
        window: run.window,
        began: (run.began.epochs, run.began.steps),
        spent: run.began.spent(),
        stop: run.requests.stop.clone(),
        end_epoch: run.requests.end_epoch,
        log: value::to_json(&log)?,
    };
    let mut manifest =
        Manifest::new(tch::get_num_threads(), format!("{:?}", run.device), state, why_inexact(run));

    let model: Named = run.vars.iter().map(|var| (var.name.clone(), var.tensor.detach())).collect();
    let mut optimizer = Named::new();
    for (part, its, used_lrs, steps) in run.optimizers.parts() {
        optimizer.extend(its.state().into_iter().map(|(name, tensor)| (within(part, &name), tensor)));
        let groups: Vec<_> = its.groups().iter().map(hyperparameters).collect();
        manifest.optimizers.push(OptimizerState {
            part: part.to_owned(),
            groups: value::to_json(&groups)?,
            used_lrs: value::to_json(used_lrs)?,
            steps,
        });
    }

    rest.push(("random/cpu".to_owned(), libtorch::random_state(Device::Cpu)?));
    if let Device::Cuda(_) = run.device {
        rest.push(("random/cuda".to_owned(), libtorch::random_state(run.device)?));
    }
    if run.window.filled > 0 {
        let grads = run.vars.parameters().map(|var| (format!("grad/{}", var.name), var.tensor.grad()));
        rest.extend(grads.filter(|(_, grad)| grad.defined()));
    }
    for (hook, nth, instance, state) in stateful(&run.instances) {
        let slot = instance
            .value
            .as_ref()
            .ok_or_else(|| Error::usage(format!("`{hook}` is running, so that its state cannot be saved")))?;
        let saved =
            (state.save)(slot).map_err(|error| Error::usage(format!("the state of `{hook}`: {error}")))?;
        let tensors = saved.tensors.keys().cloned().collect();
        rest.extend(
            saved.tensors.into_iter().map(|(key, tensor)| (format!("hook/{hook}/{nth}/{key}"), tensor)),
        );
        manifest.states.push(HookState { hook: hook.to_owned(), nth, values: saved.values, tensors });
    }
    rest.extend(saved.tensors.iter().map(|(key, tensor)| (format!("saved/{key}"), tensor.shallow_clone())));
    manifest.saved = saved.values.clone();
    manifest.hooks =
        HookTable::of(&run.table).rows().map(|row| format!("{} at {}", row.hook, row.moment)).collect();

    Ok(Snapshot { folder: folder.clone(), manifest, model, optimizer, rest })
}

/// The name of an optimizer's tensor in a file with those of other parts.
fn within(part: &str, name: &str) -> String {
    if part.is_empty() { name.to_owned() } else { format!("{part}: {name}") }
}

fn hyperparameters(group: &ParamGroup) -> BTreeMap<&str, f64> {
    group.settings().collect()
}

/// The values whose states are kept: the name of the type, the how manieth of it, the value.
fn stateful(instances: &[Instance]) -> Vec<(&'static str, usize, &Instance, crate::checkpoint::StateOf)> {
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

/// What would keep a run from going on from here as if nothing had happened.
fn why_inexact(run: &Run) -> Vec<String> {
    let mut why = Vec::new();
    if run.is_torn {
        why.push("it was written after an error in the middle of a step".to_owned());
    }
    if run.phase == Phase::Sanity {
        why.push("it was written in the sanity check, which is not made again".to_owned());
    }
    for (part, its, ..) in run.optimizers.parts() {
        if !its.state_is_complete() {
            let of = if part.is_empty() { String::new() } else { format!(" of `{part}`") };
            why.push(format!(
                "the optimizer{of} keeps its state out of reach, as tch's own do: take one of this crate's"
            ));
        }
    }
    if !matches!(run.device, Device::Cpu | Device::Cuda(_)) {
        why.push(format!("the random state of {:?} cannot be saved", run.device));
    }
    why
}

/// Makes the run what it was when a checkpoint was written, if that is asked for. Whether it was.
pub(crate) fn resume(run: &mut Run, repeats: bool) -> Result<bool> {
    let Some(resume) = run.resume.clone() else { return Ok(false) };
    let Some(folder) = find(run, &resume)? else {
        run.resume = None;
        return Ok(false);
    };
    run.checkpoint = Some(Open { folder, saved: Saved::new() });
    let result = run.operate_with::<at::load_checkpoint>(|run| read(run, repeats));
    run.checkpoint = None;
    let took_place = result?;
    run.resume = None;
    Ok(took_place)
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
        (_, true) => Err(in_file(&path, "there is no checkpoint here")),
        (_, false) => {
            let listed: String = damaged.iter().map(|error| format!("\n- {error}")).collect();
            Err(in_file(&path, format!("none of its checkpoints is whole:{listed}")))
        }
    }
}

/// The checkpoints in a folder, by what their manifests say: the one of the most steps first.
pub(crate) fn newest_first(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_one = |path: &PathBuf| path.join(manifest::NAME).exists();
    let mut found: Vec<_> = entries.filter(is_one).map(|path| (order_of(&path), path)).collect();
    found.sort_by(|one, other| other.cmp(one));
    found.into_iter().map(|(_, path)| path).collect()
}

/// Where a checkpoint stands among others: by the numbers in its name, which a damaged one has too.
fn order_of(path: &Path) -> Vec<u64> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split(|it: char| !it.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
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

fn read(run: &mut Run, repeats: bool) -> Result<()> {
    let folder = run.checkpoint.as_ref().map(|open| open.folder.clone()).unwrap_or_default();
    let manifest = Manifest::load(&folder)?;
    let [model, optimizer, mut rest] = files_of(&folder, &manifest)?;
    let (model_path, optimizer_path) = (folder.join(MODEL), folder.join(OPTIMIZER));

    // The weights are changed last: by then all that can be wrong is known not to be.
    let own: Named = run.vars.iter().map(|var| (var.name.clone(), var.tensor.shallow_clone())).collect();
    let copies = weights::fitting(&model_path, own, &model)?;
    let log: LogState = value::from_json(&manifest.run.log)
        .map_err(|error| in_file(&folder.join(manifest::NAME), format!("its field `run.log`: {error}")))?;
    let states = states_of(run, &manifest, &mut rest);
    let mut why = why_not_exact(run, &manifest, repeats, &rest);
    why.extend(states.1);
    if !why.is_empty() && !run.settings.inexact {
        let listed: String = why.iter().map(|reason| format!("\n- {reason}")).collect();
        return Err(in_file(
            &folder,
            format!("the run cannot go on from here exactly; `.allow_inexact_resume()` lets it:{listed}"),
        ));
    }
    for reason in why {
        eprintln!("resumed from {}, not exactly: {reason}", folder.display());
    }

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
    run.optimizers.zero_grad()?;
    for var in run.vars.parameters() {
        if let Some(grad) = rest.get(&format!("grad/{}", var.name)) {
            libtorch::set_grad(&var.tensor, grad)?;
        }
    }
    if let Some(state) = rest.get("random/cpu") {
        libtorch::set_random_state(Device::Cpu, state)?;
    }
    if let (Device::Cuda(_), Some(state)) = (run.device, rest.get("random/cuda")) {
        libtorch::set_random_state(run.device, state)?;
    }
    let device = run.device;
    run.log.restore(log, |name| Some(rest.get(&format!("log/{name}"))?.to_device(device)));
    let state = manifest.run;
    run.step = state.step;
    (run.epochs_begun, run.epochs_done) = (state.epochs_begun, state.epochs_done);
    (run.train_batches, run.place) = (state.train_batches, state.place);
    run.window = Window { closes: false, ..state.window };
    run.began = Began::now(state.began.0, state.began.1, state.spent);
    (run.requests.stop, run.requests.end_epoch) = (state.stop, state.end_epoch);
    let mut saved = Saved { values: manifest.saved, tensors: BTreeMap::new() };
    for (name, tensor) in rest {
        if let Some(key) = name.strip_prefix("saved/") {
            saved.tensors.insert(key.to_owned(), tensor);
        }
    }
    run.checkpoint = Some(Open { folder, saved });
    Ok(())
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
    repeats: bool,
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
    if manifest.device != device {
        why.push(format!("it was written on {}, and the task is on {device}", manifest.device));
    }
    if !repeats && manifest.run.place.stage != Stage::BetweenEpochs {
        why.push(
            "the loader of the training data does not say that an epoch is the same batches again, and it was written within \
             one: for `from_fn`, say `.repeatable()`"
                .to_owned(),
        );
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
    for part in parts {
        let saved = manifest.optimizers.iter().find(|saved| saved.part == part);
        let saved =
            saved.ok_or_else(|| in_file(path, format!("there is no optimizer of the part `{part}`")))?;
        let groups: Vec<BTreeMap<String, f64>> = value::from_json(&saved.groups)?;
        let optimizer = run.optimizers.of(&part)?;
        let own = optimizer.groups_mut();
        if own.len() != groups.len() {
            let (there, here) = (groups.len(), own.len());
            return Err(in_file(
                path,
                format!("the optimizer has {there} parameter groups there, and {here} here"),
            ));
        }
        for (group, saved) in own.iter_mut().zip(groups) {
            for (name, value) in saved {
                if group.get(&name).is_ok_and(|own| own.to_bits() != value.to_bits()) {
                    group.set(&name, value).map_err(|error| in_file(path, error))?;
                }
            }
        }
        let is_own = |name: &str| others(manifest, &part).all(|other| !name.starts_with(&within(other, "")));
        let state: Named = (tensors.iter())
            .filter_map(|(name, tensor)| {
                let own = if part.is_empty() {
                    Some(name.as_str()).filter(|name| is_own(name))
                } else {
                    name.strip_prefix(&within(&part, ""))
                };
                Some((own?.to_owned(), tensor.shallow_clone()))
            })
            .collect();
        optimizer.load_state(&state).map_err(|error| in_file(path, error))?;
        run.optimizers.restore(&part, value::from_json(&saved.used_lrs)?, saved.steps);
    }
    Ok(())
}

/// The parts of the model that have optimizers of their own, but for this one.
fn others<'a>(manifest: &'a Manifest, part: &'a str) -> impl Iterator<Item = &'a str> {
    manifest
        .optimizers
        .iter()
        .map(|saved| saved.part.as_str())
        .filter(move |other| !other.is_empty() && *other != part)
}
