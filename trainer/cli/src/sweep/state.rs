//! [`State`]: the file `sweep.json` in the folder of a sweep, and the lock on that folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use trainer_files::{Links, Lock, in_file, open, read_start, replace_file};
use trainer_formats::sweep::{SWEEP_FILE, SweepFile, Trial, TrialState};

use super::file::Plan;
use super::search;
use crate::output::Failure;

/// The state of a sweep on disk. While this value exists, no other sweep can use the folder.
pub(crate) struct State {
    folder: PathBuf,
    file: SweepFile,
    _lock: Lock,
}

impl State {
    /// Locks the folder of a sweep, creating it if necessary, and reads the progress of the sweep.
    /// Returns an error if the folder belongs to a different sweep.
    pub(crate) fn open(plan: &Plan, program: &[String], source: &Path) -> Result<Self, Failure> {
        let folder = &plan.folder;
        let busy = format!(
            "another sweep is running in this folder: wait for it, or set another `folder` in {}",
            source.display()
        );
        let lock = Lock::acquire_or(folder, &busy)?;
        let definition = plan.definition(program);
        let mut trials: Vec<_> = search::trials(plan).into_iter().map(Trial::new).collect();
        // A sweep may change as long as none of its trials has begun, for example because the
        // program was misspelled.
        let has_begun = |file: &SweepFile| file.trials.iter().any(|trial| trial.state != TrialState::Waiting);
        if let Some(earlier) = SweepFile::load(folder)?.filter(has_begun) {
            let changes = changes(&earlier.definition, &definition);
            if !changes.is_empty() {
                return Err(Failure::new(format!(
                    "{}: the sweep in {} was started with a different file or program; undo the changes, or set another \
                     `folder`:\n{}",
                    source.display(),
                    folder.display(),
                    changes.join("\n")
                )));
            }
            for (nth, (trial, earlier)) in trials.iter_mut().zip(&earlier.trials).enumerate() {
                if trial.values != earlier.values {
                    let why = format!(
                        "trial {} has other values here than in the sweep: the file was changed; restore it, or set another `folder`",
                        nth + 1
                    );
                    return Err(in_file(&folder.join(SWEEP_FILE), why).into());
                }
                trial.state = earlier.state;
            }
            // If a random search now has fewer trials, the file keeps the others that were started.
            trials.extend(
                earlier
                    .trials
                    .into_iter()
                    .skip(trials.len())
                    .filter(|trial| trial.state != TrialState::Waiting),
            );
        }
        let mut state =
            State { folder: folder.clone(), file: SweepFile::new(definition, trials), _lock: lock };
        // The sweep may have been killed after the run of a trial had finished.
        for number in 1..=state.trials().len() {
            let is_started = matches!(state.trials()[number - 1].state, TrialState::Started);
            if is_started && super::trial::has_finished(&state.folder_of(number)) {
                state.file.trials[number - 1].state = TrialState::Finished;
            }
        }
        state.write()?;
        Ok(state)
    }

    pub(crate) fn trials(&self) -> &[Trial] {
        &self.file.trials
    }

    /// Returns the number of trials in a state.
    pub(crate) fn count(&self, state: TrialState) -> usize {
        self.trials().iter().filter(|trial| trial.state == state).count()
    }

    /// Returns the run folder of a trial.
    pub(crate) fn folder_of(&self, number: usize) -> PathBuf {
        self.folder.join(SweepFile::folder_name(number))
    }

    /// Records the state of a trial.
    pub(crate) fn set(&mut self, number: usize, state: TrialState) -> Result<(), Failure> {
        self.file.trials[number - 1].state = state;
        self.write()
    }

    /// Replaces the file atomically.
    fn write(&self) -> Result<(), Failure> {
        let is_ours = |path: &Path| {
            let (file, length) = open(path, Links::Refuse)?;
            match SweepFile::is_of_sweep(&read_start(path, &file, length.min(100))?) {
                true => Ok(()),
                false => Err(in_file(path, "another program wrote this file: move it elsewhere")),
            }
        };
        let path = self.folder.join(SWEEP_FILE);
        let text = serde_json::to_string_pretty(&self.file).map_err(Failure::new)? + "\n";
        Ok(replace_file(&path, is_ours, |file| file.write(text.as_bytes()))?)
    }
}

/// Lists the differences between two definitions of a sweep.
fn changes(earlier: &BTreeMap<String, Json>, now: &BTreeMap<String, Json>) -> Vec<String> {
    let names = earlier.keys().chain(now.keys().filter(|name| !earlier.contains_key(*name)));
    names
        .filter_map(|name| match (earlier.get(name), now.get(name)) {
            (Some(was), Some(is)) if was == is => None,
            (Some(was), Some(is)) => Some(format!("- {name} was {was} and is now {is}")),
            (Some(was), None) => Some(format!("- {name} was {was} and has been removed")),
            (None, is) => Some(format!("- {name} is new: {}", is.unwrap_or(&Json::Null))),
        })
        .collect()
}
