//! [`Values`]: the hash of everything that a run can change, by name.

use std::collections::{BTreeMap, HashMap};

use tch::{Device, Tensor};

use crate::checkpoint::Saved;
use crate::error::Result;
use crate::hook::definition::public_path;
use crate::hook::instance::Instance;
use crate::libtorch::{Scan, TensorList, Var, hash_of_bytes, hash_of_random_state};
use crate::run::Run;

/// A list of tensors, of which only those are read that may have changed.
struct Watched {
    scan: Scan,
    list: TensorList,
    /// The number of the name of each tensor.
    names: Vec<u32>,
}

impl Watched {
    fn new() -> Self {
        Watched { scan: Scan::new(), list: TensorList::default(), names: Vec::new() }
    }
}

/// The names of values, each with a number.
#[derive(Default)]
struct Names {
    numbers: HashMap<String, u32>,
    /// The names that were not written yet.
    new: Vec<String>,
}

impl Names {
    fn number(&mut self, name: String) -> u32 {
        if let Some(known) = self.numbers.get(&name) {
            return *known;
        }
        let number = u32::try_from(self.numbers.len()).expect("fewer than 2³² values");
        self.new.push(name.clone());
        self.numbers.insert(name, number);
        number
    }
}

const LOSS_SCALE: &str = "the scale of the loss";
const WEIGHT: &str = "the weight of the batch";

/// What a run can change, with the hash of each value as it was last read.
pub(super) struct Values {
    trusts: bool,
    names: Names,
    parameters: Watched,
    grads: Watched,
    buffers: Watched,
    optimizers: Watched,
    batch: Watched,
    pred: Watched,
    loss: Watched,
    /// The output of each module that was called, by its index.
    outputs: HashMap<u32, Watched>,
    /// The state of each hook value, by its slot.
    states: HashMap<u32, Watched>,
    /// The hashes of values that are no tensors, by name.
    plain: HashMap<u32, u64>,
    /// The hash of all hyperparameters together.
    hyperparameters: u64,
    /// Whether the tensors of the optimizers may be others than before.
    is_stale: bool,
    /// Whether buffers may have changed, whatever their version counters say.
    reads_buffers: bool,
    /// The values of hooks that may have changed: all, or those with these slots.
    looks_at_all: bool,
    looks_at: Vec<u32>,
}

impl Values {
    pub(super) fn new(trusts: bool) -> Self {
        Values {
            trusts,
            names: Names::default(),
            parameters: Watched::new(),
            grads: Watched::new(),
            buffers: Watched::new(),
            optimizers: Watched::new(),
            batch: Watched::new(),
            pred: Watched::new(),
            loss: Watched::new(),
            outputs: HashMap::new(),
            states: HashMap::new(),
            plain: HashMap::new(),
            hyperparameters: 0,
            is_stale: true,
            reads_buffers: true,
            looks_at_all: true,
            looks_at: Vec::new(),
        }
    }

    /// Forgets all hashes, so that everything counts as changed.
    pub(super) fn forget(&mut self) {
        let names = std::mem::take(&mut self.names);
        *self = Values { names, ..Values::new(self.trusts) };
    }

    /// Forgets what belongs to one batch, so that it is found again in the next one, whether the run
    /// was resumed or not.
    pub(super) fn begin_batch(&mut self) {
        let of_step = [&mut self.batch, &mut self.pred, &mut self.loss];
        for watched in of_step.into_iter().chain(self.outputs.values_mut()) {
            watched.scan = Scan::new();
        }
        for name in [LOSS_SCALE, WEIGHT] {
            if let Some(number) = self.names.numbers.get(name) {
                self.plain.remove(number);
            }
        }
    }

    /// Notes that the tensors of the optimizers may be others than before.
    pub(super) fn refresh(&mut self) {
        self.is_stale = true;
    }

    /// Notes that buffers may have changed: the kernels of batch normalization do not move
    /// the version counters of the running statistics.
    pub(super) fn read_buffers(&mut self) {
        self.reads_buffers = true;
    }

    /// Notes that the hook value in this slot may have changed.
    pub(super) fn look_at(&mut self, slot: Option<u32>) {
        self.looks_at.extend(slot);
    }

    /// Notes that any hook value may have changed.
    pub(super) fn look_at_all(&mut self) {
        self.looks_at_all = true;
    }

    /// Takes the names that are new since the last call.
    pub(super) fn new_names(&mut self) -> Vec<String> {
        std::mem::take(&mut self.names.new)
    }

    /// Returns the values that have changed since the last call: the number of each name, and the hash;
    /// 0 for a value that no longer exists. The batch, the prediction and the loss keep their hash while
    /// there is none.
    pub(super) fn changed(&mut self, run: &Run) -> Result<Vec<(u32, u64)>> {
        let mut changed = Vec::new();
        self.add_model(run, &mut changed)?;
        self.add_step(run, &mut changed)?;
        self.add_plain(run, &mut changed)?;
        self.add_states(run, &mut changed)?;
        Ok(changed)
    }

    fn add_model(&mut self, run: &Run, changed: &mut Vec<(u32, u64)>) -> Result<()> {
        let count = run.model.vars.iter().count();
        if count != self.parameters.names.len() + self.buffers.names.len() {
            let (parameters, buffers): (Vec<&Var>, Vec<&Var>) =
                run.model.vars.iter().partition(|var| var.is_parameter);
            let names = &mut self.names;
            self.grads.names = parameters
                .iter()
                .map(|var| names.number(format!("the gradient of `{}`", var.name)))
                .collect();
            for (watched, vars) in [(&mut self.parameters, parameters), (&mut self.buffers, buffers)] {
                watched.names = vars.iter().map(|var| names.number(format!("`{}`", var.name))).collect();
                watched.list = vars.iter().map(|var| var.tensor.shallow_clone()).collect();
            }
        }
        let Watched { scan, list, names } = &mut self.parameters;
        changed.extend(numbered(scan.changed(list, false, self.trusts)?, names));
        changed.extend(numbered(self.grads.scan.changed(list, true, self.trusts)?, &self.grads.names));
        let trusts = self.trusts && !std::mem::take(&mut self.reads_buffers);
        let Watched { scan, list, names } = &mut self.buffers;
        changed.extend(numbered(scan.changed(list, false, trusts)?, names));
        if std::mem::take(&mut self.is_stale) {
            let mut tensors = Vec::new();
            self.optimizers.names.clear();
            for (part, optimizer, ..) in run.model.optimizers.parts() {
                let of = of_part(part);
                for (name, tensor) in optimizer.state() {
                    let name = format!("`{name}` in the state of the optimizer{of}");
                    self.optimizers.names.push(self.names.number(name));
                    tensors.push(tensor);
                }
            }
            self.optimizers.list = tensors.into_iter().collect();
        }
        let Watched { scan, list, names } = &mut self.optimizers;
        changed.extend(numbered(scan.changed(list, false, self.trusts)?, names));
        Ok(())
    }

    /// Adds the batch, the prediction, the loss and the output of the innermost module.
    fn add_step(&mut self, run: &Run, changed: &mut Vec<(u32, u64)>) -> Result<()> {
        let trusts = self.trusts;
        let mut add =
            |names: &mut Names, watched: &mut Watched, what: &str, tensors: Vec<Tensor>| -> Result<()> {
                while watched.names.len() < tensors.len() {
                    let nth = watched.names.len();
                    let name =
                        if nth == 0 { what.to_owned() } else { format!("{what} (tensor {})", nth + 1) };
                    watched.names.push(names.number(name));
                }
                watched.list = tensors.into_iter().collect();
                let found = watched.scan.changed(&watched.list, false, trusts)?;
                changed.extend(numbered(found, &watched.names));
                // Do not keep the memory of the batch.
                watched.list = TensorList::default();
                Ok(())
            };
        if let Some(data) = &run.step.data
            && run.step.batch_len.is_some()
        {
            let mut tensors = Vec::new();
            data.visit_batch(&mut |tensor| tensors.push(tensor.shallow_clone()));
            add(&mut self.names, &mut self.batch, "the batch", tensors)?;
            let mut tensors = Vec::new();
            data.visit_pred(&mut |tensor| tensors.push(tensor.shallow_clone()));
            if !tensors.is_empty() {
                add(&mut self.names, &mut self.pred, "the prediction", tensors)?;
            }
        }
        if let Some(loss) = &run.step.loss {
            add(&mut self.names, &mut self.loss, "the loss", vec![loss.shallow_clone()])?;
        }
        if let Some(call) = run.modules.calls.last()
            && let Some(output) = &call.output
        {
            let name = &run.modules.known[call.known as usize].name;
            let watched = self.outputs.entry(call.known).or_insert_with(Watched::new);
            add(&mut self.names, watched, &format!("the output of `{name}`"), vec![output.shallow_clone()])?;
        }
        Ok(())
    }

    /// Adds what is not a tensor.
    fn add_plain(&mut self, run: &Run, changed: &mut Vec<(u32, u64)>) -> Result<()> {
        let Run { step, requests, .. } = run;
        let mut random = hash_of_random_state(Device::Cpu)?;
        if let device @ Device::Cuda(_) = run.model.device {
            random = random.rotate_left(17) ^ hash_of_random_state(device)?;
        }
        self.plain("the random state", random, changed);
        let requested = [requests.skip_batch, requests.end_epoch, requests.stop.is_some()];
        let [skip, end, stop] = requested.map(|is_requested| u64::from(is_requested) + 1);
        self.plain("the request to skip the batch", skip, changed);
        self.plain("the request to end the epoch", end, changed);
        self.plain("the request to stop", stop, changed);
        if step.batch_len.is_some() {
            self.plain(LOSS_SCALE, step.loss_scale.to_bits() | 1, changed);
            self.plain(WEIGHT, step.weight.to_bits() | 1, changed);
        }
        let groups = || {
            run.model.optimizers.parts().flat_map(|(part, optimizer, ..)| {
                let groups = optimizer.groups().iter().enumerate();
                groups.flat_map(move |(nth, group)| {
                    group.settings().map(move |(name, value)| (part, nth, name, value))
                })
            })
        };
        let mut all: u64 = 0;
        for (_, _, _, value) in groups() {
            all = (all ^ value.to_bits()).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29);
        }
        if std::mem::replace(&mut self.hyperparameters, all) != all {
            for (part, nth, name, value) in groups() {
                let name = format!("`{name}` of group {nth} of the optimizer{}", of_part(part));
                self.plain(&name, value.to_bits() | 1 << 63, changed);
            }
        }
        Ok(())
    }

    /// Adds the states of the hook values that may have changed.
    fn add_states(&mut self, run: &Run, changed: &mut Vec<(u32, u64)>) -> Result<()> {
        let slots: Vec<u32> = match std::mem::take(&mut self.looks_at_all) {
            true => (0..u32::try_from(run.hooks.instances.len()).unwrap_or(u32::MAX)).collect(),
            false => std::mem::take(&mut self.looks_at),
        };
        self.looks_at.clear();
        for slot in slots {
            let instance = &run.hooks.instances[slot as usize];
            let (Some(state), Some(value), true) = (instance.state, &instance.value, is_read(instance))
            else {
                continue;
            };
            // An error is reported when a checkpoint is saved.
            let Ok(saved) = (state.save)(value) else { continue };
            self.add_state(slot, &name_of_state(run, slot as usize), &saved, changed)?;
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
        for (key, text) in &saved.values {
            let name = format!("`{key}` {state}");
            self.plain(&name, hash_of_bytes(text.as_bytes()), changed);
        }
        let tensors: BTreeMap<&String, &Tensor> = saved.tensors.iter().chain(&saved.averages).collect();
        if tensors.is_empty() {
            return Ok(());
        }
        let watched = self.states.entry(slot).or_insert_with(Watched::new);
        let names = tensors.keys().map(|key| self.names.number(format!("`{key}` {state}")));
        watched.names = names.collect();
        watched.list = tensors.into_values().map(Tensor::shallow_clone).collect();
        changed.extend(numbered(watched.scan.changed(&watched.list, false, self.trusts)?, &watched.names));
        Ok(())
    }

    fn plain(&mut self, name: &str, hash: u64, changed: &mut Vec<(u32, u64)>) {
        let number = match self.names.numbers.get(name) {
            Some(known) => *known,
            None => self.names.number(name.to_owned()),
        };
        if self.plain.insert(number, hash) != Some(hash) {
            changed.push((number, hash));
        }
    }
}

/// Whether the state of a hook value is read.
fn is_read(instance: &Instance) -> bool {
    instance.state.is_some() && !instance.writes
}

/// The names of the states that are read.
pub(super) fn names_of_states(run: &Run) -> Vec<String> {
    let read = run.hooks.instances.iter().enumerate().filter(|(_, instance)| is_read(instance));
    read.map(|(slot, _)| name_of_state(run, slot)).collect()
}

/// The end of the names of what is in the state of a hook value: ``in the state of `my_crate::Hook` ``,
/// with a number for each further value of the type.
fn name_of_state(run: &Run, slot: usize) -> String {
    let instances = &run.hooks.instances;
    let nth = instances[..slot].iter().filter(|other| other.type_id == instances[slot].type_id).count();
    let number = if nth == 0 { String::new() } else { format!(" #{}", nth + 1) };
    format!("in the state of `{}`{number}", public_path(instances[slot].type_name))
}

/// Returns the numbers of the names of the places of a list. A place beyond the list, which has become
/// shorter, has no name.
fn numbered<'n>(
    found: impl Iterator<Item = (usize, u64)> + 'n,
    names: &'n [u32],
) -> impl Iterator<Item = (u32, u64)> + 'n {
    found.filter_map(|(place, hash)| Some((*names.get(place)?, hash)))
}

/// ` of generator`; nothing for the optimizer of the whole model.
fn of_part(part: &str) -> String {
    if part.is_empty() { String::new() } else { format!(" of {part}") }
}
