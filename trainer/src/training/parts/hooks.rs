//! The states of the task and of the hook values.

use std::borrow::Cow;

use super::part::{Part, Scope};
use crate::checkpoint::{Saved, Slot, StateOf};
use crate::error::{Error, Result};
use crate::run::reports::Reports;
use crate::run::{Instance, RunHooks};
use crate::values::paths::public_path;

/// The state of the task or of one hook value.
pub(crate) struct HookState {
    /// The index of the instance.
    pub(super) index: usize,
    /// The name of the type of the task or the hook value.
    hook: &'static str,
    /// The index of the value among the values of this type.
    nth: usize,
    state: StateOf,
}

const PREFIX: &str = "hook/";

/// Extracts the type of a hook value from the name of its part. Returns `None` for any other name.
pub(in crate::training) fn type_of(name: &str) -> Option<&str> {
    Some(name.strip_prefix(PREFIX)?.rsplit_once('/')?.0)
}

impl HookState {
    /// Returns the state of each instance that has a state.
    pub(super) fn all(instances: &[Instance]) -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        for (index, instance) in instances.iter().enumerate() {
            if let Some(state) = instance.extras.state {
                let hook = (state.name)();
                let nth = found.iter().filter(|other| other.hook == hook).count();
                found.push(HookState { index, hook, nth, state });
            }
        }
        found
    }
}

impl HookState {
    /// Returns the current state.
    pub(super) fn save(&self, hooks: &RunHooks, reports: &Reports) -> Result<Saved> {
        let hook = self.hook;
        let Instance { value, may_fail, .. } = &hooks.instances[self.index];
        let value = value.as_ref().ok_or_else(|| self.lent("saved"))?;
        let save = || (self.state.save)(value);
        let saved = if *may_fail {
            let who = format!("the state of `{}`", public_path(hook));
            // A resume accepts a checkpoint without this state.
            reports.tolerate(&who, || Ok(save()?)).map(Option::unwrap_or_default).map_err(Error::from)
        } else {
            save()
        };
        saved.map_err(|error| Error::usage(format!("the state of `{hook}` cannot be saved: {error}")))
    }

    /// Takes the value of the hook out of the run, to [load](Self::load) its state.
    pub(super) fn take(&self, hooks: &mut RunHooks) -> Result<Slot> {
        hooks.instances[self.index].value.take().ok_or_else(|| self.lent("restored"))
    }

    /// Puts the value back into the run.
    pub(super) fn put_back(&self, hooks: &mut RunHooks, value: Slot) {
        hooks.instances[self.index].value = Some(value);
    }

    /// Loads a saved state.
    pub(super) fn load(
        &self,
        value: &mut Slot,
        hooks: &RunHooks,
        reports: &Reports,
        saved: &Saved,
    ) -> Result<()> {
        let hook = public_path(self.hook);
        let mut load = || (self.state.load)(value, saved);
        let loaded = if hooks.instances[self.index].may_fail {
            let who = format!("the state of `{hook}`");
            reports.tolerate(&who, || Ok(load()?)).map(drop).map_err(Error::from)
        } else {
            load()
        };
        loaded.map_err(|error| Error::usage(format!("the state of `{hook}` cannot be restored: {error}")))
    }

    /// The error of a value that one of its hooks borrows.
    fn lent(&self, verb: &str) -> Error {
        let hook = public_path(self.hook);
        Error::usage(format!(
            "the state of `{hook}` cannot be {verb} while one of its hooks is running: move that hook to a separate type, or \
             to a free function"
        ))
    }
}

impl Part for HookState {
    fn name(&self) -> Cow<'static, str> {
        format!("{PREFIX}{}/{}", self.hook, self.nth).into()
    }

    fn scope(&self) -> Scope {
        Scope::Rank
    }

    fn rolls_back(&self, hooks: &RunHooks) -> bool {
        hooks.instances[self.index].value.as_ref().is_some_and(self.state.rolls_back)
    }

    fn is_left_out(&self, hooks: &RunHooks) -> bool {
        hooks.instances[self.index].is_left_out()
    }

    fn check_absent(&self) -> Result<String> {
        let hook = public_path(self.hook);
        Ok(format!("the hook `{hook}` is new: the checkpoint has no state for it"))
    }
}
