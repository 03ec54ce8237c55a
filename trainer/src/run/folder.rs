//! The part of a run's state that concerns its folder, and the list of the run's hyperparameters.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::Run;
use crate::hook::instance::TASK;
use crate::io::files::Lock;
use crate::optim::{DEFAULT, Optimizers, ParamGroup};
use crate::run::Instance;
use crate::run::run_folder::{RunFile, RunFolder};
use crate::run::settings::{SettingKind, Settings};
use crate::values::facts::{NOT_SET, SettingList};
use crate::values::hyperparameter::Hyperparameter;

/// The part of a run's state that concerns its folder.
#[derive(Debug, Default)]
pub(crate) struct FolderState {
    /// The folder that was passed to the builder.
    pub(crate) setting: Option<RunFolder>,
    /// Whether the settings of the program determine the folder. They take precedence over the
    /// environment, which then cannot replace the folder.
    pub(crate) is_decided: bool,
    /// Whether the run repeats a part of a recorded run, or rehearses the first steps of a fit, and
    /// writes nothing.
    pub(crate) is_replay: bool,
    /// Whether the command line is left out of `run.json`.
    pub(crate) omits_command_line: bool,
    /// The path; `None` before the first entry point, or if the run has no folder.
    pub(crate) path: Option<PathBuf>,
    /// The file that describes the run; `None` before the first entry point that is not skipped.
    pub(crate) file: Option<RunFile>,
    /// The same description of this program, until the fit that it resumes has been restored.
    pub(crate) resumed_by: Option<RunFile>,
    /// The lock of the folder, held while an entry point runs.
    pub(crate) lock: Option<Lock>,
}

impl FolderState {
    /// The folder of the run, if it has one.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Replaces the folder that was passed to the builder with the folder that the environment
    /// requests, if any.
    pub(crate) fn or_requested(mut self) -> Self {
        if !self.is_decided {
            self.setting = self.setting.map(RunFolder::or_requested);
        }
        self
    }
}

impl Run {
    /// The hyperparameters of the program, then those of the optimizers, then the settings of the
    /// trainer, then those of its hooks.
    pub(crate) fn all_hyperparameters(&self) -> Vec<(String, Hyperparameter)> {
        let own = self.hyperparameters.iter().map(|given| (given.name.clone(), given.value.clone()));
        own.chain(recorded(&self.model.optimizers, &self.settings, &self.hooks.instances[TASK + 1..]))
            .collect()
    }
}

/// The hyperparameters that the trainer adds to those of the program: the hyperparameters of the
/// optimizers, the settings of the trainer, and the hook settings that a resume compares, such as
/// `MixUp.alpha`.
pub(crate) fn recorded(
    optimizers: &Optimizers,
    settings: &Settings,
    hooks: &[Instance],
) -> Vec<(String, Hyperparameter)> {
    let mut all = Vec::new();
    for (part, optimizer, ..) in optimizers.parts() {
        let groups = optimizer.groups();
        for group in groups {
            let is_whole = groups.len() == 1 || group.label() == DEFAULT;
            let path = [part.to_owned(), if is_whole { String::new() } else { group.label() }];
            let path: String =
                path.iter().filter(|word| !word.is_empty()).map(|word| format!("{word}.")).collect();
            all.push((format!("{path}optimizer"), ParamGroup::algorithm(group).into()));
            all.extend(group.settings().map(|(name, value)| (format!("{path}{name}"), value.into())));
        }
    }
    let settings = settings.of(SettingKind::Result).chain(settings.of(SettingKind::Length));
    let mut counts: HashMap<String, usize> = HashMap::new();
    let settings = settings.chain(hooks.iter().flat_map(|hook| {
        let name = name_of(hook);
        let count = counts.entry(name.clone()).or_default();
        *count += 1;
        let name = if *count == 1 { name } else { format!("{name}{count}") };
        let settings = hook.extras.settings.is_some().then(|| hook.settings());
        let values = settings.map(SettingList::into_values).unwrap_or_default();
        values.into_iter().map(move |(key, value)| (format!("{name}.{key}"), value))
    }));
    all.extend(
        settings
            .filter(|(_, value)| value != NOT_SET)
            .map(|(name, text)| (name, Hyperparameter::of_setting(&text))),
    );
    all
}

/// Returns the name that the settings of a hook begin with: its type and its label, as in
/// `MetricHook(rmse)`. The second and later hooks of a name are numbered.
fn name_of(hook: &Instance) -> String {
    let path = hook.type_name.split('<').next().unwrap_or_default();
    let name = path.rsplit("::").next().unwrap_or_default();
    hook.label().map_or_else(|| name.to_owned(), |label| format!("{name}({label})"))
}
