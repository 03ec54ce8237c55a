//! [`Averages`]: averaged weights in addition to the live ones.

use std::collections::BTreeSet;

use tch::{Device, Tensor};

use super::Saved;
use crate::error::{Error, Result};
use crate::libtorch::{self, TensorList, wide, wide_kind};
use crate::model::vars::Vars;

/// A second set of values for the variables of a task: their averages over time.
///
/// [`hooks::Ema`](crate::hooks::Ema) and [`hooks::Swa`](crate::hooks::Swa) keep their averages in
/// this type. They differ in when they [`update`](Averages::update) the averages, and in the weight
/// that they pass.
///
/// ```
/// use trainer::Averages;
/// use trainer::prelude::*;
///
/// # let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
/// # let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// # let mut train = InMemory::new((inputs, labels))?.batch_size(16);
/// # let mut trainer = Trainer::builder(task).optimizer(Sgd::new(0.1)).build()?;
/// let mut averages = Averages::default();
/// averages.update(trainer.vars(), 1.0, false)?; // copies the weights
/// trainer.fit(&mut train, None)?;
/// averages.update(trainer.vars(), 0.5, false)?; // the mean of both
/// averages.swap_in(trainer.vars())?;
/// trainer.validate(&mut train)?;
/// averages.swap_out(trainer.vars())?;
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Averages {
    names: Vec<String>,
    values: TensorList,
    /// The live values, while the variables hold the averages.
    live: Option<TensorList>,
}

impl Averages {
    /// Whether there are no averages yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether the variables currently hold the averages.
    #[must_use]
    pub fn are_in_use(&self) -> bool {
        self.live.is_some()
    }

    /// Returns the averages with the names of their variables.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.names.iter().map(String::as_str).zip(self.values.iter())
    }

    /// Moves each average toward the live value: `average + weight * (value - average)`. The first
    /// call copies the values. If `buffers` is set, floating-point buffers, such as the running
    /// statistics of batch norm, are averaged too; otherwise, buffers keep their live values.
    ///
    /// The averages of half-precision variables are in single precision: in `BFloat16`, an average
    /// with a decay of 0.999 would not move.
    ///
    /// # Errors
    ///
    /// Returns an error if the variables differ from those of the first call, or if libtorch fails.
    pub fn update(&mut self, vars: &Vars, weight: f64, buffers: bool) -> Result<()> {
        let averaged =
            || vars.iter().filter(|var| var.is_parameter || buffers && var.tensor.is_floating_point());
        vars.note_averages(true);
        if self.is_empty() {
            self.names = averaged().map(|var| var.name.clone()).collect();
            self.values = averaged().map(|var| wide(&var.tensor.detach()).copy()).collect();
            return Ok(());
        }
        let live: TensorList = averaged().map(|var| wide(&var.tensor)).collect();
        if averaged().map(|var| var.name.as_str()).eq(self.names.iter().map(String::as_str)) {
            check(&self.values, live.iter())?;
            return libtorch::lerp(&self.values, &live, weight);
        }
        // Averages of buffers that were added by `set` do not change.
        let is_set = |name: &str| vars.iter().any(|var| !var.is_parameter && !buffers && var.name == name);
        let own = || self.names.iter().zip(self.values.iter()).filter(|(name, _)| !is_set(name));
        if !averaged().map(|var| var.name.as_str()).eq(own().map(|(name, _)| name.as_str())) {
            return Err(differs());
        }
        let values: TensorList = own().map(|(_, value)| value.shallow_clone()).collect();
        check(&values, live.iter())?;
        libtorch::lerp(&values, &live, weight)
    }

    /// Sets the average of a variable to `value`. This average is used, saved and returned like any
    /// other. Later calls of [`update`](Averages::update) leave it unchanged, unless they average
    /// this variable too.
    pub fn set(&mut self, name: &str, value: &Tensor) {
        let value = wide(&value.detach()).copy();
        match self.names.binary_search_by(|own| own.as_str().cmp(name)) {
            Ok(at) => self.values = replaced(&self.values, at, 1, value),
            Err(at) => {
                self.values = replaced(&self.values, at, 0, value);
                self.names.insert(at, name.to_owned());
            }
        }
    }

    /// Replaces the averages of these variables with their current values, because the averages are
    /// those of other weights. If they are all variables that have an average, drops all averages:
    /// the next [`update`](Averages::update) then begins anew. For a hook, the names are those of
    /// [`cx.changed_vars()`](crate::Cx::changed_vars).
    ///
    /// # Errors
    ///
    /// Returns an error if a variable no longer exists.
    pub fn replace<'n>(&mut self, vars: &Vars, changed: impl IntoIterator<Item = &'n str>) -> Result<()> {
        let changed: BTreeSet<&str> = changed.into_iter().collect();
        let is_changed = |name: &String| changed.contains(name.as_str());
        if self.names.iter().all(is_changed) {
            *self = Averages::default();
            vars.note_averages(false);
            return Ok(());
        }
        let own: Vec<String> = self.names.iter().filter(|name| is_changed(name)).cloned().collect();
        for name in own {
            self.set(&name, &vars.get(&name)?);
        }
        Ok(())
    }

    /// Copies the averages into the variables, and keeps the live values. Does nothing if there are
    /// no averages, or if they are already in use.
    ///
    /// # Errors
    ///
    /// Returns an error if a variable no longer exists or has a different shape or dtype, or if
    /// libtorch fails.
    pub fn swap_in(&mut self, vars: &Vars) -> Result<()> {
        if self.is_empty() || self.are_in_use() {
            return Ok(());
        }
        vars.note_averages(true);
        let variables = self.variables(vars)?;
        let live = variables.iter().map(Tensor::copy).collect();
        copy(&variables, &self.values)?;
        self.live = Some(live);
        Ok(())
    }

    /// Restores the live values of the variables. Does nothing if the averages are not in use.
    ///
    /// # Errors
    ///
    /// Returns an error for the same reasons as [`swap_in`](Averages::swap_in).
    pub fn swap_out(&mut self, vars: &Vars) -> Result<()> {
        if let Some(live) = &self.live {
            copy(&self.variables(vars)?, live)?;
            self.live = None;
        }
        Ok(())
    }

    /// Adds the averages to the saved state of a hook: see [`Saved::set_average`].
    ///
    /// # Errors
    ///
    /// Returns an error if an average of one of the variables is already saved.
    pub fn save(&self, saved: &mut Saved) -> Result<()> {
        self.iter().try_for_each(|(name, average)| saved.set_average(name, average))
    }

    /// Returns the averages that [`save`](Averages::save) added to the saved state of a hook. To
    /// move them to the device of the task, call [`to_device`](Averages::to_device).
    #[must_use]
    pub fn load(saved: &Saved) -> Self {
        let (names, values): (Vec<_>, Vec<_>) =
            saved.averages().map(|(name, average)| (name.to_owned(), wide(average))).unzip();
        Averages { names, values: values.into_iter().collect(), live: None }
    }

    /// Moves the averages to a device.
    pub fn to_device(&mut self, device: Device) {
        if self.values.iter().any(|average| average.device() != device) {
            self.values = self.values.iter().map(|average| average.to_device(device)).collect();
        }
    }

    /// Returns the variables that have an average.
    fn variables(&self, vars: &Vars) -> Result<Vec<Tensor>> {
        let variables: Result<Vec<_>> =
            self.names.iter().map(|name| Ok(vars.get(name).map_err(|_| differs())?.detach())).collect();
        let variables = variables?;
        check(&self.values, variables.iter())?;
        Ok(variables)
    }
}

/// Returns an error unless the variables have the shapes and dtypes of their averages.
fn check<'a>(averages: &TensorList, variables: impl Iterator<Item = &'a Tensor>) -> Result<()> {
    let fits = |(own, other): (&Tensor, &Tensor)| {
        own.size() == other.size() && own.kind() == wide_kind(other.kind())
    };
    if averages.iter().zip(variables).all(fits) { Ok(()) } else { Err(differs()) }
}

/// Returns a copy of the list in which `value` replaces the `count` tensors that start at index
/// `at`.
fn replaced(list: &TensorList, at: usize, count: usize, value: Tensor) -> TensorList {
    let mut tensors: Vec<_> = list.iter().map(Tensor::shallow_clone).collect();
    tensors.splice(at..at + count, [value]);
    tensors.into_iter().collect()
}

fn copy(variables: &[Tensor], values: &TensorList) -> Result<()> {
    let _no_grad = tch::no_grad_guard();
    for (variable, value) in variables.iter().zip(values.iter()) {
        variable.shallow_clone().f_copy_(value)?;
    }
    Ok(())
}

#[cold]
fn differs() -> Error {
    Error::msg(
        "the averages do not match the task's variables: a variable was added, removed or replaced after the first \
         update; change the model before training starts",
    )
}
