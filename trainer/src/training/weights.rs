//! Saving and loading the weights of a trainer's task.

use std::path::Path;

use super::task::Task;
use super::trainer::Trainer;
use crate::checkpoint::{LoadWeights, Loaded, weights, write_tensors};
use crate::error::Result;
use crate::io::files::in_file;
use crate::libtorch::{Var, identity};
use crate::model::vars::Vars;

/// # Weights
impl<T: Task> Trainer<T> {
    /// The values of the variables that evaluation uses: the averages of a hook such as
    /// [`Ema`](crate::hooks::Ema) and, for variables without an average, the live values, as in
    /// [`vars`](Trainer::vars). Writing to an average changes the average.
    ///
    /// # Errors
    ///
    /// Returns an error if the state of a hook cannot be read.
    pub fn eval_vars(&self) -> Result<Vars> {
        let mut averages = self.run.hooks().averages(self.run.vars())?;
        // The averages of variables that the program has changed are those of other weights.
        self.run.model().changed().iter().for_each(|name| drop(averages.remove(name)));
        Ok(self.vars().evaluated(&averages))
    }

    /// Atomically writes the variables of the task, buffers included, as a `safetensors` file,
    /// which Python reads as a `state_dict`. An existing file is replaced if it is a `safetensors`
    /// file.
    ///
    /// The values are those that evaluation uses, [`eval_vars`](Trainer::eval_vars). If these are
    /// averages, a line on standard error says so. A warning names variables that contain NaN or
    /// infinite values, except infinite values that a buffer has contained from the beginning.
    ///
    /// # Errors
    ///
    /// Returns an error that names the file if
    ///
    /// - it cannot be written;
    /// - `path` exists but is not a `safetensors` file;
    /// - the run has yet to be [resumed](Trainer::is_resuming), so the weights are not those of the
    ///   run.
    #[doc(alias("state_dict", "save_checkpoint", "save_model"))]
    pub fn save_weights(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if self.is_resuming() {
            return Err(in_file(
                path,
                "cannot save weights yet: the `fit` that resumes from the checkpoint has not run, and only it loads the \
                 trained weights; save them after that `fit`, or only if `trainer.is_resuming()` is false",
            ));
        }
        let vars = self.eval_vars()?;
        let values: Vec<_> = vars.iter().map(|var| (var.name.clone(), var.tensor.shallow_clone())).collect();
        let what = path.display().to_string();
        self.run.model().warn_of_not_finite(
            self.run.reports(),
            &what,
            values.iter().map(|(name, value)| (name.as_str(), value)),
        )?;
        write_tensors(path, &values)?;
        let is_live = |(own, live): (&Var, &Var)| identity(&own.tensor) == identity(&live.tensor);
        if !vars.iter().zip(self.vars().iter()).all(is_live) {
            self.run.reports().notice(&format!(
                "{what} has the averaged weights, which evaluation uses; `trainer.task().vars().save(…)` writes the live weights"
            ));
        }
        Ok(())
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
    /// The next entry point drops what hooks have derived from the old values, such as averages:
    /// see [what loading weights resets](crate::guide::checkpoints#what-loading-weights-resets).
    /// The state of the optimizer is kept; [`load_optimizer`](crate::checkpoint::load_optimizer)
    /// loads one of PyTorch's.
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
    #[doc(alias("load_state_dict", "load_checkpoint", "load_model"))]
    pub fn load_weights(&mut self, path: impl AsRef<Path>, how: &LoadWeights<'_>) -> Result<Loaded> {
        let path = path.as_ref();
        let loaded = weights::load(self.vars(), &self.run.model().added, path, how)?;
        self.run.model_mut().note_masks()?;
        if loaded.is_averaged {
            self.run.reports().notice(&format!(
                "loaded the averaged weights of {}; its file `model.safetensors` contains the live weights",
                path.display()
            ));
        }
        Ok(loaded)
    }
}
