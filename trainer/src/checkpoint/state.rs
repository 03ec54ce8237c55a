//! The state of a hook, as a checkpoint keeps it.

use std::any::type_name;
use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use tch::Tensor;

use super::value::{from_json, to_json};
use crate::error::{Error, Result, suggestion};
use crate::run::Slot;

/// What a hook type keeps in a checkpoint: `#[hook(state)] impl MyHook { … }` asks for it, each value by itself.
///
/// Every type with serde's `Serialize` and `Deserialize` has it: the whole value is saved, and replaced by the one that was
/// saved. Implement it by hand for a type with tensors, or with settings that the resumed program may change.
///
/// ```
/// use trainer::checkpoint::{Saved, State};
/// use trainer::prelude::*;
///
/// /// Averages of the weights.
/// struct Ema {
///     decay: f64, // a setting: the program's
///     averages: Vec<(String, Tensor)>,
/// }
///
/// impl State for Ema {
///     fn save(&self) -> Result<Saved> {
///         let mut saved = Saved::new();
///         for (name, average) in &self.averages {
///             saved.tensor(name, average)?;
///         }
///         Ok(saved)
///     }
///
///     fn load(&mut self, saved: &Saved) -> Result<()> {
///         self.averages = saved.tensors().map(|(name, average)| (name.to_owned(), average.copy())).collect();
///         Ok(())
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`#[hook(state)]` keeps the state of `{Self}` in checkpoints, and it has none that can be kept",
    label = "needs `trainer::checkpoint::State`",
    note = "derive serde's `Serialize` and `Deserialize` for `{Self}`, or implement `trainer::checkpoint::State` for it"
)]
pub trait State {
    /// What is to be kept.
    ///
    /// # Errors
    ///
    /// What cannot be kept; the checkpoint is then not written.
    fn save(&self) -> Result<Saved>;

    /// Takes up what was kept.
    ///
    /// # Errors
    ///
    /// What does not fit; the run is then not resumed.
    fn load(&mut self, saved: &Saved) -> Result<()>;
}

/// Under which key the whole of a serde value is kept.
const WHOLE: &str = "value";

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned> State for T {
    fn save(&self) -> Result<Saved> {
        let mut saved = Saved::new();
        saved.value(WHOLE, self)?;
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        *self = saved.get(WHOLE)?;
        Ok(())
    }
}

/// Values and tensors under names.
#[derive(Debug, Default)]
pub struct Saved {
    pub(super) values: BTreeMap<String, Json>,
    pub(super) tensors: BTreeMap<String, Tensor>,
}

impl Saved {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Saved::default()
    }

    /// Keeps a value, which the manifest shows.
    ///
    /// # Errors
    ///
    /// When it cannot be serialized, or when another is kept under that name.
    pub fn value<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) -> Result<()> {
        if self.values.contains_key(key) {
            return Err(Error::usage(format!("a value is kept under `{key}` already: take another name")));
        }
        self.values.insert(key.to_owned(), to_json(value)?);
        Ok(())
    }

    /// Keeps a tensor. Its storage is shared until the checkpoint is written.
    ///
    /// # Errors
    ///
    /// When another is kept under that name.
    pub fn tensor(&mut self, key: &str, tensor: &Tensor) -> Result<()> {
        if self.tensors.contains_key(key) {
            return Err(Error::usage(format!("a tensor is kept under `{key}` already: take another name")));
        }
        self.tensors.insert(key.to_owned(), tensor.shallow_clone());
        Ok(())
    }

    /// A value that was kept.
    ///
    /// # Errors
    ///
    /// When there is none of this name, or when it is of another type.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<T> {
        let json = self.values.get(key).ok_or_else(|| none("value", key, self.values.keys()))?;
        from_json(json).map_err(|error| {
            let text = error.to_string();
            let help = if text.starts_with("missing field") {
                "; for a field that was renamed or added since, say `#[serde(alias = \"…\")]` or `#[serde(default)]`"
            } else {
                ""
            };
            Error::usage(format!("the value `{key}` cannot be read as a `{}`: {text}{help}", type_name::<T>()))
        })
    }

    /// A tensor that was kept; it lies in no storage of the run's.
    ///
    /// # Errors
    ///
    /// When there is none of this name.
    pub fn get_tensor(&self, key: &str) -> Result<&Tensor> {
        self.tensors.get(key).ok_or_else(|| none("tensor", key, self.tensors.keys()))
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(key, tensor)| (key.as_str(), tensor))
    }
}

fn none<'a>(what: &str, key: &str, keys: impl Iterator<Item = &'a String>) -> Error {
    let similar = suggestion(key, keys.map(String::as_str));
    Error::usage(format!("no {what} was saved under `{key}`{similar}"))
}

/// How the state of a hook is reached without its type.
#[derive(Clone, Copy, Debug)]
pub struct StateOf {
    pub(crate) name: fn() -> &'static str,
    pub(crate) save: fn(&Slot) -> Result<Saved>,
    pub(crate) load: fn(&mut Slot, &Saved) -> Result<()>,
}

impl StateOf {
    /// Of this type.
    #[must_use]
    pub const fn of<H: State + Send + 'static>() -> Self {
        StateOf {
            name: type_name::<H>,
            save: |slot| slot.downcast_ref::<H>().map_or_else(|| Ok(Saved::new()), H::save),
            load: |slot, saved| slot.downcast_mut::<H>().map_or(Ok(()), |value| value.load(saved)),
        }
    }
}
