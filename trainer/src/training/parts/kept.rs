//! The kept state that a run can roll back to. A resumed run needs this state too.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::AnyPart;
use super::model::VARIABLES;
use super::optimizers::OptimizerState;
use super::part::{Part, Scope, is_count, require, value};
use crate::checkpoint::files::STATE;
use crate::checkpoint::manifest::Values;
use crate::checkpoint::nested::Nested;
use crate::checkpoint::{Saved, States};
use crate::error::Result;
use crate::model::vars::Vars;
use crate::optim::Optimizers;
use crate::run::{KeptState, RunHooks};

/// The kept states of the parts with this scope. States that are equal on all ranks are saved once.
pub(crate) struct Kept(pub(super) Scope);

/// The content of a kept state besides the tensors of parts.
#[derive(Deserialize, Serialize)]
struct SavedKept {
    /// The names of the parts, and their values: [`Nested`].
    parts: Vec<String>,
    values: Vec<Values>,
    rows: u64,
    epoch: u64,
    batch_idx: u64,
}

impl Kept {
    fn key(&self) -> &'static str {
        match self.0 {
            Scope::Run => "kept",
            Scope::Rank => "kept_of_rank",
        }
    }

    /// Returns the kept states of those `parts` that have the scope. `of_rank` has the variables if
    /// this is not rank 0, whose buffers differ from those of rank 0: ranks average their buffers
    /// before a checkpoint, but not before they keep a state.
    pub(super) fn save(
        &self,
        kept: Option<&KeptState>,
        parts: &[AnyPart],
        of_rank: Option<&Vars>,
    ) -> Result<Saved> {
        let mut saved = Saved::new();
        let Some(KeptState { states, rows, epoch, batch_idx }) = kept else {
            saved.set("state", &None::<SavedKept>)?;
            return Ok(saved);
        };
        let mut own: Vec<(String, Saved)> = Vec::new();
        for part in parts {
            let name = part.name();
            let Some(state) = states.get(&*name) else { continue };
            if part.scope() == self.0 {
                own.push((name.into_owned(), state.shallow_clone()));
            } else if self.0 == Scope::Rank
                && let Some(vars) = of_rank
                && *name == *VARIABLES
            {
                let is_buffer = |name: &str| vars.iter().any(|var| var.name == *name && !var.is_parameter);
                let mut buffers = state.shallow_clone();
                buffers.tensors.retain(|name, _| is_buffer(name));
                own.push((VARIABLES.to_owned(), buffers));
            }
        }
        let Nested { parts, values } = saved.nest(own)?;
        let state = SavedKept { parts, values, rows: *rows as u64, epoch: *epoch, batch_idx: *batch_idx };
        saved.set("state", &Some(state))?;
        Ok(saved)
    }

    /// Returns a saved state. `kept` has the states of the other scope, if they are loaded already.
    pub(super) fn load(
        &self,
        kept: Option<KeptState>,
        optimizers: &Optimizers,
        saved: &Saved,
    ) -> Result<Option<KeptState>> {
        let Some(state) = value::<Option<SavedKept>>(self.key(), "state", saved)? else { return Ok(None) };
        // The states of `Scope::Run` are loaded first.
        let mut states = kept.filter(|_| self.0 == Scope::Rank).map_or_else(States::new, |kept| kept.states);
        for (part, own) in saved.nested(Nested { parts: state.parts, values: state.values }) {
            match states.get_mut(&part) {
                Some(of_main) => of_main.tensors.extend(own.tensors),
                None => drop(states.insert(part, own)),
            }
        }
        for part in states_of(optimizers).filter(|part| part.is_divided(optimizers)) {
            if let Some(state) = states.get_mut(&*part.name()) {
                let tensors = std::mem::take(&mut state.tensors);
                let own = tensors.into_iter().filter(|(name, _)| part.is_in_share(optimizers, name));
                state.shares.extend(own);
            }
        }
        let rows = usize::try_from(state.rows).unwrap_or(usize::MAX);
        Ok(Some(KeptState { states, rows, epoch: state.epoch, batch_idx: state.batch_idx }))
    }
}

/// The states of the optimizers.
fn states_of(optimizers: &Optimizers) -> impl Iterator<Item = OptimizerState> {
    optimizers.names().map(|part| OptimizerState { part: part.to_owned(), scope: Scope::Run })
}

impl Part for Kept {
    fn name(&self) -> Cow<'static, str> {
        self.key().into()
    }

    fn scope(&self) -> Scope {
        self.0
    }

    fn file(&self) -> Option<&'static str> {
        Some(STATE)
    }

    /// A kept state does not contain another one.
    fn rolls_back(&self, _hooks: &RunHooks) -> bool {
        false
    }

    fn validate(&self, saved: &Saved) -> Result<()> {
        let Some(state) = value::<Option<SavedKept>>(self.key(), "state", saved)? else { return Ok(()) };
        let numbers = [state.rows, state.epoch, state.batch_idx].into_iter().all(is_count);
        require(self.key(), &[("state", numbers && state.parts.len() == state.values.len())])
    }

    /// A checkpoint that an earlier version wrote has no kept state.
    fn is_left_out(&self, _hooks: &RunHooks) -> bool {
        true
    }

    /// Only the states of optimizers are divided.
    fn is_divided(&self, optimizers: &Optimizers) -> bool {
        states_of(optimizers).any(|part| part.is_divided(optimizers))
    }

    fn is_in_share(&self, optimizers: &Optimizers, name: &str) -> bool {
        let name = Nested::name_of(name);
        states_of(optimizers).all(|part| part.is_in_share(optimizers, name))
    }

    fn is_needed_elsewhere(&self, optimizers: &Optimizers, name: &str) -> bool {
        let name = Nested::name_of(name);
        states_of(optimizers).any(|part| part.is_needed_elsewhere(optimizers, name))
    }
}
