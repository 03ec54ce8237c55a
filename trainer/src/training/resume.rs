//! Restoring a run from a checkpoint.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::device::kind_of;
use super::facts;
use super::parts::{self, AnyPart};
use crate::checkpoint::files::{MANIFEST, MAX_MANIFEST_BYTES, OPTIMIZER, is_checkpoint, present};
use crate::checkpoint::folder::newest_first;
use crate::checkpoint::manifest::Manifest;
use crate::checkpoint::progress::{FitState, LoopState};
use crate::checkpoint::read::load_journal;
use crate::checkpoint::states::SavedStates;
use crate::checkpoint::{ActiveCheckpoint, Resume, States, verify_share};
use crate::data::{Batch, Loader, UNKNOWN_CONTENT};
use crate::distributed::Unequal;
use crate::distributed::World;
use crate::error::{Error, FileError, Result, quoted, shortened};
use crate::hook::call::Loop;
use crate::io::files::{Links, in_file, lock_identity, open, read_start};
use crate::libtorch;
use crate::lifecycle::at;
use crate::log::history::Summary;
use crate::moments::moment::Moment;
use crate::phase::Phase;
use crate::run::reports::Reports;
use crate::run::run_folder;
use crate::run::{CheckpointState, Model, Requests, Run, RunHooks};
use crate::values::facts::{Difference, Facts, NOT_SET};
use crate::values::paths::public_path;
use tch::Device;

/// Identifies the data of a fit, so that a resume can compare it.
pub(crate) struct DataFingerprint {
    /// Whether all loaders are deterministic.
    pub(crate) is_deterministic: bool,
    /// The fingerprints of the training and the validation data.
    pub(crate) fingerprints: [String; 2],
}

impl DataFingerprint {
    /// Returns the fingerprint of these loaders.
    pub(super) fn of<B: Batch>(train: &dyn Loader<B>, valid: Option<&dyn Loader<B>>) -> Self {
        let fingerprint =
            |loader: &dyn Loader<B>| loader.fingerprint().unwrap_or_else(|| UNKNOWN_CONTENT.to_owned());
        DataFingerprint {
            is_deterministic: train.is_deterministic() && valid.is_none_or(Loader::is_deterministic),
            fingerprints: [fingerprint(train), valid.map_or_else(|| "none".to_owned(), fingerprint)],
        }
    }
}

/// Returns the recorded result of an entry point that had ended when the checkpoint to resume from
/// was written. Returns `None` if there is no checkpoint to resume from. For `fit`, also returns
/// `None` if it had not ended, or if the checkpoint cannot be read.
///
/// A program that calls several entry points thus reaches the interrupted fit without repeating the
/// entry points before it.
///
/// # Errors
///
/// For an entry point other than `fit`, returns an error if it had not ended, or if the checkpoint
/// cannot be read.
pub(crate) fn recorded_outcome(run: &mut Run, entry: Phase) -> Result<Option<Result<Summary>>> {
    let Some(resume) = run.checkpoints().resume.clone().filter(|_| !run.is_replay()) else {
        return Ok(None);
    };
    let loaded = find(
        run.world(),
        run.settings().inexact,
        &resume,
        auto_folder(run.hooks(), run.folder_state().path()),
        |_| {},
    )
    .and_then(|folder| {
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
    let nth = run.checkpoints().skipped[entry as usize];
    let outcome = if entry == Phase::Predict {
        ((nth as u64) < parts::predictions(&manifest)?).then(|| Ok(Summary::default()))
    } else {
        journal.finished(entry, nth).map(|outcome| outcome.map_err(Error::usage))
    };
    let name = if entry == Phase::Train { "fit" } else { entry.name() };
    match outcome {
        Some(outcome) => {
            run.checkpoints_mut().skipped[entry as usize] += 1;
            run.progress_mut().fits_begun += u64::from(entry == Phase::Train);
            let nth = nth + 1;
            let folder = folder.display();
            run.reports().notice(&format!(
                "skipped `{name}` number {nth}: it had already ended when {folder} was written; the run resumes in a later `fit`"
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
    let own = auto_folder(run.hooks(), run.folder_state().path());
    check_shared(run.world(), own.clone())?;
    let Some(resume) = run.checkpoints().resume.clone() else { return Ok(false) };
    let skipped = RefCell::new(Vec::new());
    let found = find(run.world(), run.settings().inexact, &resume, own, |why| skipped.borrow_mut().push(why));
    skipped.into_inner().into_iter().for_each(|why| run.reports().warn(why));
    let Some(folder) = found? else {
        run.checkpoints_mut().resume = None;
        return Ok(false);
    };
    run.checkpoints_mut().active = Some(ActiveCheckpoint { folder, ..ActiveCheckpoint::default() });
    // A hook may replace the operation with its own. The fit then begins instead of resuming.
    let mut is_read = false;
    let result = run.operate::<at::load_checkpoint>(|run| {
        is_read = read(run, data).map(|()| true)?;
        Ok(())
    });
    run.checkpoints_mut().active = None;
    result?;
    run.checkpoints_mut().resume = None;
    Ok(is_read)
}

/// Returns the folder in which [`Resume::Auto`] looks for a checkpoint: the folder of the first
/// hook that writes checkpoints.
fn auto_folder(hooks: &RunHooks, run_folder: Option<&Path>) -> Option<PathBuf> {
    hooks.instances.iter().find_map(|instance| instance.checkpoints(run_folder))
}

/// Returns an error if another rank does not see the folder of the `Checkpoint` hook. Each rank
/// writes its own files into that folder.
fn check_shared(world: &World, own: Option<PathBuf>) -> Result<()> {
    if world.is_solo() {
        return Ok(());
    }
    let own = own.map(|folder| (folder.display().to_string(), lock_identity(&folder)));
    let what = "the comparison of the checkpoint folders";
    // The ranks compare what identifies the lock, because each may have its own path to it.
    let lock = own.as_ref().and_then(|(_, lock)| lock.clone());
    let Some(Unequal { of_main: Some(_), rank, .. }) = world.difference(&lock, what)? else {
        return Ok(());
    };
    let path = own.map_or_else(|| "none".to_owned(), |(folder, _)| format!("`{folder}`"));
    let paths = world.gather_named(&path, what)?;
    let [of_main, other] = [0, rank as usize].map(|rank| &paths[rank]);
    Err(Error::usage(format!(
        "rank {rank} could neither write its checkpoint files nor resume, because it does not see the checkpoint folder of \
         rank 0 ({of_main} on rank 0, {other} on rank {rank}): use one folder that all ranks can write"
    )))
}

/// Describes a checkpoint that this rank has found, with a hash of its manifest.
fn described(found: Result<Option<&Path>, &Error>) -> String {
    let folder = match found {
        Ok(Some(folder)) => folder,
        Ok(None) => return "no checkpoint".to_owned(),
        Err(error) => return format!("an error ({error})"),
    };
    let path = folder.join(MANIFEST);
    let bytes = open(&path, Links::Refuse)
        .and_then(|(file, length)| read_start(&path, &file, length.min(MAX_MANIFEST_BYTES)));
    let hash = bytes.map(|bytes| blake3::hash(&bytes).to_hex().to_string());
    format!("{} (manifest hash {})", folder.display(), hash.unwrap_or_default())
}

/// Agrees with the other ranks on a checkpoint that this rank has found, and returns the first
/// error that any rank has found in its share of the files.
///
/// # Errors
///
/// Returns an error if not all ranks have found the same checkpoint.
fn agree_on(
    world: &World,
    found: Result<Option<&Path>, &Error>,
    damage: Option<Error>,
) -> Result<Option<Error>> {
    if world.is_solo() {
        return Ok(damage);
    }
    if let Some(Unequal { of_main, rank, of_rank }) =
        world.difference(&described(found), "the search for a checkpoint")?
    {
        return Err(Error::usage(format!(
            "the ranks do not resume from the same checkpoint: the search returned {of_main} on rank 0, but {of_rank} on rank \
             {rank}; use one checkpoint folder that all ranks can read"
        )));
    }
    let damages: Vec<Option<String>> =
        world.gather_named(&damage.as_ref().map(ToString::to_string), "the verification of a checkpoint")?;
    let first = damages.into_iter().flatten().next();
    Ok(damage.or(first.map(Error::usage)))
}

/// Returns the checkpoint to resume from, which is the same on all ranks; `None` if `Resume::Auto`
/// finds none. In a folder of checkpoints, this is the newest one from which the run can resume
/// exactly or, if there is none, the newest one. Passes the reasons why newer ones were skipped to
/// `report`. Each rank verifies a share of the files.
fn find(
    world: &World,
    allows_inexact: bool,
    resume: &Resume,
    auto: Option<PathBuf>,
    report: impl Fn(String),
) -> Result<Option<PathBuf>> {
    let path = match resume {
        Resume::From(path) => Ok(path.clone()),
        Resume::Auto => auto.ok_or_else(|| {
            Error::usage(
                "`.resume(Resume::Auto)` has no folder to search: add `.hook(Checkpoint::new(\"runs/first\"))`, or \
                     `.run_folder(…)` for `Checkpoint::in_run_folder()`",
            )
        }),
    };
    if let Err(error) = &path {
        agree_on(world, Err(error), None)?;
    }
    let path = path?;
    let own = present(&path);
    if is_checkpoint(&own) {
        agree_on(world, Ok(Some(&own)), None)?;
        return Ok(Some(own));
    }
    let mut damaged = Vec::new();
    let mut skipped = Vec::new();
    let mut newest_inexact = None;
    let mut candidates = newest_first(&path).into_iter();
    loop {
        let candidate = candidates.next();
        let damage = candidate.as_ref().and_then(|folder| verify_share(folder, world.share()).err());
        let damage = agree_on(world, Ok(candidate.as_deref()), damage)?;
        let Some(candidate) = candidate else { break };
        if let Some(damage) = damage {
            skipped.push(format!("skipped a damaged checkpoint: {damage}"));
            damaged.push(damage);
            continue;
        }
        let why = if allows_inexact { Vec::new() } else { Manifest::load(&candidate)?.inexact };
        if why.is_empty() {
            skipped.into_iter().for_each(report);
            return Ok(Some(candidate));
        }
        skipped.push(format!(
            "skipped the checkpoint {}, because the run cannot resume exactly from it: {}; `.allow_inexact_resume(true)` resumes from \
             it",
            candidate.display(),
            why.join("; ")
        ));
        newest_inexact.get_or_insert(candidate);
    }
    if newest_inexact.is_some() {
        return Ok(newest_inexact); // refused with the reasons
    }
    match (resume, damaged.is_empty()) {
        (Resume::Auto, true) => Ok(None),
        (Resume::From(given), true) if given.as_os_str().eq_ignore_ascii_case("auto") => Err(in_file(
            &path,
            "there is no checkpoint in this folder; for the folder of the `Checkpoint` hook, write `.resume(Resume::Auto)`",
        )),
        (_, true) if !path.exists() => Err(in_file(
            &path,
            "`.resume(…)` found no folder at this path: check the path, or write `.resume(Resume::Auto)` to start from scratch \
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
    let folder = run.checkpoints().active_folder().to_owned();
    let manifest = Manifest::load(&folder)?;
    let (journal, history) = load_journal(&folder, &manifest)?;
    let mut saved = SavedStates::load(&folder, &manifest)?;
    run.fit_mut().data.clone_from(&data.fingerprints);
    let parts = parts::with_values(run, |_| true);

    // Everything that can be checked is checked before anything changes.
    let states =
        parts::select((run.rank(), run.world()), run.optimizers(), &parts, &mut saved, manifest.size());
    let states = states.map_err(|error| match error {
        Error::File(_) => error,
        error => in_file(&folder.join(MANIFEST), error),
    })?;
    let saved = saved.added;
    let mut why = why_not_exact(run.device(), run.world(), &manifest, data);
    if let Err(error) =
        check((run.hooks(), run.fit(), run.model()), &parts, &states, &manifest, &folder, &mut why)
    {
        // A different width of the network, for example, explains a different shape.
        why.extend(different_facts(run.checkpoints(), &manifest, &why));
        return Err(with_reasons(error, &why));
    }
    why.extend(different_facts(run.checkpoints(), &manifest, &why));
    refuse_or_report(run.reports(), run.settings().inexact, &folder, &why)?;
    let differences = differences(facts::changeable(run.settings(), run.hyperparameters()), &manifest);

    for part in &parts {
        if let Some(saved) = states.get(&*part.name()) {
            part.load(run, saved).map_err(|error| in_file_of(part, &folder, error))?;
        }
    }
    run.checkpoints_mut().journal = journal;
    *run.history_mut() = history;
    for line in described_run(run.progress(), run.fit(), run.requests(), differences, unsaved(run.hooks())) {
        run.reports().notice(&format!("resumed from {}: {line}", folder.display()));
    }
    warn_of_versions(run.reports(), run.checkpoints().facts.as_ref(), &manifest.facts);
    run.checkpoints_mut().active = Some(ActiveCheckpoint { folder, saved, ..ActiveCheckpoint::default() });
    Ok(())
}

/// Adds the differences between the programs to an error about a file of the checkpoint.
fn with_reasons(error: Error, differences: &[String]) -> Error {
    let listed: String = differences.iter().map(|difference| format!("\n- {difference}")).collect();
    match error {
        Error::File(error) if !listed.is_empty() => {
            let FileError { path, source, .. } = *error;
            in_file(&path, format!("{source}{listed}"))
        }
        other => other,
    }
}

/// Extends an error about a part with the path of the checkpoint file that contains the part.
fn in_file_of(part: &AnyPart, folder: &Path, error: Error) -> Error {
    match part.file() {
        Some(file) => in_file(&folder.join(file), error),
        None => in_file(folder, error),
    }
}

/// Compares the saved states with the parts of this run. Adds to `why` the reasons why the resume
/// would not be exact.
///
/// # Errors
///
/// Returns an error if the run cannot continue at all.
fn check(
    (hooks, fit, model): (&RunHooks, &FitState, &Model),
    parts: &[AnyPart],
    states: &States,
    manifest: &Manifest,
    folder: &Path,
    why: &mut Vec<String>,
) -> Result<()> {
    let names: BTreeSet<Cow<'static, str>> = parts.iter().map(|part| part.name()).collect();
    for name in states.keys().filter(|name| !names.contains(name.as_str())) {
        if !manifest.left_out.contains(name) {
            why.push(parts::check_unknown(name).map_err(|error| in_file(&folder.join(OPTIMIZER), error))?);
        }
    }
    for part in parts {
        match states.get(&*part.name()) {
            Some(saved) => part.check(fit, model, saved, why),
            None if part.is_left_out(hooks) => Ok(()),
            None => part.check_absent().map(|reason| why.push(reason)),
        }
        .map_err(|error| in_file_of(part, folder, error))?;
    }
    Ok(())
}

/// Returns an error if the resume is not exact. If the program allows an inexact resume, warns
/// about the reasons instead.
fn refuse_or_report(reports: &Reports, is_allowed: bool, folder: &Path, why: &[String]) -> Result<()> {
    if why.is_empty() || is_allowed {
        for reason in why {
            reports.warn(format!("resuming inexactly from {}: {reason}", folder.display()));
        }
        return Ok(());
    }
    let listed: String = why.iter().map(|reason| format!("\n- {reason}")).collect();
    let text = format!(
        "cannot resume exactly from this checkpoint: remove these causes, or resume inexactly with \
         `.allow_inexact_resume(true)`, or start a new run in another folder, without `.resume(…)`:{listed}"
    );
    Err(in_file(folder, text))
}

/// Describes the settings that differ between the program and the checkpoint but that a resumed run
/// may change.
fn differences(here: impl Iterator<Item = (String, String)>, manifest: &Manifest) -> Vec<String> {
    let differs = |(setting, here): (String, String)| {
        let there = manifest.length.get(&setting).map_or(NOT_SET, String::as_str);
        (there != here).then(|| {
            let there = shortened(there);
            let shown = if setting.starts_with("--") { setting } else { format!(".{setting}(…)") };
            format!(
                "`{shown}` was {there} when the checkpoint was written; the current value, {here}, applies"
            )
        })
    };
    here.filter_map(differs).chain(rebuilt(manifest)).collect()
}

/// Describes the executable and the commit of its repository if the program was rebuilt since the
/// checkpoint was written.
fn rebuilt(manifest: &Manifest) -> Option<String> {
    let program = run_folder::program();
    let [there, here] = [&manifest.program, &program].map(|[executable, commit]| {
        let commit =
            commit.as_ref().map_or_else(String::new, |commit| format!(" of commit {}", shortened(commit)));
        Some((executable.as_ref()?, commit))
    });
    let ((there, there_of), (here, here_of)) = (there?, here?);
    (there != here).then(|| {
        format!(
            "the program was rebuilt since the checkpoint was written: its executable was {}{there_of}, and is now \
             {here}{here_of}; a change of its model, loss or data is not noticed otherwise",
            shortened(there)
        )
    })
}

/// Describes the settings, optimizers and hooks that decide the result and that differ between the
/// program and the checkpoint, except the hooks that `known` reports.
fn different_facts(checkpoints: &CheckpointState, manifest: &Manifest, known: &[String]) -> Vec<String> {
    let own = checkpoints.facts.clone().unwrap_or_default();
    let differences = manifest.facts.differences(&own).into_iter();
    let is_new = |it: &Difference| !known.iter().any(|line| line.contains(&it.what));
    let line = |Difference { what, one, other }: Difference| {
        // Groups are restored, but how gradients are divided is a setting of the program.
        let is_restored = what.starts_with("`optimizer") && !what.contains("divided_gradients");
        let help = if is_restored {
            "; the value in the checkpoint applies: to change it on purpose, set it at `after_load_checkpoint`"
        } else {
            ""
        };
        format!("{what} was {one} when the checkpoint was written and is now {other}{help}")
    };
    differences.filter(is_new).map(line).collect()
}

/// Warns if crates with hooks had different versions when the checkpoint was written.
fn warn_of_versions(reports: &Reports, here: Option<&Facts>, there: &Facts) {
    if reports.rank() > 0 {
        return;
    }
    for [krate, there, here] in there.versions(here.unwrap_or(&Facts::default())) {
        reports.warn(format!(
            "the hooks of `{krate}` have version {here}, but the resumed run used version {there}: results may differ"
        ));
    }
}

/// Describes a resumed run: its position, the differences of the programs, the stop if one was
/// requested, and each hook whose fields are not restored.
fn described_run(
    progress: &LoopState,
    fit: &FitState,
    requests: &Requests,
    differences: Vec<String>,
    unsaved: BTreeSet<Cow<'static, str>>,
) -> Vec<String> {
    let step = progress.counters;
    let count = |n: u64, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
    let epochs = |n| count(n, "epoch", "epochs");
    let batches = |n| count(n, "batch", "batches");
    let position = match progress.batches {
        Some(all) if all == step.batch_idx => epochs(step.epoch + 1),
        Some(all) => format!("{} and {} of {}", epochs(step.epoch), step.batch_idx, batches(all)),
        None => format!("{} and {}", epochs(step.epoch), batches(step.batch_idx)),
    };
    let steps = count(step.optimizer_steps, "optimizer step", "optimizer steps");
    let mut lines = vec![format!("after {position}, {steps}")];
    lines.extend(differences);
    for (data, what) in fit.data.iter().zip(["training", "validation"]) {
        if data.contains(UNKNOWN_CONTENT) {
            lines.push(format!(
                "the content of the {what} data was not compared, because its loader does not know it: \
                 if it could have changed, identify it with `.with_fingerprint(…)`"
            ));
        }
    }
    if let Some(reason) = requests.reason_to_stop() {
        lines.push(format!("a hook had requested a stop ({})", shortened(reason)));
    }
    for hook in unsaved {
        lines.push(format!(
            "the fields of `{hook}` start with the values of the program: if they matter, write \
             `#[hook(state)]`, which saves them in checkpoints; if none of them changes, take `&self` in its hooks"
        ));
    }
    lines
}

/// Returns the types of the hook values whose fields may have changed and are in no checkpoint.
/// The trainer's own hooks are left out, and those that write to checkpoints themselves.
fn unsaved(hooks: &RunHooks) -> BTreeSet<Cow<'static, str>> {
    let saves = |id| {
        let mut hooks = hooks.table.hooks().iter().map(|hook| &hook.definition).filter(|hook| hook.id == id);
        hooks.any(|hook| hook.origin.is_own() || hook.moment.name == at::before_save_checkpoint::INFO.name)
    };
    let instances = hooks.instances.iter().filter(|instance| instance.changes_unsaved);
    instances
        .filter(|instance| !saves(instance.type_id))
        .map(|instance| public_path(instance.type_name))
        .collect()
}

/// Returns the reasons why the resume would not be exact, except those that concern the states of
/// the parts.
fn why_not_exact(device: Device, world: &World, manifest: &Manifest, data: &DataFingerprint) -> Vec<String> {
    let mut why: Vec<String> = manifest.inexact.iter().map(|reason| quoted(reason)).collect();
    let threads = tch::get_num_threads();
    let device = format!("{device:?}");
    if manifest.threads != threads {
        why.push(format!(
            "the number of libtorch threads was {} when the checkpoint was written and is now {threads}, so results differ in their last \
             bits: call `tch::set_num_threads({})` or set `OMP_NUM_THREADS`",
            manifest.threads, manifest.threads
        ));
    }
    let version = libtorch::version();
    if manifest.libtorch != version {
        why.push(format!(
            "the checkpoint was written with libtorch {}, but this program uses {version}",
            shortened(&manifest.libtorch)
        ));
    }
    if kind_of(&manifest.device) != kind_of(&device) {
        why.push(format!(
            "the checkpoint was written on {}, but the task is on {device}",
            shortened(&manifest.device)
        ));
    }
    if !data.is_deterministic {
        why.push(
            "a loader may yield different batches for the same epoch: if it always yields the same ones, declare that, as \
             `from_fn(…).deterministic(true)` does"
                .to_owned(),
        );
    }
    let written_by = manifest.size();
    let size = world.size();
    if written_by != size {
        why.push(format!(
            "the checkpoint was written by {written_by} process{es} that trained together, but there {are} {size} now: the ranks draw \
             different random numbers, and sums are rounded differently",
            es = if written_by == 1 { "" } else { "es" },
            are = if size == 1 { "is" } else { "are" },
        ));
    }
    why
}
