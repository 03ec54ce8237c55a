//! Methods of [`Cx`] that request checkpoints, and that save and load values in them.

use std::path::{Path, PathBuf};

use serde::Serialize;
use tch::Tensor;

use super::Cx;
use crate::checkpoint::state::text_of;
use crate::checkpoint::{ActiveCheckpoint, Saved};
use crate::error::Result;
use crate::lifecycle::{CanLoad, CanSave, CanSaveCheckpoint, HasCheckpoint, available};
use crate::run::SaveMode;

/// # Checkpoints
impl<P> Cx<P> {
    /// Requests a checkpoint in the given folder, for example `runs/digits/step-400`. It is written
    /// between two training batches, between two epochs, or when the fit ends.
    ///
    #[doc = available!(CanSaveCheckpoint)]
    ///
    /// In [several processes](crate::distributed), a request on any rank takes effect on all of
    /// them before the same batch, and each requested folder is written once, by all ranks
    /// together, so all of them must be able to write to it. After an error, when the ranks are
    /// disconnected, only requests on rank 0 take effect, and their checkpoints cannot be resumed
    /// exactly; on the other ranks, a request only leads to a warning.
    ///
    /// An existing checkpoint or an empty folder at this path is replaced atomically. Anything else
    /// at this path is left unchanged, and the run ends with an error.
    pub fn save_checkpoint(&self, folder: impl Into<PathBuf>)
    where
        P: CanSaveCheckpoint,
    {
        self.as_run().checkpoints().request(self.as_run().is_replay(), folder.into(), SaveMode::Now);
    }

    /// Requests a checkpoint like [`save_checkpoint`](Cx::save_checkpoint), but copies the state in
    /// memory and writes it on a background thread while training continues.
    /// `after_save_checkpoint` fires when the checkpoint is on disk; if several processes train
    /// together, it fires on all ranks before the same batch. The fit waits for the write before it
    /// ends.
    ///
    #[doc = available!(CanSaveCheckpoint)]
    pub fn save_checkpoint_in_background(&self, folder: impl Into<PathBuf>)
    where
        P: CanSaveCheckpoint,
    {
        self.as_run().checkpoints().request(self.as_run().is_replay(), folder.into(), SaveMode::InBackground);
    }

    /// Returns whether SIGUSR1 has requested a checkpoint on any rank, and takes the request, so
    /// that other hooks no longer see it. [`Checkpoint`](crate::hooks::Checkpoint) takes it after
    /// the current batch. The request exists only on rank 0, and only if some hook of the run
    /// declares the folder that it writes checkpoints to: see
    /// [`Settings::checkpoints`](crate::checkpoint::Settings::checkpoints).
    ///
    #[doc = available!(CanSaveCheckpoint)]
    #[must_use]
    pub fn take_checkpoint_request(&self) -> bool
    where
        P: CanSaveCheckpoint,
    {
        self.as_run().checkpoints.is_requested.take()
    }

    /// The folder of the checkpoint that is being written or read.
    ///
    #[doc = available!(HasCheckpoint)]
    #[must_use]
    pub fn checkpoint(&self) -> &Path
    where
        P: HasCheckpoint,
    {
        self.as_run().checkpoints.active_folder()
    }

    /// Adds a value to the checkpoint that is about to be written. For the state of a hook type,
    /// use [`#[hook(state)]`](crate::language::state).
    ///
    #[doc = available!(CanSave)]
    ///
    /// # Errors
    ///
    /// Returns an error if the value cannot be serialized, or if the key is already in use.
    pub fn save<T: Serialize>(&self, key: &str, value: T) -> Result<()>
    where
        P: CanSave,
    {
        let text = text_of(key, &value)?; // before the borrow, because it runs code of the user
        self.active().added.borrow_mut().add_text(key, text)
    }

    /// Adds a tensor to the checkpoint that is about to be written.
    ///
    #[doc = available!(CanSave)]
    ///
    /// # Errors
    ///
    /// Returns an error if the key is already in use.
    pub fn save_tensor(&self, key: &str, tensor: &Tensor) -> Result<()>
    where
        P: CanSave,
    {
        self.active().added.borrow_mut().set_tensor(key, tensor)
    }

    /// The values of the checkpoint that was read: those that [`save`](Cx::save) and
    /// [`save_tensor`](Cx::save_tensor) have added.
    ///
    #[doc = available!(CanLoad)]
    #[must_use]
    pub fn saved(&self) -> &Saved
    where
        P: CanLoad,
    {
        &self.active().saved
    }
}

impl<P> Cx<P> {
    fn active(&self) -> &ActiveCheckpoint {
        self.as_run().checkpoints.active.as_ref().expect("active while its points fire")
    }
}
