//! Handles to the named variables and gradients of a task.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use tch::{Device, Tensor, nn};

use crate::distributed::Share;
use crate::error::{Error, Result, did_you_mean};
pub use crate::libtorch::Var;
use crate::libtorch::{SharedVars, bytes, changes, describe, identity, memory};

impl Var {
    /// Returns whether the variable belongs to this part of the model, such as `encoder` or
    /// `encoder.layer1`. An empty name stands for the whole model.
    #[must_use]
    pub fn is_in(&self, part: &str) -> bool {
        is_in(&self.name, part)
    }

    /// Returns a number that grows with each change of the variable in place, by an optimizer or by
    /// code of the program, even if its values stay the same.
    #[must_use]
    pub fn changes(&self) -> u64 {
        changes(&self.tensor)
    }
}

/// Returns whether the variable `name` belongs to this part of the model.
fn is_in(name: &str, part: &str) -> bool {
    let rest = name.strip_prefix(part);
    part.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The variables of a task, by name.
///
/// This is a handle: a clone is cheap and shares the variables. It borrows nothing, so a hook can
/// log in a loop over [`cx.vars()`](crate::Cx::vars).
///
/// ```
/// use trainer::prelude::*;
///
/// # let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
/// # let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// # let mut train = InMemory::new((inputs, labels))?.batch_size(16);
/// # let mut trainer = Trainer::builder(task).optimizer(Sgd::new(0.1)).build()?;
/// for var in trainer.vars().parameters() {
///     println!("{} {:?}", var.name, var.tensor.size());
/// }
/// assert_eq!(trainer.vars().get("fc.bias")?.size(), [2]);
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Vars {
    vars: Arc<SharedVars>,
    may_grow: bool,
    share: Share,
    /// Whether these are the values that evaluation uses, rather than the variables themselves.
    are_evaluated: bool,
}

impl Vars {
    /// Reads the variables of a `VarStore`, such as that of a model that a hook has of its own. The
    /// tensors share their storage with those of the store.
    #[must_use]
    pub fn from_store(store: &nn::VarStore) -> Self {
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
        let share = Share { rank: 0, of: 1 };
        Vars { vars: Arc::new(SharedVars::new(vars)), may_grow: false, share, are_evaluated: false }
    }

    /// Sets the rank of this process and the number of processes that train the variables together.
    pub(crate) fn shared_with(self, share: Share) -> Self {
        Vars { share, ..self }
    }

    /// Returns the rank of this process and the number of processes that train the variables
    /// together: rank 0 of 1 in a single-process program.
    #[must_use]
    pub fn share(&self) -> Share {
        self.share
    }

    /// Returns the values that evaluation uses: copies of these variables in which those of
    /// `averages` take the place of the live ones.
    pub(crate) fn evaluated(&self, averages: &BTreeMap<String, Tensor>) -> Self {
        let vars = self.iter().map(|var| Var {
            name: var.name.clone(),
            tensor: averages.get(&var.name).unwrap_or(&var.tensor).shallow_clone(),
            is_parameter: var.is_parameter,
            group: var.group,
        });
        Vars { are_evaluated: true, ..Vars::new(vars.collect()).shared_with(self.share) }
    }

    /// Whether these are the values that evaluation uses: see
    /// [`eval_vars`](crate::Trainer::eval_vars).
    #[must_use]
    pub fn are_evaluated(&self) -> bool {
        self.are_evaluated
    }

    /// Whether these are live values although averages of them exist, which evaluation uses.
    #[must_use]
    pub fn differ_from_evaluated(&self) -> bool {
        !self.are_evaluated && self.vars.has_averages()
    }

    /// Notes whether averages of the variables exist.
    pub(crate) fn note_averages(&self, exist: bool) {
        self.vars.set_has_averages(exist);
    }

    /// Marks the variables as possibly incomplete: see [`may_grow`](Vars::may_grow).
    pub(crate) fn growing(mut self) -> Self {
        self.may_grow = true;
        self
    }

    /// Returns whether a hook of the program may still add variables at `setup`. An
    /// [`Optimizer`](crate::optim::Optimizer) must then accept settings for variables that do not
    /// exist yet.
    #[must_use]
    pub fn may_grow(&self) -> bool {
        self.may_grow
    }

    /// Returns the variables of a part of the model.
    pub(crate) fn part(&self, part: &str) -> Self {
        let vars = self.in_part(part).map(|var| Var {
            name: var.name.clone(),
            tensor: var.tensor.shallow_clone(),
            is_parameter: var.is_parameter,
            group: var.group,
        });
        Vars::new(vars.collect()).shared_with(self.share)
    }

    /// Describes parameters that share memory: updating one would also change the other.
    pub(crate) fn sharing_memory(&self) -> Vec<String> {
        let mut ranges: Vec<_> = self
            .parameters()
            .filter_map(|var| Some((var, memory(&var.tensor)?)))
            .filter(|(_, memory)| !memory.is_empty())
            .map(|(var, memory)| {
                let device = if let Device::Cuda(nth) = var.tensor.device() { nth + 1 } else { 0 };
                (device, memory.start, memory.end, var)
            })
            .collect();
        ranges.sort_by_key(|(device, start, end, _)| (*device, *start, *end));
        // Compare each range with the earlier one that ends last.
        let mut mistakes = Vec::new();
        let mut ranges = ranges.into_iter();
        let Some(mut furthest) = ranges.next() else { return mistakes };
        for range in ranges {
            let (device, start, end, var) = range;
            if device == furthest.0 && start < furthest.2 {
                let same = identity(&var.tensor) == identity(&furthest.3.tensor);
                let what = if same { "are the same tensor" } else { "share memory" };
                mistakes.push(format!(
                    "the parameters `{}` and `{}` {what}, so each would also be updated by the other's gradient: \
                     register the tensor once, or register a `.copy()`",
                    furthest.3.name, var.name
                ));
            }
            if device != furthest.0 || end > furthest.2 {
                furthest = range;
            }
        }
        mistakes
    }

    /// Returns the variables of a part of the model, sorted by name.
    pub(crate) fn in_part(&self, part: &str) -> impl Iterator<Item = &Var> {
        self.vars[first_of(&self.vars, part)..]
            .iter()
            .take_while(move |var| var.name.starts_with(part))
            .filter(move |var| var.is_in(part))
    }

    /// Returns all variables, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Var> {
        self.vars.iter()
    }

    /// Returns the parameters, which an optimizer updates, without the buffers.
    pub fn parameters(&self) -> impl Iterator<Item = &Var> {
        self.iter().filter(|var| var.is_parameter)
    }

    /// Returns a hash of the names, shapes, dtypes and values of all variables, in hexadecimal. A
    /// hook with a model of its own lists it in its [settings](crate::checkpoint::Settings), so
    /// that a resume detects another model.
    #[must_use]
    pub fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for var in self.iter() {
            let mut head = format!("{} ", var.name);
            describe(&var.tensor, &mut head);
            hasher.update(&(head.len() as u64).to_le_bytes()).update(head.as_bytes());
            match bytes(&var.tensor, format_args!("`{}`", var.name)) {
                Ok(bytes) => hasher.update(&bytes),
                Err(error) => hasher.update(error.to_string().as_bytes()),
            };
        }
        hasher.finalize().to_hex().to_string()
    }

    /// Returns the names, each with the identity of its variable.
    pub(super) fn names(&self) -> impl Iterator<Item = (usize, VarName)> {
        let name = |index| VarName { vars: Arc::clone(&self.vars), index };
        self.iter().enumerate().map(move |(index, var)| (identity(&var.tensor), name(index)))
    }

    /// Returns the variable with this name. The tensor shares its storage with the task's.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no variable of this name; the message suggests a similar one.
    pub fn get(&self, name: &str) -> Result<Tensor> {
        self.find(name).map(Tensor::shallow_clone).ok_or_else(|| {
            let similar = did_you_mean(name, self.iter().map(|var| var.name.as_str()));
            Error::usage(format!("no variable is named `{name}`{similar}"))
        })
    }

    /// Returns whether there is a variable with this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn find(&self, name: &str) -> Option<&Tensor> {
        let index = self.vars.binary_search_by(|var| var.name.as_str().cmp(name)).ok()?;
        Some(&self.vars[index].tensor)
    }

    /// Compares the variables with the current contents of the `VarStore`.
    pub(crate) fn changes(&self, store: &nn::VarStore) -> Changes {
        let locked = store.variables_.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = &locked.named_variables;
        let mut changes = Changes::default();
        for (name, tensor) in now {
            match self.find(name) {
                None => changes.added.push(name.clone()),
                // Both handles follow a `set_data`, so a move to another device is not a
                // replacement.
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

/// The names of the variables that changed in a `VarStore`.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) added: Vec<String>,
    /// Variables whose name now belongs to a different tensor.
    pub(crate) replaced: Vec<String>,
    pub(crate) removed: Vec<String>,
}

impl Changes {
    pub(crate) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.replaced.is_empty() && self.removed.is_empty()
    }

    /// Returns whether a part of the model changed.
    pub(crate) fn touches(&self, part: &str) -> bool {
        let Changes { added, replaced, removed } = self;
        added.iter().chain(replaced).chain(removed).any(|name| is_in(name, part))
    }

    /// Returns whether the variable of this name was added or replaced.
    pub(crate) fn is_new(&self, name: &str) -> bool {
        self.added.iter().chain(&self.replaced).any(|new| new == name)
    }
}

/// Returns the index of the first variable whose name may begin with `part`.
fn first_of(vars: &[Var], part: &str) -> usize {
    vars.partition_point(|var| var.name.as_str() < part)
}

/// An iterator over the names and gradients of the parameters that have a gradient: see
/// [`Cx::grads`](crate::Cx::grads) and [`Cx::module_grads`](crate::Cx::module_grads). It borrows
/// nothing.
#[derive(Debug)]
pub struct Grads {
    vars: Vars,
    next: usize,
    /// The module whose parameters these are; `None` for the whole model.
    module: Option<Arc<str>>,
}

impl Grads {
    pub(crate) fn new(vars: &Vars) -> Self {
        Grads { vars: vars.clone(), next: 0, module: None }
    }

    pub(crate) fn of_module(vars: &Vars, module: &Arc<str>) -> Self {
        let next = first_of(&vars.vars, module);
        Grads { vars: vars.clone(), next, module: Some(Arc::clone(module)) }
    }
}

impl Iterator for Grads {
    type Item = (VarName, Tensor);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let index = self.next;
            let module = self.module.as_deref().unwrap_or_default();
            let var = self.vars.vars.get(index).filter(|var| var.name.starts_with(module))?;
            self.next += 1;
            if var.is_parameter && var.is_in(module) {
                let grad = var.tensor.grad();
                if grad.defined() {
                    return Some((VarName { vars: Arc::clone(&self.vars.vars), index }, grad));
                }
            }
        }
    }
}

/// The name of a variable, such as `fc1.weight`. It dereferences to `str`, borrows nothing and
/// needs no allocation.
#[derive(Clone)]
pub struct VarName {
    vars: Arc<SharedVars>,
    index: usize,
}

impl VarName {
    /// Returns whether the variable belongs to this part of the model, like
    /// [`Var::is_in`](crate::Var::is_in).
    #[must_use]
    pub fn is_in(&self, part: &str) -> bool {
        is_in(self, part)
    }
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

/// Implements `==` for a name type: with itself, and with strings on either side.
macro_rules! compare_as_str {
    ($name:ty) => {
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                let name: &str = self.as_ref();
                name == AsRef::<str>::as_ref(other)
            }
        }

        impl Eq for $name {}

        compare_as_str!(@ $name: str, &str, String, std::borrow::Cow<'_, str>);
    };
    (@ $name:ty: $($text:ty),*) => {$(
        impl PartialEq<$text> for $name {
            fn eq(&self, other: &$text) -> bool {
                let name: &str = self.as_ref();
                name == AsRef::<str>::as_ref(other)
            }
        }

        impl PartialEq<$name> for $text {
            fn eq(&self, name: &$name) -> bool {
                name == self
            }
        }
    )*};
}
pub(crate) use compare_as_str;

compare_as_str!(VarName);

impl From<VarName> for String {
    fn from(name: VarName) -> String {
        name.to_string()
    }
}
