//! What hooks ask of checkpoints, and what they put into them.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::Tensor;

use super::Saved;
use crate::context::Cx;
use crate::error::Result;
use crate::lifecycle::{CanLoad, CanSave, CanSaveCheckpoint, HasCheckpoint};

impl<P> Cx<P> {
    /// Asks for a checkpoint in this folder: one by itself, `runs/digits/step-400`. It is written as soon as everything that belongs
    /// to this moment has run, the hooks that come later included: between two steps, two epochs, or on the way out. A
    /// checkpoint that is there already is replaced when the new one is whole.
    pub fn save_checkpoint(&mut self, folder: impl Into<PathBuf>)
    where
        P: CanSaveCheckpoint,
    {
        self.run_mut().ask_for_checkpoint(folder.into(), false);
    }

    /// As [`save_checkpoint`](Cx::save_checkpoint), written by a thread from a copy that is made in memory, while training goes on.
    /// `after_save_checkpoint` fires when it is whole on the disk, and the fit ends only then.
    pub fn save_checkpoint_in_background(&mut self, folder: impl Into<PathBuf>)
    where
        P: CanSaveCheckpoint,
    {
        self.run_mut().ask_for_checkpoint(folder.into(), true);
    }

    /// The folder of the checkpoint that is being written or read.
    #[must_use]
    pub fn checkpoint(&self) -> &Path
    where
        P: HasCheckpoint,
    {
        self.as_run().checkpoint.as_ref().map_or(Path::new(""), |open| open.folder.as_path())
    }

    /// Adds a value to the checkpoint that is about to be written, under a name of its own. For the state of a hook with a value there is
    /// [`#[hook(state)]`](crate::language::state).
    ///
    /// # Errors
    ///
    /// When it cannot be serialized, or when the name is taken.
    pub fn save<T: Serialize>(&mut self, key: &str, value: T) -> Result<()>
    where
        P: CanSave,
    {
        self.run_mut().checkpoint.get_or_insert_default().saved.value(key, &value)
    }

    /// Adds a tensor to the checkpoint that is about to be written, under a name of its own.
    ///
    /// # Errors
    ///
    /// When the name is taken.
    pub fn save_tensor(&mut self, key: &str, tensor: &Tensor) -> Result<()>
    where
        P: CanSave,
    {
        self.run_mut().checkpoint.get_or_insert_default().saved.tensor(key, tensor)
    }

    /// A value that was added to the checkpoint that was read.
    ///
    /// # Errors
    ///
    /// When there is none of this name, or when it is of another type.
    pub fn load<T: DeserializeOwned>(&self, key: &str) -> Result<T>
    where
        P: CanLoad,
    {
        self.saved().get(key)
    }

    /// A tensor that was added to the checkpoint that was read; it lies on the CPU.
    ///
    /// # Errors
    ///
    /// When there is none of this name.
    pub fn load_tensor(&self, key: &str) -> Result<&Tensor>
    where
        P: CanLoad,
    {
        self.saved().get_tensor(key)
    }

    fn saved(&self) -> &Saved {
        &self.as_run().checkpoint.as_ref().expect("it is open while its points are fired").saved
    }
}
