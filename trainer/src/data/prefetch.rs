//! [`Prefetch`]: a loader on a background thread.

use std::iter;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use tch::Device;

use super::batch::{Batch, change_tensors};
use super::loader::{Batches, Loader};
use super::notes::PassNotes;
use super::prefetch_pool::{BatchSender, PrefetchPool};
use crate::distributed::Share;
use crate::error::{Error, Result};
use crate::libtorch::{self, Event, cuda};
use crate::values::facts::SettingList;

/// A loader whose batches are produced on a background thread: see [`Loader::prefetch`].
///
/// ```
/// use trainer::prelude::*;
///
/// let data = Tensor::arange(64, (Kind::Float, Device::Cpu));
/// let mut train = InMemory::new(data)?.batch_size(16).prefetch(2);
/// assert_eq!(train.batches(0, 0)?.count(), 4);
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias("prefetch_factor", "pin_memory"))]
#[derive(Debug)]
pub struct Prefetch<L> {
    loader: Arc<Mutex<L>>,
    depth: usize,
    /// The CUDA device that the thread copies batches to.
    device: Option<Device>,
}

impl<L> Prefetch<L> {
    #[track_caller]
    pub(super) fn new(loader: L, depth: usize) -> Self {
        assert_depth(depth);
        Prefetch { loader: Arc::new(Mutex::new(loader)), depth, device: None }
    }

    /// Also copies the batches to `device` on the background thread, so that the next batches are
    /// copied while the GPU computes. Does nothing unless `device` is a CUDA device.
    ///
    /// ```no_run
    /// # use trainer::prelude::*;
    /// # fn train(inputs: Tensor, labels: Tensor, device: Device) -> Result<()> {
    /// let train = InMemory::new((inputs, labels))?.batch_size(256).shuffle(1);
    /// let mut train = train.prefetch(2).to_device(device);
    /// # let _ = &mut train;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The thread copies each batch into pinned memory, and from there to the device, on a separate
    /// CUDA stream. The device waits for the copy before it begins the work of the step; neither
    /// thread is blocked. When hooks at [`BeforeTransfer`](crate::BeforeTransfer) run, the batch is
    /// already on the device. The memory of the device holds up to `depth` batches besides the
    /// current one. The values, and the positions stored in checkpoints, are the same as without
    /// `to_device`.
    ///
    /// The device should be that of the task: otherwise, the step moves the batch again. If the
    /// device cannot be used, the pass starts with an error that says why.
    #[must_use]
    pub fn to_device(mut self, device: Device) -> Self {
        self.device = matches!(device, Device::Cuda(_)).then_some(device);
        self
    }
}

/// A batch that is being copied to a device.
struct Uploaded<B> {
    batch: B,
    /// The event that marks the end of the copy.
    copied: Event,
    device: Device,
}

impl<B: Batch> Uploaded<B> {
    /// Starts the copy on the current stream of this thread.
    fn begin(mut batch: B, device: Device) -> Result<Self> {
        change_tensors(&mut batch, |tensor| {
            if !tensor.defined() || tensor.device() == device {
                return Ok(None);
            }
            libtorch::upload(tensor, device).map(Some)
        })?;
        Ok(Uploaded { batch, copied: Event::record(device)?, device })
    }

    /// Makes the current stream of this thread wait for the copy, and returns the batch.
    fn finish(self) -> Result<B> {
        self.copied.block(self.device)?;
        let mut result = Ok(());
        self.batch.tensors(&mut |tensor| {
            if tensor.defined() && tensor.device() == self.device && result.is_ok() {
                result = libtorch::record_stream(tensor);
            }
        });
        result.map(|()| self.batch)
    }
}

/// Panics if a prefetch depth is 0.
#[track_caller]
pub(super) fn assert_depth(depth: usize) {
    assert!(depth > 0, "`.prefetch(0)`: expected at least 1");
}

/// The maximum number of batches produced ahead. Memory for all of them is reserved when a pass
/// starts.
const MAX_DEPTH: usize = 1 << 16;

/// Returns the prefetch depth of a pass: at most its number of batches, if that is known.
///
/// # Errors
///
/// Returns an error if the result exceeds [`MAX_DEPTH`].
pub(super) fn depth_in(depth: usize, batches: Option<usize>) -> Result<usize> {
    let least = batches.map_or(depth, |batches| depth.min(batches.max(1)));
    if least <= MAX_DEPTH {
        Ok(least)
    } else {
        Err(Error::usage(format!(
            "`.prefetch({depth})` would hold up to {least} batches in memory: expected at most {MAX_DEPTH}"
        )))
    }
}

/// Locks the loader, or returns `None` if a pass is using it. After a panic, the loader is used in
/// the state in which the panic left it.
fn try_lock<L>(loader: &Mutex<L>) -> Option<MutexGuard<'_, L>> {
    match loader.try_lock() {
        Ok(loader) => Some(loader),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Calls `send` with the batches of a pass, or with an error if the pass cannot start.
fn with_batches<B: Batch, L: Loader<B>>(
    loader: &Mutex<L>,
    epoch: u64,
    start: u64,
    send: impl FnOnce(Batches<'_, B>),
) {
    let Some(mut loader) = try_lock(loader) else { return send(Box::new(iter::once(Err(is_active())))) };
    match loader.batches(epoch, start) {
        Ok(batches) => send(batches),
        Err(error) => send(Box::new(iter::once(Err(error)))),
    }
}

fn is_active() -> Error {
    Error::usage("the previous pass over this loader is still active: exhaust or drop its iterator first")
}

impl<B: Batch, L: Loader<B> + Send + 'static> Loader<B> for Prefetch<L> {
    fn batches(&mut self, epoch: u64, start: u64) -> Result<Batches<'_, B>> {
        let loader = Arc::clone(&self.loader);
        let batches = <Self as Loader<B>>::len(self).map(|batches| batches.saturating_sub(start));
        let batches = batches.map(|batches| usize::try_from(batches).unwrap_or(usize::MAX));
        let depth = depth_in(self.depth, batches)?;
        let Some(device) = self.device else {
            let make = move |sender: &BatchSender<B>| {
                with_batches(&loader, epoch, start, |all| sender.send_all(all));
            };
            return Ok(Box::new(PrefetchPool::start(depth, vec![make])?));
        };
        cuda::check_available(device)
            .map_err(|why| Error::usage(format!("`.to_device({device:?})`: {why}")))?;
        let make = move |sender: &BatchSender<Uploaded<B>>| {
            let entered = libtorch::enter_stream(device);
            with_batches(&loader, epoch, start, |all| {
                let failed = entered.err().map(Err);
                let uploaded = all.map(|batch| Uploaded::begin(batch?, device));
                sender.send_all(failed.into_iter().chain(uploaded));
            });
        };
        let uploaded = PrefetchPool::start(depth, vec![make])?;
        Ok(Box::new(uploaded.map(|uploaded| uploaded?.finish())))
    }

    fn len(&self) -> Option<u64> {
        try_lock(&self.loader)?.len()
    }

    fn fingerprint(&self) -> Option<String> {
        try_lock(&self.loader)?.fingerprint()
    }

    fn settings(&self) -> SettingList {
        let inner = try_lock(&self.loader).map_or_else(SettingList::new, |loader| loader.settings());
        inner.with("prefetch", self.depth)
    }

    fn share(&mut self, share: Share) -> Result<()> {
        try_lock(&self.loader).ok_or_else(is_active)?.share(share)
    }

    fn notes(&self) -> Option<PassNotes> {
        try_lock(&self.loader)?.notes()
    }

    fn seek(&mut self, epoch: u64, batch: u64, position: &str) -> Result<()> {
        try_lock(&self.loader).ok_or_else(is_active)?.seek(epoch, batch, position)
    }

    fn is_deterministic(&self) -> bool {
        try_lock(&self.loader).is_some_and(|loader| loader.is_deterministic())
    }
}
