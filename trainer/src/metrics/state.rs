//! [`States`]: the state of a metric, as named tensors.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use tch::{Device, Kind, Tensor};

use crate::distributed::World;
use crate::error::{Error, Result};

/// How two values of a state are merged if they come from different batches, parts of the data, or
/// ranks. Corresponds to `dist_reduce_fx` in torchmetrics.
#[doc(alias = "dist_reduce_fx")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateReduction {
    /// Takes the elementwise sum: of integers and `Bool` in 64 bits, of floating-point numbers in
    /// double precision (in single precision on MPS).
    Sum,
    /// Takes the elementwise minimum.
    Min,
    /// Takes the elementwise maximum.
    Max,
    /// Concatenates the tensors along their first dimension. Such a state grows with the data.
    Concat,
}

/// The value of a state.
#[derive(Debug)]
enum Value {
    /// One tensor, or the tensors to concatenate.
    Tensors(Vec<Tensor>),
    /// Integers in main memory, for data on the CPU.
    Counts(Vec<i64>),
}

/// One named state.
#[derive(Clone, Debug)]
struct NamedState {
    name: &'static str,
    reduction: StateReduction,
    /// Whether a reset keeps the value.
    is_kept: bool,
    value: Option<Value>,
}

/// The state of a metric: named tensors, each with a [reduction](StateReduction). Checkpoints save
/// it, and [`merge`](States::merge) adds the state of a different part of the data.
///
/// ```
/// use trainer::metrics::{StateReduction, States};
/// use trainer::tch::{Kind, Tensor};
///
/// let mut states = States::new([("sum", StateReduction::Sum), ("largest", StateReduction::Max)]);
/// for batch in [Tensor::from_slice(&[1.0, 5.0]), Tensor::from_slice(&[2.0])] {
///     states.update("sum", batch.sum(Kind::Double));
///     states.update("largest", batch.max());
/// }
/// assert_eq!(states.floats("sum")?, [8.0]);
/// assert_eq!(states.floats("largest")?, [5.0]);
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "add_state")]
#[derive(Clone, Debug, Default)]
pub struct States {
    entries: Vec<NamedState>,
    /// The states of the metrics that a wrapper contains.
    children: Vec<States>,
}

impl States {
    /// Declares states by name and reduction. They have no value yet.
    #[must_use]
    pub fn new(states: impl IntoIterator<Item = (&'static str, StateReduction)>) -> Self {
        let entries = states.into_iter().map(|(name, reduction)| NamedState {
            name,
            reduction,
            is_kept: false,
            value: None,
        });
        States { entries: entries.collect(), children: Vec::new() }
    }

    /// Excludes a state, such as the best value so far, from [`reset`](States::reset).
    ///
    /// # Panics
    ///
    /// Panics if no state has this name.
    #[must_use]
    pub fn keep(mut self, name: &str) -> Self {
        self.entry_mut(name).is_kept = true;
        self
    }

    /// Adds the states of the metrics that a wrapper contains.
    #[must_use]
    pub fn with_children(mut self, children: impl IntoIterator<Item = States>) -> Self {
        self.children.extend(children);
        self
    }

    /// The states of the metrics that a wrapper contains.
    #[must_use]
    pub fn children(&self) -> &[States] {
        &self.children
    }

    /// Mutable access to the states of the metrics that a wrapper contains.
    pub fn children_mut(&mut self) -> &mut [States] {
        &mut self.children
    }

    /// Returns the same states without values.
    #[must_use]
    pub fn blank(&self) -> States {
        States {
            entries: self.entries.iter().map(|entry| NamedState { value: None, ..*entry }).collect(),
            children: self.children.iter().map(States::blank).collect(),
        }
    }

    /// Merges `value` into the current value of a state. The merge runs on the device of `value`,
    /// without synchronizing with it. The state may share the storage of `value`, so do not change
    /// `value` in place afterwards.
    ///
    /// # Panics
    ///
    /// Panics if no state has this name, or if the shapes cannot be broadcast. A state with
    /// [`StateReduction::Concat`] does not check the shapes until it is read.
    pub fn update(&mut self, name: &str, value: Tensor) {
        let entry = self.entry_mut(name);
        let reduction = entry.reduction;
        let value = if reduction == StateReduction::Sum { summed(value) } else { value };
        let mut tensors = match entry.value.take() {
            None => Vec::new(),
            Some(Value::Tensors(tensors)) => tensors,
            Some(Value::Counts(counts)) => vec![Tensor::from_slice(&counts)],
        };
        if reduction == StateReduction::Concat {
            tensors.push(value);
        } else {
            let merged = match tensors.pop() {
                None => value,
                Some(before) => {
                    let before = if before.device() == value.device() {
                        before
                    } else {
                        before.to_device(value.device())
                    };
                    match reduction {
                        StateReduction::Min => before.minimum(&value),
                        StateReduction::Max => before.maximum(&value),
                        StateReduction::Sum | StateReduction::Concat => before + value,
                    }
                }
            };
            tensors.push(merged);
        }
        entry.value = Some(Value::Tensors(tensors));
    }

    /// Mutable access to a state as integers in main memory, for metrics that count data on the CPU
    /// without tensor operations. A state without a value starts as `len` zeros. Returns `None` if
    /// the value is not on the CPU, because reading it would synchronize with its device, or if it
    /// is not a single `Int64` tensor.
    ///
    /// # Panics
    ///
    /// Panics if no state has this name.
    pub fn counts_mut(&mut self, name: &str, len: usize) -> Option<&mut [i64]> {
        let entry = self.entry_mut(name);
        if let Some(Value::Tensors(tensors)) = &entry.value {
            let [tensor] = &tensors[..] else { return None };
            if tensor.device() != Device::Cpu || tensor.kind() != Kind::Int64 {
                return None;
            }
            let counts = Vec::<i64>::try_from(tensor.flatten(0, -1)).ok()?;
            entry.value = Some(Value::Counts(counts));
        }
        match entry.value.get_or_insert_with(|| Value::Counts(vec![0; len])) {
            Value::Counts(counts) => Some(counts),
            Value::Tensors(_) => None,
        }
    }

    /// Returns the value of a state, or `None` if the state has no value yet. The tensor stays on
    /// its device.
    ///
    /// # Panics
    ///
    /// Panics if no state has this name, or if the shapes of the tensors to concatenate do not
    /// match.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Tensor> {
        let entry = self.entries.iter().find(|entry| entry.name == name);
        entry.unwrap_or_else(|| unknown(name)).tensor()
    }

    /// Returns the shape of a state's value, or of the last tensor if the state concatenates
    /// several. Returns `None` if the state has no value.
    pub(super) fn last_size(&self, name: &str) -> Option<Vec<i64>> {
        let entry = self.entries.iter().find(|entry| entry.name == name);
        match entry.unwrap_or_else(|| unknown(name)).value.as_ref()? {
            Value::Tensors(tensors) => tensors.last().map(Tensor::size),
            Value::Counts(counts) => Some(vec![i64::try_from(counts.len()).unwrap_or(i64::MAX)]),
        }
    }

    /// Replaces the value of a state, without merging.
    ///
    /// # Panics
    ///
    /// Panics if no state has this name.
    pub fn set(&mut self, name: &str, value: Tensor) {
        self.entry_mut(name).value = Some(Value::Tensors(vec![value]));
    }

    /// Reads a state as integers. Returns an empty vector if the state has no value. Synchronizes
    /// with the state's device.
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch cannot read the tensor.
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`get`](States::get).
    pub fn ints(&self, name: &str) -> Result<Vec<i64>> {
        let Some(tensor) = self.get(name) else { return Ok(Vec::new()) };
        Ok(Vec::try_from(tensor.to_device(Device::Cpu).to_kind(Kind::Int64).flatten(0, -1))?)
    }

    /// Reads a state as floating-point numbers. Returns an empty vector if the state has no value.
    /// Synchronizes with the state's device.
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch cannot read the tensor.
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`get`](States::get).
    pub fn floats(&self, name: &str) -> Result<Vec<f64>> {
        let Some(tensor) = self.get(name) else { return Ok(Vec::new()) };
        Ok(Vec::try_from(tensor.to_device(Device::Cpu).to_kind(Kind::Double).flatten(0, -1))?)
    }

    /// Returns whether nothing has been added since the last reset. Ignores states that are
    /// [kept](States::keep).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.iter().all(|entry| entry.is_kept || entry.value.is_none())
            && self.children.iter().all(States::is_empty)
    }

    /// Removes all values, except from states that are [kept](States::keep).
    pub fn reset(&mut self) {
        self.entries.iter_mut().filter(|entry| !entry.is_kept).for_each(|entry| entry.value = None);
        self.children.iter_mut().for_each(States::reset);
    }

    /// Merges in the values of `other`, which come from a different part of the data.
    ///
    /// # Errors
    ///
    /// Returns an error if `other` declares different states, or if the shapes of the values
    /// differ.
    pub fn merge(&mut self, other: &States) -> Result<()> {
        if self.children.len() != other.children.len() || self.entries.len() != other.entries.len() {
            return Err(other_states());
        }
        for (own, others) in self.entries.iter().zip(&other.entries) {
            if own.name != others.name || own.reduction != others.reduction {
                return Err(other_states());
            }
        }
        for entry in &other.entries {
            let Some(value) = entry.tensor() else { continue };
            // Tensors are concatenated along their first dimension, which may differ.
            let compared = usize::from(entry.reduction == StateReduction::Concat);
            if let Some(own) = self.last_size(entry.name)
                && (own.len() != value.dim()
                    || own.iter().skip(compared).ne(value.size().iter().skip(compared)))
            {
                return Err(Error::usage(format!(
                    "cannot merge the state `{}` of shapes {own:?} and {:?}: both metrics must have the same settings and the same \
                     number of outputs",
                    entry.name,
                    value.size()
                )));
            }
            self.update(entry.name, value);
        }
        for (own, others) in self.children.iter_mut().zip(&other.children) {
            own.merge(others)?;
        }
        Ok(())
    }

    /// Merges the states of all ranks and returns the result on every rank. Every rank must call
    /// this. States that are [kept](States::keep), such as the best value so far, are taken from
    /// rank 0.
    ///
    /// # Errors
    ///
    /// Returns an error if another rank failed or has different states.
    pub fn of_all_ranks(&self, world: &World) -> Result<States> {
        let mut all = world.gather_tensors("the states of a metric", &self.tensors())?.into_iter();
        let mut merged = self.blank();
        merged.load(&all.next().unwrap_or_default())?;
        for tensors in all {
            let mut other = self.blank();
            other.load(&tensors)?;
            other.drop_kept();
            merged.merge(&other)?;
        }
        Ok(merged)
    }

    /// Removes the values of the states that a reset keeps.
    fn drop_kept(&mut self) {
        self.entries.iter_mut().filter(|entry| entry.is_kept).for_each(|entry| entry.value = None);
        self.children.iter_mut().for_each(States::drop_kept);
    }

    /// Returns the values by name, for saving. The value of the state `correct` is named `correct`,
    /// or `0/correct` if the state belongs to the first metric in a wrapper.
    #[must_use]
    pub fn tensors(&self) -> BTreeMap<String, Tensor> {
        let own = self.entries.iter().filter_map(|entry| Some((entry.name.to_owned(), entry.tensor()?)));
        let mut tensors: BTreeMap<String, Tensor> = own.collect();
        for (nth, child) in self.children.iter().enumerate() {
            tensors
                .extend(child.tensors().into_iter().map(|(name, tensor)| (format!("{nth}/{name}"), tensor)));
        }
        tensors
    }

    /// Replaces all values with those that [`tensors`](States::tensors) returned.
    ///
    /// # Errors
    ///
    /// Returns an error if there is a value for a state that was not declared.
    pub fn load(&mut self, tensors: &BTreeMap<String, Tensor>) -> Result<()> {
        self.entries.iter_mut().for_each(|entry| entry.value = None);
        let mut of_children: Vec<BTreeMap<String, Tensor>> =
            self.children.iter().map(|_| BTreeMap::new()).collect();
        for (name, tensor) in tensors {
            let known = self.entries.iter_mut().find(|entry| entry.name == name);
            let child = name.split_once('/').and_then(|(nth, name)| Some((nth.parse::<usize>().ok()?, name)));
            match (known, child) {
                (Some(entry), _) => entry.value = Some(Value::Tensors(vec![tensor.copy()])),
                (None, Some((nth, name))) if nth < of_children.len() => {
                    of_children[nth].insert(name.to_owned(), tensor.shallow_clone());
                }
                _ => {
                    return Err(Error::usage(format!(
                        "the metric declares no state `{name}`: load the values of a metric with the same type and settings"
                    )));
                }
            }
        }
        self.children.iter_mut().zip(&of_children).try_for_each(|(child, tensors)| child.load(tensors))
    }

    fn entry_mut(&mut self, name: &str) -> &mut NamedState {
        let entry = self.entries.iter_mut().find(|entry| entry.name == name);
        entry.unwrap_or_else(|| unknown(name))
    }
}

impl NamedState {
    fn tensor(&self) -> Option<Tensor> {
        match self.value.as_ref()? {
            Value::Counts(counts) => Some(Tensor::from_slice(counts)),
            Value::Tensors(tensors) if tensors.len() == 1 => Some(tensors[0].shallow_clone()),
            Value::Tensors(tensors) => {
                let device = tensors.last()?.device();
                let tensors: Vec<Tensor> = tensors.iter().map(|tensor| tensor.to_device(device)).collect();
                Some(Tensor::cat(&tensors, 0))
            }
        }
    }
}

impl Clone for Value {
    /// Copies the value. The copy can share the storage of the tensors, because the values of
    /// states are never changed in place.
    fn clone(&self) -> Self {
        match self {
            Value::Counts(counts) => Value::Counts(counts.clone()),
            Value::Tensors(tensors) => Value::Tensors(tensors.iter().map(Tensor::shallow_clone).collect()),
        }
    }
}

/// Converts a term of a sum to a dtype in which long sums stay exact or precise.
fn summed(value: Tensor) -> Tensor {
    match value.kind() {
        kind if value.is_floating_point() && kind != Kind::Double => value.to_kind(super::sum_kind(&value)),
        Kind::Bool | Kind::Uint8 | Kind::Int8 | Kind::Int16 | Kind::Int => value.to_kind(Kind::Int64),
        _ => value,
    }
}

fn unknown(name: &str) -> ! {
    panic!("the metric declares no state `{name}`: add it to `States::new`")
}

fn other_states() -> Error {
    Error::usage("cannot merge different states: both metrics must have the same type and settings")
}
