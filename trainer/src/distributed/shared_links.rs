//! [`Shared`]: the state that all handles of the connections share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};

use super::call::quoted;
use super::peers::Peers;
use super::steps::Step;
use super::watch::Watch;
use crate::error::{Error, Result};
use crate::libtorch::dist::Group;

/// The state that all handles of the connections share.
#[derive(Debug)]
pub(super) struct Shared {
    /// The steps in which this rank exchanges control messages, and the connections for them.
    pub(super) steps: Vec<Step>,
    pub(super) peers: Peers,
    /// The number of collectives that the program has called in this batch.
    calls: AtomicU64,
    /// The thread whose entry points use the world, and the number of entry points that run on it.
    running: Mutex<Option<(ThreadId, usize)>>,
    /// Detects ranks that wait for each other in different collectives.
    pub(super) watch: Watch,
}

impl Shared {
    pub(super) fn new(group: &Group, steps: Vec<Step>, peers: Peers) -> Self {
        Shared {
            steps,
            peers,
            calls: AtomicU64::new(0),
            running: Mutex::default(),
            watch: Watch::begin(group),
        }
    }

    /// Returns the number of the next collective that the program calls, from 1.
    pub(super) fn count_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn reset_calls(&self) {
        self.calls.store(0, Ordering::Relaxed);
    }

    /// Records that an entry point on this thread uses the world. Returns an error if an entry
    /// point on another thread already does.
    pub(super) fn begin_entry(&self) -> Result<()> {
        let own = thread::current().id();
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *running {
            None => *running = Some((own, 1)),
            Some((thread, count)) if *thread == own => *count += 1,
            Some(_) => {
                return Err(Error::usage(
                    "an entry point on another thread of this process is already training with the other ranks: run entry \
                     points one after the other, or build the trainer with `.world(World::solo())`",
                ));
            }
        }
        Ok(())
    }

    /// Records the end of an entry point.
    pub(super) fn end_entry(&self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        *running = running.take().filter(|(_, count)| *count > 1).map(|(thread, count)| (thread, count - 1));
    }

    /// Returns an error if an entry point is running on another thread.
    pub(super) fn check_thread(&self, what: &str) -> Result<()> {
        let running = *self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.is_none_or(|(thread, _)| thread == thread::current().id()) {
            return Ok(());
        }
        Err(Error::usage(format!(
            "{} is a collective, which all ranks must call in the same order, but it was called on a different thread than \
             the running entry point: call it in the hook itself",
            quoted(what)
        )))
    }
}
