//! Methods of [`Cx`] for records, and for histograms, images and texts.

use std::borrow::Borrow;
use std::path::Path;

use tch::Tensor;

use super::Cx;
use crate::lifecycle::{CanLog, HasRecord, available};
use crate::log::Content;
use crate::log::record::Record;
use crate::values::hyperparameter::Hyperparameter;

/// # Histograms, images and texts
impl<P> Cx<P> {
    /// Whether a histogram, an image or a text that is logged now becomes part of a record. If not,
    /// there is no need to compute it.
    ///
    /// In a training batch, returns whether a record is due at the end of the batch (see
    /// [`record_every`](crate::TrainerBuilder::record_every)); at any other time, whether a hook at
    /// `after_record` receives the records of the phase. A warning lists the names that were only
    /// logged in training batches without a record.
    #[must_use]
    pub fn is_record_due(&self) -> bool {
        let run = self.as_run();
        let in_training_batch = run.step.is_in_training_batch(run.at.place.phase);
        run.log.borrow().records.keeps_media(run.at.place.phase, in_training_batch)
    }

    /// Logs the distribution of a tensor's elements as `phase/name`, for the record that is due.
    ///
    #[doc = available!(CanLog)]
    ///
    /// If [no record is due](Cx::is_record_due), nothing is recorded. Otherwise the tensor is
    /// summarized on its own device, without synchronizing with it, as a
    /// [`Histogram`](crate::Histogram). NaN and infinite elements are ignored; if no element is
    /// finite, the record has no histogram. The last call for a name wins.
    ///
    /// An empty tensor ends the run with an error that names the hook.
    #[doc(alias = "add_histogram")]
    pub fn log_histogram(&self, name: impl AsRef<str>, tensor: impl Borrow<Tensor>)
    where
        P: CanLog,
    {
        self.as_run().log_media(name.as_ref(), || Content::histogram(tensor.borrow()));
    }

    /// Logs an image as `phase/name`, for the record that is due.
    ///
    #[doc = available!(CanLog)]
    ///
    /// `image` has the shape `[channels, height, width]` with 1 (gray), 3 (RGB) or 4 (RGBA)
    /// channels, or `[height, width]`, and at most 16,384 pixels per side. Floating-point values
    /// are expected to be from 0 to 1, as in PyTorch's `SummaryWriter.add_image`; values outside
    /// that range are clamped, and NaN is black. `Uint8` values are used unchanged.
    ///
    /// If [no record is due](Cx::is_record_due), nothing is recorded. Otherwise the image is copied
    /// on its own device, without synchronizing with it. The last call for a name wins. A tensor
    /// with a different shape or dtype ends the run with an error that names the hook.
    #[doc(alias = "add_image")]
    pub fn log_image(&self, name: impl AsRef<str>, image: impl Borrow<Tensor>)
    where
        P: CanLog,
    {
        self.as_run().log_media(name.as_ref(), || Content::image(image.borrow()));
    }

    /// Logs a text as `phase/name`, for the record that is due.
    ///
    #[doc = available!(CanLog)]
    ///
    /// If [no record is due](Cx::is_record_due), nothing is recorded. The last call for a name
    /// wins.
    #[doc(alias = "add_text")]
    pub fn log_text(&self, name: impl AsRef<str>, text: impl Into<String>)
    where
        P: CanLog,
    {
        self.as_run().log_media(name.as_ref(), || Ok(Content::Text(text.into())));
    }

    /// The record for which `after_record` fires.
    ///
    #[doc = available!(HasRecord)]
    #[must_use]
    pub fn record(&self) -> &Record
    where
        P: HasRecord,
    {
        self.as_run().occasion.record.as_ref().expect("`after_record` fires for a record")
    }
}

/// # The run, its hyperparameters and warnings
impl<P> Cx<P> {
    /// The [folder of the run](crate::TrainerBuilder::run_folder), if it has one.
    #[must_use]
    pub fn run_folder(&self) -> Option<&Path> {
        self.as_run().folder_state().path()
    }

    /// The hyperparameters by name: those that the program has
    /// [set](crate::TrainerBuilder::hyperparameter), then the current ones of the optimizers, then
    /// the settings of the trainer, then the [settings](crate::checkpoint::Settings) of its hooks
    /// that a resume compares, such as `MixUp.alpha`.
    #[must_use]
    pub fn hyperparameters(&self) -> Vec<(String, Hyperparameter)> {
        self.as_run().all_hyperparameters()
    }

    /// The hyperparameters that the program has [set](crate::TrainerBuilder::hyperparameter), which
    /// [`hyperparameters`](Cx::hyperparameters) returns first.
    #[must_use]
    pub fn own_hyperparameters(&self) -> Vec<(String, Hyperparameter)> {
        let own = self.as_run().hyperparameters.iter();
        own.map(|given| (given.name.clone(), given.value.clone())).collect()
    }

    /// Adds a warning to [`Summary::warnings`] and prints it on standard error, above the progress
    /// bar, unless the current entry point already has this warning.
    ///
    /// If several processes train together, only the process of rank 0 prints its warnings.
    ///
    /// [`Summary::warnings`]: crate::Summary::warnings
    pub fn warn(&self, text: impl Into<String>) {
        self.as_run().reports.warn(text.into());
    }

    /// Adds a warning like [`warn`](Cx::warn), and records in [`Summary::incomplete_logs`] that
    /// rows of this run are missing from the log with this name.
    ///
    /// [`Summary::incomplete_logs`]: crate::Summary::incomplete_logs
    pub fn warn_incomplete(&self, log: impl Into<String>, text: impl Into<String>) {
        self.as_run().reports.note_incomplete(log.into());
        self.as_run().reports.warn(text.into());
    }
}
