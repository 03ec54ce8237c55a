//! [`Record`]: one record of a tape.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The first bytes of a tape. The number is the version of the format.
pub const MAGIC: &[u8] = b"trainer tape 1\n";

/// One record of a tape.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// A process begins to write. Later records refer by number to the names and entries that
    /// follow this record.
    Process(Process),
    /// Assigns the next number, counted from 0, to a name of a value, such as
    /// ``the gradient of `fc1.weight` ``.
    Name(String),
    /// Assigns the next number, counted from 0, to an entry.
    Entry(Entry),
    /// Sets the position of the records that follow.
    At(Position),
    /// The entry with this number changed these values. Each value is given by the number of its
    /// name and the hash of its new content, which is 0 if the value no longer exists.
    Changed(u32, Vec<(u32, u64)>),
    /// The run was resumed from a checkpoint that was written after this many training batches, and
    /// now has these values. A tape of [`Level::Steps`] lists no values.
    Resumed(u64, Vec<(u32, u64)>),
    /// A checkpoint of the current state was written, after this many training batches.
    Saved(u64),
}

/// A process that writes the tape: its program, and the circumstances that can change its result.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Process {
    /// The rank of the process, and the number of ranks.
    pub rank: (u32, u32),
    /// The level of detail that is recorded.
    pub level: Level,
    /// The range of training batches that is recorded.
    pub batches: Range<u64>,
    /// Whether all tensors are read at every entry.
    pub paranoid: bool,
    /// The circumstances: the number of threads, the versions of libtorch and the compiler, the
    /// processor, the instruction set of the kernels, and the device.
    pub circumstances: BTreeMap<String, String>,
    /// The settings of the trainer, the optimizers and the hooks.
    pub settings: BTreeMap<String, String>,
    /// The suffixes that mark the values in the states of hooks: one for each hook value that has a
    /// state.
    pub states: Vec<String>,
}

/// The level of detail that a tape records.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// All changes made by each entry.
    #[default]
    Full,
    /// All values, after every `n` training batches.
    Steps(u64),
}

/// A hook, an operation, or another part of a run that can change something.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Hash, Serialize)]
pub struct Entry {
    /// The kind of the entry.
    pub kind: EntryKind,
    /// The path of a hook, or the name of an operation or a module.
    pub name: String,
    /// The path of the hook's type, or of its function.
    pub owner: String,
    /// The moment of a hook: `after_step`, `around backward`.
    pub moment: String,
    /// The source location of a hook: `src/main.rs:12`.
    pub place: String,
    /// The crate of a hook, with its version: `my_hooks 0.1.0`.
    pub package: String,
}

/// The kind of an [`Entry`].
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A hook.
    Hook,
    /// An operation of the loop, or the task within it.
    Operation,
    /// A named module of the model.
    Module,
    /// The data loader.
    Loader,
    /// The state at the start of an entry point.
    Start,
    /// A resume after which the run has different values than before.
    Resume,
    /// Everything since the last record of the state, in a tape of [`Level::Steps`].
    Interval,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { kind, name, moment, place, .. } = self;
        match kind {
            EntryKind::Hook if moment.starts_with("around ") => write!(f, "hook `{name}` {moment} ({place})"),
            EntryKind::Hook => write!(f, "hook `{name}` at {moment} ({place})"),
            EntryKind::Operation => write!(f, "operation `{name}`"),
            EntryKind::Module => write!(f, "module `{name}`"),
            EntryKind::Loader => f.write_str("the loader"),
            EntryKind::Start => write!(f, "the state at the start of `{name}`"),
            EntryKind::Resume => f.write_str("the resume from a checkpoint"),
            EntryKind::Interval => f.write_str("the batches since the last record of the state"),
        }
    }
}

/// A position in a run.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Position {
    /// The number of fits that have begun so far.
    pub fit: u64,
    /// The number of training batches before this position.
    pub batches_seen: u64,
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// The phase: `train`, `sanity`, `valid`, `test` or `predict`.
    pub phase: String,
    /// The name of the pass's loader, if it has one.
    pub loader: String,
    /// The index of the batch in its pass, counted from 0; only used outside of training.
    pub batch: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { batches_seen, epoch, phase, loader, batch, .. } = self;
        match &**phase {
            "train" => write!(f, "train batch {batches_seen} (epoch {epoch})")?,
            _ => write!(f, "{phase} batch {batch} (after {batches_seen} training batches)")?,
        }
        if loader.is_empty() { Ok(()) } else { write!(f, " of `{loader}`") }
    }
}
