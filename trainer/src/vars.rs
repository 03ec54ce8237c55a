//! The named variables of a task.

use std::collections::HashMap;

use tch::{Device, Tensor, nn};

use crate::error::{Error, Result, suggestion};
use crate::libtorch::{identity, memory};

/// One variable of a task.
#[derive(Debug)]
#[non_exhaustive]
pub struct Var {
    /// Its path in the `VarStore`: `fc1.weight`.
    pub name: String,
    /// The tensor itself; it shares its storage with the task's.
    pub tensor: Tensor,
    /// A parameter, as opposed to a buffer (the running mean of a batch norm, say).
    pub is_parameter: bool,
    /// The parameter group, as set by `nn::Path::set_group`; 0 unless set.
    pub group: usize,
}

impl Var {
    /// Does it lie in this part of the model, `encoder` or `encoder.layer1`? An empty name is the whole.
    pub(crate) fn is_in(&self, part: &str) -> bool {
        let rest = self.name.strip_prefix(part);
        part.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

/// The variables of a task, by name.
#[derive(Debug)]
pub struct Vars(Vec<Var>);

impl Vars {
    /// Reads a `VarStore`.
    pub(crate) fn of(store: &nn::VarStore) -> Self {
        let locked = store.variables_.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let groups: HashMap<_, _> =
            locked.trainable_variables.iter().map(|var| (identity(&var.tensor), var.group)).collect();
        let mut vars: Vec<_> = (locked.named_variables.iter())
            .map(|(name, tensor)| Var {
                name: name.clone(),
                tensor: tensor.shallow_clone(),
                is_parameter: groups.contains_key(&identity(tensor)),
                group: groups.get(&identity(tensor)).copied().unwrap_or_default(),
            })
            .collect();
        vars.sort_by(|one, other| one.name.cmp(&other.name));
        Vars(vars)
    }

    /// Those of a part of the model.
    pub(crate) fn part(&self, part: &str) -> Self {
        let clone = |var: &Var| Var {
            name: var.name.clone(),
            tensor: var.tensor.shallow_clone(),
            is_parameter: var.is_parameter,
            group: var.group,
        };
        Vars(self.iter().filter(|var| var.is_in(part)).map(clone).collect())
    }

    /// Describes parameters that share memory: an update of one would change the other, and be undone or repeated by its own.
    pub(crate) fn sharing_memory(&self) -> Vec<String> {
        let device = |var: &Var| match var.tensor.device() {
            Device::Cuda(nth) => nth + 1,
            _ => 0,
        };
        let mut ranges: Vec<_> = self
            .parameters()
            .filter_map(|var| Some((var, memory(&var.tensor)?)))
            .filter(|(_, memory)| !memory.is_empty())
            .map(|(var, memory)| (device(var), memory.start, memory.end, var))
            .collect();
        ranges.sort_by_key(|(device, start, end, _)| (*device, *start, *end));
        // Each is compared with the one before it that reaches furthest.
        let mut mistakes = Vec::new();
        let mut ranges = ranges.into_iter();
        let Some(mut furthest) = ranges.next() else { return mistakes };
        for range in ranges {
            let (device, start, end, var) = range;
            if device == furthest.0 && start < furthest.2 {
                let same = identity(&var.tensor) == identity(&furthest.3.tensor);
                let what = if same { "are the same tensor" } else { "share memory" };
                mistakes.push(format!(
                    "the parameters `{}` and `{}` {what}, so that each would be updated by the other's gradient too: \
                     register it once, or a copy, `.copy()`",
                    furthest.3.name, var.name
                ));
            }
            if device != furthest.0 || end > furthest.2 {
                furthest = range;
            }
        }
        mistakes
    }

    pub(crate) fn as_slice(&self) -> &[Var] {
        &self.0
    }

    /// All of them, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Var> {
        self.0.iter()
    }

    /// The parameters: what an optimizer updates.
    pub fn parameters(&self) -> impl Iterator<Item = &Var> {
        self.iter().filter(|var| var.is_parameter)
    }

    /// The variable of this name.
    ///
    /// # Errors
    ///
    /// When there is none; the message names the most similar one.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        match self.0.binary_search_by(|var| var.name.as_str().cmp(name)) {
            Ok(index) => Ok(&self.0[index].tensor),
            Err(_) => {
                let similar = suggestion(name, self.iter().map(|var| var.name.as_str()));
                Err(Error::usage(format!("no variable is named `{name}`{similar}")))
            }
        }
    }
}
