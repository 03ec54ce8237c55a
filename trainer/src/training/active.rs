//! [`ActiveEntry`]: tracks the running entry points, which may be nested on one thread or run in
//! parallel on several.

use std::cell::RefCell;
use std::fmt::Write;
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};

use tch::{Device, Tensor};

use crate::distributed::current::{self, Current};
use crate::error::{Error, Result};
use crate::hook::check::MAX_AROUND;
use crate::libtorch;
use crate::run::Table;
use crate::run::reports::Reports;

/// The maximum nesting depth of entry points on one thread. Entry points are nested if a hook or
/// the task of one run calls an entry point of another trainer.
const MAX_NESTED: usize = 16;

/// An entry point that is running on this thread.
struct Level {
    operation: &'static str,
    /// The number of `around` hooks of the entry point's trainer.
    around: usize,
    device: Device,
}

thread_local! {
    /// The entry points that are running on this thread, outermost first.
    static LEVELS: RefCell<Vec<Level>> = const { RefCell::new(Vec::new()) };
}

/// An entry point that is running on any thread. All running entry points share one random number
/// generator.
#[derive(Clone, Debug)]
struct Running {
    thread: ThreadId,
    operation: &'static str,
    seed: Option<u64>,
}

static RUNNING: Mutex<Registry> = Mutex::new(Registry { entries: Vec::new(), has_warned: false });

struct Registry {
    entries: Vec<Running>,
    /// Whether the warning about shared random numbers has been printed. It is printed only once.
    has_warned: bool,
}

/// The registration of a running entry point. Dropping it ends the registration and restores the
/// state of the outer run.
pub(super) struct ActiveEntry {
    /// The random state of each device that the outer runs use, restored on drop. Empty unless this
    /// entry point is seeded.
    outer: Vec<(Device, Tensor)>,
    /// The processes that train together in the outer run.
    outer_world: Current,
    on_this_thread: PhantomData<*const ()>,
}

impl ActiveEntry {
    /// Registers an entry point. Warns, once per process, if another entry point runs on another
    /// thread and either of them is seeded, because both share the random number generator.
    ///
    /// # Errors
    ///
    /// Returns an error if the entry points on this thread are nested too deeply or have too many
    /// `around` hooks in total, or if libtorch cannot return its random state.
    pub(super) fn begin(
        operation: &'static str,
        (table, device): (&Table, Device),
        seed: Option<u64>,
        reports: &Reports,
    ) -> Result<Self> {
        let level = Level { operation, around: table.around_count(), device };
        let outer = LEVELS.with_borrow_mut(|levels| {
            check_nesting(levels, &level)?;
            let outer = if seed.is_some() { random_states(levels)? } else { Vec::new() };
            levels.push(level);
            Ok::<_, Error>(outer)
        })?;
        let running = Running { thread: thread::current().id(), operation, seed };
        let warning = RUNNING.lock().unwrap_or_else(PoisonError::into_inner).begin(running);
        warning.into_iter().for_each(|warning| reports.warn(warning));
        Ok(ActiveEntry {
            outer,
            outer_world: current::replace(Current::default()),
            on_this_thread: PhantomData,
        })
    }
}

impl Drop for ActiveEntry {
    fn drop(&mut self) {
        LEVELS.with_borrow_mut(Vec::pop);
        current::replace(std::mem::take(&mut self.outer_world));
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).end(thread::current().id());
        for (device, state) in &self.outer {
            // This cannot fail: libtorch itself returned the state.
            let _ = libtorch::set_random_state(*device, state);
        }
    }
}

/// Whether no entry point is running on this thread.
pub(super) fn is_outermost() -> bool {
    LEVELS.with_borrow(Vec::is_empty)
}

/// Returns the random state of each device that the entry points running on this thread use.
fn random_states(levels: &[Level]) -> Result<Vec<(Device, Tensor)>> {
    let mut devices = Vec::new();
    if !levels.is_empty() {
        devices.push(Device::Cpu);
    }
    for Level { device, .. } in levels {
        if matches!(device, Device::Cuda(_)) && !devices.contains(device) {
            devices.push(*device);
        }
    }
    devices.into_iter().map(|device| Ok((device, libtorch::random_state(device)?))).collect()
}

/// Returns an error if one more entry point would be nested too deeply, or if the nested entry
/// points would have too many `around` hooks in total.
fn check_nesting(levels: &[Level], own: &Level) -> Result<()> {
    if levels.len() >= MAX_NESTED {
        return Err(Error::usage(format!(
            "the entry point `{}` is nested more than {MAX_NESTED} deep on this thread ({}): if a hook runs a trainer with the same \
             discovered hooks, it calls itself endlessly; build the inner trainer with `.discover(Discover::None)`",
            own.operation,
            chain(levels)
        )));
    }
    let around = levels.iter().map(|level| level.around).sum::<usize>() + own.around;
    if !levels.is_empty() && around > MAX_AROUND {
        return Err(Error::usage(format!(
            "the nested entry points {} → `{}` have {around} `around` hooks, but the stack of one thread only has room for \
             {MAX_AROUND}: run the inner trainer on a separate thread, merge some of the hooks, or move them to the points \
             before and after the operation",
            chain(levels),
            own.operation
        )));
    }
    Ok(())
}

/// Lists the entry points, outermost first: "`fit` (3 times) → `validate`".
fn chain(levels: &[Level]) -> String {
    let mut text = String::new();
    for same in levels.chunk_by(|one, other| one.operation == other.operation) {
        let _ = write!(text, "{}`{}`", if text.is_empty() { "" } else { " → " }, same[0].operation);
        if same.len() > 1 {
            let _ = write!(text, " ({} times)", same.len());
        }
    }
    text
}

impl Registry {
    /// Adds an entry point. Returns the warning about shared random numbers if it applies for the
    /// first time.
    fn begin(&mut self, own: Running) -> Option<String> {
        let is_disturbed =
            |other: &&Running| other.thread != own.thread && (own.seed.or(other.seed).is_some());
        let warning = self.entries.iter().find(is_disturbed).map(|other| overlap(other, &own));
        self.entries.push(own);
        warning.filter(|_| !std::mem::replace(&mut self.has_warned, true))
    }

    /// Removes the innermost entry point of a thread.
    fn end(&mut self, thread: ThreadId) {
        if let Some(index) = self.entries.iter().rposition(|entry| entry.thread == thread) {
            self.entries.remove(index);
        }
    }
}

/// The warning about two entry points that run at the same time.
fn overlap(one: &Running, other: &Running) -> String {
    let named = |entry: &Running| match entry.seed {
        Some(seed) => format!("`{}` with `.seed({seed})`", entry.operation),
        None => format!("`{}` without a seed", entry.operation),
    };
    format!(
        "{} and {} run at the same time on two threads and draw from the same random numbers, because libtorch has one \
         generator for the whole process: neither is reproducible. Run seeded entries one after the other, or each in its \
         own process",
        named(one),
        named(other)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(thread: ThreadId, seed: Option<u64>) -> Running {
        Running { thread, operation: "fit", seed }
    }

    #[test]
    fn seeded_entries_that_overlap_on_two_threads_are_reported_once() {
        let (here, other) =
            (thread::current().id(), thread::spawn(|| thread::current().id()).join().unwrap());
        let warnings = |begun: &[(ThreadId, Option<u64>)]| {
            let mut registry = Registry { entries: Vec::new(), has_warned: false };
            begun.iter().filter(|(thread, seed)| registry.begin(entry(*thread, *seed)).is_some()).count()
        };
        assert_eq!(warnings(&[(here, Some(1)), (other, Some(2))]), 1);
        assert_eq!(
            warnings(&[(here, Some(1)), (other, None)]),
            1,
            "the second draws from the first's numbers"
        );
        assert_eq!(warnings(&[(here, None), (other, Some(1))]), 1, "the second seeds the first's numbers");
        assert_eq!(warnings(&[(here, Some(1)), (other, Some(2)), (other, Some(3))]), 1, "once");
        assert_eq!(warnings(&[(here, None), (other, None)]), 0);
        assert_eq!(warnings(&[(here, Some(1)), (here, Some(2))]), 0, "nested");
    }

    #[test]
    fn only_entries_that_run_at_the_same_time_are_reported() {
        let (here, other) =
            (thread::current().id(), thread::spawn(|| thread::current().id()).join().unwrap());
        let mut registry = Registry { entries: Vec::new(), has_warned: false };
        assert_eq!(registry.begin(entry(here, Some(1))), None);
        registry.end(here);
        assert_eq!(registry.begin(entry(other, Some(1))), None);
        assert_eq!(
            registry.begin(entry(here, None)).as_deref(),
            Some(
                "`fit` with `.seed(1)` and `fit` without a seed run at the same time on two threads and draw from the \
                 same random numbers, because libtorch has one generator for the whole process: neither is reproducible. Run \
                 seeded entries one after the other, or each in its own process"
            )
        );
    }
}
