//! The tape of a run: hashes of what each hook and each operation changed.
//!
//! A tape begins with [`MAGIC`]. A sequence of [`Record`]s in MessagePack follows, each with the
//! name of its variant. The file is only ever appended to. If the process is killed, the last
//! record may be cut off; it is then ignored.

mod agreement;
mod difference;
mod events;
mod record;

pub use agreement::{Disagreement, disagreement};
pub use difference::{Difference, End, First, Kind, Only, difference, difference_of};
pub use events::{Event, Tape};
pub use record::{Entry, EntryKind, Level, MAGIC, Position, Process, Record};
pub use trainer_files::Error;

/// Returns the file name of the tape of a rank: `run.tape` for rank 0, `run.rank-1.tape` for rank
/// 1.
#[must_use]
pub fn file_name(rank: u32) -> String {
    if rank == 0 { "run.tape".to_owned() } else { format!("run.rank-{rank}.tape") }
}
