//! The state of hooks in checkpoints.

use std::any::{Any, type_name};
use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::{Device, Kind, Tensor};

use super::tensors::TensorFile;
use super::text::{check_round_trip, fields_of, from_text, to_text};
use crate::error::{Error, Result, did_you_mean, shortened};
use crate::libtorch;
use crate::values::facts::SettingList;

/// Saves the state of a hook value in checkpoints, and restores it.
///
/// `#[hook(state)] impl MyHook { … }` enables this, or `#[hook(state = self.field)]` if only that
/// field has state.
///
/// Every type with serde's `Serialize` and `Deserialize` implements this trait: a checkpoint saves
/// the whole value, and a resume replaces it with the saved one. Implement the trait by hand for a
/// type that holds tensors, or settings that the resumed program may change.
///
/// ```
/// use trainer::checkpoint::{Saved, State};
/// use trainer::prelude::*;
///
/// /// Averages of the weights.
/// struct Ema {
///     decay: f64, // a setting, which checkpoints do not save
///     averages: Vec<(String, Tensor)>,
/// }
///
/// impl State for Ema {
///     fn save(&self) -> Result<Saved> {
///         let mut saved = Saved::new();
///         for (name, average) in &self.averages {
///             saved.set_tensor(name, average)?;
///         }
///         Ok(saved)
///     }
///
///     fn load(&mut self, saved: &Saved) -> Result<()> {
///         let averages = saved.tensors().map(|(name, average)| (name.to_owned(), average.copy()));
///         self.averages = averages.collect();
///         Ok(())
///     }
/// }
/// ```
#[doc(alias("state_dict", "load_state_dict"))]
#[diagnostic::on_unimplemented(
    message = "`#[hook(state)]` saves the state of `{Self}` in checkpoints, but `{Self}` does not implement `State`",
    label = "needs `trainer::checkpoint::State`",
    note = "derive serde's `Serialize` and `Deserialize` for `{Self}`, or implement `trainer::checkpoint::State` for it"
)]
pub trait State {
    /// Returns the state to save.
    ///
    /// # Errors
    ///
    /// Returns an error if the state cannot be saved; the checkpoint is then not written.
    fn save(&self) -> Result<Saved>;

    /// Restores the saved state.
    ///
    /// # Errors
    ///
    /// Returns an error if the saved state does not match this value; the run is then not resumed.
    fn load(&mut self, saved: &Saved) -> Result<()>;

    /// Returns a name that distinguishes this value from others of its type, such as the metric of
    /// a [`MetricHook`](crate::metrics::MetricHook). `describe_hooks` shows it in parentheses.
    /// Defaults to `None`.
    fn label(&self) -> Option<String> {
        None
    }

    /// Whether [`Cx::roll_back`](crate::Cx::roll_back) restores the state. Defaults to `true`. A
    /// hook that records what has happened in the run, such as the number of its roll-backs,
    /// returns `false`.
    fn rolls_back(&self) -> bool {
        true
    }

    /// If serde saves the whole value, returns its fields; otherwise, returns an empty list.
    #[doc(hidden)]
    fn __fields(&self) -> SettingList {
        SettingList::new()
    }
}

/// The key of a value that is saved as a whole.
const WHOLE: &str = "value";

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned> State for T {
    fn save(&self) -> Result<Saved> {
        let mut saved = Saved::new();
        saved.set(WHOLE, self)?;
        // Check now that the value can be restored: after the program is killed, it is too late.
        check_round_trip::<T>(&saved.values[WHOLE])?;
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        *self = saved.get(WHOLE)?;
        Ok(())
    }

    #[doc(hidden)]
    fn __fields(&self) -> SettingList {
        fields_of(self).unwrap_or_default()
    }
}

fn check_defined(key: &str, tensor: &Tensor) -> Result<()> {
    if tensor.defined() {
        return Ok(());
    }
    Err(Error::usage(format!("`{key}` is an undefined tensor, which cannot be saved: leave it out")))
}

/// The saved state of a hook value: values and tensors by key, and averaged weights.
#[derive(Debug, Default)]
pub struct Saved {
    /// The values as text.
    pub(crate) values: BTreeMap<String, String>,
    pub(crate) tensors: BTreeMap<String, Tensor>,
    /// Averaged weights, by the names of the variables.
    pub(crate) averages: BTreeMap<String, Tensor>,
    /// This rank's share of a state that is divided among the ranks.
    pub(crate) shares: BTreeMap<String, Tensor>,
    /// A file with further tensors of the state, which are not in memory.
    pub(crate) unread: Option<TensorFile>,
}

impl Saved {
    /// Creates an empty collection.
    #[must_use]
    pub fn new() -> Self {
        Saved::default()
    }

    /// Adds a value, which the manifest stores as text.
    ///
    /// # Errors
    ///
    /// Returns an error if the value cannot be serialized, or if the key is taken.
    pub fn set<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) -> Result<()> {
        self.add_text(key, text_of(key, value)?)
    }

    /// Adds a value that [`text_of`] has serialized.
    pub(crate) fn add_text(&mut self, key: &str, text: String) -> Result<()> {
        if self.values.contains_key(key) {
            return Err(Error::usage(format!("a value is already saved under `{key}`: choose another key")));
        }
        self.values.insert(key.to_owned(), text);
        Ok(())
    }

    /// Adds a tensor without copying it: its storage is shared until the checkpoint is written.
    /// Only a background save copies the tensor.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is taken, or if the tensor is undefined.
    pub fn set_tensor(&mut self, key: &str, tensor: &Tensor) -> Result<()> {
        if self.tensors.contains_key(key) {
            return Err(Error::usage(format!("a tensor is already saved under `{key}`: choose another key")));
        }
        check_defined(key, tensor)?;
        self.tensors.insert(key.to_owned(), tensor.shallow_clone());
        Ok(())
    }

    /// Adds the averaged value of a variable of the task. It is written to `averages.safetensors`,
    /// which [`load_weights`](crate::Trainer::load_weights) prefers to the live weights. Only one
    /// hook of a trainer can save averages.
    ///
    /// # Errors
    ///
    /// Returns an error if an average of this variable is already saved, or if it is undefined.
    pub fn set_average(&mut self, variable: &str, average: &Tensor) -> Result<()> {
        if self.averages.contains_key(variable) {
            return Err(Error::usage(format!(
                "an average of `{variable}` is already saved: add each variable once"
            )));
        }
        check_defined(variable, average)?;
        self.averages.insert(variable.to_owned(), average.shallow_clone());
        Ok(())
    }

    /// All averages, by the names of the variables. Averages read from a checkpoint are on the CPU.
    pub fn averages(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.averages.iter().map(|(name, average)| (name.as_str(), average))
    }

    /// Returns a copy whose tensors share their storage with the originals.
    pub(crate) fn shallow_clone(&self) -> Self {
        let [tensors, averages, shares] = [&self.tensors, &self.averages, &self.shares]
            .map(|all| all.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect());
        Saved { values: self.values.clone(), tensors, averages, shares, unread: None }
    }

    /// Returns the dtype and the shape of each tensor, including those that are not in memory.
    pub(crate) fn forms(&self) -> BTreeMap<&str, (Kind, Vec<i64>)> {
        let read = self.tensors.iter().map(|(name, own)| (name.as_str(), (own.kind(), own.size())));
        let unread = self.unread.iter().flat_map(|file| file.places());
        let unread = unread.map(|(name, place)| (name.as_str(), (place.kind, place.shape.clone())));
        read.chain(unread).collect()
    }

    /// Copies a tensor into one of the same dtype and shape, from the file if it is not in memory.
    pub(crate) fn copy_into(&self, name: &str, own: &mut Tensor) -> Result<()> {
        let place = self.unread.as_ref().and_then(|file| Some((file, file.places().get(name)?)));
        match place {
            Some((file, place)) if place.shape == own.size() => file.copy_into(name, place, own),
            _ => {
                let saved = self.get_tensor(name)?;
                if saved.size() != own.size() {
                    return Err(Error::usage(format!(
                        "`{name}` has the shape {:?} in the saved state, and {:?} in this trainer",
                        saved.size(),
                        own.size()
                    )));
                }
                Ok(own.f_copy_(saved)?)
            }
        }
    }

    /// Reads the tensors that are not in memory.
    pub(crate) fn read_all(&mut self) -> Result<()> {
        if let Some(file) = self.unread.take() {
            self.tensors.extend(file.read_all()?);
        }
        Ok(())
    }

    /// All tensors of the state, including averages and shares.
    pub(crate) fn all_tensors(&self) -> impl Iterator<Item = (&String, &Tensor)> {
        self.tensors.iter().chain(&self.averages).chain(&self.shares)
    }

    fn all_tensors_mut(&mut self) -> impl Iterator<Item = (&String, &mut Tensor)> {
        self.tensors.iter_mut().chain(&mut self.averages).chain(&mut self.shares)
    }

    /// Copies the tensors to the CPU, because training continues to change the originals.
    pub(crate) fn own_its_memory(&mut self) -> Result<()> {
        for (name, tensor) in self.all_tensors_mut() {
            *tensor = libtorch::copied(tensor, true, format_args!("`{name}`"))?;
        }
        Ok(())
    }

    /// Returns the device of each tensor.
    pub(crate) fn devices(&self) -> Vec<Device> {
        self.all_tensors().map(|(_, tensor)| tensor.device()).collect()
    }

    /// Moves each tensor to the device that [`devices`](Saved::devices) returned for it.
    pub(crate) fn move_to(&mut self, devices: &[Device]) -> Result<()> {
        for ((_, tensor), device) in self.all_tensors_mut().zip(devices) {
            *tensor = tensor.f_to_device(*device)?;
        }
        Ok(())
    }

    /// Whether a value is saved under this key.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// Returns a saved value.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no value under this key, or if it has a different type.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<T> {
        let text = self.values.get(key).ok_or_else(|| none("value", key, self.values.keys()))?;
        from_text(text).map_err(|error| {
            let error = error.to_string();
            let help = if error.contains("missing") && error.contains("field") {
                "; for a field that was renamed or added since, use `#[serde(alias = \"…\")]` or `#[serde(default)]`"
            } else {
                ""
            };
            Error::usage(format!(
                "the value `{key}` is `{}`, which is not a `{}`: {error}{help}",
                shortened(text),
                type_name::<T>()
            ))
        })
    }

    /// Returns a saved tensor. A tensor read from a checkpoint is on the CPU and shares no storage
    /// with the run.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no tensor under this key.
    pub fn get_tensor(&self, key: &str) -> Result<&Tensor> {
        self.tensors.get(key).ok_or_else(|| none("tensor", key, self.tensors.keys()))
    }

    /// All tensors, by key.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(key, tensor)| (key.as_str(), tensor))
    }
}

/// Serializes a value that is saved under this key.
pub(crate) fn text_of<T: Serialize + ?Sized>(key: &str, value: &T) -> Result<String> {
    to_text(value).map_err(|error| Error::usage(format!("the value `{key}` cannot be serialized: {error}")))
}

fn none<'a>(what: &str, key: &str, keys: impl Iterator<Item = &'a String>) -> Error {
    let similar = did_you_mean(key, keys.map(String::as_str));
    Error::usage(format!("no {what} is saved under `{key}`{similar}"))
}

/// A value whose type is erased: a task, a hook, or an `Option` of the task's batch or prediction.
pub(crate) type Slot = Box<dyn Any + Send>;

/// Type-erased access to the state of a hook value.
#[derive(Clone, Copy, Debug)]
pub struct StateOf {
    pub(crate) name: fn() -> &'static str,
    pub(crate) save: fn(&Slot) -> Result<Saved>,
    pub(crate) load: fn(&mut Slot, &Saved) -> Result<()>,
    pub(crate) rolls_back: fn(&Slot) -> bool,
    pub(crate) label: fn(&Slot) -> Option<String>,
    pub(crate) fields: fn(&Slot) -> SettingList,
}

impl StateOf {
    /// Creates type-erased access to the state of values of type `H`.
    #[must_use]
    pub const fn of<H: State + Send + 'static>() -> Self {
        StateOf {
            name: type_name::<H>,
            save: |slot| slot.downcast_ref::<H>().map_or_else(|| Ok(Saved::new()), H::save),
            load: |slot, saved| slot.downcast_mut::<H>().map_or(Ok(()), |value| value.load(saved)),
            rolls_back: |slot| slot.downcast_ref::<H>().is_some_and(H::rolls_back),
            label: |slot| slot.downcast_ref::<H>().and_then(H::label),
            fields: |slot| slot.downcast_ref::<H>().map(H::__fields).unwrap_or_default(),
        }
    }
}
