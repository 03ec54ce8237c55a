//! [`World`]: the processes that train together, seen from one of them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::{Device, Kind, Tensor};

use super::launch::{Launch, Store};
use super::{Share, main_only};
use crate::error::{Error, Result};
use crate::libtorch::dist::{Group, Meeting, ProcessGroup};
use crate::libtorch::{self, TensorList};
use crate::tensor_format;

/// The operation with which [`World::all_reduce`] reduces the tensors of all ranks.
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

/// The processes that train together, seen from one of them.
///
/// Its methods are collectives, unless they say otherwise: all ranks must call the same ones in the
/// same order. A call that not all ranks reach returns an error after the
/// [timeout](Launch::timeout); a call in a hook with [`main_only`](crate::language::main_only)
/// returns one at once.
///
/// ```no_run
/// use trainer::distributed::{Op, World};
/// use trainer::tch::Tensor;
///
/// if let Some(world) = World::from_env()? {
///     let total = Tensor::from(f64::from(world.rank()));
///     world.all_reduce(&total, Op::Sum)?;
///     println!("{} of {}: {total}", world.rank(), world.size());
/// }
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct World {
    group: Group,
}

/// The world that the environment describes, once it has been joined.
static JOINED: Mutex<Option<World>> = Mutex::new(None);

/// The key under which the first rank that leaves because of an error stores that error.
const LEFT: &str = "trainer/left";

/// The time for which a rank waits for another rank to report its error.
const GRACE: Duration = Duration::from_millis(500);

impl World {
    /// Joins the processes that the [environment](Launch::from_env) describes, or returns `None` if
    /// there is one process. They are joined only once: later calls return the same world.
    ///
    /// # Errors
    ///
    /// Returns an error if a variable is missing or invalid, and in the same cases as
    /// [`join`](World::join).
    pub fn from_env() -> Result<Option<Self>> {
        let Some(launch) = Launch::from_env()? else { return Ok(None) };
        let mut joined = JOINED.lock().unwrap_or_else(PoisonError::into_inner);
        if joined.is_none() {
            *joined = Some(World::join(&launch)?);
        }
        Ok(joined.clone())
    }

    /// Joins the other processes of a launch.
    ///
    /// # Errors
    ///
    /// Returns an error if the launch has fewer than two processes or an invalid rank, if the other
    /// processes do not join within the timeout, if this crate was built without the feature
    /// `distributed`, or in a hook that runs on rank 0 only.
    pub fn join(launch: &Launch) -> Result<Self> {
        let Launch { rank, size, timeout, .. } = *launch;
        if size < 2 || rank >= size {
            return Err(Error::usage(format!(
                "cannot join {size} processes as rank {rank}: expected at least 2 processes, and a rank below their number"
            )));
        }
        check_available()?;
        main_only::check("World::join")?;
        let is_server = rank == 0 && !launch.has_agent;
        let (file, tcp) = match &launch.store {
            Store::File(path) => (Some(path.to_string_lossy()), ("", 0)),
            Store::Tcp(host, port) => (None, (host.as_str(), *port)),
        };
        let interface = std::env::var("GLOO_SOCKET_IFNAME").ok();
        let is_local = file.is_some() || matches!(tcp.0, "localhost" | "127.0.0.1" | "::1");
        let meeting = Meeting {
            tcp,
            file: file.as_deref(),
            prefix: &launch.prefix,
            interface: interface.as_deref(),
            own_host: is_local.then_some("127.0.0.1"),
            timeout_ms: i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX),
            rank,
            size,
            is_server,
        };
        let group = Group::open(&meeting).map_err(|error| {
            let at = match &launch.store {
                Store::File(path) => path.display().to_string(),
                Store::Tcp(host, port) => format!("{host}:{port}"),
            };
            Error::msg(format!(
                "rank {rank} of {size} could not connect to the other ranks at {at} (timeout {timeout:?}): check that all of them were \
                 started with this address, and that no other program uses it ({error})"
            ))
        })?;
        Ok(World { group })
    }

    /// The rank of this process, from 0. Not a collective.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.group.rank()
    }

    /// The number of processes. Not a collective.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.group.size()
    }

    /// This rank's share of each batch. Not a collective.
    #[must_use]
    pub fn share(&self) -> Share {
        Share { rank: self.rank(), of: self.size() }
    }

    /// Reduces the tensors of all ranks elementwise with `op`, and stores the result in `tensor` on
    /// every rank. The tensor must have the same shape and dtype on all ranks. The result is
    /// bit-identical on all ranks.
    ///
    /// # Errors
    ///
    /// Returns an error if another rank failed, died or did not call this within the timeout, if
    /// this process has disconnected from the other ranks after an error, or in a hook that runs on
    /// rank 0 only.
    pub fn all_reduce(&self, tensor: &Tensor, op: Op) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        let dense = on_cpu(tensor);
        self.collective("all_reduce", |group| group.all_reduce(ProcessGroup::Data, &dense, op as i32))?;
        if dense.data_ptr() != tensor.data_ptr() {
            tensor.detach().copy_(&dense);
        }
        Ok(())
    }

    /// Sums the statistics of a layer over all ranks.
    pub(super) fn sum_in_layer(&self, tensor: &Tensor, what: &str) -> Result<()> {
        self.collective(what, |group| group.all_reduce(ProcessGroup::Layers, tensor, Op::Sum as i32))
    }

    /// Replaces the elements of the tensors with those of the rank `root`. The tensors must have
    /// the same shapes and dtypes on all ranks.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`all_reduce`](World::all_reduce).
    pub fn broadcast<'a>(&self, tensors: impl IntoIterator<Item = &'a Tensor>, root: u32) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        let own: Vec<&Tensor> = tensors.into_iter().collect();
        if own.is_empty() {
            return Ok(());
        }
        let dense: TensorList = own.iter().map(|tensor| on_cpu(tensor)).collect();
        self.collective("broadcast", |group| group.broadcast(&dense, root))?;
        for (tensor, dense) in own.into_iter().zip(dense.iter()) {
            if dense.data_ptr() != tensor.data_ptr() {
                tensor.detach().copy_(dense);
            }
        }
        Ok(())
    }

    /// Returns the tensors of all ranks, stacked along a new first dimension in the order of the
    /// ranks. The tensor must have the same shape and dtype on all ranks.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`all_reduce`](World::all_reduce).
    pub fn all_gather(&self, tensor: &Tensor) -> Result<Tensor> {
        let all = self.gathered(&on_cpu(tensor), "all_gather")?;
        Ok(all.to_device(tensor.device()))
    }

    fn gathered(&self, tensor: &Tensor, what: &str) -> Result<Tensor> {
        let _no_grad = tch::no_grad_guard();
        let size: Vec<i64> = [i64::from(self.size())].into_iter().chain(tensor.size()).collect();
        let all = Tensor::empty(&size, (tensor.kind(), Device::Cpu));
        let (input, output) = (tensor.view([-1]), all.view([-1]));
        self.collective(what, |group| group.all_gather(&input, &output))?;
        Ok(all)
    }

    /// Adds the tensors of all ranks, and returns this rank's part of the sum. The size of the
    /// first dimension must be a multiple of the number of ranks; the sum is split into equal
    /// parts, and rank `r` gets the `r`-th part, counted from 0.
    ///
    /// # Errors
    ///
    /// Returns an error if the size of the first dimension is not such a multiple, and in the same
    /// cases as [`all_reduce`](World::all_reduce).
    pub fn reduce_scatter(&self, tensor: &Tensor) -> Result<Tensor> {
        let _no_grad = tch::no_grad_guard();
        let mut size = tensor.size();
        let ranks = i64::from(self.size());
        if size.first().is_none_or(|rows| rows % ranks != 0) {
            return Err(Error::usage(format!(
                "`reduce_scatter` cannot divide a tensor of shape {size:?} among {ranks} ranks: expected a first dimension \
                 that is a multiple of {ranks}"
            )));
        }
        size[0] /= ranks;
        let own = Tensor::empty(&size, (tensor.kind(), Device::Cpu));
        let dense = on_cpu(tensor);
        self.collective("reduce_scatter", |group| group.reduce_scatter(&dense, &own))?;
        Ok(own.to_device(tensor.device()))
    }

    /// Returns the rows of all ranks, concatenated in the order of the ranks. The ranks may have
    /// different numbers of rows; the other dimensions and the dtype must be the same.
    ///
    /// # Errors
    ///
    /// Returns an error if a tensor has no dimensions, and in the same cases as
    /// [`all_reduce`](World::all_reduce).
    pub fn gather_rows(&self, tensor: &Tensor) -> Result<Tensor> {
        let _no_grad = tch::no_grad_guard();
        let mut size = tensor.size();
        let Some(&rows) = size.first() else {
            return Err(Error::usage(
                "`gather_rows` cannot gather a tensor without dimensions: expected at least one dimension",
            ));
        };
        let counts: Vec<i64> = self.gather(&rows)?;
        size[0] = counts.iter().copied().max().unwrap_or(0);
        let padded = Tensor::zeros(&size, (tensor.kind(), Device::Cpu));
        padded.narrow(0, 0, rows).copy_(&tensor.detach());
        let all = self.gathered(&padded, "gather_rows")?;
        let parts = (0..).zip(&counts).map(|(rank, count)| all.get(rank).narrow(0, 0, *count));
        Ok(Tensor::cat(&parts.collect::<Vec<_>>(), 0).to_device(tensor.device()))
    }

    /// Returns the predictions of all ranks for the same batches, as one tensor in the order of the
    /// data. `preds` is the return value of [`predict`](crate::Trainer::predict): one tensor for
    /// each batch, with the rows of this rank.
    ///
    /// # Errors
    ///
    /// Returns an error if there are no predictions on any rank, if they have no dimensions or an
    /// unsupported dtype, and in the same cases as [`gather_rows`](World::gather_rows).
    pub fn gather_predictions(&self, preds: &[Tensor]) -> Result<Tensor> {
        let rows: Vec<i64> = preds.iter().map(|pred| pred.size().first().copied().unwrap_or(0)).collect();
        let rows: Vec<Vec<i64>> = self.gather(&rows)?;
        // A rank without a row in any batch has no prediction that shows the shape and the dtype.
        let without_rows = |pred: &Tensor| if pred.dim() > 0 { pred.narrow(0, 0, 0) } else { pred.copy() };
        let sample = preds.first().map(|pred| ("pred".to_owned(), without_rows(pred)));
        let samples = self.gather_tensors(&sample.into_iter().collect())?;
        let Some(sample) = samples.into_iter().find_map(|mut sample| sample.remove("pred")) else {
            return Err(Error::usage(
                "`gather_predictions` received no predictions on any rank: expected at least one",
            ));
        };
        if sample.dim() == 0 {
            return Err(Error::usage(
                "`gather_predictions` cannot gather predictions without dimensions: expected at least one dimension",
            ));
        }
        let own = if preds.is_empty() { sample } else { Tensor::cat(preds, 0) };
        let all = self.gather_rows(&own)?;
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

    /// Waits until all ranks have called this.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`all_reduce`](World::all_reduce).
    pub fn barrier(&self) -> Result<()> {
        self.barrier_at("barrier")
    }

    /// Returns the values of all ranks, in the order of the ranks.
    ///
    /// ```no_run
    /// # use trainer::distributed::World;
    /// # fn f(world: &World) -> trainer::Result<()> {
    /// let hosts: Vec<String> = world.gather(&"node-1".to_owned())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if a value cannot be converted to or from JSON, and in the same cases as
    /// [`all_reduce`](World::all_reduce).
    pub fn gather<V: Serialize + DeserializeOwned>(&self, value: &V) -> Result<Vec<V>> {
        self.gather_named(value, "gather")
    }

    /// Does the same as [`gather`](World::gather), with `what` as its name in error messages.
    pub(crate) fn gather_named<V: Serialize + DeserializeOwned>(
        &self,
        value: &V,
        what: &str,
    ) -> Result<Vec<V>> {
        let not_json = |error: serde_json::Error| {
            Error::usage(format!("`{what}`: the value cannot be converted to or from JSON: {error}"))
        };
        let all = self.gather_bytes(&serde_json::to_vec(value).map_err(not_json)?, what)?;
        all.iter().map(|bytes| serde_json::from_slice(bytes).map_err(not_json)).collect()
    }

    /// Returns the named tensors of all ranks, in the order of the ranks, on the CPU. Names, shapes
    /// and dtypes may differ.
    ///
    /// # Errors
    ///
    /// Returns an error if a tensor cannot be serialized, and in the same cases as
    /// [`all_reduce`](World::all_reduce).
    pub fn gather_tensors(&self, own: &BTreeMap<String, Tensor>) -> Result<Vec<BTreeMap<String, Tensor>>> {
        let list: Vec<(String, Tensor)> =
            own.iter().map(|(name, tensor)| (name.clone(), tensor.detach())).collect();
        let invalid = |why: String| Error::usage(format!("`gather_tensors`: {why}"));
        let bytes = tensor_format::to_bytes(&list).map_err(invalid)?;
        let all = self.gather_bytes(&bytes, "gather_tensors")?;
        all.iter().map(|bytes| tensor_format::from_bytes(bytes).map_err(invalid)).collect()
    }

    /// Collects the named tensors of ranks 1, 2, … on rank 0. Returns an empty vector on the other
    /// ranks. The ranks broadcast one after the other, so that the others need memory for the
    /// tensors of one rank only.
    pub(crate) fn collect_tensors(&self, own: &[(String, Tensor)]) -> Result<Vec<BTreeMap<String, Tensor>>> {
        let what = "the states of the ranks in a checkpoint";
        let invalid = |why: String| Error::usage(format!("{what}: {why}"));
        let bytes = if self.rank() > 0 { tensor_format::to_bytes(own).map_err(invalid)? } else { Vec::new() };
        let lengths: Vec<usize> = self.gather_named(&bytes.len(), what)?;
        let mut collected = Vec::new();
        for (rank, length) in (0..).zip(lengths).skip(1) {
            let buffer = if rank == self.rank() {
                Tensor::from_slice(&bytes)
            } else {
                Tensor::empty([i64::try_from(length).unwrap_or(i64::MAX)], (Kind::Uint8, Device::Cpu))
            };
            self.broadcast([&buffer], rank)?;
            if self.rank() == 0 {
                collected.push(tensor_format::from_bytes(libtorch::bytes(&buffer)?).map_err(invalid)?);
            }
        }
        Ok(collected)
    }

    /// Returns whether `flag` is true on any rank.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`all_reduce`](World::all_reduce).
    pub fn any(&self, flag: bool) -> Result<bool> {
        self.any_named(flag, "any")
    }

    pub(crate) fn any_named(&self, flag: bool, what: &str) -> Result<bool> {
        Ok(self.sums([f64::from(u8::from(flag))], what)?[0] > 0.0)
    }

    /// Replaces the elements of floating-point tensors with their means over all ranks. Skips
    /// tensors of other dtypes.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`all_reduce`](World::all_reduce).
    pub fn average<'a>(&self, tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        for tensor in tensors.into_iter().filter(|tensor| tensor.is_floating_point()) {
            self.all_reduce(tensor, Op::Sum)?;
            let _ = tensor.detach().g_div_scalar_(f64::from(self.size()));
        }
        Ok(())
    }

    /// Calls `body` on rank 0 first, while the other ranks wait, and then on the other ranks, for
    /// example to download or prepare data once.
    ///
    /// # Errors
    ///
    /// Returns the error of `body`. If `body` fails on rank 0, rank 0 disconnects from the other
    /// ranks, which return an error that contains this error, and do not call `body`. Also returns
    /// an error in the same cases as [`all_reduce`](World::all_reduce).
    pub fn main_first<R, E: Into<crate::BoxError>>(&self, body: impl FnOnce() -> Result<R, E>) -> Result<R> {
        let run =
            |body: Box<dyn FnOnce() -> Result<R, E> + '_>| body().map_err(|error| Error::from(error.into()));
        if self.rank() > 0 {
            self.barrier()?;
            return run(Box::new(body));
        }
        let result = run(Box::new(body));
        match &result {
            Ok(_) => self.barrier()?,
            Err(error) => self.leave(&error.to_string()),
        }
        result
    }

    /// Disconnects from the world that the environment describes, if it was joined, and publishes
    /// `why` to the other ranks.
    pub(crate) fn leave_joined(why: &str) {
        if let Some(world) = &*JOINED.lock().unwrap_or_else(PoisonError::into_inner) {
            world.leave(why);
        }
    }

    /// Disconnects from the other ranks and publishes `why` to them. Collectives in which they wait
    /// fail at once.
    pub(crate) fn leave(&self, why: &str) {
        let is_cause = !self.group.has_failed();
        if is_cause {
            let _ = self.group.set(LEFT, &format!("rank {}: {why}", self.rank()));
        }
        self.group.leave();
        // The store ends with the process that serves it, so the other ranks must read `why` first.
        if is_cause && self.group.is_server() {
            let since = Instant::now();
            let has_read = |rank| matches!(self.group.get(&read_key(rank)), Ok(Some(_)));
            while since.elapsed() < 4 * GRACE && !(1..self.size()).all(has_read) {
                thread::sleep(Duration::from_millis(10));
            }
        }
    }

    /// Calls a collective of the process group, with `what` as its name in error messages.
    pub(super) fn collective<R>(&self, what: &str, call: impl FnOnce(&Group) -> Result<R>) -> Result<R> {
        main_only::check(what)?;
        call(&self.group).map_err(|error| self.explained(what, &error))
    }

    /// Returns the error of a failed collective, with the error of the rank that caused it, or the
    /// collective in which each rank was waiting.
    pub(crate) fn explained(&self, what: &str, error: &Error) -> Error {
        self.group.note_failure();
        let rank = self.rank();
        let _ = self.group.set(&waits_key(rank), what);
        let since = Instant::now();
        while since.elapsed() < GRACE {
            match self.group.get(LEFT) {
                Ok(Some(why)) => {
                    let _ = self.group.set(&read_key(rank), "read");
                    return Error::msg(format!("another rank ended with an error: {why}"));
                }
                Ok(None) => thread::sleep(Duration::from_millis(20)),
                Err(_) => break,
            }
        }
        let others = (0..self.size()).filter(|other| *other != rank).map(|other| {
            match self.group.get(&waits_key(other)) {
                Ok(Some(what)) => format!("rank {other} waited in `{what}`"),
                Err(_) if other > 0 => {
                    format!("the state of rank {other} is unknown, because the store is gone")
                }
                _ => format!("rank {other} did not respond: it has died, is hanging, or never connected"),
            }
        });
        let others: Vec<String> = others.collect();
        let error = error.to_string();
        let error = error.lines().next().unwrap_or_default();
        Error::msg(format!(
            "rank {rank} lost contact with the other ranks in `{what}`; {} ({error})",
            others.join("; ")
        ))
    }
}

fn waits_key(rank: u32) -> String {
    format!("trainer/waits/{rank}")
}

fn read_key(rank: u32) -> String {
    format!("trainer/read/{rank}")
}

/// Returns a contiguous copy of a tensor on the CPU, or the tensor itself if it is one already.
fn on_cpu(tensor: &Tensor) -> Tensor {
    tensor.detach().to_device(Device::Cpu).contiguous()
}

/// Returns an error if this crate was built without the feature `distributed`.
pub(crate) fn check_available() -> Result<()> {
    if Group::IS_AVAILABLE {
        return Ok(());
    }
    Err(Error::usage(
        "cannot train in several processes: the crate `trainer` was built without its feature `distributed`; enable the \
         feature, or train in this process alone with `.single_process(true)`",
    ))
}

/// Calls `body` on rank 0 first, while the other ranks wait, and then on the other ranks, as
/// [`World::main_first`] does. In a program with one process, calls `body`.
///
/// ```
/// let data = trainer::distributed::main_first(|| std::fs::read_to_string("Cargo.toml"))?;
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// # Errors
///
/// Returns an error in the same cases as [`World::from_env`] and [`World::main_first`], or the
/// error of `body`.
pub fn main_first<R, E: Into<crate::BoxError>>(body: impl FnOnce() -> Result<R, E>) -> Result<R> {
    match World::from_env()? {
        Some(world) => world.main_first(body),
        None => body().map_err(|error| Error::from(error.into())),
    }
}
