//! [`Links`]: the connections to the other ranks, and the collectives over them.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::{Device, Tensor};

use super::call::{check_all, check_exchanged, described, listed, quoted};
use super::json::{all_from_json, json};
use super::main_only;
use super::shared_links::Shared;
use super::watch::Kind;
use crate::error::{Error, Result};
use crate::io::tensor_format;
use crate::libtorch::dist::{Group, ProcessGroup};
use crate::libtorch::{self, TensorList};

/// How [`World::all_reduce`](super::World::all_reduce) combines the tensors of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Op {
    /// Adds the tensors elementwise.
    Sum = 0,
    /// Multiplies the tensors elementwise.
    Product = 2,
    /// Takes the elementwise minimum.
    Min = 3,
    /// Takes the elementwise maximum.
    Max = 4,
}

/// The connections of this process to the other ranks of a [`World`](super::World), which
/// documents the collectives. Without the feature `distributed`, no value of this type exists.
#[derive(Clone, Debug)]
pub(super) struct Links {
    pub(super) group: Group,
    pub(super) shared: Arc<Shared>,
    /// The hook that received this handle, and its moment.
    pub(super) place: Option<Arc<str>>,
}

impl Links {
    pub(super) fn rank(&self) -> u32 {
        self.group.rank()
    }

    pub(super) fn size(&self) -> u32 {
        self.group.size()
    }

    #[track_caller]
    pub(super) fn all_reduce(&self, name: &str, tensor: &Tensor, op: Op) -> Result<()> {
        check_exchanged(tensor, true, format_args!("the tensor of `all_reduce({name:?})`"))?;
        let call = self.call("all_reduce", name, &format!(" ({op:?}) of {}", described(tensor)))?;
        let _no_grad = tch::no_grad_guard();
        // gloo's maximum and minimum drop a NaN or keep it, depending on the number of elements.
        let may_drop_nan =
            matches!(op, Op::Max | Op::Min) && is_reducible(tensor) && tensor.is_floating_point();
        let nan = may_drop_nan.then(|| tensor.isnan());
        let has_nan = nan.as_ref().is_some_and(|nan| nan.any().int64_value(&[]) != 0);
        let any_has_nan = self.compare(f64::from(u8::from(has_nan)), &call)? > 0.0;
        let Some(nan) = nan.filter(|_| any_has_nan) else { return self.reduce(tensor, op, &call.what) };
        self.reduce(&nan, Op::Max, &call.what)?;
        self.reduce(tensor, op, &call.what)?;
        let _ = tensor.detach().masked_fill_(&nan, f64::NAN);
        Ok(())
    }

    /// Reduces a tensor whose shape and dtype the ranks have compared.
    ///
    /// # Errors
    ///
    /// Returns an error if gloo cannot reduce tensors of this dtype.
    fn reduce(&self, tensor: &Tensor, op: Op, what: &str) -> Result<()> {
        if !is_reducible(tensor) {
            return Err(not_reducible(what, tensor));
        }
        let _no_grad = tch::no_grad_guard();
        // gloo adds the bytes of booleans, which are 0 again for 256 times `true`.
        let op = match op {
            Op::Sum if tensor.kind() == tch::Kind::Bool => Op::Max,
            Op::Product if tensor.kind() == tch::Kind::Bool => Op::Min,
            op => op,
        };
        let dense = on_cpu(tensor, what)?;
        if dense.numel() > 0 {
            let reduce = |group: &Group| group.all_reduce(ProcessGroup::Data, &dense, op as i32);
            self.collective(Kind::Data, what, reduce)?;
        }
        if dense.data_ptr() != tensor.data_ptr() {
            tensor.detach().f_copy_(&dense)?;
        }
        Ok(())
    }

    /// Sums the statistics of a layer over all ranks.
    pub(super) fn sum_in_layer(&self, tensor: &Tensor, what: &str) -> Result<()> {
        self.collective(Kind::Layers, what, |group| {
            group.all_reduce(ProcessGroup::Layers, tensor, Op::Sum as i32)
        })
    }

    #[track_caller]
    pub(super) fn broadcast<N: AsRef<str>, T: Borrow<Tensor>>(
        &self,
        list: &[(N, T)],
        root: u32,
    ) -> Result<()> {
        check_all(list)?;
        let first = list.first().map_or("", |(name, _)| name.as_ref());
        let call = self.call("broadcast", first, &format!(" from rank {root}{}", listed(list)))?;
        self.compare(0.0, &call)?;
        self.send(list.iter().map(|(_, tensor)| tensor.borrow()), root, &call.what)
    }

    /// Broadcasts tensors whose shapes and dtypes are known to be the same on all ranks.
    pub(super) fn send<'a>(
        &self,
        tensors: impl IntoIterator<Item = &'a Tensor>,
        root: u32,
        what: &str,
    ) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        let own: Vec<&Tensor> = tensors.into_iter().collect();
        if own.is_empty() {
            return Ok(());
        }
        let dense = own.iter().map(|tensor| on_cpu(tensor, what)).collect::<Result<Vec<Tensor>>>()?;
        let bytes: TensorList = dense.iter().filter(|dense| dense.numel() > 0).map(bytes_of).collect();
        self.collective(Kind::Data, what, |group| group.broadcast(&bytes, root))?;
        for (tensor, dense) in own.into_iter().zip(&dense) {
            if dense.data_ptr() != tensor.data_ptr() {
                tensor.detach().f_copy_(dense)?;
            }
        }
        Ok(())
    }

    #[track_caller]
    pub(super) fn all_gather(&self, name: &str, tensor: &Tensor) -> Result<Tensor> {
        check_exchanged(tensor, false, format_args!("the tensor of `all_gather({name:?})`"))?;
        let call = self.call("all_gather", name, &format!(" of {}", described(tensor)))?;
        self.compare(0.0, &call)?;
        let _no_grad = tch::no_grad_guard();
        let size: Vec<i64> = [i64::from(self.size())].into_iter().chain(tensor.size()).collect();
        let all = self.gathered(&bytes_of(&on_cpu(tensor, &call.what)?), &call.what)?;
        Ok(of_bytes(&all.view([-1]), tensor.kind(), &size).to_device(tensor.device()))
    }

    /// Returns the bytes of all ranks, of shape `[ranks, bytes]`. All ranks have the same number of
    /// bytes.
    fn gathered(&self, bytes: &Tensor, what: &str) -> Result<Tensor> {
        let all =
            Tensor::empty([i64::from(self.size()), bytes.numel() as i64], (tch::Kind::Uint8, Device::Cpu));
        if all.numel() > 0 {
            self.collective(Kind::Data, what, |group| group.all_gather(bytes, &all.view([-1])))?;
        }
        Ok(all)
    }

    #[track_caller]
    pub(super) fn reduce_scatter(&self, name: &str, tensor: &Tensor) -> Result<Tensor> {
        let _no_grad = tch::no_grad_guard();
        check_exchanged(tensor, false, format_args!("the tensor of `reduce_scatter({name:?})`"))?;
        let mut size = tensor.size();
        let ranks = i64::from(self.size());
        let call = self.call("reduce_scatter", name, &format!(" of {}", described(tensor)))?;
        self.compare(0.0, &call)?;
        if !is_reducible(tensor) || tensor.kind() == tch::Kind::Bool {
            return Err(not_reducible(&call.what, tensor));
        }
        size[0] /= ranks;
        let own = Tensor::empty(&size, (tensor.kind(), Device::Cpu));
        let dense = on_cpu(tensor, &call.what)?;
        if dense.numel() > 0 {
            self.collective(Kind::Data, &call.what, |group| group.reduce_scatter(&dense, &own))?;
        }
        Ok(own.to_device(tensor.device()))
    }

    #[track_caller]
    pub(super) fn gather_rows(&self, method: &str, name: &str, tensor: &Tensor) -> Result<Tensor> {
        let _no_grad = tch::no_grad_guard();
        check_exchanged(tensor, false, format_args!("the tensor of `{method}({name:?})`"))?;
        let mut size = tensor.size();
        let rows = size[0];
        let others = &size[1..];
        let call = self.call(method, name, &format!(" of rows of {:?} {others:?}", tensor.kind()))?;
        let most = self.compare(rows as f64, &call)? as i64;
        let counts = self.gathered(&bytes_of(&Tensor::from_slice(&[rows])), &call.what)?;
        let counts = Vec::<i64>::try_from(counts.view([-1]).view_dtype(tch::Kind::Int64))?;
        let bytes_of_row = others.iter().product::<i64>() * tensor.kind().elt_size_in_bytes() as i64;
        let padded = Tensor::zeros([most * bytes_of_row], (tch::Kind::Uint8, Device::Cpu));
        padded.narrow(0, 0, rows * bytes_of_row).f_copy_(&bytes_of(&on_cpu(tensor, &call.what)?))?;
        let all = self.gathered(&padded, &call.what)?;
        let parts = (0..).zip(&counts).map(|(rank, count)| all.get(rank).narrow(0, 0, *count * bytes_of_row));
        let parts = Tensor::cat(&parts.collect::<Vec<_>>(), 0);
        size[0] = counts.iter().sum();
        Ok(of_bytes(&parts, tensor.kind(), &size).to_device(tensor.device()))
    }

    #[track_caller]
    pub(super) fn gather_predictions(&self, name: &str, preds: &[Tensor]) -> Result<Tensor> {
        const METHOD: &str = "gather_predictions";
        preds.iter().try_for_each(|pred| {
            check_exchanged(pred, false, format_args!("a prediction of `{METHOD}({name:?})`"))
        })?;
        let rows: Vec<i64> = preds.iter().map(|pred| pred.size().first().copied().unwrap_or(0)).collect();
        let rows: Vec<Vec<i64>> = self.gather(METHOD, name, &rows)?;
        // A rank without a row in any batch needs the shape and the dtype of another rank's
        // predictions.
        let sample =
            preds.first().map(|pred| if pred.dim() > 0 { pred.narrow(0, 0, 0) } else { pred.copy() });
        let sample = sample.map(|sample| ("pred".to_owned(), sample));
        let samples = self.gather_tensors(METHOD, name, &sample.into_iter().collect())?;
        let sample = samples.into_iter().find_map(|mut sample| sample.remove("pred"));
        let own = cat_rows(if preds.is_empty() { sample.as_slice() } else { preds })?;
        let all = self.gather_rows(METHOD, name, &own)?;
        // Reorders the rows: by batch and then by rank, instead of by rank and then by batch.
        let mut starts: Vec<i64> = vec![0];
        for rank in &rows {
            starts.push(starts[starts.len() - 1] + rank.iter().sum::<i64>());
        }
        let mut parts = Vec::new();
        for batch in 0..rows.iter().map(Vec::len).max().unwrap_or(0) {
            for (rank, counts) in rows.iter().enumerate() {
                let Some(&count) = counts.get(batch) else { continue };
                parts.push(all.narrow(0, starts[rank], count));
                starts[rank] += count;
            }
        }
        Ok(Tensor::cat(&parts, 0))
    }

    #[track_caller]
    pub(super) fn barrier(&self, name: &str) -> Result<()> {
        self.compare(0.0, &self.call("barrier", name, "")?).map(drop)
    }

    #[track_caller]
    pub(super) fn gather<V: Serialize + DeserializeOwned>(
        &self,
        method: &str,
        name: &str,
        value: &V,
    ) -> Result<Vec<V>> {
        let bytes = json(value, method)?;
        let call = self.call(method, name, "")?;
        self.compare(0.0, &call)?;
        all_from_json(&self.gather_compared(bytes, &call.what)?, method)
    }

    /// Returns the values of all ranks, for the trainer's own use. `what` is the name of the
    /// exchange.
    pub(super) fn gather_named<V: Serialize + DeserializeOwned>(
        &self,
        value: &V,
        what: &str,
    ) -> Result<Vec<V>> {
        all_from_json(&self.gather_bytes(json(value, what)?, what)?, what)
    }

    #[track_caller]
    pub(super) fn gather_tensors(
        &self,
        method: &str,
        name: &str,
        own: &BTreeMap<String, Tensor>,
    ) -> Result<Vec<BTreeMap<String, Tensor>>> {
        let list: Vec<(String, Tensor)> =
            own.iter().map(|(name, tensor)| (name.clone(), tensor.detach())).collect();
        let invalid = |why: String| Error::usage(format!("`{method}`: {why}"));
        let bytes = tensor_format::to_bytes(&list).map_err(invalid)?;
        let call = self.call(method, name, "")?;
        self.compare(0.0, &call)?;
        let all = self.gather_compared(bytes, &call.what)?;
        all.iter().map(|bytes| tensor_format::from_bytes(bytes).map_err(invalid)).collect()
    }

    #[track_caller]
    pub(super) fn any(&self, name: &str, flag: bool) -> Result<bool> {
        Ok(self.compare(f64::from(u8::from(flag)), &self.call("any", name, "")?)? > 0.0)
    }

    #[track_caller]
    pub(super) fn average<N: AsRef<str>, T: Borrow<Tensor>>(&self, list: &[(N, T)]) -> Result<()> {
        check_all(list)?;
        let call = self.call("average", list.first().map_or("", |(name, _)| name.as_ref()), &listed(list))?;
        self.compare(0.0, &call)?;
        let _no_grad = tch::no_grad_guard();
        let all = list.iter().map(|(_, tensor)| tensor.borrow());
        for tensor in all.filter(|tensor| tensor.is_floating_point()) {
            // Sums of a dtype with fewer bits would lose the terms of some ranks.
            let is_narrow = !matches!(tensor.kind(), tch::Kind::Float | tch::Kind::Double);
            let sum = if is_narrow { tensor.to_kind(tch::Kind::Float) } else { tensor.detach() };
            self.reduce(&sum, Op::Sum, &call.what)?;
            let _ = sum.shallow_clone().g_div_scalar_(f64::from(self.size()));
            if is_narrow {
                tensor.detach().copy_(&sum);
            }
        }
        Ok(())
    }

    #[track_caller]
    pub(super) fn main_first<R, E: Into<crate::BoxError>>(
        &self,
        name: &str,
        body: impl FnOnce() -> Result<R, E>,
    ) -> Result<R> {
        let call = self.call("main_first", name, "")?;
        let run =
            |body: Box<dyn FnOnce() -> Result<R, E> + '_>| body().map_err(|error| Error::from(error.into()));
        if self.rank() > 0 {
            self.compare(0.0, &call)?;
            return run(Box::new(body));
        }
        let result = run(Box::new(body));
        match &result {
            Ok(_) => drop(self.compare(0.0, &call)?),
            Err(error) => self.leave(&error.to_string()),
        }
        result
    }

    /// Returns an error if collectives are not allowed in the running hook or on this thread.
    pub(super) fn check_allowed(&self, what: &str) -> Result<()> {
        main_only::check(what)?;
        self.shared.check_thread(what)
    }

    /// Runs a collective by calling `call`. `what` is the name of the collective in error messages.
    pub(super) fn collective<R>(
        &self,
        kind: Kind,
        what: &str,
        call: impl FnOnce(&Group) -> Result<R>,
    ) -> Result<R> {
        self.check_allowed(what)?;
        let inside = self.shared.watch.enter(kind, what, self.place.as_ref());
        let result = call(&self.group);
        match &result {
            Ok(_) => inside.end(),
            Err(_) => drop(inside),
        }
        result.map_err(|error| match self.shared.watch.verdict() {
            Some(why) => {
                // The other ranks wait in a collective that fails once this rank disconnects.
                self.leave(&why);
                self.group.note_failure();
                Error::usage(why)
            }
            None => self.explained(what, &error),
        })
    }
}

/// Returns a contiguous copy of a tensor on the CPU. If the tensor is contiguous and on the CPU,
/// the result shares its data.
fn on_cpu(tensor: &Tensor, what: &str) -> Result<Tensor> {
    libtorch::on_host(tensor, format_args!("a tensor of {}", quoted(what)))
}

/// Returns the bytes of a contiguous tensor, in one dimension. They share its data. gloo cannot
/// send tensors of every dtype, but bytes of all of them.
fn bytes_of(dense: &Tensor) -> Tensor {
    dense.view([-1]).view_dtype(tch::Kind::Uint8)
}

/// Returns a tensor of this dtype and shape, given its bytes.
fn of_bytes(bytes: &Tensor, kind: tch::Kind, size: &[i64]) -> Tensor {
    bytes.view_dtype(kind).view(size)
}

/// Whether gloo can reduce tensors of this dtype.
fn is_reducible(tensor: &Tensor) -> bool {
    use tch::Kind::{BFloat16, Bool, Double, Float, Half, Int, Int8, Int64, Uint8};
    matches!(tensor.kind(), Uint8 | Int8 | Int | Int64 | Half | BFloat16 | Float | Double | Bool)
}

#[cold]
fn not_reducible(what: &str, tensor: &Tensor) -> Error {
    Error::usage(format!(
        "{} cannot reduce a tensor of dtype {:?}: convert it, for example to `Kind::Float` or `Kind::Int64`, or exchange it with \
         `all_gather`, which accepts any dtype",
        quoted(what),
        tensor.kind()
    ))
}

/// Returns the rows of predictions as one tensor.
pub(super) fn cat_rows(preds: &[Tensor]) -> Result<Tensor> {
    preds.iter().try_for_each(|pred| libtorch::check_readable(pred, "a prediction"))?;
    match preds.first() {
        None => Err(Error::usage(
            "`gather_predictions` received no predictions on any rank: expected at least one",
        )),
        Some(pred) if pred.dim() == 0 => Err(Error::usage(
            "`gather_predictions` cannot gather predictions without dimensions: expected at least one dimension",
        )),
        Some(_) => Tensor::f_cat(preds, 0).map_err(|error| {
            let error = Error::from(error);
            Error::usage(format!("`gather_predictions` cannot join the predictions of the batches: {error}"))
        }),
    }
}

/// Returns an error if this crate was built without the feature `distributed`.
pub(crate) fn check_available() -> Result<()> {
    if Group::IS_AVAILABLE {
        return Ok(());
    }
    Err(Error::usage(
        "cannot train in several processes: the crate `trainer` was built without its feature `distributed`; enable the \
         feature, or train in this process alone with `.world(World::solo())`",
    ))
}
