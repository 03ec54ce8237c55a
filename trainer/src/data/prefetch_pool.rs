//! [`PrefetchPool`]: threads that produce batches ahead of their use.

use std::io;
use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use crate::error::{Error, Result, discard_panic, panic_text};

/// Produces the batches of one pass on background threads, which end with the pass.
///
/// Each thread has its own bounded channel, and the channels are read in turn: of n threads, the
/// first produces the batches 0, n, 2n and so on. The order is therefore the same as with a single
/// thread. A thread waits only while its channel is full.
pub(super) struct PrefetchPool<B> {
    workers: Vec<Worker<B>>,
    /// The index of the worker that produces the next batch.
    turn: usize,
}

/// A thread and the channel that it sends its batches to.
struct Worker<B> {
    batches: Receiver<Result<B>>,
    thread: JoinHandle<()>,
}

/// The function that a thread runs.
type Work = Box<dyn FnOnce() + Send>;

/// A started thread, or the reason why it could not be started.
type Spawned = io::Result<JoinHandle<()>>;

/// The sending end of a worker's channel.
pub(super) struct BatchSender<B>(SyncSender<Result<B>>);

impl<B> BatchSender<B> {
    /// Sends the batches, and waits whenever the channel is full. Stops after the first error, or
    /// when the pass ends.
    pub(super) fn send_all(&self, batches: impl IntoIterator<Item = Result<B>>) {
        for batch in batches {
            let failed = batch.is_err();
            if self.0.send(batch).is_err() || failed {
                break;
            }
        }
    }
}

impl<B: Send + 'static> PrefetchPool<B> {
    /// Starts a thread for each producer. Together, the threads produce at most `depth` batches
    /// ahead, but each produces at least one.
    ///
    /// # Errors
    ///
    /// Returns an error if a thread cannot be started.
    pub(super) fn start<F>(depth: usize, producers: Vec<F>) -> Result<Self>
    where
        F: FnOnce(&BatchSender<B>) + Send + 'static,
    {
        PrefetchPool::start_on(depth, producers, |nth, work| {
            Builder::new().name(format!("loader {nth}")).spawn(work)
        })
    }

    /// Implements [`start`](PrefetchPool::start). Starts the threads with `spawn`. If a thread
    /// cannot be started, the threads that were already started end.
    fn start_on<F>(
        depth: usize,
        producers: Vec<F>,
        mut spawn: impl FnMut(usize, Work) -> Spawned,
    ) -> Result<Self>
    where
        F: FnOnce(&BatchSender<B>) + Send + 'static,
    {
        let count = producers.len();
        let mut pool = PrefetchPool { workers: Vec::with_capacity(count), turn: 0 };
        for (nth, produce) in producers.into_iter().enumerate() {
            // A waiting thread holds one batch, so the channel needs one slot fewer.
            let (sender, batches) = sync_channel(depth.saturating_sub(nth).div_ceil(count).saturating_sub(1));
            let thread =
                spawn(nth, Box::new(move || run(produce, &BatchSender(sender)))).map_err(|error| {
                    Error::msg(format!(
                        "cannot start thread {} of {count} of the loader: {error}; reduce the number of threads of this program",
                        nth + 1
                    ))
                })?;
            pool.workers.push(Worker { batches, thread });
        }
        Ok(pool)
    }
}

/// Runs a producer. If it panics, sends the panic as an error.
fn run<B>(produce: impl FnOnce(&BatchSender<B>), sender: &BatchSender<B>) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| produce(sender))) {
        let text = format!("a thread of the loader {}", panic_text(&*payload));
        discard_panic(payload);
        sender.send_all(iter::once(Err(Error::Panic(Box::new(text)))));
    }
}

impl<B> Iterator for PrefetchPool<B> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        let batch = self.workers.get(self.turn)?.batches.recv().ok();
        // Nothing follows an error or the end of a worker's batches, so `turn` stays the same.
        if let Some(Ok(_)) = batch {
            self.turn = (self.turn + 1) % self.workers.len();
        }
        batch
    }
}

/// Stops all threads and waits for them. A thread that is producing a batch finishes it first.
impl<B> Drop for PrefetchPool<B> {
    fn drop(&mut self) {
        // This drops all receivers, which stops the threads, before the first one is joined.
        let threads: Vec<_> = self.workers.drain(..).map(|worker| worker.thread).collect();
        for thread in threads {
            let _ = thread.join(); // a panic was sent as an error
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn all_threads_end_if_one_cannot_be_started() {
        let alive = Arc::new(());
        let producers = (0..4).map(|_| {
            let alive = Arc::clone(&alive);
            move |sender: &BatchSender<Arc<()>>| sender.send_all(iter::repeat_with(|| Ok(Arc::clone(&alive))))
        });
        let failed = PrefetchPool::start_on(8, producers.collect(), |nth, work| match nth {
            2 => Err(io::Error::from(io::ErrorKind::WouldBlock)),
            _ => Builder::new().spawn(work),
        });
        let error = failed.err().expect("the third could not be started").to_string();
        assert!(error.starts_with("cannot start thread 3 of 4 of the loader: "), "{error}");
        assert_eq!(Arc::strong_count(&alive), 1, "no thread and no batch is left");
    }
}
