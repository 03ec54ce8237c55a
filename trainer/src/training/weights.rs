//! Saving and loading the weights of a trainer's task.

use std::path::Path;

use super::task::Task;
use super::trainer::Trainer;
use crate::checkpoint::{LoadWeights, Loaded, weights};
use crate::error::Result;
use crate::io::files::in_file;

/// # Weights
impl<T: Task> Trainer<T> {
    /// Atomically writes the variables of the task, buffers included, as a `safetensors` file,
    /// which Python reads as a `state_dict`. An existing file is replaced if it is a `safetensors`
    /// file.
    ///
    /// # Errors
    ///
    /// Returns an error that names the file if
    ///
    /// - it cannot be written;
    /// - `path` exists but is not a `safetensors` file;
    /// - the run has yet to be [resumed](Trainer::is_resuming), so the weights are not those of the
    ///   run.
    #[doc(alias = "state_dict")]
    pub fn save_weights(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if self.is_resuming() {
            return Err(in_file(
                path,
                "cannot save weights yet: the `fit` that resumes from the checkpoint has not run, and only it loads the \
                 trained weights; save them after that `fit`, or only if `trainer.is_resuming()` is false",
            ));
        }
        weights::save(self.vars(), path)
    }

    /// Loads weights from a `safetensors` file, from a `.pt` file that PyTorch's `torch.save`
    /// wrote, or from a checkpoint folder, into the variables of the task. Values of a different
    /// dtype are converted.
    ///
    /// Nothing in a `.pt` file is executed: a file that needs more than the tensors of a state dict
    /// is refused. PyTorch has written this format since version 1.6.
    ///
    /// Variables that hooks have [added](crate::AddVariables) keep their values if the file
    /// contains none of these variables, as is usual for a pretrained model.
    ///
    /// If a checkpoint has averaged weights, such as those of [`hooks::Ema`](crate::hooks::Ema),
    /// these are loaded, and a line on standard error says so. The file `model.safetensors` of the
    /// checkpoint always has the live weights.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - names are missing or unexpected and [`partial`](LoadWeights::partial) is not set, or
    ///   shapes differ and [`skip_mismatched`](LoadWeights::skip_mismatched) is not set; the error
    ///   lists all differences;
    /// - the file cannot be read, is damaged or has a different format;
    /// - a pattern matches no name.
    ///
    /// After an error, the variables are unchanged.
    #[doc(alias = "load_state_dict")]
    pub fn load_weights(&mut self, path: impl AsRef<Path>, how: &LoadWeights<'_>) -> Result<Loaded> {
        let path = path.as_ref();
        let loaded = weights::load(self.vars(), &self.run.model.added, path, how)?;
        if loaded.is_averaged {
            self.run.notice(&format!(
                "loaded the averaged weights of {}; its file `model.safetensors` contains the live weights",
                path.display()
            ));
        }
        Ok(loaded)
    }
}
