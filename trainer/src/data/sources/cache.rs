//! [`Cache`]: a cache of pieces of files, which all workers share.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A cache of values that are read when they are first needed. When the cache is full, it drops the
/// values that were used least recently. While a thread reads a value, other threads that need it
/// wait.
pub(super) struct Cache<K, V> {
    /// The maximum total size of the cached values. A single value may exceed it.
    capacity: usize,
    entries: Mutex<Entries<K, V>>,
}

struct Entries<K, V> {
    by_key: HashMap<K, Cached<V>>,
    /// The total size of the cached values.
    held: usize,
    /// The number of uses so far.
    clock: u64,
}

struct Cached<V> {
    value: Arc<OnceLock<V>>,
    size: usize,
    used: u64,
}

impl<K: Copy + Eq + Hash, V> Cache<K, V> {
    pub(super) fn new(capacity: usize) -> Self {
        Cache { capacity, entries: Mutex::new(Entries { by_key: HashMap::new(), held: 0, clock: 0 }) }
    }

    /// Calls `use_value` with the value of a key. If the cache does not hold the value, calls
    /// `read` first.
    pub(super) fn with<R>(
        &self,
        key: K,
        size: usize,
        read: impl FnOnce() -> V,
        use_value: impl FnOnce(&V) -> R,
    ) -> R {
        let value = self.entry(key, size);
        use_value(value.get_or_init(read))
    }

    fn entry(&self, key: K, size: usize) -> Arc<OnceLock<V>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.clock += 1;
        let now = entries.clock;
        if let Some(entry) = entries.by_key.get_mut(&key) {
            entry.used = now;
            return Arc::clone(&entry.value);
        }
        while entries.held + size > self.capacity
            && let Some((oldest, _)) = entries.by_key.iter().min_by_key(|(_, entry)| entry.used)
        {
            let oldest = *oldest;
            entries.held -= entries.by_key.remove(&oldest).map_or(0, |entry| entry.size);
        }
        let value = Arc::new(OnceLock::new());
        entries.by_key.insert(key, Cached { value: Arc::clone(&value), size, used: now });
        entries.held += size;
        value
    }
}

impl<K, V> fmt::Debug for Cache<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn the_most_recently_used_values_are_kept_up_to_the_capacity() {
        let cache = Cache::new(10);
        let read = AtomicUsize::new(0);
        let get = |key: usize, size| {
            let value = || {
                read.fetch_add(1, Ordering::Relaxed);
                key
            };
            assert_eq!(cache.with(key, size, value, |value| *value), key);
            read.load(Ordering::Relaxed)
        };
        assert_eq!([get(1, 4), get(2, 4), get(1, 4), get(2, 4)], [1, 2, 2, 2]);
        // There is no room for a third: the first was used less recently.
        assert_eq!([get(3, 4), get(2, 4), get(1, 4)], [3, 3, 4]);
        // A value that is larger than the capacity replaces all others.
        assert_eq!([get(4, 40), get(4, 40), get(1, 4)], [5, 5, 6]);
    }

    #[test]
    fn threads_that_need_the_same_value_wait_for_one_that_reads_it() {
        let cache = Cache::new(10);
        let read = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for key in 0..10 {
                        cache.with(key, 1, || read.fetch_add(1, Ordering::Relaxed), |_| {});
                    }
                });
            }
        });
        assert_eq!(read.into_inner(), 10);
    }
}
