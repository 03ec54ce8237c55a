//! Writing a checkpoint of a run.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread;

use tch::Tensor;

use super::parts::{self, Part, Scope};
use super::{facts, records, replicas};
use crate::checkpoint::files::{HISTORY, replace_folder};
use crate::checkpoint::manifest::Manifest;
use crate::checkpoint::progress::Stage;
use crate::checkpoint::states::{Tensors, tensors_of, values_of};
use crate::checkpoint::{ActiveCheckpoint, States, journal, tensors};
use crate::distributed::World;
use crate::error::{Error, Result, panic_text};
use crate::io::files::{create, in_file};
use crate::io::terminal;
use crate::lifecycle::at;
use crate::run::{BackgroundSave, Ending, Run, SaveRequest};

/// Writes the checkpoints that hooks have requested, and completes a background save that has
/// finished.
#[inline]
pub(crate) fn save_requested(run: &mut Run) -> Result<()> {
    if !run.ranks.world.is_solo() {
        return save_with_ranks(run);
    }
    let is_idle = run.checkpoints.requests.borrow().is_empty() && run.checkpoints.background.is_none();
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
    let own = run.checkpoints.requests.take();
    let of_ranks: Vec<Vec<SaveRequest>> =
        run.ranks.world.gather_named(&own, "the agreement on checkpoints")?;
    let requests = run.checkpoints.requests.get_mut();
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
    for SaveRequest { folder, .. } in run.checkpoints.requests.take() {
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
    for SaveRequest { folder, in_background } in run.checkpoints.requests.take() {
        if !run.fit.is_running || run.fit.position.stage == Stage::SanityCheck {
            let text = "no checkpoint can be saved outside of a `fit` or during its sanity check: request it during \
                        training";
            return Err(in_file(&folder, text));
        }
        complete(run)?; // one at a time
        save_in(run, folder, in_background)?;
    }
    Ok(())
}

/// Writes a checkpoint into this folder.
pub(super) fn save_into(run: &mut Run, folder: PathBuf) -> Result<()> {
    save_in(run, folder, false)
}

fn save_in(run: &mut Run, folder: PathBuf, in_background: bool) -> Result<()> {
    run.checkpoints.active = Some(ActiveCheckpoint { folder, ..ActiveCheckpoint::default() });
    let result = save(run, in_background);
    run.checkpoints.active = None;
    result
}

/// Runs the operation `save_checkpoint`. For a background save, `after_save_checkpoint` fires when
/// the thread has finished.
fn save(run: &mut Run, in_background: bool) -> Result<()> {
    records::flush(run)?; // so that the saved state of loggers includes it
    if !in_background || run.rank > 0 {
        return run
            .operate::<at::save_checkpoint>(|run| {
                let snapshot = snapshot(run)?;
                if run.rank > 0 {
                    return Ok(()); // rank 0 writes it
                }
                let folder = snapshot.folder.clone();
                let history = snapshot.journal.digest.bytes;
                snapshot.write()?;
                run.checkpoints.journal.written(&folder, history);
                run.checkpoints.written = Some(folder);
                Ok(())
            })
            .map(drop);
    }
    run.fire::<at::before_save_checkpoint>()?;
    let done = run.inside::<at::save_checkpoint>(|run| {
        let mut snapshot = snapshot(run)?;
        snapshot.tensors.own_their_memory()?;
        let active = run.checkpoints.active.take().unwrap_or_default();
        let history = snapshot.journal.digest.bytes;
        let thread = thread::Builder::new().name("checkpoint".into()).spawn(move || snapshot.write())?;
        run.checkpoints.background = Some(BackgroundSave { active, history, thread });
        Ok(())
    })?;
    // If a hook replaced the operation, there is no thread to wait for.
    if done == Ending::Replaced { run.fire::<at::after_save_checkpoint>() } else { Ok(()) }
}

/// Waits for a background save, if there is one, and fires `after_save_checkpoint`.
pub(super) fn complete(run: &mut Run) -> Result<()> {
    let Some(BackgroundSave { active, history, thread }) = run.checkpoints.background.take() else {
        return Ok(());
    };
    let written = thread.join().unwrap_or_else(|panic| Err(Error::Panic(Box::new(panic_text(&*panic)))));
    written.map_err(|error| in_file(&active.folder, error))?;
    run.checkpoints.journal.written(&active.folder, history);
    run.checkpoints.written = Some(active.folder.clone());
    run.checkpoints.active = Some(active);
    let result = run.fire::<at::after_save_checkpoint>();
    run.checkpoints.active = None;
    result
}

/// The content of a checkpoint.
struct Snapshot {
    folder: PathBuf,
    manifest: Manifest,
    tensors: Tensors,
    journal: journal::Snapshot,
}

impl Snapshot {
    fn write(mut self) -> Result<()> {
        replace_folder(&self.folder, |aside| {
            for (name, tensors) in self.tensors.files() {
                let digest = tensors::write(&mut create(&aside.join(name))?, &tensors)?;
                self.manifest.files.insert(name.to_owned(), digest);
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
    replicas::compare(run, "before this checkpoint was written")?;
    run.checkpoints.journal.update(&run.history)?;
    let run = &*run;
    // In the run that begins with the end of a replay, hooks that write begin anew.
    let parts = parts::with_values(run, |index| run.replay.is_none() || !run.hooks.instances[index].writes);
    let states = parts::save(run, &parts)?;
    let mut manifest = Manifest::new(tch::get_num_threads(), format!("{:?}", run.model.device));
    manifest.parts = values_of(&states);
    manifest.averages = part_with_averages(&states)?;
    for part in &parts {
        if part.is_left_out(run) {
            manifest.left_out.insert(part.name().into_owned());
        }
        manifest.inexact.extend(part.why_inexact(run));
    }
    if run.ranks.has_left {
        let why = "it was written by rank 0 alone, after an error had disconnected the ranks";
        manifest.inexact.push(why.to_owned());
    }
    manifest.facts = run.checkpoints.facts.clone().unwrap_or_default();
    manifest.length = facts::changeable(run).collect();
    let ranks = gather(&run.ranks.world, &parts, &states, &mut manifest)?;
    let nothing = ActiveCheckpoint::default();
    let ActiveCheckpoint { folder, added, .. } = run.checkpoints.active.as_ref().unwrap_or(&nothing);
    let saved = added.borrow();
    manifest.saved = saved.values.clone();
    let tensors = Tensors { states, ranks, saved: saved.shallow_clone() };
    Ok(Snapshot { folder: folder.clone(), manifest, tensors, journal: run.checkpoints.journal.snapshot() })
}

/// Returns the name of the part that saves averages of the weights.
///
/// # Errors
///
/// Returns an error if there are two.
fn part_with_averages(states: &States) -> Result<Option<String>> {
    let mut names = states.iter().filter(|(_, saved)| !saved.averages.is_empty()).map(|(name, _)| name);
    let first = names.next();
    if let (Some(one), Some(other)) = (first, names.next()) {
        let [one, other] = [one, other].map(|name| parts::type_of(name).unwrap_or(name));
        return Err(Error::usage(format!(
            "the checkpoint cannot be saved, because both `{one}` and `{other}` save averages of the weights: remove one of them"
        )));
    }
    Ok(first.cloned())
}

/// Gathers the states of the parts that differ between ranks: adds the values of the other ranks to
/// the manifest, and returns their tensors. Every rank must call this.
fn gather(
    world: &World,
    parts: &[Box<dyn Part>],
    states: &States,
    manifest: &mut Manifest,
) -> Result<Vec<BTreeMap<String, Tensor>>> {
    let mut own = States::new();
    if world.is_solo() {
        return Ok(Vec::new());
    }
    for part in parts.iter().filter(|part| part.scope() == Scope::Rank) {
        let name = part.name();
        own.extend(states.get(&*name).map(|saved| (name.into_owned(), saved.shallow_clone())));
    }
    let mut ranks = world.gather_named(&values_of(&own), "the states of the ranks in a checkpoint")?;
    manifest.ranks = ranks.split_off(1);
    world.collect_tensors(&tensors_of(&own))
}
