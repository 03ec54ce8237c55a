//! [`Changes`]: the named values that a run can change, and which of them have changed.
//!
//! This is the only list of what hooks and operations can change. The tape and the check of
//! observers both use it. They differ in when they read the values, and in their [`Reading`].

mod names;

use std::collections::{BTreeMap, HashMap};

use tch::{Device, Tensor};

pub(crate) use names::{Kind, Names};

use crate::checkpoint::Saved;
use crate::error::{Error, Result};
use crate::libtorch::{Aspect, Scan, TensorList, Var, hash_of_bytes, hash_of_random_state};
use crate::model::vars::Vars;
use crate::optim::Optimizers;
use crate::run::module_calls::Call;
use crate::run::{Instance, Modules, Requests, Run, StepData};
use crate::values::paths::public_path;

/// Which values are read, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// All values. A tensor is read only if its identity, its version counter or its data pointer
    /// has changed.
    Counted,
    /// All values. Every tensor is read each time, which also finds changes made through
    /// `tensor.data()`.
    Everything,
    /// The values that an observer must not change. Every tensor is read each time. Excludes the
    /// random state, which other threads may change too, and the value in slot `by`, which belongs
    /// to the observer. For the states of other hook values, only tensors are included, because
    /// hooks could share them.
    Observed { by: Option<u32> },
}

/// A list of tensors. Only tensors that may have changed are read.
struct Watched {
    scan: Scan,
    list: TensorList,
    /// For each tensor, the number of its name.
    names: Vec<u32>,
}

impl Watched {
    fn new() -> Self {
        Watched { scan: Scan::new(), list: TensorList::default(), names: Vec::new() }
    }

    /// Adds every tensor whose `aspect` has changed to `changed`.
    fn find(
        &mut self,
        known: &Names,
        aspect: Aspect,
        trusts: bool,
        changed: &mut Vec<(u32, u64)>,
    ) -> Result<()> {
        let Watched { scan, list, names } = self;
        let found = scan.changed(list, aspect, trusts).map_err(|(place, error)| {
            let name = names.get(place).map_or("a tensor", |number| known.name(*number));
            Error::usage(format!("{name} cannot be hashed: {error}"))
        })?;
        // The list may have become shorter: a place beyond its end has no name.
        changed.extend(found.filter_map(|(place, hash)| Some((*names.get(place)?, hash))));
        Ok(())
    }
}

/// The name of the loss scale, a value that belongs to one batch.
const LOSS_SCALE: &str = "the scale of the loss";
const WEIGHT: &str = "the weight of the batch";

/// The values that a run can change, with the hash of each value when it was last read.
pub(crate) struct Changes {
    reading: Reading,
    names: Names,
    parameters: Watched,
    gradients: Watched,
    buffers: Watched,
    optimizers: Watched,
    batch: Watched,
    pred: Watched,
    loss: Watched,
    /// The output of each module that was called, by the index of the module.
    outputs: HashMap<u32, Watched>,
    /// The gradient of the output of each module, by the index of the module.
    output_grads: HashMap<u32, Watched>,
    /// The tensors in the state of each hook value, by the slot of the value.
    states: HashMap<u32, Watched>,
    /// The hashes of values that are not tensors, by the number of the name.
    plain: HashMap<u32, u64>,
    /// The hash of all hyperparameters together.
    hyperparameters: u64,
    /// The hash of the flags that say which variables are trained.
    trained: u64,
    /// Whether the optimizers may have different tensors than before.
    is_stale: bool,
    /// Whether buffers may have changed, regardless of their version counters.
    reads_buffers: bool,
    /// Whether any hook value may have changed. If `false`, only those in the slots `looks_at` may
    /// have changed.
    looks_at_all: bool,
    looks_at: Vec<u32>,
}

impl Changes {
    pub(crate) fn new(reading: Reading) -> Self {
        Changes {
            reading,
            names: Names::default(),
            parameters: Watched::new(),
            gradients: Watched::new(),
            buffers: Watched::new(),
            optimizers: Watched::new(),
            batch: Watched::new(),
            pred: Watched::new(),
            loss: Watched::new(),
            outputs: HashMap::new(),
            output_grads: HashMap::new(),
            states: HashMap::new(),
            plain: HashMap::new(),
            hyperparameters: 0,
            trained: 0,
            is_stale: true,
            reads_buffers: true,
            looks_at_all: true,
            looks_at: Vec::new(),
        }
    }

    /// Forgets all hashes, so that everything counts as changed.
    pub(crate) fn forget(&mut self) {
        let names = std::mem::take(&mut self.names);
        *self = Changes { names, ..Changes::new(self.reading) };
    }

    /// Forgets the values that belong to one batch, so that those of the next batch count as
    /// changed, whether or not the run was resumed in between.
    pub(crate) fn begin_batch(&mut self) {
        let of_step = [&mut self.batch, &mut self.pred, &mut self.loss];
        let of_modules = self.outputs.values_mut().chain(self.output_grads.values_mut());
        for watched in of_step.into_iter().chain(of_modules) {
            watched.scan = Scan::new();
        }
        for name in [LOSS_SCALE, WEIGHT] {
            if let Some(number) = self.names.known(name) {
                self.plain.remove(&number);
            }
        }
    }

    /// Notes that the optimizers may have different tensors than before.
    pub(crate) fn refresh(&mut self) {
        self.is_stale = true;
    }

    /// Notes that buffers may have changed. The kernels of batch normalization change the running
    /// statistics without incrementing their version counters.
    pub(crate) fn read_buffers(&mut self) {
        self.reads_buffers = true;
    }

    /// Notes that the hook value in this slot may have changed.
    pub(crate) fn look_at(&mut self, slot: Option<u32>) {
        self.looks_at.extend(slot);
    }

    /// Notes that any hook value may have changed.
    pub(crate) fn look_at_all(&mut self) {
        self.looks_at_all = true;
    }

    /// The names of the values.
    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// Returns the names that are new since the last call.
    pub(crate) fn new_names(&mut self) -> Vec<String> {
        self.names.take_new()
    }

    /// Whether tensors are read only if their version counters have changed.
    fn trusts(&self) -> bool {
        self.reading == Reading::Counted
    }

    /// Whether the values are read to check a hook that only observes.
    fn is_check(&self) -> bool {
        matches!(self.reading, Reading::Observed { .. })
    }

    /// Returns the values that have changed since the last call: the number of each name, with the
    /// hash of the value, or 0 if the value no longer exists. While there is no batch, the last
    /// hash of the batch is kept. The same applies to the prediction and the loss.
    pub(crate) fn changed(&mut self, run: &Run) -> Result<Vec<(u32, u64)>> {
        let mut changed = Vec::new();
        let Run { model, step, modules, requests, hooks, .. } = run;
        self.add_variables(&model.vars, !run.modules().is_averaging(run.world()), &mut changed)?;
        self.add_optimizers(&model.optimizers, &mut changed)?;
        self.add_step(step, modules, &mut changed)?;
        self.add_random(model.device, &mut changed)?;
        self.add_plain(step, requests, &model.optimizers, &mut changed);
        self.add_states(&hooks.instances, &mut changed)?;
        Ok(changed)
    }

    /// Adds what has changed among the parameters, the buffers, the gradients of both if they can
    /// be read, and the flags that say which of them are trained.
    fn add_variables(
        &mut self,
        vars: &Vars,
        reads_gradients: bool,
        changed: &mut Vec<(u32, u64)>,
    ) -> Result<()> {
        if vars.iter().count() != self.gradients.names.len() {
            let (parameters, buffers): (Vec<&Var>, Vec<&Var>) = vars.iter().partition(|var| var.is_parameter);
            self.gradients = Watched::new();
            for (watched, kind, vars) in [
                (&mut self.parameters, Kind::Parameter, parameters),
                (&mut self.buffers, Kind::Buffer, buffers),
            ] {
                let name = |var: &&Var| self.names.number(kind, &format!("`{}`", var.name));
                watched.names = vars.iter().map(name).collect();
                watched.list = vars.iter().map(|var| var.tensor.shallow_clone()).collect();
                let name = |var: &&Var| {
                    self.names.number(Kind::Gradient, &format!("the gradient of `{}`", var.name))
                };
                self.gradients.names.extend(vars.iter().map(name));
            }
            let all = self.parameters.list.iter().chain(self.buffers.list.iter());
            self.gradients.list = all.map(Tensor::shallow_clone).collect();
        }
        let trusts = self.trusts();
        let trusts_buffers = trusts && !std::mem::take(&mut self.reads_buffers);
        self.parameters.find(&self.names, Aspect::Values, trusts, changed)?;
        if reads_gradients {
            self.gradients.find(&self.names, Aspect::Gradient, trusts, changed)?;
        }
        self.buffers.find(&self.names, Aspect::Values, trusts_buffers, changed)?;
        let trained = || vars.iter().map(|var| (&var.name, u64::from(var.tensor.requires_grad())));
        if is_new(&mut self.trained, trained().map(|(_, is_trained)| is_trained)) {
            for (name, is_trained) in trained() {
                self.plain(Kind::IsTrained, &format!("whether `{name}` is trained"), is_trained + 1, changed);
            }
        }
        Ok(())
    }

    /// Adds what has changed in the state of the optimizers.
    fn add_optimizers(&mut self, optimizers: &Optimizers, changed: &mut Vec<(u32, u64)>) -> Result<()> {
        if std::mem::take(&mut self.is_stale) || self.is_check() {
            let mut tensors = Vec::new();
            self.optimizers.names.clear();
            for (part, optimizer, ..) in optimizers.parts() {
                let of = of_part(part);
                for (name, tensor) in optimizer.state() {
                    let name = format!("`{name}` in the state of the optimizer{of}");
                    self.optimizers.names.push(self.names.number(Kind::OptimizerState, &name));
                    tensors.push(tensor);
                }
            }
            self.optimizers.list = tensors.into_iter().collect();
        }
        let trusts = self.trusts();
        self.optimizers.find(&self.names, Aspect::Values, trusts, changed)
    }

    /// Adds the batch, the prediction, the loss and the output of the innermost module, if they
    /// changed.
    fn add_step(&mut self, step: &StepData, modules: &Modules, changed: &mut Vec<(u32, u64)>) -> Result<()> {
        let trusts = self.trusts();
        let names = &mut self.names;
        let mut add = |watched: &mut Watched, kind: Kind, what: &str, tensors: Vec<Tensor>| -> Result<()> {
            while watched.names.len() < tensors.len() {
                let name = match watched.names.len() {
                    0 => what.to_owned(),
                    nth => format!("{what} (tensor {})", nth + 1),
                };
                watched.names.push(names.number(kind, &name));
            }
            watched.list = tensors.into_iter().collect();
            watched.find(names, Aspect::ValuesAndMark, trusts, changed)?;
            // Do not keep the tensors of the batch alive.
            watched.list = TensorList::default();
            Ok(())
        };
        if let Some(data) = &step.data
            && step.batch_len.is_some()
        {
            let mut tensors = Vec::new();
            data.visit_batch(&mut |tensor| tensors.push(tensor.shallow_clone()));
            add(&mut self.batch, Kind::Batch, "the batch", tensors)?;
            let mut tensors = Vec::new();
            data.visit_pred(&mut |tensor| tensors.push(tensor.shallow_clone()));
            if !tensors.is_empty() {
                add(&mut self.pred, Kind::Prediction, "the prediction", tensors)?;
            }
        }
        if let Some(loss) = &step.loss {
            add(&mut self.loss, Kind::Loss, "the loss", vec![loss.shallow_clone()])?;
        }
        if let Some(Call { known, output, output_grad, .. }) = modules.calls.last() {
            let module = &modules.known[*known as usize].name;
            if let Some(output) = output {
                let watched = self.outputs.entry(*known).or_insert_with(Watched::new);
                let name = format!("the output of `{module}`");
                add(watched, Kind::ModuleOutput, &name, vec![output.shallow_clone()])?;
            }
            if let Some(gradient) = output_grad {
                let watched = self.output_grads.entry(*known).or_insert_with(Watched::new);
                let name = format!("the gradient of the output of `{module}`");
                add(watched, Kind::OutputGradient, &name, vec![gradient.shallow_clone()])?;
            }
        }
        Ok(())
    }

    /// Adds the state of libtorch's random number generators, if it has changed.
    fn add_random(&mut self, device: Device, changed: &mut Vec<(u32, u64)>) -> Result<()> {
        if self.is_check() {
            return Ok(());
        }
        let mut random = hash_of_random_state(Device::Cpu)?;
        if let Device::Cuda(_) = device {
            random = random.rotate_left(17) ^ hash_of_random_state(device)?;
        }
        self.plain(Kind::Random, "the random state", random, changed);
        Ok(())
    }

    /// Adds what has changed among the requests of hooks, the settings of the step and those of the
    /// optimizers.
    fn add_plain(
        &mut self,
        step: &StepData,
        requests: &Requests,
        optimizers: &Optimizers,
        changed: &mut Vec<(u32, u64)>,
    ) {
        for (kind, name, is_requested) in [
            (Kind::SkipRequest, "the request to skip the batch", requests.skips_batch()),
            (Kind::EpochRequest, "the request to end the epoch", requests.has_end_of_pass()),
            (Kind::StopRequest, "the request to stop", requests.reason_to_stop().is_some()),
        ] {
            self.plain(kind, name, u64::from(is_requested) + 1, changed);
        }
        if step.batch_len.is_some() {
            self.plain(Kind::LossScale, LOSS_SCALE, step.loss_scale.to_bits() | 1, changed);
            self.plain(Kind::BatchWeight, WEIGHT, step.weight.to_bits() | 1, changed);
        }
        let groups = || {
            optimizers.parts().flat_map(|(part, optimizer, ..)| {
                let groups = optimizer.groups().iter().enumerate();
                groups.flat_map(move |(nth, group)| {
                    group.settings().map(move |(name, value)| (part, nth, name, value))
                })
            })
        };
        if is_new(&mut self.hyperparameters, groups().map(|(.., value)| value.to_bits())) {
            for (part, nth, name, value) in groups() {
                let kind = if name == "lr" { Kind::LearningRate } else { Kind::Hyperparameter };
                let name = format!("`{name}` of group {nth} of the optimizer{}", of_part(part));
                self.plain(kind, &name, value.to_bits() | 1 << 63, changed);
            }
        }
    }

    /// Adds what has changed in the states of hook values. Reads only states that may have changed.
    fn add_states(&mut self, instances: &[Instance], changed: &mut Vec<(u32, u64)>) -> Result<()> {
        let reads_all = std::mem::take(&mut self.looks_at_all) || self.is_check();
        let slots = match reads_all {
            true => (0..u32::try_from(instances.len()).unwrap_or(u32::MAX)).collect(),
            false => std::mem::take(&mut self.looks_at),
        };
        self.looks_at.clear();
        for slot in slots {
            let instance = &instances[slot as usize];
            // A value whose hooks all observe shares no state with other hooks.
            let is_left_out = match self.reading {
                Reading::Observed { by } => instance.observes || by == Some(slot),
                Reading::Counted | Reading::Everything => false,
            };
            let (Some(state), Some(value), true, false) =
                (instance.extras.state, &instance.value, is_read(instance), is_left_out)
            else {
                continue;
            };
            // An error is reported when a checkpoint is saved.
            let Ok(saved) = (state.save)(value) else { continue };
            self.add_state(slot, &name_of_state(instances, slot as usize), &saved, changed)?;
        }
        Ok(())
    }

    fn add_state(
        &mut self,
        slot: u32,
        state: &str,
        saved: &Saved,
        changed: &mut Vec<(u32, u64)>,
    ) -> Result<()> {
        let kind = Kind::State(slot);
        if !self.is_check() {
            for (key, text) in &saved.values {
                self.plain(kind, &format!("`{key}` {state}"), hash_of_bytes(text.as_bytes()), changed);
            }
        }
        let tensors: BTreeMap<&String, &Tensor> = saved.tensors.iter().chain(&saved.averages).collect();
        if tensors.is_empty() {
            return Ok(());
        }
        let trusts = self.trusts();
        let watched = self.states.entry(slot).or_insert_with(Watched::new);
        let names = tensors.keys().map(|key| self.names.number(kind, &format!("`{key}` {state}")));
        watched.names = names.collect();
        watched.list = tensors.into_values().map(Tensor::shallow_clone).collect();
        watched.find(&self.names, Aspect::Values, trusts, changed)
    }

    /// Adds a value that is not a tensor, if its hash differs from the last one.
    fn plain(&mut self, kind: Kind, name: &str, hash: u64, changed: &mut Vec<(u32, u64)>) {
        let number = self.names.number(kind, name);
        if self.plain.insert(number, hash) != Some(hash) {
            changed.push((number, hash));
        }
    }
}

/// Replaces `last` with the hash of these values, and returns whether the two hashes differ.
fn is_new(last: &mut u64, values: impl Iterator<Item = u64>) -> bool {
    let mix = |hash: u64, value: u64| (hash ^ value).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29);
    let hash = values.fold(1, mix);
    std::mem::replace(last, hash) != hash
}

/// Whether the state of this hook value is read. The value must have a state, and none of its hooks
/// may have the key `writes`.
fn is_read(instance: &Instance) -> bool {
    instance.extras.state.is_some() && !instance.writes
}

/// The names of the states that are read.
pub(crate) fn names_of_states(instances: &[Instance]) -> Vec<String> {
    let read = instances.iter().enumerate().filter(|(_, instance)| is_read(instance));
    read.map(|(slot, _)| name_of_state(instances, slot)).collect()
}

/// Returns the suffix that identifies values in the state of a hook: ``in the state of
/// `my_crate::Hook` ``, with a number for the second and later hook values of the type.
fn name_of_state(instances: &[Instance], slot: usize) -> String {
    let nth = instances[..slot].iter().filter(|other| other.type_id == instances[slot].type_id).count();
    let number = if nth == 0 { String::new() } else { format!(" #{}", nth + 1) };
    format!("in the state of `{}`{number}", public_path(instances[slot].type_name))
}

/// Returns a suffix for a part of the model, such as ` of generator`; empty for the entire model.
fn of_part(part: &str) -> String {
    if part.is_empty() { String::new() } else { format!(" of {part}") }
}
