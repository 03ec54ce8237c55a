//! [`Name`], the name of a module, and the registry of all names in the program.

use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tch::nn::Path;

use super::layer::Layer;
use crate::model::vars::compare_as_str;

/// The name of a module, usually the path of its variables, such as `encoder.fc1`.
///
/// [`run`](Name::run) turns any part of a forward pass into a module, for example in a custom
/// struct:
///
/// ```
/// use trainer::modules::Name;
/// use trainer::prelude::*;
///
/// #[derive(Debug)]
/// struct Residual {
///     name: Name,
///     fc: nn::Linear,
/// }
///
/// impl nn::Module for Residual {
///     fn forward(&self, xs: &Tensor) -> Tensor {
///         self.name.run(xs, |xs| xs + xs.apply(&self.fc).relu())
///     }
/// }
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let path = vs.root() / "block";
/// let block = Residual { fc: nn::linear(&path / "fc", 4, 4, Default::default()), name: path.into() };
/// assert_eq!(block.name.as_str(), "block");
/// ```
///
/// Several modules can have the same name; a hook for that name then runs at all of them.
pub struct Name {
    pub(crate) text: Arc<str>,
    pub(crate) layer: Option<Layer>,
    /// The watcher that last observed the module, and the module's index in that watcher, or
    /// [`UNHOOKED`]. A `Cell` suffices, because tensors, and therefore modules, cannot be shared
    /// between threads.
    pub(crate) seen: Cell<(u64, u32)>,
}

/// The index of a module that no hook observes.
pub(crate) const UNHOOKED: u32 = u32::MAX;

/// The number of existing modules with each name.
static NAMES: Mutex<BTreeMap<Arc<str>, usize>> = Mutex::new(BTreeMap::new());

fn names() -> MutexGuard<'static, BTreeMap<Arc<str>, usize>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the sorted names of all modules that currently exist in the program, in any model.
#[must_use]
pub fn all_names() -> Vec<Arc<str>> {
    names().keys().cloned().collect()
}

impl Name {
    /// Creates a name.
    ///
    /// # Panics
    ///
    /// Panics if the name is empty, as for the root path of a `VarStore`.
    #[must_use]
    pub fn new(name: impl AsRef<str>) -> Self {
        let name = name.as_ref();
        assert!(
            !name.is_empty(),
            "a module needs a nonempty name, and the root path of a `VarStore` has none: choose one, as in \
             `.named(\"model\")`"
        );
        let mut names = names();
        let text = names.get_key_value(name).map_or_else(|| Arc::from(name), |(known, _)| Arc::clone(known));
        *names.entry(Arc::clone(&text)).or_default() += 1;
        Name { text, layer: None, seen: Cell::new((0, UNHOOKED)) }
    }

    /// Creates the name of a module, together with the description of its layer.
    pub(super) fn of_module(name: impl Into<Name>, module: &dyn Any) -> Self {
        let mut name = name.into();
        name.layer = Layer::of(module);
        name
    }

    /// The name as a string.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

compare_as_str!(Name);

impl Drop for Name {
    fn drop(&mut self) {
        let mut names = names();
        if let Some(count) = names.get_mut(&self.text) {
            *count -= 1;
            if *count == 0 {
                names.remove(&self.text);
            }
        }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl From<&str> for Name {
    fn from(name: &str) -> Self {
        Name::new(name)
    }
}

impl From<String> for Name {
    fn from(name: String) -> Self {
        Name::new(name)
    }
}

impl From<Path<'_>> for Name {
    fn from(path: Path<'_>) -> Self {
        (&path).into()
    }
}

impl From<&Path<'_>> for Name {
    fn from(path: &Path<'_>) -> Self {
        Name::new(path.components().collect::<Vec<_>>().join("."))
    }
}
