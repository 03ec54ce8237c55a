//! Checkpoints: all that a run is, on disk, so that a program that was killed goes on as if nothing had happened.
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
//!     .resume("auto") // from the newest in there, if there is one
//!     .build()?;
//! trainer.fit(train, None)?;
//! # Ok(())
//! # }
//! ```
//!
//! A checkpoint is a folder: `manifest.json`, to be read by people too; `model.safetensors`, which Python reads as it is;
//! `optimizer.safetensors`, and `state.safetensors` with the rest. It is written aside, handed to the disk, and renamed, so
//! that it is there whole or not at all. Each file is known by its length and its hash; nothing in it is executed.
//!
//! # What is in it
//!
//! Parameters and buffers; the optimizers' tensors and hyperparameters; the counters and the place in the epoch, within
//! a validation too; the accumulation window with its gradients; the random state of libtorch; what was logged; and of hooks what
//! they say: the [`State`] of each value whose block says `#[hook(state)]`, and what `before_save_checkpoint` adds.
//!
//! # A resumed fit
//!
//! `setup` fires, then `load_checkpoint` runs with its hooks, and then the fit goes on where it was: what has fired before the checkpoint
//! does not fire again, `before_fit` and the `before_epoch` of that epoch neither. Hooks *around* an operation that is open there are
//! entered again.
//!
//! It ends with the same bits if the program is the same, on the same number of threads of the same machine, and its loaders
//! give the same batches [again](crate::data::Loader::repeats). Where it would not, it is refused with the reasons, unless
//! [`allow_inexact_resume`](crate::TrainerBuilder::allow_inexact_resume) is set. A program that calls `fit` more than once comes to the
//! one that was interrupted in its turn: those before it return at once.
//!
//! # What it cannot know
//!
//! A value with hooks whose block does not say `state`, what a closure has captured, and what lies in a task beside its `VarStore` begin
//! anew; so does a file that was changed under a loader. What such a hook has to remember belongs into its state.

mod context;
mod folder;
mod manifest;
mod resume;
mod save;
mod state;
mod tensors;
mod value;
mod weights;

use std::path::{Path, PathBuf};

use tch::Tensor;

pub(crate) use folder::{Lock, remove};
pub(crate) use resume::{Data, Resumed, newest_first, resume};
pub use resume::{newest, verify};
pub(crate) use save::{Asked, Writing, finish, save_if_asked};
#[doc(hidden)]
pub use state::StateOf;
pub use state::{Saved, State};
pub use weights::{LoadWeights, Loaded};

use crate::run::Instance;

/// What a fit is to go on with: [`TrainerBuilder::resume`](crate::TrainerBuilder::resume).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resume {
    /// The newest checkpoint in the folder of the [`Checkpoint`](crate::hooks::Checkpoint) hook; nothing if there is none.
    Auto,
    /// This checkpoint, or the newest in this folder of checkpoints.
    From(PathBuf),
}

impl From<&str> for Resume {
    fn from(text: &str) -> Self {
        if text == "auto" { Resume::Auto } else { Resume::From(text.into()) }
    }
}

impl From<String> for Resume {
    fn from(text: String) -> Self {
        text.as_str().into()
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
pub(crate) struct Open {
    pub(crate) folder: PathBuf,
    /// What hooks add to it.
    pub(crate) saved: Saved,
}

const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const REST: &str = "state.safetensors";

/// Tensors by name.
type Named = Vec<(String, Tensor)>;

/// The name of an optimizer's tensor in a file with those of other parts.
fn within(part: &str, name: &str) -> String {
    if part.is_empty() { name.to_owned() } else { format!("{part}: {name}") }
}

/// The values whose states are kept: the name of the type, the how manieth of it, the value.
fn stateful(instances: &[Instance]) -> Vec<(&'static str, usize, &Instance, StateOf)> {
    let mut found: Vec<(&'static str, usize, &Instance, StateOf)> = Vec::new();
    for instance in instances {
        if let Some(state) = instance.state {
            let name = (state.name)();
            let nth = found.iter().filter(|(other, ..)| *other == name).count();
            found.push((name, nth, instance, state));
        }
    }
    found
}
