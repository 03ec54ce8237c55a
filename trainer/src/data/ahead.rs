//! [`PrefetchPool`]: batches that are made on threads of their own, before anybody asks for them.

use std::io;
use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use crate::error::{Error, Result};
use crate::run::panic_text;

/// The batches of a pass, made on threads that run ahead of it, and that end with it.
///
/// Each thread has a bounded channel of its own, and these are read in turn: of n threads, the first makes the batches 0,
/// n, 2n and so on. So the order is that of one thread, and none of them waits for another.
pub(super) struct PrefetchPool<B> {
    workers: Vec<Worker<B>>,
    /// The lane that the next batch comes from.
    turn: usize,
}

struct Worker<B> {
    made: Receiver<Result<B>>,
    thread: JoinHandle<()>,
}

/// What a thread does.
type Work = Box<dyn FnOnce() + Send>;

/// A thread that was started, or why it was not.
type Spawned = io::Result<JoinHandle<()>>;

/// Where a thread puts what it makes.
pub(super) struct BatchSender<B>(SyncSender<Result<B>>);

impl<B> BatchSender<B> {
    /// Puts each there as soon as there is room: up to the first error, or until nobody waits for more.
    pub(super) fn put(&self, batches: impl IntoIterator<Item = Result<B>>) {
        for batch in batches {
            let failed = batch.is_err();
            if self.0.send(batch).is_err() || failed {
                break;
            }
        }
    }
}

impl<B: Send + 'static> PrefetchPool<B> {
    /// Starts a thread for each of these. Together they are at most `depth` batches ahead, and each of them at least one.
    pub(super) fn start<F>(depth: usize, makers: Vec<F>) -> Result<Self>
    where
        F: FnOnce(&BatchSender<B>) + Send + 'static,
    {
        PrefetchPool::start_on(depth, makers, |nth, work| {
            Builder::new().name(format!("loader {nth}")).spawn(work)
        })
    }

    /// As [`start`](PrefetchPool::start), on threads that `spawn` starts. If it fails, those that were started end.
    fn start_on<F>(
        depth: usize,
        makers: Vec<F>,
        mut spawn: impl FnMut(usize, Work) -> Spawned,
    ) -> Result<Self>
    where
        F: FnOnce(&BatchSender<B>) + Send + 'static,
    {
        let count = makers.len();
        let mut ahead = PrefetchPool { workers: Vec::with_capacity(count), turn: 0 };
        for (nth, make) in makers.into_iter().enumerate() {
            let share = depth.saturating_sub(nth).div_ceil(count);
            // A thread makes a batch before it waits for room, so that one is never in the channel.
            let (sender, made) = sync_channel(share.saturating_sub(1));
            let thread = spawn(nth, Box::new(move || run(make, &BatchSender(sender)))).map_err(|error| {
                Error::msg(format!("cannot start thread {} of {count} of the loader: {error}", nth + 1))
            })?;
            ahead.workers.push(Worker { made, thread });
        }
        Ok(ahead)
    }
}

/// What a thread does. A panic is its last batch.
fn run<B>(make: impl FnOnce(&BatchSender<B>), outlet: &BatchSender<B>) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| make(outlet))) {
        let text = format!("the loader's thread {}", panic_text(&*payload));
        outlet.put(iter::once(Err(Error::Panic(Box::new(text)))));
    }
}

impl<B> Iterator for PrefetchPool<B> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        let batch = self.workers.get(self.turn)?.made.recv().ok();
        // It stays the turn of a thread that failed or has no more: nothing comes after that.
        if let Some(Ok(_)) = batch {
            self.turn = (self.turn + 1) % self.workers.len();
        }
        batch
    }
}

/// Ends every thread, and waits until it has: one that is making a batch finishes it.
impl<B> Drop for PrefetchPool<B> {
    fn drop(&mut self) {
        // All of them are told, by the loss of the receiver, before one is waited for.
        let threads: Vec<_> = self.workers.drain(..).map(|lane| lane.thread).collect();
        for thread in threads {
            let _ = thread.join(); // what it panicked with was handed on as a batch
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn threads_end_if_another_cannot_be_started() {
        let alive = Arc::new(());
        let makers = (0..4).map(|_| {
            let alive = Arc::clone(&alive);
            move |outlet: &BatchSender<Arc<()>>| outlet.put(iter::repeat_with(|| Ok(Arc::clone(&alive))))
        });
        let failed = PrefetchPool::start_on(8, makers.collect(), |nth, work| match nth {
            2 => Err(io::Error::from(io::ErrorKind::WouldBlock)),
            _ => Builder::new().spawn(work),
        });
        let error = failed.err().expect("the third could not be started").to_string();
        assert!(error.starts_with("cannot start thread 3 of 4 of the loader: "), "{error}");
        assert_eq!(Arc::strong_count(&alive), 1, "no thread and no batch is left");
    }
}
