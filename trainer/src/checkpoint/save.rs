//! What a run is now, and how it gets onto the disk.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

use tch::Device;

use super::folder::in_file;
use super::manifest::{HookState, Manifest, OptimizerState, RunState};
use super::{MODEL, Named, OPTIMIZER, Open, REST, Saved, folder, stateful, tensors, value, within};
use crate::error::{Error, Result};
use crate::hook::HookTable;
use crate::libtorch;
use crate::lifecycle::at;
use crate::next::Done;
use crate::optim::ParamGroup;
use crate::run::{Run, panic_text};
use crate::training::Stage;

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
    let done = run.inside_with::<at::save_checkpoint>(|run| {
        let mut snapshot = snapshot(run)?;
        snapshot.own_its_memory()?;
        let open = run.checkpoint.take().unwrap_or_default();
        let thread = thread::Builder::new().name("checkpoint".into()).spawn(move || snapshot.write())?;
        run.writing = Some(Writing { open, thread });
        Ok(())
    })?;
    // Nothing is left to wait for.
    if done == Done::Replaced { run.fire::<at::after_save_checkpoint>() } else { Ok(()) }
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
        fits: run.fits_begun,
        data: run.data.clone(),
        batches: run.batches,
        // The clock goes on by itself.
        stop: run.requests.stop.clone().filter(|_| !run.requests.is_of_clock),
        end_epoch: run.requests.end_epoch,
        is_cut_short: run.requests.is_cut_short,
        optimizer: run.optimizers.current_name().to_owned(),
        frozen: run
            .vars
            .parameters()
            .filter(|var| !var.tensor.requires_grad())
            .map(|var| var.name.clone())
            .collect(),
        log: value::to_json(&log)?,
    };
    let mut manifest =
        Manifest::new(tch::get_num_threads(), format!("{:?}", run.device), state, why_inexact(run));

    let model: Named = run.vars.iter().map(|var| (var.name.clone(), var.tensor.detach())).collect();
    let mut optimizer = Named::new();
    for (part, its, used_lrs, steps, gathered) in run.optimizers.parts() {
        optimizer.extend(its.state().into_iter().map(|(name, tensor)| (within(part, &name), tensor)));
        let groups: Vec<_> = its.groups().iter().map(hyperparameters).collect();
        manifest.optimizers.push(OptimizerState {
            part: part.to_owned(),
            rules: its.groups().iter().map(|group| group.rule().to_owned()).collect(),
            groups: value::to_json(&groups)?,
            used_lrs: value::to_json(used_lrs)?,
            steps,
            gathered,
        });
    }

    rest.push(("random/cpu".to_owned(), libtorch::random_state(Device::Cpu)?));
    if let Device::Cuda(_) = run.device {
        rest.push(("random/cuda".to_owned(), libtorch::random_state(run.device)?));
    }
    // Those of an open window, and those that a hook kept by skipping an optimizer step.
    let grads = run.vars.parameters().map(|var| (format!("grad/{}", var.name), var.tensor.grad()));
    rest.extend(grads.filter(|(_, grad)| grad.defined()));
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
    manifest.settings = run.settings.told();
    manifest.hooks =
        HookTable::of(&run.table).rows().map(|row| format!("{} at {}", row.hook, row.moment)).collect();

    Ok(Snapshot { folder: folder.clone(), manifest, model, optimizer, rest })
}

fn hyperparameters(group: &ParamGroup) -> BTreeMap<&str, f64> {
    group.settings().collect()
}

/// What would keep a run from going on from here as if nothing had happened.
fn why_inexact(run: &Run) -> Vec<String> {
    let mut why = Vec::new();
    if run.is_torn {
        why.push("it was written after an error in the middle of a step".to_owned());
    }
    if run.place.stage == Stage::SanityCheck {
        why.push("it was written in the sanity check, which begins anew".to_owned());
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
