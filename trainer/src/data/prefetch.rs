//! [`Prefetch`]: any loader, on a thread of its own.

use std::iter;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use super::ahead::{BatchSender, PrefetchPool};
use super::batch::Batch;
use super::loader::{Batches, Loader};
use crate::error::{Error, Result};

/// A loader whose batches are made on a background thread: [`Loader::prefetch`].
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

/// For all that makes batches ahead.
#[track_caller]
pub(super) fn assert_depth(depth: usize) {
    assert!(depth > 0, "prefetch makes at least one batch ahead");
}

/// How many batches may be made ahead. Room for each is allocated when a pass begins.
const MAX_DEPTH: usize = 1 << 16;

/// How many batches are made ahead in a pass that has `batches` of them, where that is known: no more than there are.
///
/// # Errors
///
/// Returns an error if that is too many.
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

/// The loader, unless a pass has it. What a panic has left of it is the loader's own business.
fn take<L>(loader: &Mutex<L>) -> Option<MutexGuard<'_, L>> {
    match loader.try_lock() {
        Ok(loader) => Some(loader),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl<B: Batch, L: Loader<B> + Send + 'static> Loader<B> for Prefetch<L> {
    fn batches(&mut self, epoch: u64, start: u64) -> Result<Batches<'_, B>> {
        let loader = Arc::clone(&self.loader);
        let make = move |outlet: &BatchSender<B>| {
            let Some(mut loader) = take(&loader) else {
                return outlet.put(iter::once(Err(Error::usage(
                    "the last pass over this loader is not over: its batches were neither drawn to the end nor dropped",
                ))));
            };
            match loader.batches(epoch, start) {
                Ok(batches) => outlet.put(batches),
                Err(error) => outlet.put(iter::once(Err(error))),
            }
        };
        let batches = <Self as Loader<B>>::len(self).map(|batches| batches.saturating_sub(start));
        let batches = batches.map(|batches| usize::try_from(batches).unwrap_or(usize::MAX));
        Ok(Box::new(PrefetchPool::start(depth_in(self.depth, batches)?, vec![make])?))
    }

    fn len(&self) -> Option<u64> {
        take(&self.loader)?.len()
    }

    fn fingerprint(&self) -> Option<String> {
        take(&self.loader)?.fingerprint()
    }

    fn is_deterministic(&self) -> bool {
        take(&self.loader).is_some_and(|loader| loader.is_deterministic())
    }
}
