//! The run folder: its settings, and what is written when an entry point begins and ends.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde_json::Value as Json;
use trainer_formats::run::{Extreme, Goal, MAX_WARNINGS, Metric, Process};

use super::live::LiveFile;
use crate::checkpoint::Resume;
use crate::data::{Batch, Loader, NamedLoader};
use crate::distributed::Launch;

use crate::error::{Error, Result};
use crate::io::files::{Lock, in_file};
use crate::log::Log;
use crate::log::history::History;
use crate::moments::counters::Counters;
use crate::phase::Phase;
use crate::profile::Profile;
use crate::run::context::Cx;
use crate::run::dispatch::describe::describe as describe_hooks;
use crate::run::reports::Reports;
use crate::run::run_folder::{RunFile, Status, load_run_file, new_run_file, now, write_run_file};
use crate::run::settings::SettingKind;
use crate::run::{FolderState, Ranks, Run};
use crate::values::facts::NOT_SET;
use crate::values::float::Float;
use crate::values::hyperparameter::{Given, GivenBy, Hyperparameter};

/// Reports hyperparameter names that are empty, set twice, or already used for a value that the
/// trainer records itself. Removes the program's settings that the trainer already records under
/// the same name, such as the `lr` of the optimizer.
pub(super) fn check_hyperparameters(
    given: &mut Vec<Given>,
    recorded: &[(String, Hyperparameter)],
    mistakes: &mut Vec<String>,
) {
    let recorded: HashMap<&str, &Hyperparameter> =
        recorded.iter().rev().map(|(name, value)| (name.as_str(), value)).collect();
    for (nth, hyperparameter) in given.iter().enumerate() {
        let Given { name, value, by } = hyperparameter;
        let others: Vec<GivenBy> =
            given[..nth].iter().filter(|other| other.name == *name).map(|other| other.by).collect();
        let own = recorded.get(name.as_str());
        if name.is_empty() {
            mistakes.push("`.hyperparameter(\"\", …)`: expected a name".into());
        } else if others.iter().any(|other| (*other == GivenBy::Call) != (*by == GivenBy::Call)) {
            mistakes.push(format!(
                "`.hyperparameter(\"{name}\", …)`: the setting `{name}` of the program is recorded automatically: remove this \
                 call, or choose another name"
            ));
        } else if !others.is_empty() {
            mistakes.push(match by {
                GivenBy::Call => format!("`.hyperparameter(\"{name}\", …)` is set twice: remove one"),
                _ => "the settings of the program are applied twice: call `apply` once".to_owned(),
            });
        } else if let Some(own) = own {
            match by {
                GivenBy::Call => mistakes.push(format!(
                    "`.hyperparameter(\"{name}\", …)`: the trainer records its own `{name}`: remove this call, or choose \
                     another name"
                )),
                _ if *own != value => mistakes.push(format!(
                    "the setting `{name}` is {}, but the `{name}` that the trainer records is {own}: pass the setting on, as \
                     in `AdamW::new(settings.lr)`, or give the setting another name",
                    hyperparameter.text()
                )),
                _ => {}
            }
        }
    }
    mistakes.dedup();
    given.retain(|hyperparameter| !recorded.contains_key(hyperparameter.name.as_str()));
}

/// Determines the path of the run folder, where a resume may look for checkpoints.
pub(super) fn resolve(run: &mut Run) -> Result<()> {
    if run.folder_state().path.is_none()
        && let Some(setting) = &run.folder_state().setting
    {
        if run.settings().is_fast_dev_run() {
            // There is no folder to find a checkpoint in.
            run.checkpoints_mut().resume.take_if(|resume| *resume == Resume::Auto);
            return Ok(());
        }
        let is_resuming = run.checkpoints().resume.is_some();
        run.folder_state_mut().path = if !setting.is_numbered() {
            Some(setting.resolve(is_resuming)?)
        } else if run.world().is_solo() && run.rank() > 0 {
            return Err(Error::usage(
                "`RunFolder::numbered(…)` would create a separate folder for each process: use one path in all processes, \
                 `.run_folder(\"runs/first\")`",
            ));
        } else {
            // Rank 0 chooses the number for all ranks.
            let own = (run.rank() == 0).then(|| setting.resolve(is_resuming)).transpose()?;
            let all = run.world().gather_named(&own, "the choice of the run folder")?;
            all.into_iter().next().flatten()
        };
    }
    Ok(())
}

/// Locks the run folder for an entry point, and describes the run in it.
///
/// Does nothing on ranks other than 0. Returns an error if another trainer has locked the folder,
/// if the folder holds a different run that is not resumed, or if it cannot be written.
pub(super) fn begin(run: &mut Run, phase: Phase) -> Result<()> {
    let entry = phase.entry();
    let Some(path) = run.folder_state().path.clone().filter(|_| run.rank() == 0) else { return Ok(()) };
    let lock = Lock::acquire(&path)?;
    let mut file = match run.folder_state_mut().file.take() {
        Some(own) => own,
        None => match load_earlier(&path, run.checkpoints().resume.is_some(), run.reports())? {
            None => describe(run, entry),
            Some(fork) if fork.status == Status::Forked && run.checkpoints().resume.is_some() => {
                let mut file = describe(run, entry);
                file.origin = fork.origin;
                file
            }
            Some(mut earlier) if run.checkpoints().resume.is_some() => {
                earlier.resumed.push(now());
                // Before the checkpoint restores what schedules have changed, such as the rates.
                run.folder_state_mut().resumed_by = Some(describe(run, entry));
                if run.checkpoints().skipped.iter().all(|entries| *entries == 0) {
                    // This entry point measures all metrics again, or has them in its checkpoint.
                    earlier.metrics.clear();
                }
                earlier
            }
            Some(earlier) => {
                let resume = "resume that run with `.resume(Resume::Auto)`, or choose another folder";
                let (ended, advice) = match earlier.status {
                    Status::Running | Status::Killed => ("is running or was killed", resume),
                    Status::Failed => ("failed", resume),
                    Status::Forked => ("is a fork of another run", resume),
                    Status::Cancelled => ("was cancelled", resume),
                    Status::Finished => (
                        "has finished",
                        "choose another folder, such as `RunFolder::numbered(\"runs\")`; to train that run further, \
                         raise its `.epochs(…)` and add `.resume(Resume::Auto)`",
                    ),
                };
                return Err(in_file(
                    &path,
                    format!(
                        "this folder holds another run, which started at {} and {ended}: {advice}",
                        earlier.started
                    ),
                ));
            }
        },
    };
    file.status = Status::Running;
    file.entry = entry.to_owned();
    if !file.entries.iter().any(|known| known == entry) {
        file.entries.push(entry.to_owned());
    }
    file.ended = None;
    file.error = None;
    if entry == Phase::Train.entry() {
        file.stopped = None;
    }
    file.process = Some(Process::current());
    let written = write_run_file(&file, &path);
    run.folder_state_mut().file = Some(file);
    run.folder_state_mut().lock = Some(lock);
    if let Some(live) = run.layers().get::<LiveFile>() {
        live.begin(&run.hooks().table, phase);
    }
    only_warn(run.reports(), "cannot record the start of the run", written);
    Ok(())
}

/// Reads the `run.json` of an earlier run in this folder, if there is one. If it cannot be read, a
/// run that resumes begins a new description instead.
fn load_earlier(folder: &Path, is_resuming: bool, reports: &Reports) -> Result<Option<RunFile>> {
    let loaded = load_run_file(folder);
    match loaded {
        Err(error) if is_resuming && error.is_fault() => {
            only_warn(reports, "cannot read the description of the run", Err(error));
            Ok(None)
        }
        loaded => loaded,
    }
}

/// Warns about an error of `run.json`, which only describes the run.
pub(super) fn only_warn(reports: &Reports, what: &str, result: Result<()>) {
    if let Err(error) = result {
        reports.warn(format!("{what}: {error}; the run continues"));
    }
}

/// Records the data that the entry point reads: the training data of a fit, and the loaders of
/// another phase. For a resumed fit, also records the settings, hooks and machine of the program
/// that has resumed it, which may differ from those of the program that began the run.
pub(super) fn describe_data<B: Batch>(
    folder: &mut FolderState,
    train: Option<&dyn Loader<B>>,
    phase: Phase,
    loaders: &[NamedLoader<'_, B>],
) -> Result<()> {
    let FolderState { path: Some(path), file: Some(file), resumed_by, .. } = folder else { return Ok(()) };
    if let Some(resumed_by) = resumed_by.take() {
        file.describe_as(resumed_by);
    }
    let train = train.map(|train| (Phase::Train.name().to_owned(), train));
    let loaders = loaders.iter().map(|own| (data_name(phase, own), &*own.loader as &dyn Loader<_>));
    for (name, loader) in train.into_iter().chain(loaders) {
        let prefix = format!("{name}.");
        file.data.retain(|known, _| !known.starts_with(&prefix));
        let settings = loader.settings().into_values().into_iter();
        let settings = settings
            .filter(|(_, text)| text != NOT_SET)
            .map(|(key, text)| (key, Hyperparameter::of_setting(&text)));
        let batches = loader.len().map(|batches| ("batches".to_owned(), (batches as f64).into()));
        let content = loader.fingerprint().map(|content| ("fingerprint".to_owned(), content.into()));
        let all = settings.chain(batches).chain(content);
        file.data.extend(all.map(|(key, value)| (format!("{prefix}{key}"), to_json(value))));
    }
    write_run_file(file, path)
}

/// Returns the name of the data of a phase, or of one of its named loaders: `valid/clean`.
fn data_name<B: Batch>(phase: Phase, loader: &NamedLoader<'_, B>) -> String {
    match loader.name() {
        "" => phase.name().to_owned(),
        name => format!("{phase}/{name}"),
    }
}

/// Records how an entry point ended, and unlocks the run folder. A failure is only a warning, so
/// that the results of the run are not lost.
pub(super) fn end(run: &mut Run, result: &Result<()>) {
    if let Some(live) = run.layers().get::<LiveFile>() {
        live.write(run, true);
    }
    let ended = describe_end(run, result.as_ref().err());
    let FolderState { path: Some(path), file, lock, .. } = run.folder_state_mut() else { return };
    let Some(ended) = ended else { return };
    let written = write_run_file(file.insert(ended), path);
    *lock = None;
    only_warn(run.reports(), "cannot record the end of the run", written);
}

/// # The description of the run
impl<P> Cx<P> {
    /// What `run.json` would contain if the entry point ended now, with an error if this is
    /// `after_error` or `after_cancel`: settings, hyperparameters, the best value of each metric,
    /// warnings and the environment. For a hook that reports how the run ended. `None` without a
    /// [run folder](crate::TrainerBuilder::run_folder), and on ranks other than 0.
    #[must_use]
    pub fn run_file(&self) -> Option<RunFile> {
        let run = self.as_run();
        describe_end(run, run.occasion().error.as_ref())
    }
}

/// Returns the content of `run.json` if the entry point ends now, either successfully or with
/// `error`. Returns `None` if this process does not write the run folder.
fn describe_end(run: &Run, error: Option<&Error>) -> Option<RunFile> {
    let mut file = run.folder_state().file.clone()?;
    file.status = match error {
        None => Status::Finished,
        Some(error) if error.is_cancelled() => Status::Cancelled,
        Some(_) => Status::Failed,
    };
    file.error = error.map(Error::to_string);
    file.ended = Some(now());
    if file.entry == Phase::Train.entry() {
        file.stopped = run.requests().reason_cut_short().map(str::to_owned);
    }
    file.roll_backs.clone_from(&run.progress().roll_backs);
    let log = run.logs();
    for (name, value) in measured(run.history(), &log, run.counters()) {
        match file.metrics.get_mut(&name) {
            Some(metric) => metric.add(value),
            None => {
                let metric = Metric::new(value, Goal::of_name(&name));
                file.metrics.insert(name, metric);
            }
        }
    }
    for (name, metric) in &mut file.metrics {
        if let Some(goal) = log.goals.get(name).copied().or_else(|| log.own_goal(name)) {
            metric.goal = Some(goal);
        }
    }
    drop(log);
    for warning in run.reports().warnings().iter() {
        if file.warnings.len() < MAX_WARNINGS && !file.warnings.contains(warning) {
            file.warnings.push(warning.clone());
        }
    }
    if let Some(profile) =
        Profile::so_far(run.layers(), &run.hooks().table, run.modules()).map(|profile| profile.recorded())
    {
        file.profiles.retain(|earlier| earlier.entry != profile.entry);
        file.profiles.push(profile);
    }
    Some(file)
}

/// Returns the values of all metrics of the entry point: those in its history, and those that an
/// error kept out of the history.
fn measured(history: &History, log: &Log, counters: Counters) -> Vec<(String, Extreme)> {
    let value = |value, at: Counters| Extreme::new(value, at.epoch, at.optimizer_steps);
    let mut measured = Vec::new();
    for (row, counters) in history.steps().iter().enumerate() {
        measured.extend(history.row(row).map(|(name, own)| (name.to_owned(), value(own, *counters))));
    }
    let late = log.new_to_history();
    measured.extend(late.map(|(name, own)| (name.to_owned(), value(own, counters))));
    measured
}

/// Describes what started the processes that train together. Returns `None` if there is only one
/// process.
fn launcher(ranks: &Ranks) -> Option<String> {
    let size = ranks.world.size();
    if size == 1 {
        return None;
    }
    let launch = Launch::from_env().ok().flatten().filter(|_| ranks.given.is_none());
    let launcher = launch.as_ref().and_then(Launch::launcher).unwrap_or("the program");
    Some(format!("{launcher}, {size} processes"))
}

fn to_json(value: Hyperparameter) -> Json {
    match value {
        Hyperparameter::Number(number) => serde_json::to_value(Float(number)).unwrap_or_default(),
        Hyperparameter::Bool(switch) => Json::Bool(switch),
        Hyperparameter::Text(text) => Json::String(text),
    }
}

/// Describes the run as it begins.
pub(crate) fn describe(run: &Run, entry: &str) -> RunFile {
    let mut file = new_run_file(entry);
    file.device = format!("{:?}", run.device());
    file.launcher = launcher(run.ranks());
    file.seed = run.settings().seed;
    file.command_line = (!run.folder_state().omits_command_line)
        .then(|| std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect());
    file.settings
        .extend(run.settings().of(SettingKind::Result).chain(run.settings().of(SettingKind::Length)));
    file.settings.insert("heap".to_owned(), run.settings().heap.effect());
    file.working_folder = std::env::current_dir()
        .ok()
        .filter(|_| file.command_line.is_some())
        .map(|path| path.to_string_lossy().into_owned());
    let values = run.all_hyperparameters();
    file.hyperparameters =
        values.into_iter().map(|(name, value)| (name, to_json(value))).collect::<BTreeMap<_, _>>();
    let table = describe_hooks(&run.hooks().table, run.model(), &BTreeMap::new());
    file.hooks = table.rows().map(|row| format!("{} at {}", row.hook, row.moment)).collect();
    file
}
