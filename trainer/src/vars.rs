//! The named variables of a task.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use tch::{Device, Tensor, nn};

use crate::error::{Error, Result, suggestion};
use crate::libtorch::{Shared, identity, memory};

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
        is_in(&self.name, part)
    }
}

/// Whether the variable `name` belongs to the part `part` of the model.
fn is_in(name: &str, part: &str) -> bool {
    let rest = name.strip_prefix(part);
    part.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The variables of a task, by name.
///
/// A handle: a clone is cheap, shares the variables, and borrows nothing, so that a hook can log in a loop over
/// [`cx.vars()`](crate::Cx::vars).
#[derive(Clone, Debug)]
pub struct Vars {
    vars: Arc<Shared<Vec<Var>>>,
    may_grow: bool,
}

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
        Vars::new(vars)
    }

    fn new(vars: Vec<Var>) -> Self {
        Vars { vars: Arc::new(Shared::new(vars)), may_grow: false }
    }

    /// Marks them as not complete yet: [`may_grow`](Vars::may_grow).
    pub(crate) fn growing(mut self) -> Self {
        self.may_grow = true;
        self
    }

    /// Whether more variables may be added before training starts, because a hook stands at `setup`. An
    /// [`Optimizer`](crate::optim::Optimizer) then does not refuse settings for variables that it does not find.
    #[must_use]
    pub fn may_grow(&self) -> bool {
        self.may_grow
    }

    /// Those of a part of the model.
    pub(crate) fn part(&self, part: &str) -> Self {
        let clone = |var: &Var| Var {
            name: var.name.clone(),
            tensor: var.tensor.shallow_clone(),
            is_parameter: var.is_parameter,
            group: var.group,
        };
        Vars::new(self.iter().filter(|var| var.is_in(part)).map(clone).collect())
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

    /// All of them, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Var> {
        self.vars.iter()
    }

    /// The parameters: what an optimizer updates.
    pub fn parameters(&self) -> impl Iterator<Item = &Var> {
        self.iter().filter(|var| var.is_parameter)
    }

    /// The variable of this name. The tensor shares its storage with the task's.
    ///
    /// # Errors
    ///
    /// Returns an error if there is none; the message names the most similar one.
    pub fn get(&self, name: &str) -> Result<Tensor> {
        self.find(name).map(Tensor::shallow_clone).ok_or_else(|| {
            let similar = suggestion(name, self.iter().map(|var| var.name.as_str()));
            Error::usage(format!("no variable is named `{name}`{similar}"))
        })
    }

    fn find(&self, name: &str) -> Option<&Tensor> {
        let index = self.vars.binary_search_by(|var| var.name.as_str().cmp(name)).ok()?;
        Some(&self.vars[index].tensor)
    }

    /// Compares them with what the `VarStore` holds now.
    pub(crate) fn changes(&self, store: &nn::VarStore) -> Changes {
        let locked = store.variables_.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = &locked.named_variables;
        let mut changes = Changes::default();
        for (name, tensor) in now {
            match self.find(name) {
                None => changes.added.push(name.clone()),
                // Both handles follow a `set_data`, so that a move to another device is no replacement.
                Some(known) if identity(known) != identity(tensor) => changes.replaced.push(name.clone()),
                Some(_) => {}
            }
        }
        let removed = self.iter().filter(|var| !now.contains_key(&var.name));
        changes.removed = removed.map(|var| var.name.clone()).collect();
        changes.added.sort();
        changes.replaced.sort();
        changes
    }
}

/// What differs between the variables that are known and those of the `VarStore`.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) added: Vec<String>,
    /// Another tensor under the same name.
    pub(crate) replaced: Vec<String>,
    pub(crate) removed: Vec<String>,
}

impl Changes {
    pub(crate) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.replaced.is_empty() && self.removed.is_empty()
    }

    /// Whether a part of the model has changed.
    pub(crate) fn touches(&self, part: &str) -> bool {
        let Changes { added, replaced, removed } = self;
        added.iter().chain(replaced).chain(removed).any(|name| is_in(name, part))
    }

    /// Whether the tensor of this name was not known before.
    pub(crate) fn is_new(&self, name: &str) -> bool {
        self.added.iter().chain(&self.replaced).any(|new| new == name)
    }
}

/// The gradients of the parameters that have one, by name: [`Cx::grads`](crate::Cx::grads). It borrows nothing.
#[derive(Debug)]
pub struct Grads {
    vars: Vars,
    next: usize,
}

impl Grads {
    pub(crate) fn new(vars: &Vars) -> Self {
        Grads { vars: vars.clone(), next: 0 }
    }
}

impl Iterator for Grads {
    type Item = (VarName, Tensor);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let index = self.next;
            let var = self.vars.vars.get(index)?;
            self.next += 1;
            if var.is_parameter {
                let grad = var.tensor.grad();
                if grad.defined() {
                    return Some((VarName { vars: Arc::clone(&self.vars.vars), index }, grad));
                }
            }
        }
    }
}

/// The name of a variable, `fc1.weight`: a `str` that borrows nothing and allocates nothing.
#[derive(Clone)]
pub struct VarName {
    vars: Arc<Shared<Vec<Var>>>,
    index: usize,
}

impl Deref for VarName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.vars[self.index].name
    }
}

impl AsRef<str> for VarName {
    fn as_ref(&self) -> &str {
        self
    }
}

impl fmt::Display for VarName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}

impl fmt::Debug for VarName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl PartialEq<str> for VarName {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl PartialEq<&str> for VarName {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl From<VarName> for String {
    fn from(name: VarName) -> String {
        name.to_string()
    }
}
