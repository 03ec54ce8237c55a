//! Pending media: histograms, images and texts that were logged and are waiting for their record.

use serde::{Deserialize, Serialize};
use tch::{Device, Tensor};

use super::{Histogram, Image, Records};
use crate::error::Result;
use crate::phase::Phase;

/// A logged value that is waiting for the next record of its phase.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) phase: Phase,
    pub(crate) name: String,
    pub(crate) content: Content,
    /// Whether it was logged in a training batch. It then belongs to the record that is due at the
    /// end of the batch; if none is due, it is dropped.
    pub(crate) is_of_batch: bool,
}

/// The content of a [`Pending`] value, on its device.
#[derive(Debug)]
pub(crate) enum Content {
    /// The summary of a histogram: [`Histogram::summarize`].
    Histogram(Tensor),
    /// The pixels of an image: [`Image::convert`].
    Image(Tensor),
    Text(String),
}

impl Pending {
    pub(super) fn full_name(&self) -> String {
        format!("{}/{}", self.phase, self.name)
    }
}

/// A [`Pending`] value in a checkpoint. Its tensor is saved separately.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct PendingState {
    phase: Phase,
    name: String,
    kind: PendingKind,
}

#[derive(Debug, Deserialize, Serialize)]
enum PendingKind {
    Histogram,
    Image,
    Text(String),
}

impl Records {
    /// Returns the pending values for a checkpoint, and their tensors by name. Values of a training
    /// batch are excluded, because they are dropped unless a record is due at the end of the batch.
    pub(crate) fn state(&self) -> (Vec<PendingState>, Vec<(String, Tensor)>) {
        let (mut states, mut tensors) = (Vec::new(), Vec::new());
        for (nth, pending) in self.pending.iter().filter(|it| !it.is_of_batch).enumerate() {
            let kind = match &pending.content {
                Content::Text(text) => PendingKind::Text(text.clone()),
                Content::Histogram(tensor) => {
                    tensors.push((format!("media/{nth}"), tensor.shallow_clone()));
                    PendingKind::Histogram
                }
                Content::Image(tensor) => {
                    tensors.push((format!("media/{nth}"), tensor.shallow_clone()));
                    PendingKind::Image
                }
            };
            states.push(PendingState { phase: pending.phase, name: pending.name.clone(), kind });
        }
        (states, tensors)
    }

    /// Restores the pending values and the numbers of records from a checkpoint. A value whose
    /// tensor is missing is skipped.
    pub(crate) fn restore(
        &mut self,
        states: &[PendingState],
        counts: [[u64; 2]; Phase::ALL.len()],
        tensor: impl Fn(&str) -> Option<Tensor>,
    ) {
        self.counts = counts;
        self.pending.clear();
        for (nth, PendingState { phase, name, kind }) in states.iter().enumerate() {
            let tensor = || tensor(&format!("media/{nth}"));
            let content = match kind {
                PendingKind::Text(text) => Some(Content::Text(text.clone())),
                PendingKind::Histogram => tensor().map(Content::Histogram),
                PendingKind::Image => tensor().map(Content::Image),
            };
            let pending =
                |content| Pending { phase: *phase, name: name.clone(), content, is_of_batch: false };
            self.pending.extend(content.map(pending));
        }
    }
}

impl Content {
    pub(crate) fn histogram(tensor: &Tensor) -> Result<Self> {
        Histogram::summarize(tensor).map(Content::Histogram)
    }

    /// Converts an image. The pixels are copied, because the caller may change the tensor in place.
    pub(crate) fn image(tensor: &Tensor) -> Result<Self> {
        let pixels = Image::convert(tensor)?;
        Ok(Content::Image(pixels.f_to_device_(pixels.device(), pixels.kind(), false, true)?))
    }

    /// Returns the tensor, or `None` for a text or a tensor on the CPU, which can be read
    /// immediately. `leaves_unread` treats the CPU as another device, for tests.
    pub(super) fn late_tensor(&mut self, leaves_unread: bool) -> Option<&mut Tensor> {
        match self {
            Content::Histogram(tensor) | Content::Image(tensor) => {
                (leaves_unread || tensor.device() != Device::Cpu).then_some(tensor)
            }
            Content::Text(_) => None,
        }
    }
}
