//! The kept state that a run can roll back to. A resumed run needs this state too.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::model::VARIABLES;
use super::optimizers::OptimizerState;
use super::part::{Part, Scope, is_count, require, value};
use crate::checkpoint::files::STATE;
use crate::checkpoint::{Saved, States};
use crate::error::Result;
use crate::optim::Optimizers;
use crate::run::{KeptState, Run, RunHooks};

/// The kept states of the parts with this scope. States that are equal on all ranks are saved once.
pub(super) struct Kept(pub(super) Scope);

/// The content of a kept state besides the states of parts.
#[derive(Deserialize, Serialize)]
struct SavedKept {
    /// The names of the parts. The names of a part's tensors begin with its index in this list.
    parts: Vec<String>,
    values: Vec<BTreeMap<String, String>>,
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

    fn save(&self, run: &Run) -> Result<Saved> {
        let mut saved = Saved::new();
        let Some(kept) = run.kept() else {
            saved.set("state", &None::<SavedKept>)?;
            return Ok(saved);
        };
        // In the new run that continues from the end of a replay, hooks that write start afresh.
        let is_used = |index: usize| !run.is_replay() || !run.hooks().instances[index].writes;
        let mut own: Vec<(String, Saved)> = Vec::new();
        for part in super::with_values(run, is_used) {
            let Some(state) = kept.states.get(&*part.name()) else { continue };
            if part.scope() == self.0 {
                own.push((part.name().into_owned(), state.shallow_clone()));
            } else if self.0 == Scope::Rank && run.rank() > 0 && *part.name() == *VARIABLES {
                // Ranks average their buffers before a checkpoint, but not before they keep a
                // state.
                let is_buffer =
                    |name: &str| run.vars().iter().any(|var| var.name == *name && !var.is_parameter);
                let mut buffers = state.shallow_clone();
                buffers.tensors.retain(|name, _| is_buffer(name));
                own.push((VARIABLES.to_owned(), buffers));
            }
        }
        for (nth, (_, state)) in own.iter().enumerate() {
            for (kind, tensors) in [("", &state.tensors), ("average/", &state.averages)] {
                for (name, tensor) in tensors {
                    saved.set_tensor(&format!("{nth}/{kind}{name}"), tensor)?;
                }
            }
            for (name, tensor) in &state.shares {
                saved.shares.insert(format!("{nth}/{name}"), tensor.shallow_clone());
            }
        }
        let (own, values) = own.into_iter().map(|(part, state)| (part, state.values)).unzip();
        let &KeptState { rows, epoch, batch_idx, .. } = kept;
        let state = SavedKept { parts: own, values, rows: rows as u64, epoch, batch_idx };
        saved.set("state", &Some(state))?;
        Ok(saved)
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
        let name = name.split_once('/').map_or(name, |(_, name)| name);
        states_of(optimizers).all(|part| part.is_in_share(optimizers, name))
    }

    fn load(&self, run: &mut Run, saved: &Saved) -> Result<()> {
        let Some(state) = value::<Option<SavedKept>>(self.key(), "state", saved)? else {
            *run.kept_mut() = None;
            return Ok(());
        };
        // The states of `Scope::Run` are loaded first.
        let mut states = match (self.0, run.kept_mut().take()) {
            (Scope::Rank, Some(kept)) => kept.states,
            _ => States::new(),
        };
        for (nth, (part, values)) in state.parts.into_iter().zip(state.values).enumerate() {
            let mut own = Saved { values, ..Saved::new() };
            for (key, tensor) in &saved.tensors {
                let Some((index, name)) = key.split_once('/') else { continue };
                if index == nth.to_string() {
                    match name.strip_prefix("average/") {
                        Some(name) => own.averages.insert(name.to_owned(), tensor.shallow_clone()),
                        None => own.tensors.insert(name.to_owned(), tensor.shallow_clone()),
                    };
                }
            }
            match states.get_mut(&part) {
                Some(of_main) => of_main.tensors.extend(own.tensors),
                None => drop(states.insert(part, own)),
            }
        }
        let optimizers = run.optimizers();
        for part in states_of(optimizers).filter(|part| part.is_divided(optimizers)) {
            if let Some(state) = states.get_mut(&*part.name()) {
                let tensors = std::mem::take(&mut state.tensors);
                state
                    .shares
                    .extend(tensors.into_iter().filter(|(name, _)| part.is_in_share(optimizers, name)));
            }
        }
        let rows = usize::try_from(state.rows).unwrap_or(usize::MAX);
        *run.kept_mut() = Some(KeptState { states, rows, epoch: state.epoch, batch_idx: state.batch_idx });
        Ok(())
    }
}
