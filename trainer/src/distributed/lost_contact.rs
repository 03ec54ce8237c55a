//! Errors that several ranks have in common: how ranks find out which of them is the cause.

use std::thread;
use std::time::{Duration, Instant};

use super::call::quoted;
use super::departure::{GRACE, cause, leave};
use super::links::Links;
use super::{steps, watch};
use crate::error::Error;

/// The store's key for the first rank that was found not to respond.
const DEAD: &str = "trainer/dead";

/// The largest world size for which an error about lost contact lists all ranks.
const LISTED: u32 = 16;

impl Links {
    /// Disconnects from the other ranks and publishes `why` to them. If they are waiting in a
    /// collective, it fails at once.
    pub(super) fn leave(&self, why: &str) {
        leave(&self.group, why, || self.shared.peers.close());
    }

    /// Returns an error that explains why a collective failed. If the connections are intact, this
    /// is the error of this rank itself. If a rank has reported the error that caused the failure,
    /// returns that error. Otherwise, the returned error names the rank that does not respond, and
    /// the collectives in which the other ranks were waiting.
    pub(super) fn explained(&self, what: &str, error: &Error) -> Error {
        let rank = self.rank();
        let text = error.to_string();
        if !is_of_connection(&text) {
            return Error::msg(format!("{} failed on rank {rank}: {text}", quoted(what)));
        }
        self.group.note_failure();
        let begun = self.shared.watch.begun();
        let _ = self.group.set(&waits_key(rank), what);
        let since = Instant::now();
        while since.elapsed() < GRACE {
            match cause(&self.group) {
                Ok(Some(error)) => return error,
                Ok(None) => {}
                Err(_) => break,
            }
            // Another rank has already found out which rank does not respond.
            if !matches!(self.group.get(DEAD), Ok(None)) {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
        let mut others: Vec<u32> = (0..self.size()).filter(|other| *other != rank).collect();
        if self.size() > LISTED {
            others = steps::peers(&self.shared.steps);
        }
        let mut places = Vec::new();
        let mut dead = None;
        for other in others {
            match self.group.get(&waits_key(other)) {
                Ok(Some(what)) => places.push(format!("rank {other} waited in {}", quoted(&what))),
                Err(_) if other > 0 => {
                    places.push(format!("the state of rank {other} is unknown, because the store is gone"));
                }
                // A rank that has published that it waits, as this one does, is not the cause.
                _ => match watch::is_waiting(&self.group, other, &begun) {
                    Some(what) => places.push(format!("rank {other} waits in {}", quoted(&what))),
                    None => dead = dead.or(Some(other)),
                },
            }
        }
        // Other ranks, which may fail before their own connection to the dead rank does, read this.
        if let Some(dead) = dead {
            let _ = self.group.set(DEAD, &dead.to_string());
        }
        let dead = self.group.get(DEAD).ok().flatten().or(dead.map(|rank| rank.to_string()));
        if let Some(dead) = dead {
            places.insert(
                0,
                if dead == rank.to_string() {
                    "the other ranks have reported that this rank did not respond in time".to_owned()
                } else {
                    format!("rank {dead} did not respond: it has died, is hanging, or never connected")
                },
            );
        }
        let error = text.lines().next().unwrap_or_default();
        Error::msg(format!(
            "rank {rank} lost contact with the other ranks in {}; {} ({error})",
            quoted(what),
            places.join("; ")
        ))
    }
}

fn waits_key(rank: u32) -> String {
    format!("trainer/waits/{rank}")
}

/// Whether an error of libtorch or of a socket is about the connections to other ranks. All other
/// errors, such as one about a tensor, are those of this rank.
fn is_of_connection(text: &str) -> bool {
    const SIGNS: [&str; 12] = [
        "/gloo/",
        "NCCL",
        "nccl",
        "onnection", // also at the beginning of a sentence
        "imed out",
        "timeout",
        "socket",
        "Socket",
        "recv",
        "Broken pipe",
        "closed",
        "left the other ranks",
    ];
    SIGNS.iter().any(|sign| text.contains(sign))
}
