//! Checkpoints: the complete state of a run on disk, so that an interrupted program can resume
//! exactly.
//!
//! ```no_run
//! use trainer::hooks::Checkpoint;
//! use trainer::prelude::*;
//!
//! # fn train(task: impl Task<Batch = Tensor>, train: &mut InMemory<Tensor>) -> Result<()> {
//! let mut trainer = Trainer::builder(task)
//!     .optimizer(AdamW::new(1e-3))
//!     .epochs(100)
//!     .hook(Checkpoint::new("runs/first").every(Every::Steps(500)))
//!     .resume(Resume::Auto) // from the newest checkpoint in that folder, if there is one
//!     .build()?;
//! trainer.fit(train, None)?;
//! # Ok(())
//! # }
//! ```
//!
//! A checkpoint is a folder:
//!
//! | file | content |
//! |---|---|
//! | `manifest.json` | counters, settings, states of hooks, and the length and hash of every other file |
//! | `model.safetensors` | parameters and buffers, which Python can read directly |
//! | `averages.safetensors` | averaged weights, if a hook keeps them |
//! | `optimizer.safetensors` | the optimizers' tensors |
//! | `state.safetensors` | gradients of an open accumulation window, random state, tensors of hooks |
//! | `history.jsonl` | the history and the results of entry points; checkpoints of one folder share it |
//! | `rank-00001.safetensors` | with several processes, the tensors of rank 1 that rank 0 lacks |
//! | `rank-00001.json` | the values of rank 1, the hash of its tensors, and the name of the save |
//!
//! If [several processes](crate::distributed) train together, they differ in their random state,
//! the state of their hooks, their gradients, and their share of a [sharded](crate::optim::Sharded)
//! optimizer. The JSON files of all ranks and `manifest.json` contain the name of the save, so that
//! a mix of files from different saves is detected.
//!
//! A checkpoint is written to a temporary folder, synced and renamed, so it is always complete.
//! Each rank writes its own files; once they are complete, rank 0 writes the manifest and renames
//! the folder. Nothing in a checkpoint is executed, and nothing in it is trusted: names and numbers
//! are checked when it is read.
//!
//! # Which files are changed
//!
//! Saving a checkpoint removes and replaces only files that this crate wrote: the files above, in
//! folders named `step-<digits>` inside the folder of the [`Checkpoint`](crate::hooks::Checkpoint)
//! hook, or in a folder that was passed to [`Cx::save_checkpoint`](crate::Cx::save_checkpoint) and
//! contains a checkpoint. Symbolic links are not followed, except that the folder of the hook may
//! be one.
//!
//! A checkpoint is written as `.writing-step-00000400-1`, and renamed to
//! `.removing-step-00000400-1` before its files are removed. A checkpoint that is being replaced is
//! renamed to `step-00000400.replaced`. If the process is killed meanwhile, the next run in the
//! folder completes or undoes the interrupted work, and the next
//! [`Cx::save_checkpoint`](crate::Cx::save_checkpoint) does so for its own folder.
//!
//! # What a checkpoint contains
//!
//! Parameters and buffers; the optimizers' tensors and hyperparameters; the counters and the
//! position in the epoch or in a validation pass; the accumulation window with its gradients; the
//! random state of libtorch; logged values; the [`State`] of each hook value whose `impl` block has
//! `#[hook(state)]`; and what hooks add at `before_save_checkpoint`.
//!
//! # A resumed fit
//!
//! `setup` fires, then `load_checkpoint` runs with its hooks, and then the fit continues from the
//! position of the checkpoint. Points that fired before the checkpoint do not fire again: neither
//! `before_fit` nor the `before_epoch` of that epoch. If the checkpoint was written within an
//! operation that has `around` hooks, these hooks are entered again. A line on standard error names
//! the checkpoint. For each setting that differs, one more line says which value applies.
//!
//! The resumed run is bit-identical to an uninterrupted one if it is the same program with the same
//! number of threads on the same machine, and if its loaders are
//! [deterministic](crate::data::Loader::is_deterministic). Otherwise the resume is refused with the
//! reasons, unless [`allow_inexact_resume`](crate::TrainerBuilder::allow_inexact_resume) is set.
//!
//! # A program with several entry points
//!
//! A program may call `fit`, `validate`, `test` and `predict` more than once. A call that had
//! already ended when the checkpoint was written returns the same result again, without running
//! anything; `predict` then returns no predictions, and the history of the summary has one row. The
//! fit that was interrupted resumes.
//!
//! # What a checkpoint cannot contain
//!
//! Hook values whose `impl` block does not have `state`, variables that a closure has captured, and
//! fields of a task other than its `VarStore` start with the values that the program gives them.
//! Changes to the files that a loader reads are not detected. Data that a hook must keep belongs in
//! its state.
//!
//! After a kill, a hook that prints or appends to a file repeats the output that it had written
//! since the checkpoint. A [`GrowingFile`](crate::loggers::GrowingFile) avoids this: its length is
//! part of the checkpoint, and on resume everything beyond it is moved to a separate file.

pub(crate) mod averages;
pub(crate) mod files;
pub(crate) mod folder;
pub(crate) mod journal;
pub(crate) mod manifest;
pub(crate) mod nested;
pub(crate) mod progress;
mod pt;
mod pt_optimizer;
pub(crate) mod rank;
pub(crate) mod read;
mod rename;
mod sealed;
pub(crate) mod state;
pub(crate) mod states;
pub(crate) mod tensors;
pub(crate) mod text;
pub(crate) mod unpublished;
pub(crate) mod weights;

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tch::Tensor;

pub use crate::values::facts::{SettingList, Settings};
pub use folder::CheckpointFolder;
pub(crate) use journal::Journal;
pub use pt_optimizer::load_optimizer;
pub(crate) use read::verify_share;
pub use read::{newest, verify};
pub(crate) use state::Slot;
#[doc(hidden)]
pub use state::StateOf;
pub use state::{Saved, State};
pub(crate) use states::States;
pub use tensors::{read_tensors, write_tensors};
pub use weights::{LoadWeights, Loaded, Mismatch};

/// The checkpoint that a fit resumes from: see
/// [`TrainerBuilder::resume`](crate::TrainerBuilder::resume).
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Resume {
    /// The newest undamaged checkpoint in the folder of the
    /// [`Checkpoint`](crate::hooks::Checkpoint) hook from which the run can resume exactly. A
    /// warning names each newer one that is skipped. If the folder has no checkpoint, the run
    /// starts from the beginning; if all of them are damaged, `fit` returns an error.
    Auto,
    /// This checkpoint, or the one that [`Auto`](Resume::Auto) would choose in this folder of
    /// checkpoints. If there is none, `fit` returns an error.
    From(PathBuf),
}

impl From<&str> for Resume {
    fn from(path: &str) -> Self {
        Resume::From(path.into())
    }
}

impl From<String> for Resume {
    fn from(path: String) -> Self {
        Resume::From(path.into())
    }
}

impl From<PathBuf> for Resume {
    fn from(path: PathBuf) -> Self {
        Resume::From(path)
    }
}

impl From<&Path> for Resume {
    fn from(path: &Path) -> Self {
        Resume::From(path.to_owned())
    }
}

/// A checkpoint that is being written or read.
#[derive(Debug, Default)]
pub(crate) struct ActiveCheckpoint {
    pub(crate) folder: PathBuf,
    /// If the checkpoint is being read: its values and tensors.
    pub(crate) saved: Saved,
    /// If the checkpoint is being written: the values and tensors that hooks add to it.
    pub(crate) added: RefCell<Saved>,
}

/// Tensors by name.
pub(crate) type NamedTensors = Vec<(String, Tensor)>;
