//! Writing a checkpoint of a run.

use std::path::{Path, PathBuf, absolute};
use std::thread::{self, JoinHandle};

use super::parts::{self, AnyPart};
use super::replicas::Compared;
use super::{facts, ranks, records, replicas};
use crate::checkpoint::files::{HISTORY, UnfinishedFolder};
use crate::checkpoint::manifest::{Manifest, SavedBy};
use crate::checkpoint::progress::{FitState, Stage};
use crate::checkpoint::rank::RankState;
use crate::checkpoint::read::is_exact;
use crate::checkpoint::states::{Tensors, values_of};
use crate::checkpoint::unpublished::Unpublished;
use crate::checkpoint::{ActiveCheckpoint, Saved, States, journal, tensors};
use crate::distributed::World;
use crate::error::{Error, Result, panic_text};
use crate::hook::call::Loop;
use crate::hook::frame::Ending;
use crate::io::files::{create, in_file};
use crate::io::terminal;
use crate::lifecycle::at;
use crate::run::reports::Reports;
use crate::run::run_folder;
use crate::run::{
    BackgroundSave, CheckpointState, Model, Ranks, Run, SaveMode, SaveRequest, SaveStage, SavesOfRanks,
};

/// Writes the checkpoints that hooks have requested, or continues a background save. If several
/// processes train together, all of them do so before the same batch: a save continues once no rank
/// is writing its files.
#[inline]
pub(crate) fn save_requested(run: &mut Run) -> Result<()> {
    let is_solo = run.world().is_solo();
    let saves =
        if is_solo { run.checkpoints().saves() } else { std::mem::take(&mut run.ranks_mut().agreed.saves) };
    match (saves, &mut run.checkpoints_mut().background) {
        (SavesOfRanks::Requested, _) => save_all(run),
        (SavesOfRanks::Writing, _) | (SavesOfRanks::None, None) => Ok(()),
        (SavesOfRanks::None, Some(save)) if save.stage == SaveStage::Writing => publish_on_thread(save),
        (SavesOfRanks::None, Some(_)) => complete(run),
    }
}

/// After all ranks have written their files, publishes the checkpoint on a thread of rank 0.
fn publish_on_thread(save: &mut BackgroundSave) -> Result<()> {
    save.stage = SaveStage::Publishing;
    let written = save.thread.take().map_or(Ok(None), joined);
    let Some(unpublished) = written.map_err(|error| in_file(&save.active.folder, error))? else {
        return Ok(());
    };
    save.thread = Some(spawn(move || unpublished.publish().map(|()| None))?);
    Ok(())
}

/// Writes the requested checkpoints, and waits for a background save.
pub(crate) fn finish(run: &mut Run) -> Result<()> {
    if run.ranks().has_left && run.rank() > 0 {
        warn_of_unwritten(run.checkpoints_mut().requests.take(), run.rank());
    }
    let saved = save_all(run);
    if let Err(error) = &saved {
        ranks::leave(run, error); // the other ranks wait
    }
    saved.and(complete(run))
}

/// After an error, drops the requests that were made before it if the state is no longer exact,
/// with a warning for each.
pub(crate) fn drop_inexact(checkpoints: &CheckpointState, why: Option<&str>, reports: &Reports) {
    let Some(why) = why else { return };
    for SaveRequest { folder, .. } in checkpoints.requests.take() {
        reports.warn_on_any_rank(format!(
            "{}: this checkpoint is not written, because the run failed {why} after the checkpoint was requested, and a run \
             could not resume exactly from it",
            folder.display()
        ));
    }
}

/// Returns why the state is no longer exact after an error, if so.
pub(crate) fn why_lost(fit: &FitState, ranks: &Ranks) -> Option<&'static str> {
    match () {
        () if fit.failed_mid_step => Some("in the middle of a step"),
        () if ranks.has_left => Some("that has disconnected the ranks"),
        () => None,
    }
}

/// Returns the reasons why a run cannot resume exactly from a checkpoint that is written now.
fn why_inexact(ranks: &Ranks, fit: &FitState, model: &Model, parts: &[AnyPart]) -> Vec<String> {
    let mut why: Vec<String> = parts.iter().filter_map(|part| part.why_inexact(fit, model)).collect();
    if ranks.has_left {
        why.push(
            "the checkpoint was written by rank 0 alone, after an error had disconnected the ranks"
                .to_owned(),
        );
    }
    why
}

/// Whether a checkpoint that is not exact would replace one that is. If several processes train
/// together, every rank must call this.
fn would_replace_exact(rank: u32, ranks: &Ranks, folder: &Path) -> Result<bool> {
    let replaces = rank == 0 && is_exact(folder);
    if ranks.world.is_solo() || ranks.has_left {
        return Ok(replaces);
    }
    ranks.world.is_set(replaces, "the replacement of a checkpoint")
}

/// Drops the requests of a rank other than 0 if an error has disconnected it from the others, and
/// warns about each request.
fn warn_of_unwritten(requests: Vec<SaveRequest>, rank: u32) {
    for SaveRequest { folder, .. } in requests {
        // Only this rank knows of the request, and its summary is lost with the error.
        terminal::eprint_line(format!(
            "warning: {}: rank {rank} does not write this checkpoint: after an error has disconnected the ranks, only rank 0 writes \
             the checkpoints that its own hooks request",
            folder.display()
        ));
    }
}

/// Writes the checkpoints that hooks on any rank have requested, in the order of the ranks and each
/// folder only once. If several processes train together, every rank must call this.
#[cold]
fn save_all(run: &mut Run) -> Result<()> {
    let mut requests = run.checkpoints_mut().requests.take();
    if run.fit().is_running && !run.world().is_solo() {
        let of_ranks = run.world().gather_named(&requests, "the agreement on checkpoints")?;
        requests.clear();
        for request in of_ranks.into_iter().flatten() {
            if requests.iter().all(|known| known.folder != request.folder) {
                requests.push(request);
            }
        }
    }
    for SaveRequest { folder, mode } in requests {
        if !run.fit().is_running || run.fit().position.stage == Stage::SanityCheck {
            let text = "no checkpoint can be saved outside of a `fit` or during its sanity check: request it during \
                        training";
            return Err(in_file(&folder, text));
        }
        complete(run)?; // one at a time
        let why = why_inexact(run.ranks(), run.fit(), run.model(), &parts::with_values(run, |_| true));
        if !why.is_empty() && would_replace_exact(run.rank(), run.ranks(), &folder)? {
            run.reports().warn(format!(
                "{}: the checkpoint there is not replaced, because a run can resume exactly from it, and not from the new one: {}",
                folder.display(),
                why.join("; ")
            ));
            continue;
        }
        run.checkpoints_mut().active = Some(ActiveCheckpoint { folder, ..ActiveCheckpoint::default() });
        let result = save(run, mode);
        run.checkpoints_mut().active = None;
        result?;
    }
    Ok(())
}

/// Runs the operation `save_checkpoint`. For a background save, `after_save_checkpoint` fires when
/// the threads of all ranks have finished.
fn save(run: &mut Run, mode: SaveMode) -> Result<()> {
    records::flush(run)?; // so that the saved state of loggers includes the record
    let is_alone = run.world().is_solo();
    let writes_nothing = is_alone && run.rank() > 0;
    let in_background = mode == SaveMode::InBackground && !writes_nothing;
    run.fire::<at::before_save_checkpoint>()?;
    let ending = run.inside::<at::save_checkpoint>(|run| {
        let mut snapshot = Snapshot::take(run)?;
        if writes_nothing {
            return Ok(());
        }
        if in_background {
            snapshot.tensors.own_their_memory()?;
        }
        let history = snapshot.journal.digest.bytes;
        let save = snapshot.begin(run.world(), run.checkpoints().active_folder())?;
        if in_background {
            let thread = spawn(move || match save.write()? {
                Some(alone) if is_alone => alone.publish().map(|()| None),
                written => Ok(written),
            })?;
            let active = run.checkpoints_mut().active.take().unwrap_or_default();
            let stage = if is_alone { SaveStage::Publishing } else { SaveStage::Writing };
            let save = BackgroundSave { active, history, thread: Some(thread), stage };
            run.checkpoints_mut().background = Some(save);
            return Ok(());
        }
        let written = save.write()?;
        run.world().combine([], [], FILES_OF_RANKS)?;
        written.map_or(Ok(()), Unpublished::publish)?;
        if run.rank() == 0 {
            let folder = run.checkpoints().active_folder().to_owned();
            run.checkpoints_mut().note_written(folder, history);
        }
        Ok(())
    })?;
    // If a hook replaced the operation, there is no thread to wait for.
    let has_ended = if in_background { ending == Ending::Replaced } else { ending.took_place() };
    if has_ended { run.fire::<at::after_save_checkpoint>() } else { Ok(()) }
}

/// The name of the collective in which each rank waits for the files of all ranks.
const FILES_OF_RANKS: &str = "the files of a checkpoint";

type Thread = JoinHandle<Result<Option<Unpublished>>>;

fn spawn(body: impl FnOnce() -> Result<Option<Unpublished>> + Send + 'static) -> Result<Thread> {
    Ok(thread::Builder::new().name("checkpoint".into()).spawn(body)?)
}

/// Waits for a thread, and returns its result.
fn joined(thread: Thread) -> Result<Option<Unpublished>> {
    thread.join().unwrap_or_else(|panic| Err(Error::Panic(Box::new(panic_text(&*panic)))))
}

/// Waits for a background save, if there is one, and fires `after_save_checkpoint`. If several
/// processes train together, every rank must call this.
pub(super) fn complete(run: &mut Run) -> Result<()> {
    let Some(BackgroundSave { active, history, thread, stage }) = run.checkpoints_mut().background.take()
    else {
        return Ok(());
    };
    let written = thread.map_or(Ok(None), joined).and_then(|unpublished| {
        if stage == SaveStage::Publishing {
            return Ok(true); // it is already published
        }
        if run.ranks().has_left {
            return Ok(publish_alone(&active.folder, unpublished));
        }
        run.world().combine([], [], FILES_OF_RANKS)?;
        unpublished.map_or(Ok(()), Unpublished::publish)?;
        Ok(true)
    });
    if !written.map_err(|error| in_file(&active.folder, error))? {
        return Ok(());
    }
    if run.rank() == 0 {
        run.checkpoints_mut().note_written(active.folder.clone(), history);
    }
    run.checkpoints_mut().active = Some(active);
    let result = run.fire::<at::after_save_checkpoint>();
    run.checkpoints_mut().active = None;
    result
}

/// Publishes a checkpoint on rank 0 after an error has disconnected the ranks, if the files of all
/// ranks are complete. Returns whether it was published.
#[cold]
fn publish_alone(folder: &Path, unpublished: Option<Unpublished>) -> bool {
    let Some(unpublished) = unpublished else { return false };
    match unpublished.publish() {
        Ok(()) => true,
        Err(error) => {
            // The summary of the run is lost with the error.
            terminal::eprint_line(format!(
                "warning: {}: this checkpoint is not kept, because an error disconnected the ranks before all of them had \
                 written their files: {error}",
                folder.display()
            ));
            false
        }
    }
}

/// The part of a checkpoint that this rank writes.
struct Snapshot {
    /// On rank 0, all states; on any other rank, only the states that it writes.
    tensors: Tensors,
    manifest: Manifest,
    journal: journal::Snapshot,
}

impl Snapshot {
    /// Returns the current state of a run, with tensors that share their storage with it. If
    /// several processes train together, every rank must call this.
    fn take(run: &mut Run) -> Result<Self> {
        let compared = Compared::WeightsAndOptimizers;
        replicas::compare(run.model(), run.ranks(), compared, "before this checkpoint was written")?;
        run.update_journal()?;
        let run = &*run;
        let parts = parts::of_checkpoint(run);
        let states = parts::save(run, &parts)?;
        let weights = states.get(parts::VARIABLES).map(|saved| &saved.tensors);
        let values = weights.into_iter().chain(states.values().map(|saved| &saved.averages)).flatten();
        run.model().warn_of_not_finite(
            run.reports(),
            "a checkpoint",
            values.map(|(name, value)| (name.as_str(), value)),
        )?;
        let mut manifest = Manifest::new(tch::get_num_threads(), format!("{:?}", run.device()));
        manifest.parts = values_of(&states);
        manifest.averages = part_with_averages(&states)?;
        for part in &parts {
            if part.is_left_out(run.hooks()) {
                manifest.left_out.insert(part.name().into_owned());
            }
        }
        manifest.inexact = why_inexact(run.ranks(), run.fit(), run.model(), &parts);
        manifest.facts = run.checkpoints().facts.clone().unwrap_or_default();
        manifest.length = facts::changeable(run.settings(), run.hyperparameters()).collect();
        let active = run.checkpoints().active.as_ref();
        let saved = active.map(|active| active.added.borrow().shallow_clone()).unwrap_or_default();
        manifest.saved = saved.values.clone();
        let rank = run.world().rank();
        let states = parts::of_rank(&parts, rank, states);
        let tensors = Tensors { states, saved: if rank == 0 { saved } else { Saved::new() } };
        Ok(Snapshot { manifest, tensors, journal: run.checkpoints().journal.snapshot() })
    }

    /// Creates the folder in which all ranks write the checkpoint. If several processes train
    /// together, every rank must call this.
    fn begin(self, world: &World, target: &Path) -> Result<Save> {
        let Snapshot { tensors, mut manifest, journal } = self;
        let what = "the folder of a checkpoint";
        if world.rank() > 0 {
            let mut all: Vec<(PathBuf, SavedBy)> = world.gather_named(&Default::default(), what)?;
            let (path, saved_by) = all.swap_remove(0);
            return Ok(Save::OfRank { rank: world.rank(), path, saved_by, states: tensors.states });
        }
        let folder = UnfinishedFolder::create(target)?;
        if !world.is_solo() {
            let path = absolute(folder.path()).map_err(|error| in_file(folder.path(), error))?;
            let saved_by = SavedBy::now(world.size());
            world.gather_named(&(path, saved_by.clone()), what)?;
            manifest.saved_by = Some(saved_by);
        }
        let unpublished = Box::new(Unpublished { folder, manifest });
        Ok(Save::OfMain { target: target.to_owned(), tensors: Box::new(tensors), journal, unpublished })
    }
}

/// The files that this rank writes, in an existing folder.
enum Save {
    /// On rank 0: the files that a single process would write.
    OfMain {
        target: PathBuf,
        tensors: Box<Tensors>,
        journal: journal::Snapshot,
        unpublished: Box<Unpublished>,
    },
    /// On any other rank: its own files.
    OfRank { rank: u32, path: PathBuf, saved_by: SavedBy, states: States },
}

impl Save {
    /// Writes the files of this rank. On rank 0, returns the checkpoint to publish once all ranks
    /// have written their files.
    fn write(self) -> Result<Option<Unpublished>> {
        match self {
            Save::OfMain { target, tensors, journal, mut unpublished } => {
                let Unpublished { folder, manifest } = &mut *unpublished;
                // The executable, which may be large, is hashed while the tensors are written.
                let program = thread::Builder::new().spawn(run_folder::program);
                for (name, tensors) in tensors.files() {
                    let digest = tensors::write(&mut create(&folder.path().join(name))?, &tensors)?;
                    manifest.files.insert(name.to_owned(), digest);
                }
                journal.write(folder.path(), &target)?;
                manifest.files.insert(HISTORY.to_owned(), journal.digest.clone());
                manifest.program = match program {
                    Ok(thread) => {
                        thread.join().map_err(|panic| Error::Panic(Box::new(panic_text(&*panic))))?
                    }
                    Err(_) => run_folder::program(), // there was no memory for a thread
                };
                Ok(Some(*unpublished))
            }
            Save::OfRank { rank, path, saved_by, states } => {
                RankState::write(&path, rank, &saved_by, &states)?;
                Ok(None)
            }
        }
    }
}

/// Returns the name of the part that saves averages of the weights.
///
/// # Errors
///
/// Returns an error if there are two such parts.
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
