//! What the heap does with freed memory while an entry point runs.

use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

use trainer_sys::{trainer_heap_is_glibc, trainer_heap_limit, trainer_heap_trim};

/// What the heap does with the memory of freed tensors on the CPU: see
/// [`heap`](crate::TrainerBuilder::heap).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Heap {
    /// It keeps it for the next step.
    #[default]
    Keep,
    /// It does what the program or its environment has set.
    System,
}

/// The limits of glibc's heap, in bytes; -1 means that there is none.
#[derive(Clone, Copy)]
struct Limits {
    /// The smallest allocation that is mapped by itself, and returned to the system when it is
    /// freed.
    map: i32,
    /// The free memory at the end of the heap above which it is returned to the system.
    trim: i32,
    /// What the heap grows by, in addition to what it needs.
    pad: i32,
}

const MIB: i32 = 1 << 20;

/// Almost no tensor is returned. Older versions of glibc refuse a larger `map`, and tensors above
/// it would raise the peak of a process, because nothing else fits into the gaps that they leave.
/// With `pad`, the heaps of other threads keep their memory too: glibc creates them 64 MiB at a
/// time.
const KEPT: Limits = Limits { map: 32 * MIB, trim: -1, pad: 64 * MIB };

/// Where glibc's own limits end up in a process that frees large tensors: they cannot be read, and
/// once one of them has been set, glibc no longer adapts them. Its documented initial values would
/// slow down the rest of the program.
const ADAPTED: Limits = Limits { map: 32 * MIB, trim: 64 * MIB, pad: MIB / 8 };

impl Limits {
    /// Returns whether glibc accepted the limits.
    fn set(self) -> bool {
        // SAFETY: the call passes numbers to `mallopt`, which holds the heap's lock.
        unsafe { trainer_heap_limit(self.map, self.trim, self.pad) }
    }
}

/// Why the heap of this process is left as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Unchanged {
    /// The variable of the environment is set.
    Variable(String),
    /// Memory comes from another allocator than glibc's.
    Allocator,
    /// glibc refuses the limits.
    Refused,
}

impl fmt::Display for Unchanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unchanged::Variable(name) => write!(f, "{name} is set"),
            Unchanged::Allocator => f.write_str("memory does not come from glibc's allocator"),
            Unchanged::Refused => f.write_str("glibc refuses the limits"),
        }
    }
}

/// Returns the variable, of those with these names and values, that sets something of the heap.
fn variable_of_the_heap(variables: impl Iterator<Item = (String, String)>) -> Option<String> {
    let sets = |name: &str, value: &str| {
        name.starts_with("MALLOC_") || name == "GLIBC_TUNABLES" && value.contains("glibc.malloc.")
    };
    variables.filter(|(name, value)| sets(name, value)).map(|(name, _)| name).min()
}

impl Heap {
    /// What this setting does in this process, as text.
    pub(crate) fn effect(self) -> String {
        match (self, unchanged()) {
            (Heap::Keep, None) => "keeps freed memory".to_owned(),
            (Heap::Keep, Some(reason)) => format!("unchanged: {reason}"),
            (Heap::System, _) => "unchanged".to_owned(),
        }
    }
}

/// Returns why the heap of this process is left as it is, or `None` if it is not.
fn unchanged() -> Option<&'static Unchanged> {
    static UNCHANGED: OnceLock<Option<Unchanged>> = OnceLock::new();
    let find = || {
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        let variables = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
        if let Some(name) = variable_of_the_heap(variables) {
            return Some(Unchanged::Variable(name));
        }
        // SAFETY: the call compares the addresses of functions.
        if !unsafe { trainer_heap_is_glibc() } {
            return Some(Unchanged::Allocator);
        }
        // glibc's own limits move towards these.
        (!ADAPTED.set()).then_some(Unchanged::Refused)
    };
    UNCHANGED.get_or_init(find).as_ref()
}

/// The number of guards.
static HELD: Mutex<usize> = Mutex::new(0);

/// Keeps the memory of freed tensors in the heap for as long as a guard lives. When the last one is
/// dropped, free memory is returned to the system.
pub(crate) struct HeapGuard(bool);

impl HeapGuard {
    pub(crate) fn begin(heap: Heap) -> Self {
        let keeps = heap == Heap::Keep && unchanged().is_none();
        if keeps {
            let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
            if *held == 0 {
                KEPT.set();
            }
            *held += 1;
        }
        HeapGuard(keeps)
    }
}

impl Drop for HeapGuard {
    fn drop(&mut self) {
        if !self.0 {
            return;
        }
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        *held -= 1;
        if *held == 0 {
            ADAPTED.set();
            // SAFETY: the call returns free memory, and holds the heap's lock.
            unsafe { trainer_heap_trim() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_heap_are_recognized() {
        let found = |variables: &[(&str, &str)]| {
            let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            variable_of_the_heap(owned)
        };
        for name in ["MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_CONF"] {
            assert_eq!(found(&[("PATH", "/bin"), (name, "1")]).as_deref(), Some(name));
        }
        let tunables = ("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2:glibc.malloc.trim_threshold=1");
        assert_eq!(found(&[tunables]).as_deref(), Some("GLIBC_TUNABLES"));
        assert_eq!(found(&[("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2"), ("MY_MALLOC_", "1")]), None);
    }
}
