//! Writing a checkpoint of a run.

use std::path::PathBuf;
use std::thread;

use tch::{Device, Tensor};

use super::rank_states;
use super::resume::stateful;
use crate::checkpoint::files::{AVERAGES, HISTORY, MODEL, OPTIMIZER, STATE, replace_folder};
use crate::checkpoint::manifest::{HookState, Manifest, OptimizerState, RunState};
use crate::checkpoint::{
    ActiveCheckpoint, NamedTensors, Saved, hyperparameters, journal, optimizer_tensor, tensors,
};
use crate::error::{Error, Result, panic_text};
use crate::files::{create, in_file};
use crate::float::Float;
use crate::libtorch;
use crate::lifecycle::at;
use crate::progress::Stage;
use crate::run::{BackgroundSave, Done, Run, SaveRequest};
use crate::terminal;
use crate::vars::Var;

/// Writes the checkpoints that hooks have requested, and completes a background save that has
/// finished.
#[inline]
pub(crate) fn save_requested(run: &mut Run) -> Result<()> {
    if !run.ranks.world.is_solo() {
        return save_with_ranks(run);
    }
    let is_idle = run.checkpoints.requests.is_empty() && run.checkpoints.background.is_none();
    if is_idle { Ok(()) } else { save_all(run) }
}

/// Writes the checkpoints that hooks have requested on any rank, once all ranks know of the
/// requests: each folder once, in the order of the ranks.
#[cold]
fn save_with_ranks(run: &mut Run) -> Result<()> {
    if !std::mem::take(&mut run.ranks.agreed.saves) {
        let is_written = run.checkpoints.background.as_ref().is_some_and(|save| save.thread.is_finished());
        return if is_written { complete(run) } else { Ok(()) };
    }
    let own = std::mem::take(&mut run.checkpoints.requests);
    let of_ranks: Vec<Vec<SaveRequest>> =
        run.ranks.world.gather_named(&own, "the agreement on checkpoints")?;
    let requests = &mut run.checkpoints.requests;
    for request in of_ranks.into_iter().flatten() {
        if requests.iter().all(|known| known.folder != request.folder) {
            requests.push(request);
        }
    }
    save_all(run)
}

/// Writes the requested checkpoints, and waits for a background save.
pub(crate) fn finish(run: &mut Run) -> Result<()> {
    let saved = if !run.ranks.world.is_solo() && run.fit.is_running {
        run.ranks.agreed.saves = true;
        save_with_ranks(run)
    } else {
        warn_of_unwritten(run);
        save_all(run)
    };
    saved.and(complete(run))
}

/// Drops the requests of a rank other than 0 if an error has disconnected it from the others, and
/// warns of each.
fn warn_of_unwritten(run: &mut Run) {
    if !run.ranks.has_left || run.rank == 0 {
        return;
    }
    for SaveRequest { folder, .. } in std::mem::take(&mut run.checkpoints.requests) {
        // Only this rank knows of it, and its summary is lost with the error.
        terminal::eprint_line(&format!(
            "warning: {}: rank {} does not write this checkpoint: after an error has disconnected the ranks, only rank 0 writes \
             the checkpoints that its own hooks request",
            folder.display(),
            run.rank
        ));
    }
}

#[cold]
fn save_all(run: &mut Run) -> Result<()> {
    if run.checkpoints.background.as_ref().is_some_and(|save| save.thread.is_finished()) {
        complete(run)?;
    }
    for SaveRequest { folder, in_background } in std::mem::take(&mut run.checkpoints.requests) {
        if !run.fit.is_running || run.fit.position.stage == Stage::SanityCheck {
            let text = "no checkpoint can be saved outside of a `fit` or during its sanity check: request it during \
                        training";
            return Err(in_file(&folder, text));
        }
        complete(run)?; // one at a time
        run.checkpoints.active = Some(ActiveCheckpoint { folder, saved: Saved::new() });
        let result = save(run, in_background);
        run.checkpoints.active = None;
        result?;
    }
    Ok(())
}

/// Runs the operation `save_checkpoint`. For a background save, `after_save_checkpoint` fires when
/// the thread has finished.
fn save(run: &mut Run, in_background: bool) -> Result<()> {
    run.flush_record()?; // so that the saved state of loggers includes it
    if !in_background || run.rank > 0 {
        return run
            .operate::<at::save_checkpoint>(|run| {
                let snapshot = snapshot(run)?;
                if run.rank > 0 {
                    return Ok(()); // rank 0 writes it
                }
                let (folder, history) = (snapshot.folder.clone(), snapshot.journal.digest.bytes);
                snapshot.write()?;
                run.checkpoints.journal.written(&folder, history);
                Ok(())
            })
            .map(drop);
    }
    run.fire::<at::before_save_checkpoint>()?;
    let done = run.inside::<at::save_checkpoint>(|run| {
        let mut snapshot = snapshot(run)?;
        snapshot.own_its_memory()?;
        let active = run.checkpoints.active.take().unwrap_or_default();
        let history = snapshot.journal.digest.bytes;
        let thread = thread::Builder::new().name("checkpoint".into()).spawn(move || snapshot.write())?;
        run.checkpoints.background = Some(BackgroundSave { active, history, thread });
        Ok(())
    })?;
    // If a hook replaced the operation, there is no thread to wait for.
    if done == Done::Replaced { run.fire::<at::after_save_checkpoint>() } else { Ok(()) }
}

/// Waits for a background save, if there is one, and fires `after_save_checkpoint`.
fn complete(run: &mut Run) -> Result<()> {
    let Some(BackgroundSave { active, history, thread }) = run.checkpoints.background.take() else {
        return Ok(());
    };
    let written = thread.join().unwrap_or_else(|panic| Err(Error::Panic(Box::new(panic_text(&*panic)))));
    written.map_err(|error| in_file(&active.folder, error))?;
    run.checkpoints.journal.written(&active.folder, history);
    run.checkpoints.active = Some(active);
    let result = run.fire::<at::after_save_checkpoint>();
    run.checkpoints.active = None;
    result
}

/// The content of a checkpoint.
struct Snapshot {
    folder: PathBuf,
    manifest: Manifest,
    model: NamedTensors,
    optimizer: NamedTensors,
    rest: NamedTensors,
    averages: NamedTensors,
    journal: journal::Snapshot,
}

impl Snapshot {
    /// Copies the tensors, because training continues to change the originals.
    fn own_its_memory(&mut self) -> Result<()> {
        let kept = self.optimizer.iter_mut().chain(&mut self.rest).chain(&mut self.averages);
        for (_, tensor) in self.model.iter_mut().chain(kept) {
            *tensor = tensor.f_to_device_(Device::Cpu, tensor.kind(), false, true)?;
        }
        Ok(())
    }

    fn write(mut self) -> Result<()> {
        replace_folder(&self.folder, |aside| {
            let files = [
                (MODEL, &self.model),
                (OPTIMIZER, &self.optimizer),
                (STATE, &self.rest),
                (AVERAGES, &self.averages),
            ];
            for (name, tensors) in files {
                if name == AVERAGES && tensors.is_empty() {
                    continue;
                }
                self.manifest
                    .files
                    .insert(name.to_owned(), tensors::write(&mut create(&aside.join(name))?, tensors)?);
            }
            self.journal.write(aside, &self.folder)?;
            self.manifest.files.insert(HISTORY.to_owned(), self.journal.digest.clone());
            self.manifest.write(aside)
        })
    }
}

/// Returns the current state of a run, with tensors that share their storage with it. If several
/// processes train together, every rank must call this.
fn snapshot(run: &mut Run) -> Result<Snapshot> {
    run.compare_replicas("before this checkpoint was written")?;
    run.checkpoints.journal.update(&run.log.history)?;
    let run = &*run;
    let nothing = ActiveCheckpoint::default();
    let ActiveCheckpoint { folder, saved } = run.checkpoints.active.as_ref().unwrap_or(&nothing);
    let mut rest = NamedTensors::new();
    let (log, unread) = run.log.state()?;
    let (media, pending) = run.records.state();
    rest.extend(unread.into_iter().chain(pending).map(|(name, tensor)| (format!("log/{name}"), tensor)));
    let is_frozen = |var: &&Var| !var.tensor.requires_grad();
    let state = RunState {
        progress: run.progress.clone(),
        fit: run.fit.clone(),
        // A stop requested by `max_time` is not saved: the resumed fit checks the time itself.
        stop: run.requests.stop.clone().filter(|_| !run.requests.is_of_clock),
        end_epoch: run.requests.end_epoch,
        is_cut_short: run.requests.is_cut_short,
        optimizer: run.model.optimizers.current_name().to_owned(),
        frozen: run.model.vars.parameters().filter(is_frozen).map(|var| var.name.clone()).collect(),
        predictions: run.checkpoints.predictions,
        log,
        media,
        records: run.records.counts,
    };
    let mut manifest =
        Manifest::new(tch::get_num_threads(), format!("{:?}", run.model.device), state, why_inexact(run));

    let model: NamedTensors =
        run.model.vars.iter().map(|var| (var.name.clone(), var.tensor.detach())).collect();
    let mut optimizer = NamedTensors::new();
    for (part, its, used_lrs, steps, accumulated) in run.model.optimizers.parts() {
        let state = its.gather_state()?;
        optimizer.extend(state.into_iter().map(|(name, tensor)| (optimizer_tensor(part, &name), tensor)));
        manifest.optimizers.push(OptimizerState {
            part: part.to_owned(),
            rules: its.groups().iter().map(|group| group.algorithm().to_owned()).collect(),
            groups: hyperparameters(its),
            used_lrs: used_lrs.iter().copied().map(Float).collect(),
            steps,
            accumulated,
        });
    }

    let random = run.ranks.random_before_draw.as_ref().map(Tensor::shallow_clone);
    let random = random.map_or_else(|| libtorch::random_state(Device::Cpu), Ok)?;
    rest.push(("random/cpu".to_owned(), random));
    if let Device::Cuda(_) = run.model.device {
        rest.push(("random/cuda".to_owned(), libtorch::random_state(run.model.device)?));
    }
    // The gradients of an open window, and those that a hook kept by skipping an optimizer step.
    let grads = run.model.vars.parameters().map(|var| (format!("grad/{}", var.name), var.tensor.grad()));
    rest.extend(grads.filter(|(_, grad)| grad.defined()));
    let mut averages = NamedTensors::new();
    for (hook, nth, instance, state) in stateful(&run.hooks.instances) {
        let slot = instance.value.as_ref().ok_or_else(|| {
            Error::usage(format!(
                "the state of `{hook}` cannot be saved while one of its hooks is running: move that hook to a separate type, or \
                 to a free function"
            ))
        })?;
        let saved = (state.save)(slot)
            .map_err(|error| Error::usage(format!("the state of `{hook}` cannot be saved: {error}")))?;
        let tensors = saved.tensors.keys().cloned().collect();
        rest.extend(
            saved.tensors.into_iter().map(|(key, tensor)| (format!("hook/{hook}/{nth}/{key}"), tensor)),
        );
        let has_averages = !saved.averages.is_empty();
        if has_averages && !averages.is_empty() {
            let other = manifest.states.iter().find(|state| state.has_averages);
            let other = other.map_or("another hook", |state| state.hook.as_str());
            return Err(Error::usage(format!(
                "the checkpoint cannot be saved, because both `{other}` and `{hook}` save averages of the weights: \
                 remove one of them"
            )));
        }
        averages.extend(saved.averages);
        let values = saved.values;
        let is_left_out = instance.is_left_out();
        manifest.states.push(HookState {
            hook: hook.to_owned(),
            nth,
            values,
            tensors,
            has_averages,
            is_left_out,
        });
    }
    rest.extend(saved.tensors.iter().map(|(key, tensor)| (format!("saved/{key}"), tensor.shallow_clone())));
    manifest.saved = saved.values.clone();
    manifest.facts = run.checkpoints.facts.clone().unwrap_or_default();
    manifest.length =
        run.settings.length().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();

    let (folder, journal) = (folder.clone(), run.checkpoints.journal.snapshot());
    rank_states::gather(&run.ranks.world, &mut manifest, &mut rest)?;
    Ok(Snapshot { folder, manifest, model, optimizer, rest, averages, journal })
}

/// The reasons why a run cannot resume exactly from here.
fn why_inexact(run: &Run) -> Vec<String> {
    let mut why = Vec::new();
    if run.fit.failed_mid_step {
        why.push("it was written after an error in the middle of a step".to_owned());
    }
    if run.ranks.has_left {
        why.push("it was written by rank 0 alone, after an error had disconnected the ranks".to_owned());
    }
    for (part, its, ..) in run.model.optimizers.parts() {
        if !its.state_is_complete() {
            let of = if part.is_empty() { String::new() } else { format!(" of `{part}`") };
            why.push(format!(
                "the state of the optimizer{of} cannot be read, as with tch's own optimizers: use an optimizer of this crate"
            ));
        }
    }
    if !matches!(run.model.device, Device::Cpu | Device::Cuda(_)) {
        why.push(format!("the random state of {:?} cannot be saved", run.model.device));
    }
    why
}
