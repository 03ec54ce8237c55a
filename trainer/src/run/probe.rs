//! [`Probe`]: what hooks can change, read at one moment, and what changed between two.

use std::collections::BTreeMap;

use tch::{Device, Tensor};

use super::Run;
use crate::error::Result;
use crate::libtorch;

/// The size in bytes above which only a sample of a tensor is read.
const WHOLE: usize = 1 << 20;
/// The number of elements in the sample of a larger tensor.
const SAMPLE: i64 = 1 << 14;

/// What hooks can change, as a hash by name: the variables of the task, their gradients and whether
/// they require one, the state of the optimizers, the batch, the prediction and the loss. Of a tensor
/// of more than 1 MB, the hash has elements at equal distances.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Probe(BTreeMap<String, blake3::Hash>);

impl Probe {
    /// Reads everything.
    pub(crate) fn of(run: &Run) -> Result<Self> {
        let mut probe = Probe(BTreeMap::new());
        for var in run.model.vars.iter() {
            let name = &var.name;
            probe.add(format!("`{name}`"), &var.tensor)?;
            probe.0.insert(format!("whether `{name}` is trained"), flag(var.tensor.requires_grad()));
            probe.add(format!("the gradient of `{name}`"), &var.tensor.grad())?;
        }
        for (part, optimizer, ..) in run.model.optimizers.parts() {
            let of = if part.is_empty() { String::new() } else { format!(" of {part}") };
            for (name, tensor) in optimizer.state() {
                probe.add(format!("`{name}` in the state of the optimizer{of}"), &tensor)?;
            }
        }
        if let Some(data) = &run.step.data {
            let mut tensors = Vec::new();
            data.visit_batch(&mut |tensor| tensors.push(("the batch", tensor.shallow_clone())));
            data.visit_pred(&mut |tensor| tensors.push(("the prediction", tensor.shallow_clone())));
            for (nth, (what, tensor)) in tensors.iter().enumerate() {
                probe.add(format!("{what} (tensor {})", nth + 1), tensor)?;
            }
        }
        if let Some(loss) = &run.step.loss {
            probe.add("the loss".to_owned(), loss)?;
        }
        Ok(probe)
    }

    fn add(&mut self, name: String, tensor: &Tensor) -> Result<()> {
        self.0.insert(name, hash(tensor)?);
        Ok(())
    }

    /// Returns the names of what differs in a later probe.
    pub(crate) fn changed<'p>(&'p self, later: &'p Probe) -> impl Iterator<Item = &'p str> {
        let names = self.0.keys().chain(later.0.keys().filter(|name| !self.0.contains_key(*name)));
        names.filter(|name| self.0.get(*name) != later.0.get(*name)).map(String::as_str)
    }
}

fn flag(value: bool) -> blake3::Hash {
    blake3::hash(&[u8::from(value)])
}

fn hash(tensor: &Tensor) -> Result<blake3::Hash> {
    if !tensor.defined() {
        return Ok(blake3::hash(b"undefined"));
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(format!("{:?} {:?} {:?}", tensor.kind(), tensor.size(), tensor.device()).as_bytes());
    let stored = match tensor.is_sparse() {
        true => tensor.detach().f_coalesce()?.f_values()?,
        false => tensor.detach(),
    };
    let count = i64::try_from(stored.numel()).unwrap_or(i64::MAX);
    let is_large = stored.numel() * stored.kind().elt_size_in_bytes() > WHOLE;
    let read = if is_large {
        let places = Tensor::f_arange_start_step(
            0,
            count,
            (count / SAMPLE).max(1),
            (tch::Kind::Int64, stored.device()),
        )?;
        stored.f_take(&places)?
    } else {
        stored
    };
    let on_cpu = read.f_to_device(Device::Cpu)?.f_contiguous()?;
    hasher.update(libtorch::bytes(&on_cpu)?);
    Ok(hasher.finalize())
}
