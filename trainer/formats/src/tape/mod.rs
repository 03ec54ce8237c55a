//! The tape of a run: what each hook and each operation changed, as hashes.
//!
//! A tape begins with [`MAGIC`]. Then it is a sequence of [`Record`]s in MessagePack, each with its
//! name, and is only ever appended to. A record that is cut off at the end, because the process was
//! killed, is ignored.

mod agreement;
mod difference;
mod events;
mod record;

pub use agreement::{Disagreement, disagreement};
pub use difference::{Difference, End, First, Kind, Only, difference, difference_of};
pub use events::{Error, Event, Tape};
pub use record::{Entry, EntryKind, Level, MAGIC, Position, Process, Record};

/// Returns the name of the tape of a rank in the folder of a run: `run.tape`, `run.rank-1.tape`.
#[must_use]
pub fn file_name(rank: u32) -> String {
    if rank == 0 { "run.tape".to_owned() } else { format!("run.rank-{rank}.tape") }
}
