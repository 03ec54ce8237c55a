//! [`Watch`]: records the last collectives of this process and the time that they took, and detects
//! ranks that wait for each other in different collectives.
//!
//! If one rank waits for a control message and another is in a collective that exchanges tensors,
//! neither can continue, and no message says why. Each process has a thread that detects this.
//! While the process waits for a long time, the thread publishes how many collectives of each kind
//! the process has begun, and which rank the process is waiting for. The thread compares these
//! numbers with those of that rank, then with those of the rank that this rank is waiting for in
//! turn, and so on. In a correct program, all ranks have begun the same number of collectives that
//! exchange tensors when they exchange a control message. A process therefore waits forever if a
//! rank that has not reached the message has begun more collectives that exchange tensors.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::call::quoted;
use super::peers;
use crate::libtorch::dist::{Group, Store};

/// How long a rank waits before it publishes where it is.
const PATIENCE: Duration = Duration::from_secs(1);

/// The time between two checks of the collective that a rank is waiting in.
const PERIOD: Duration = Duration::from_millis(500);

/// The number of collectives that are remembered.
const REMEMBERED: usize = 32;

/// The kinds of collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A control message.
    Message = 0,
    /// Tensors of the program or of the trainer, such as gradients.
    Data = 1,
    /// Tensors of the layers of a network.
    Layers = 2,
}

/// The collectives of this process, and the thread that watches them.
#[derive(Debug)]
pub(super) struct Watch(Arc<Watched>);

#[derive(Debug, Default)]
struct Watched {
    state: Mutex<State>,
    has_ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The number of collectives begun, by kind.
    begun: [u64; 3],
    /// The collective that this process is in.
    current: Option<Waiting>,
    /// The backward pass that averages gradients, while it runs. Other collectives may be called
    /// within it.
    backward: Option<Waiting>,
    /// The last collectives, the oldest first.
    recent: VecDeque<Past>,
    /// The time spent in collectives, not counting the backward passes.
    waited: Duration,
    /// The reason why the ranks will wait forever, once it is known.
    verdict: Option<String>,
    has_ended: bool,
}

/// A collective that this process has called.
#[derive(Debug)]
struct Past {
    what: String,
    /// The hook that called the collective, and its moment.
    place: Option<Arc<str>>,
    began: Instant,
    /// How long the collective took. `None` while it runs, and if it has failed.
    lasted: Option<Duration>,
}

#[derive(Clone, Debug)]
struct Waiting {
    what: String,
    since: Instant,
    /// The rank whose control message this process waits for, and the connection to it.
    peer: Option<(u32, Arc<TcpStream>)>,
}

/// The progress of a rank, as the rank publishes it.
#[derive(Debug, Deserialize, Serialize)]
struct Position {
    begun: [u64; 3],
    what: String,
    peer: Option<u32>,
}

impl Watch {
    /// Starts the thread that watches the collectives of a group.
    pub(super) fn begin(group: &Group) -> Self {
        let watched = Arc::new(Watched::default());
        let own = Arc::clone(&watched);
        let store = group.store();
        let rank = group.rank();
        let size = group.size();
        // If the thread cannot be started, ranks that wait for each other return an error after the
        // timeout.
        let name = "trainer-ranks".to_owned();
        let _ = thread::Builder::new().name(name).spawn(move || watch(&own, &store, rank, size));
        Watch(watched)
    }

    /// Records that this process begins a collective. [`Inside::end`] records that it has ended;
    /// dropping the guard records that it has failed.
    pub(super) fn enter(&self, kind: Kind, what: &str, place: Option<&Arc<str>>) -> Inside<'_> {
        let mut state = self.0.lock();
        let now = Instant::now();
        state.begun[kind as usize] += 1;
        state.current = Some(Waiting { what: what.to_owned(), since: now, peer: None });
        state.remember(what, place, now);
        Inside { watch: self, since: now, has_ended: false }
    }

    /// The time spent in collectives, not counting the backward passes.
    pub(super) fn waited(&self) -> Duration {
        self.0.lock().waited
    }

    /// Describes the last collectives of this process, one line for each.
    pub(super) fn recent(&self) -> Vec<String> {
        let state = self.0.lock();
        let lines = state.recent.iter().map(|past| {
            let place = past.place.as_ref().map_or_else(String::new, |place| format!(" in {place}"));
            let lasted = match past.lasted {
                Some(lasted) => format!("took {:.1} ms", 1e3 * lasted.as_secs_f64()),
                None => "has not ended".to_owned(),
            };
            format!("{:.2} s ago: {}{place} {lasted}", past.began.elapsed().as_secs_f64(), quoted(&past.what))
        });
        lines.collect()
    }

    /// Records that this process waits for a control message from a rank, on this connection.
    pub(super) fn wait_for(&self, peer: u32, stream: &Arc<TcpStream>) {
        if let Some(waiting) = &mut self.0.lock().current {
            waiting.peer = Some((peer, Arc::clone(stream)));
        }
    }

    /// Records that a backward pass that averages gradients begins.
    pub(super) fn begin_backward(&self, what: &str) {
        let mut state = self.0.lock();
        let now = Instant::now();
        state.begun[Kind::Data as usize] += 1;
        state.remember(what, None, now);
        state.backward = Some(Waiting { what: what.to_owned(), since: now, peer: None });
    }

    /// Whether a backward pass that averages gradients is running.
    pub(super) fn is_in_backward(&self) -> bool {
        self.0.lock().backward.is_some()
    }

    /// Records that a backward pass that averages gradients has failed.
    pub(super) fn abandon_backward(&self) {
        self.0.lock().backward = None;
    }

    /// Records that a backward pass that averages gradients has ended.
    pub(super) fn end_backward(&self) {
        let mut state = self.0.lock();
        if let Some(backward) = state.backward.take() {
            state.end(backward.since);
        }
    }

    /// Returns the number of collectives that this process has begun, by kind.
    pub(super) fn begun(&self) -> [u64; 3] {
        self.0.lock().begun
    }

    /// Returns the reason why the ranks would wait forever, if this rank has detected it.
    pub(super) fn verdict(&self) -> Option<String> {
        self.0.lock().verdict.clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
        self.0.has_ended.notify_all();
    }
}

impl Watched {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remember(&mut self, what: &str, place: Option<&Arc<str>>, began: Instant) {
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        let what = what.to_owned();
        self.recent.push_back(Past { what, place: place.map(Arc::clone), began, lasted: None });
    }

    /// Records that the collective that began at this time has ended.
    fn end(&mut self, began: Instant) {
        if let Some(past) = self.recent.iter_mut().rfind(|past| past.began == began) {
            past.lasted = Some(began.elapsed());
        }
    }
}

/// A collective that this process is in.
pub(super) struct Inside<'a> {
    watch: &'a Watch,
    since: Instant,
    has_ended: bool,
}

impl Inside<'_> {
    /// Records that the collective has ended, without an error.
    pub(super) fn end(mut self) {
        self.has_ended = true;
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut state = self.watch.0.lock();
        state.current = None;
        state.waited += self.since.elapsed();
        if self.has_ended {
            state.end(self.since);
        }
    }
}

/// Watches the collectives of this process until its world is dropped.
fn watch(watched: &Watched, store: &Store, rank: u32, size: u32) {
    let mut published = None;
    let mut state = watched.lock();
    while !state.has_ended {
        let begun = state.begun;
        let waiting = state.current.clone().or_else(|| state.backward.clone());
        if let Some(waiting) = waiting.filter(|waiting| waiting.since.elapsed() >= PATIENCE) {
            drop(state);
            let peer = waiting.peer.as_ref().map(|(peer, _)| *peer);
            if published != Some((begun, peer)) {
                publish(store, rank, &Position { begun, what: waiting.what.clone(), peer });
                published = Some((begun, peer));
            }
            let mut verdict = None;
            let mut next = peer;
            for _ in 0..size {
                let Some(other) = next.take() else { break };
                let Some(position) = position_of(store, other) else { break };
                if is_ahead(&position.begun, &begun) {
                    let are_layers = position.begun[Kind::Layers as usize] != begun[Kind::Layers as usize];
                    verdict = Some(out_of_step(rank, &waiting.what, other, &position.what, are_layers));
                }
                next = position.peer;
            }
            state = watched.lock();
            if let Some(verdict) = verdict.filter(|_| state.begun == begun && state.current.is_some()) {
                state.verdict = Some(verdict);
                drop(state);
                if let Some((_, stream)) = &waiting.peer {
                    peers::close(stream);
                }
                return;
            }
        }
        state = match watched.has_ended.wait_timeout(state, PERIOD) {
            Ok((state, _)) => state,
            Err(error) => error.into_inner().0,
        };
    }
}

/// Whether a rank that waits for a control message will wait forever for another rank. `own` and
/// `other` are the numbers of collectives that the two ranks have begun. The wait never ends if the
/// other rank has not begun this message, but has begun another collective that the waiting rank
/// has not begun.
fn is_ahead(other: &[u64; 3], own: &[u64; 3]) -> bool {
    other[0] < own[0] && (other[1] > own[1] || other[2] > own[2])
}

/// Returns the collective in which a rank waits, if it has published that it waits in the
/// collective that this rank is in, or in a later one. `begun` are the numbers of this rank.
pub(super) fn is_waiting(group: &Group, rank: u32, begun: &[u64; 3]) -> Option<String> {
    let position: Position = serde_json::from_str(&group.get(&key(rank)).ok()??).ok()?;
    let has_reached = position.begun.iter().zip(begun).all(|(other, own)| other >= own);
    has_reached.then_some(position.what)
}

fn key(rank: u32) -> String {
    format!("trainer/position/{rank}")
}

fn publish(store: &Store, rank: u32, position: &Position) {
    if let Ok(text) = serde_json::to_string(position) {
        let _ = store.set(&key(rank), &text);
    }
}

fn position_of(store: &Store, rank: u32) -> Option<Position> {
    serde_json::from_str(&store.get(&key(rank)).ok()??).ok()
}

#[cold]
fn out_of_step(rank: u32, what: &str, other: u32, of_other: &str, are_layers: bool) -> String {
    let advice = if are_layers {
        "a layer that exchanges its statistics, as `sync_batch_norm` creates it, was not called on every rank: build the same \
         model on all ranks, and call the same layers in each batch"
    } else {
        "a hook skipped or replaced work or called a collective on one rank only: make it decide the same way on every rank"
    };
    format!(
        "the ranks are out of step: rank {rank} is at {}, but rank {other} is at {}, which rank {rank} has not called; {advice}",
        quoted(what),
        quoted(of_other)
    )
}

#[cfg(test)]
mod tests {
    use super::is_ahead;

    #[test]
    fn only_ranks_that_cannot_reach_the_message_are_out_of_step() {
        let own = [5, 3, 2];
        for (other, expected) in [
            ([4, 4, 2], true),  // in a collective that this rank has not begun
            ([4, 3, 3], true),  // in a layer that this rank has not called
            ([4, 3, 2], false), // still finishing the previous collective
            ([5, 3, 2], false), // at the same message
            ([5, 4, 2], false), // has sent this message already
        ] {
            assert_eq!(is_ahead(&other, &own), expected, "{other:?}");
        }
    }
}
