//! Faults in tests: a kill after a number of operations, and a full disk.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// A fault that is injected into the operations of a thread. A write that fails still writes half
/// of its bytes.
enum Fault {
    None,
    /// After this number of operations, all operations fail, as if the process had ended.
    Kill(u64),
    /// All operations on this file fail, as on a full disk.
    Full(PathBuf),
}

thread_local! {
    static FAULT: RefCell<Fault> = const { RefCell::new(Fault::None) };
}

/// Returns an error if the fault of this thread affects operations on this path.
pub(crate) fn permit(path: &Path) -> io::Result<()> {
    FAULT.with_borrow_mut(|fault| match fault {
        Fault::Kill(0) => Err(io::Error::other("the process was killed")),
        Fault::Kill(left) => {
            *left -= 1;
            Ok(())
        }
        Fault::Full(full) if full == path => Err(io::ErrorKind::StorageFull.into()),
        _ => Ok(()),
    })
}

/// Whether a thread of this process has ever set a fault.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Whether this process tests faults. Its files are then not synced, because thousands of runs
/// would wait for the disk.
pub(crate) fn is_used() -> bool {
    IS_USED.load(Ordering::Relaxed)
}

fn set(fault: Fault) {
    IS_USED.store(true, Ordering::Relaxed);
    FAULT.set(fault);
}

/// Runs `body` as if the process were killed after this number of operations. Returns whether this
/// number was reached.
pub fn killed_after(operations: u64, body: impl FnOnce()) -> bool {
    set(Fault::Kill(operations));
    body();
    matches!(FAULT.replace(Fault::None), Fault::Kill(0))
}

thread_local! {
    static NO_LOCKS: Cell<bool> = const { Cell::new(false) };
}

/// Whether the file systems have no locks, as this thread sees them.
pub(crate) fn has_no_locks() -> bool {
    NO_LOCKS.get()
}

/// Runs `body` as if no file system had locks.
pub fn without_locks(body: impl FnOnce()) {
    NO_LOCKS.set(true);
    body();
    NO_LOCKS.set(false);
}

/// Makes operations on this file fail on this thread, as on a full disk. `None` removes the fault.
pub fn set_full(path: Option<&Path>) {
    set(path.map_or(Fault::None, |path| Fault::Full(path.to_owned())));
}
