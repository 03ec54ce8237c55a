//! The values that hook methods are called on.

use std::any::{TypeId, type_name};
use std::path::{Path, PathBuf};

use super::definition::public_path;
use crate::checkpoint::{Slot, StateOf};
use crate::model::added::{NewVariables, VariablesOf};
use crate::values::facts::{SettingList, SettingsOf};

/// The task or a hook value. Its type is known even while the value is lent to one of its methods.
pub(crate) struct Instance {
    pub(crate) type_id: TypeId,
    pub(crate) type_name: &'static str,
    /// The value; `None` while it is lent to one of its methods, and in a placeholder.
    pub(crate) value: Option<Slot>,
    /// The functions that save and load its state in checkpoints, if it has a state.
    pub(crate) state: Option<StateOf>,
    /// The function that returns its settings, if it lists them.
    pub(crate) settings: Option<SettingsOf>,
    /// The function that adds its variables to the model, if it adds any.
    pub(crate) variables: Option<VariablesOf>,
    /// Whether its hooks may change fields that no state saves.
    pub(crate) changes_unsaved: bool,
    /// Whether all of its hooks only observe.
    pub(crate) observes: bool,
    /// Whether one of its hooks writes something that outlives the process.
    pub(crate) writes: bool,
    /// Whether a failure of any of its hooks is only a warning.
    pub(crate) may_fail: bool,
}

impl Instance {
    pub(crate) fn new<T: Send + 'static>(value: T) -> Self {
        Instance {
            type_id: TypeId::of::<T>(),
            type_name: type_name::<T>(),
            value: Some(Box::new(value)),
            state: None,
            settings: None,
            variables: None,
            changes_unsaved: false,
            observes: false,
            writes: false,
            may_fail: false,
        }
    }

    /// The label that distinguishes the value from others of its type.
    pub(crate) fn label(&self) -> Option<String> {
        (self.state?.label)(self.value.as_ref()?)
    }

    /// Returns the settings of the value: those that it lists, or else the fields that serde saves.
    pub(crate) fn settings(&self) -> SettingList {
        let (Some(value), fields) = (&self.value, self.state.map(|state| state.fields)) else {
            return SettingList::new();
        };
        match (self.settings, fields) {
            (Some(of), _) => (of.settings)(&**value),
            (None, Some(fields)) => fields(value),
            (None, None) => SettingList::new(),
        }
    }

    /// Returns a message for each setting of the value that is invalid.
    pub(crate) fn mistakes(&self) -> Vec<String> {
        let (Some(of), Some(value)) = (self.settings, &self.value) else { return Vec::new() };
        let name = public_path(self.type_name);
        (of.mistakes)(&**value).into_iter().map(|why| format!("hook `{name}`: {why}")).collect()
    }

    /// Adds the variables of the value to the model. Returns a message if that fails.
    pub(crate) fn add_variables(&mut self, model: &NewVariables<'_>) -> Option<String> {
        let why = (self.variables?.add)(&mut **self.value.as_mut()?, model).err()?;
        Some(format!("hook `{}`: {why}", public_path(self.type_name)))
    }

    /// Returns the folder to which the value writes checkpoints, if it writes any.
    pub(crate) fn checkpoints(&self, run_folder: Option<&Path>) -> Option<PathBuf> {
        (self.settings?.checkpoints)(&**self.value.as_ref()?, run_folder)
    }

    /// Whether a resume ignores the value. This is the case if the value only observes and lists no
    /// settings.
    pub(crate) fn is_left_out(&self) -> bool {
        self.observes && (self.settings.is_none() || self.settings().is_empty())
    }

    /// Returns a placeholder for a discovered value whose hooks are all excluded.
    pub(crate) fn absent() -> Self {
        Instance {
            type_id: TypeId::of::<Self>(),
            type_name: type_name::<Self>(),
            value: None,
            state: None,
            settings: None,
            variables: None,
            changes_unsaved: false,
            observes: false,
            writes: false,
            may_fail: false,
        }
    }
}

/// The index of the task in [`RunHooks::instances`](crate::run::RunHooks::instances).
pub(crate) const TASK: usize = 0;
