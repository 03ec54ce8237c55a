//! [`World`]: the processes that train together, seen from one of them.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::Tensor;

use super::call::sorted;
use super::json::{from_json, json};
use super::launch::Launch;
use super::links::{Links, Op, cat_rows};
use super::{Share, Unequal, join, main_only};
use crate::error::{Error, Result};
use crate::libtorch;
use crate::moment::MomentInfo;

/// The processes that train together, seen from one of them.
///
/// A process that trains alone is a world of one rank, so hooks need no special case for it: each
/// collective then returns this rank's own value at once.
///
/// The methods of a world are collectives, unless documented otherwise: all ranks must call the
/// same collectives in the same order, on the thread of the running entry point. Each call has a
/// name, chosen by the program. Before they exchange data, the ranks compare the method, the name,
/// the dtypes and the shapes, the hook and its moment, and the number of collectives that the
/// program has called in this batch. If anything differs, all ranks return an error at once that
/// says where each of them is.
///
/// Collectives with the same name in the same hook are matched by their order. In a loop over
/// several tensors, give each tensor its own name. Then a loop over a `HashMap`, whose order
/// differs between processes, causes an error instead of a wrong result.
/// [`average`](World::average) and [`broadcast`](World::broadcast) take several named tensors and
/// match them by name, in any order.
///
/// If one rank waits in a collective that another rank skips, then after a second or two the ranks
/// return an error that says where each of them is. A call in a hook with [`Main`](crate::Main) in
/// its context, or on a thread other than that of the running entry point, returns an error at
/// once.
///
/// ```no_run
/// use trainer::distributed::{Op, World};
/// use trainer::tch::Tensor;
///
/// let world = World::from_env()?;
/// let total = Tensor::from(f64::from(world.rank()));
/// world.all_reduce("total", &total, Op::Sum)?;
/// println!("{} of {}: {total}", world.rank(), world.size());
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "ProcessGroup")]
#[derive(Clone, Debug)]
pub struct World {
    /// The connections to the other ranks; `None` if this is the only rank.
    pub(super) links: Option<Links>,
}

/// The world that the environment describes, once it has been joined.
static JOINED: Mutex<Option<World>> = Mutex::new(None);

impl World {
    /// Returns a world of one rank: this process trains alone, whatever its environment describes.
    ///
    /// ```
    /// use trainer::distributed::World;
    ///
    /// let world = World::solo();
    /// assert_eq!((world.rank(), world.size()), (0, 1));
    /// ```
    #[must_use]
    pub const fn solo() -> Self {
        World { links: None }
    }

    /// Joins the processes that the [environment](Launch::from_env) describes. If it describes
    /// none, returns the world of this process [alone](World::solo). The processes are joined only
    /// once: later calls return the same world.
    ///
    /// # Errors
    ///
    /// Returns an error if a variable is missing or invalid, and in the same cases as
    /// [`join`](World::join).
    pub fn from_env() -> Result<Self> {
        let Some(launch) = Launch::from_env()? else { return Ok(World::solo()) };
        let mut joined = JOINED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(world) = &*joined {
            return Ok(world.clone());
        }
        let world = World::join(&launch)?;
        *joined = Some(world.clone());
        Ok(world)
    }

    /// Joins the other processes of a launch.
    ///
    /// # Errors
    ///
    /// Returns an error
    ///
    /// - if the launch has fewer than two processes or an invalid rank;
    /// - if the other processes do not join within the timeout;
    /// - if the store at the address belongs to another [job](Launch::job);
    /// - if this process may not open enough files;
    /// - if this crate was built without the feature `distributed`;
    /// - in a hook that runs on rank 0 only.
    #[doc(alias = "init_process_group")]
    pub fn join(launch: &Launch) -> Result<Self> {
        join::join(launch).map(|links| World { links: Some(links) })
    }

    /// The rank of this process, from 0. Not a collective.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.links.as_ref().map_or(0, Links::rank)
    }

    /// The number of processes. Not a collective.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.links.as_ref().map_or(1, Links::size)
    }

    /// This rank's share of each batch. Not a collective.
    #[must_use]
    pub fn share(&self) -> Share {
        Share { rank: self.rank(), of: self.size() }
    }

    /// The time that this process has spent in collectives so far, including the wait for the
    /// slowest rank; 0 for a single process. The averaging of gradients during a backward pass does
    /// not count. Not a collective.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.links.as_ref().map_or(Duration::ZERO, |links| links.shared.watch.waited())
    }

    /// Describes the last collectives of this process, one line for each, the oldest first.
    pub(crate) fn recent(&self) -> Vec<String> {
        self.links.as_ref().map_or_else(Vec::new, |links| links.shared.watch.recent())
    }

    /// Whether this rank is the only one. The loop then skips what is only needed for other ranks.
    #[inline]
    pub(crate) const fn is_solo(&self) -> bool {
        self.links.is_none()
    }

    /// Whether a backward pass of this process averages the gradients over the ranks.
    pub(crate) fn is_averaging(&self) -> bool {
        self.links.as_ref().is_some_and(|links| links.shared.watch.is_in_backward())
    }

    /// Returns the connections for a collective, or `None` in a single process. In a hook that runs
    /// on rank 0 only, returns the same error in a single process as in several processes.
    fn linked(&self, method: &str) -> Result<Option<&Links>> {
        if self.is_solo() {
            main_only::check(method)?;
        }
        Ok(self.links.as_ref())
    }

    /// Reduces the tensors of all ranks elementwise with `op`, and stores the result in `tensor` on
    /// every rank. The tensor must have the same shape and dtype on all ranks. The result is
    /// bit-identical on all ranks.
    ///
    /// # Errors
    ///
    /// Returns an error
    ///
    /// - if the ranks do not call the same collective; the error says where each rank is;
    /// - if another rank failed, died or did not call this within the timeout;
    /// - if this process has disconnected from the other ranks after an error;
    /// - in a hook that runs on rank 0 only;
    /// - on a thread other than that of the running entry point.
    #[track_caller]
    pub fn all_reduce(&self, name: &str, tensor: &Tensor, op: Op) -> Result<()> {
        let Some(links) = self.linked("all_reduce")? else { return Ok(()) };
        links.all_reduce(name, tensor, op)
    }

    /// Replaces the elements of named tensors with those of the rank `root`. The names, and the
    /// shape and dtype of each tensor, must be the same on all ranks; their order may differ.
    ///
    /// ```no_run
    /// # use trainer::distributed::World;
    /// # use trainer::tch::Tensor;
    /// # fn f(world: &World, noise: &Tensor) -> trainer::Result<()> {
    /// world.broadcast([("noise", noise)], 0)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if there is no rank `root`, if two tensors have the same name, and in the
    /// same cases as [`all_reduce`](World::all_reduce).
    #[track_caller]
    pub fn broadcast<N: AsRef<str>, T: Borrow<Tensor>>(
        &self,
        tensors: impl IntoIterator<Item = (N, T)>,
        root: u32,
    ) -> Result<()> {
        let list = sorted("broadcast", tensors)?;
        if root >= self.size() {
            return Err(Error::usage(format!(
                "`broadcast` from rank {root}, but the number of ranks is {}: expected a rank below that number",
                self.size()
            )));
        }
        let Some(links) = self.linked("broadcast")? else { return Ok(()) };
        links.broadcast(&list, root)
    }

    /// Returns the tensors of all ranks, stacked along a new first dimension in the order of the
    /// ranks. The tensor must have the same shape and dtype on all ranks.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`all_reduce`](World::all_reduce).
    #[track_caller]
    pub fn all_gather(&self, name: &str, tensor: &Tensor) -> Result<Tensor> {
        let Some(links) = self.linked("all_gather")? else {
            return copied(name, tensor)?.f_unsqueeze(0).map_err(|error| {
                Error::usage(format!("the tensor `{name}` cannot be stacked: {}", Error::from(error)))
            });
        };
        links.all_gather(name, tensor)
    }

    /// Adds the tensors of all ranks, and returns this rank's part of the sum. The size of the
    /// first dimension must be a multiple of the number of ranks; the sum is split into equal
    /// parts, and rank `r` gets the `r`-th part, counted from 0.
    ///
    /// # Errors
    ///
    /// Returns an error if the size of the first dimension is not such a multiple, and in the same
    /// cases as [`all_reduce`](World::all_reduce).
    #[track_caller]
    pub fn reduce_scatter(&self, name: &str, tensor: &Tensor) -> Result<Tensor> {
        libtorch::check_readable(tensor, format_args!("the tensor of `reduce_scatter({name:?})`"))?;
        let size = tensor.size();
        let ranks = self.size();
        if size.first().is_none_or(|rows| rows % i64::from(ranks) != 0) {
            return Err(Error::usage(format!(
                "`reduce_scatter` cannot divide a tensor of shape {size:?} among {ranks} ranks: expected a first dimension \
                 that is a multiple of {ranks}"
            )));
        }
        let Some(links) = self.linked("reduce_scatter")? else { return copied(name, tensor) };
        links.reduce_scatter(name, tensor)
    }

    /// Returns the rows of all ranks, concatenated in the order of the ranks. The ranks may have
    /// different numbers of rows; the other dimensions and the dtype must be the same.
    ///
    /// # Errors
    ///
    /// Returns an error if a tensor has no dimensions, and in the same cases as
    /// [`all_reduce`](World::all_reduce).
    #[track_caller]
    pub fn gather_rows(&self, name: &str, tensor: &Tensor) -> Result<Tensor> {
        if tensor.dim() == 0 {
            return Err(Error::usage(
                "`gather_rows` cannot gather a tensor without dimensions: expected at least one dimension",
            ));
        }
        let Some(links) = self.linked("gather_rows")? else { return copied(name, tensor) };
        links.gather_rows("gather_rows", name, tensor)
    }

    /// Returns the predictions of all ranks for the same batches, as one tensor in the order of the
    /// data. `preds` is the return value of [`predict`](crate::Trainer::predict): one tensor for
    /// each batch, with the rows of this rank.
    ///
    /// # Errors
    ///
    /// Returns an error if there are no predictions on any rank, if they have no dimensions or an
    /// unsupported dtype, and in the same cases as [`gather_rows`](World::gather_rows).
    #[track_caller]
    pub fn gather_predictions(&self, name: &str, preds: &[Tensor]) -> Result<Tensor> {
        let Some(links) = self.linked("gather_predictions")? else { return cat_rows(preds) };
        links.gather_predictions(name, preds)
    }

    /// Waits until all ranks have called this method.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`all_reduce`](World::all_reduce).
    #[track_caller]
    pub fn barrier(&self, name: &str) -> Result<()> {
        let Some(links) = self.linked("barrier")? else { return Ok(()) };
        links.barrier(name)
    }

    /// Returns the values of all ranks, in the order of the ranks.
    ///
    /// ```no_run
    /// # use trainer::distributed::World;
    /// # fn f(world: &World) -> trainer::Result<()> {
    /// let hosts: Vec<String> = world.gather("hosts", &"node-1".to_owned())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if a value cannot be converted to or from JSON, and in the same cases as
    /// [`all_reduce`](World::all_reduce).
    #[track_caller]
    pub fn gather<V: Serialize + DeserializeOwned>(&self, name: &str, value: &V) -> Result<Vec<V>> {
        match self.linked("gather")? {
            // Converts the value as between processes, so that a value that cannot be converted is
            // an error here, too.
            None => Ok(vec![from_json(&json(value, "gather")?, "gather")?]),
            Some(links) => links.gather("gather", name, value),
        }
    }

    /// Returns the named tensors of all ranks, in the order of the ranks, on the CPU. Names, shapes
    /// and dtypes may differ.
    ///
    /// # Errors
    ///
    /// Returns an error if a tensor cannot be serialized, and in the same cases as
    /// [`all_reduce`](World::all_reduce).
    #[track_caller]
    pub fn gather_tensors(
        &self,
        name: &str,
        own: &BTreeMap<String, Tensor>,
    ) -> Result<Vec<BTreeMap<String, Tensor>>> {
        let Some(links) = self.linked("gather_tensors")? else {
            let copies = own.iter().map(|(name, tensor)| Ok((name.clone(), copied(name, tensor)?)));
            return Ok(vec![copies.collect::<Result<_>>()?]);
        };
        links.gather_tensors("gather_tensors", name, own)
    }

    /// Returns whether `flag` is true on any rank.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`all_reduce`](World::all_reduce).
    #[track_caller]
    pub fn any(&self, name: &str, flag: bool) -> Result<bool> {
        let Some(links) = self.linked("any")? else { return Ok(flag) };
        links.any(name, flag)
    }

    /// Replaces the elements of named floating-point tensors with their means over all ranks. Skips
    /// tensors of other dtypes. The names, and the shape and dtype of each tensor, must be the same
    /// on all ranks; their order may differ, as in a `HashMap`.
    ///
    /// ```no_run
    /// # use std::collections::HashMap;
    /// # use trainer::distributed::World;
    /// # use trainer::tch::Tensor;
    /// # fn f(world: &World, accuracy: &Tensor, norms: &HashMap<String, Tensor>) -> trainer::Result<()> {
    /// world.average([("accuracy", accuracy)])?;
    /// world.average(norms)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if two tensors have the same name, and in the same cases as
    /// [`all_reduce`](World::all_reduce).
    #[track_caller]
    pub fn average<N: AsRef<str>, T: Borrow<Tensor>>(
        &self,
        tensors: impl IntoIterator<Item = (N, T)>,
    ) -> Result<()> {
        let list = sorted("average", tensors)?;
        let Some(links) = self.linked("average")? else { return Ok(()) };
        links.average(&list)
    }

    /// Calls `body` on rank 0 first, while the other ranks wait, and then on the other ranks, for
    /// example to download or prepare data once.
    ///
    /// # Errors
    ///
    /// Returns an error if `body` does, and in the same cases as [`all_reduce`](World::all_reduce).
    /// If `body` fails on rank 0, rank 0 disconnects from the other ranks, which then return an
    /// error that contains that of rank 0, without calling `body`.
    #[track_caller]
    pub fn main_first<R, E: Into<crate::BoxError>>(
        &self,
        name: &str,
        body: impl FnOnce() -> Result<R, E>,
    ) -> Result<R> {
        match self.linked("main_first")? {
            None => body().map_err(|error| Error::from(error.into())),
            Some(links) => links.main_first(name, body),
        }
    }
}

/// The collectives of the trainer itself.
impl World {
    /// Returns a handle for a hook. The descriptions of collectives that are called with this
    /// handle contain the name of the hook.
    pub(crate) fn at(&self, hook: Option<&str>, moment: &MomentInfo) -> World {
        World { links: self.links.as_ref().map(|links| links.at(hook, moment)) }
    }

    /// Restarts the count of the collectives that the program calls in a batch.
    pub(crate) fn begin_batch(&self) {
        if let Some(links) = &self.links {
            links.begin_batch();
        }
    }

    /// Returns the maximum of each of `maxima` and the sum of each of `sums` over all ranks. The
    /// results are bit-identical on all ranks.
    pub(crate) fn combine<const M: usize, const S: usize>(
        &self,
        maxima: [f64; M],
        sums: [f64; S],
        what: &str,
    ) -> Result<([f64; M], [f64; S])> {
        let Some(links) = &self.links else { return Ok((maxima, sums)) };
        links.combine(maxima, sums, what)
    }

    /// Whether the flag is set on any rank. Unlike [`any`](World::any), this is the trainer's own
    /// communication.
    pub(crate) fn is_set(&self, flag: bool, what: &str) -> Result<bool> {
        let ([flag], []) = self.combine([f64::from(u8::from(flag))], [], what)?;
        Ok(flag > 0.0)
    }

    /// Compares a value with those of the other ranks, and returns two values that differ, if any.
    /// The size of the messages does not depend on the values, unless they differ.
    pub(crate) fn difference<V: Serialize + DeserializeOwned>(
        &self,
        own: &V,
        what: &str,
    ) -> Result<Option<Unequal<V>>> {
        let Some(links) = &self.links else { return Ok(None) };
        links.difference(own, what)
    }

    /// Returns the values of all ranks.
    pub(crate) fn gather_named<V: Serialize + DeserializeOwned>(
        &self,
        value: &V,
        what: &str,
    ) -> Result<Vec<V>> {
        let Some(links) = &self.links else { return Ok(vec![from_json(&json(value, what)?, what)?]) };
        links.gather_named(value, what)
    }

    /// Broadcasts tensors whose shapes and dtypes the trainer knows to be the same on all ranks.
    pub(crate) fn send<'a>(
        &self,
        tensors: impl IntoIterator<Item = &'a Tensor>,
        root: u32,
        what: &str,
    ) -> Result<()> {
        let Some(links) = &self.links else { return Ok(()) };
        links.send(tensors, root, what)
    }

    /// Disconnects from the other ranks and publishes `why` to them. If they are waiting in a
    /// collective, it fails at once.
    pub(crate) fn leave(&self, why: &str) {
        if let Some(links) = &self.links {
            links.leave(why);
        }
    }

    /// Disconnects from the world that the environment describes, if it was joined, and publishes
    /// `why` to the other ranks.
    pub(crate) fn leave_joined(why: &str) {
        if let Some(world) = &*JOINED.lock().unwrap_or_else(PoisonError::into_inner) {
            world.leave(why);
        }
    }
}

/// Calls `body` on rank 0 first, while the other ranks wait, and then on the other ranks, as
/// [`World::main_first`] does. In a single process, only calls `body`.
///
/// ```
/// use trainer::distributed::main_first;
///
/// let data = main_first("manifest", || std::fs::read_to_string("Cargo.toml"))?;
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// # Errors
///
/// Returns an error in the same cases as [`World::from_env`] and [`World::main_first`], or the
/// error of `body`.
#[track_caller]
pub fn main_first<R, E: Into<crate::BoxError>>(name: &str, body: impl FnOnce() -> Result<R, E>) -> Result<R> {
    World::from_env()?.main_first(name, body)
}

/// Returns a copy of the tensor with this name.
fn copied(name: &str, tensor: &Tensor) -> Result<Tensor> {
    libtorch::copied(tensor, false, format_args!("the tensor `{name}`"))
}
