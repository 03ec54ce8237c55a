//! [`Prefetch`]: a loader on a background thread.

use std::iter;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use super::batch::Batch;
use super::loader::{Batches, Loader};
use super::notes::PassNotes;
use super::prefetch_pool::{BatchSender, PrefetchPool};
use crate::distributed::Share;
use crate::error::{Error, Result};

/// A loader whose batches are produced on a background thread: see [`Loader::prefetch`].
#[derive(Debug)]
pub struct Prefetch<L> {
    loader: Arc<Mutex<L>>,
    depth: usize,
}

impl<L> Prefetch<L> {
    #[track_caller]
    pub(super) fn new(loader: L, depth: usize) -> Self {
        assert_depth(depth);
        Prefetch { loader: Arc::new(Mutex::new(loader)), depth }
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

/// Locks the loader; `None` if a pass is using it. After a panic, the loader is used in the state
/// in which the panic left it.
fn try_lock<L>(loader: &Mutex<L>) -> Option<MutexGuard<'_, L>> {
    match loader.try_lock() {
        Ok(loader) => Some(loader),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn is_active() -> Error {
    Error::usage("the previous pass over this loader is still active: exhaust or drop its iterator first")
}

impl<B: Batch, L: Loader<B> + Send + 'static> Loader<B> for Prefetch<L> {
    fn batches(&mut self, epoch: u64, start: u64) -> Result<Batches<'_, B>> {
        let loader = Arc::clone(&self.loader);
        let make = move |sender: &BatchSender<B>| {
            let Some(mut loader) = try_lock(&loader) else {
                return sender.send_all(iter::once(Err(is_active())));
            };
            match loader.batches(epoch, start) {
                Ok(batches) => sender.send_all(batches),
                Err(error) => sender.send_all(iter::once(Err(error))),
            }
        };
        let batches = <Self as Loader<B>>::len(self).map(|batches| batches.saturating_sub(start));
        let batches = batches.map(|batches| usize::try_from(batches).unwrap_or(usize::MAX));
        Ok(Box::new(PrefetchPool::start(depth_in(self.depth, batches)?, vec![make])?))
    }

    fn len(&self) -> Option<u64> {
        try_lock(&self.loader)?.len()
    }

    fn fingerprint(&self) -> Option<String> {
        try_lock(&self.loader)?.fingerprint()
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
