//! How a rank leaves the others with its error, which they then read from the store.

use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::libtorch::dist::Group;

/// The store's key for the error of the first rank that left because of an error.
const LEFT: &str = "trainer/left";

/// How long a rank waits for another rank to report its error.
pub(super) const GRACE: Duration = Duration::from_millis(500);

/// Disconnects from the other ranks, and publishes `why` to them unless another rank is the cause.
pub(super) fn leave(group: &Group, why: &str, close: impl FnOnce()) {
    let is_cause = !group.has_failed();
    if is_cause {
        let _ = group.set(LEFT, &format!("rank {}: {why}", group.rank()));
    }
    group.leave();
    close();
    if is_cause {
        wait_for_readers(group);
    }
}

/// Waits until the other ranks have read why a rank has left, if this process serves the store: the
/// store ends with it.
pub(super) fn wait_for_readers(group: &Group) {
    let since = Instant::now();
    while group.is_server()
        && since.elapsed() < 4 * GRACE
        && (1..group.size()).any(|rank| !matches!(group.get(&read_key(rank)), Ok(Some(_))))
    {
        thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the error that made another rank leave, or `None` if no rank has reported an error.
pub(super) fn cause(group: &Group) -> Result<Option<Error>> {
    Ok(group.get(LEFT)?.map(|why| ended(group, &why)))
}

/// Returns the error of another rank, and notes that this rank has read it.
pub(super) fn ended(group: &Group, why: &str) -> Error {
    let _ = group.set(&read_key(group.rank()), "read");
    Error::msg(format!("another rank ended with an error: {why}"))
}

fn read_key(rank: u32) -> String {
    format!("trainer/read/{rank}")
}
