//! Histograms, images and texts, both in records and waiting for a record.

use serde::{Deserialize, Serialize};
use tch::{Device, Tensor};

use super::histogram::Histogram;
use super::image::Image;
use crate::error::Result;
use crate::phase::Phase;

/// A histogram, image or text in a record.
#[derive(Clone, Debug)]
pub(super) enum Media {
    Histogram(Histogram),
    Image(Image),
    Text(String),
}

/// A histogram, image or text that is waiting for the next record of its phase.
#[derive(Debug)]
pub(super) struct Pending {
    phase: Phase,
    /// The name without the phase.
    name: String,
    pub(super) content: Content,
    /// Whether this value was logged in a training batch. If so, the value belongs to the record at
    /// the end of that batch, and is dropped if no record is due then.
    is_of_batch: bool,
}

impl Pending {
    pub(super) fn full_name(&self) -> String {
        format!("{}/{}", self.phase, self.name)
    }
}

/// The content of a [`Pending`] value, on its device.
#[derive(Debug)]
pub(crate) enum Content {
    /// The output of [`Histogram::summarize`].
    Histogram(Tensor),
    /// The output of [`Image::convert`].
    Image(Tensor),
    Text(String),
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

    /// Returns the tensor if it is on a device other than the CPU, and must therefore be read
    /// later. Returns `None` for a text or a tensor on the CPU. If `leaves_unread` is set, the CPU
    /// is treated like any other device, for tests.
    pub(super) fn late_tensor(&mut self, leaves_unread: bool) -> Option<&mut Tensor> {
        match self {
            Content::Histogram(tensor) | Content::Image(tensor) => {
                (leaves_unread || tensor.device() != Device::Cpu).then_some(tensor)
            }
            Content::Text(_) => None,
        }
    }
}

/// The histograms, images and texts that are waiting for a record.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pending: Vec<Pending>,
    /// The names logged in training batches of this entry point.
    names: Vec<MediaName>,
}

/// The name of a histogram, image or text that was logged in a training batch.
#[derive(Debug)]
struct MediaName {
    name: String,
    /// The number of records of training steps that existed when the name was first logged; `None`
    /// if a record was due at the end of at least one batch that logged it.
    unrecorded_since: Option<u64>,
}

impl Waiting {
    /// Takes the values that are waiting for a record of this phase.
    pub(super) fn take(&mut self, phase: Phase) -> Vec<Pending> {
        self.pending.extract_if(.., |pending| pending.phase == phase).collect()
    }

    /// Adds a value for the next record of a phase. A later value replaces an earlier one with the
    /// same name.
    pub(super) fn add(&mut self, phase: Phase, name: &str, content: Content, is_of_batch: bool) {
        let pending = Pending { phase, name: name.to_owned(), content, is_of_batch };
        match self.pending.iter_mut().find(|known| known.phase == phase && known.name == name) {
            Some(known) => *known = pending,
            None => self.pending.push(pending),
        }
    }

    /// Drops the values that were logged for a record of the current batch.
    pub(super) fn drop_of_batch(&mut self) {
        self.pending.retain(|pending| !pending.is_of_batch);
    }

    /// Notes that a value was logged in a training batch. `is_recorded` states whether a record is
    /// due at the end of the batch, and `since` is the number of records of training steps so far.
    pub(super) fn note_name(&mut self, name: &str, is_recorded: bool, since: u64) {
        match self.names.iter_mut().find(|known| known.name == name) {
            Some(known) => known.unrecorded_since = known.unrecorded_since.filter(|_| !is_recorded),
            None => {
                let unrecorded_since = (!is_recorded).then_some(since);
                self.names.push(MediaName { name: name.to_owned(), unrecorded_since });
            }
        }
    }

    /// Returns the names that are in no record. `records` is the number of records of training
    /// steps so far. If it is given, omits names that were first logged after the last of these
    /// records.
    pub(super) fn unrecorded(&self, records: Option<u64>) -> Vec<String> {
        let is_lost = |since: u64| records.is_none_or(|records| records > since);
        let lost = self.names.iter().filter(|name| name.unrecorded_since.is_some_and(is_lost));
        lost.map(|name| name.name.clone()).collect()
    }

    pub(super) fn forget_names(&mut self) {
        self.names.clear();
    }

    /// Returns the state, and adds its tensors, by name, to `tensors`. Values of a training batch
    /// are excluded, because they are dropped unless a record is due at the end of the batch.
    pub(super) fn state(&self, tensors: &mut Vec<(String, Tensor)>) -> Vec<MediaState> {
        let mut states = Vec::new();
        for (nth, pending) in self.pending.iter().filter(|pending| !pending.is_of_batch).enumerate() {
            let kind = match &pending.content {
                Content::Text(text) => MediaKind::Text(text.clone()),
                Content::Histogram(tensor) => {
                    tensors.push((key(nth), tensor.shallow_clone()));
                    MediaKind::Histogram
                }
                Content::Image(tensor) => {
                    tensors.push((key(nth), tensor.shallow_clone()));
                    MediaKind::Image
                }
            };
            states.push(MediaState { phase: pending.phase, name: pending.name.clone(), kind });
        }
        states
    }

    /// Restores the values that are waiting for a record. A value whose tensor is missing is
    /// skipped.
    pub(super) fn restore(&mut self, states: &[MediaState], tensor: impl Fn(&str) -> Option<Tensor>) {
        self.pending.clear();
        for (nth, MediaState { phase, name, kind }) in states.iter().enumerate() {
            let content = match kind {
                MediaKind::Text(text) => Some(Content::Text(text.clone())),
                MediaKind::Histogram => tensor(&key(nth)).map(Content::Histogram),
                MediaKind::Image => tensor(&key(nth)).map(Content::Image),
            };
            if let Some(content) = content {
                let name = name.clone();
                self.pending.push(Pending { phase: *phase, name, content, is_of_batch: false });
            }
        }
    }
}

/// A [`Pending`] value in a checkpoint. Its tensor is saved separately.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct MediaState {
    phase: Phase,
    name: String,
    kind: MediaKind,
}

#[derive(Debug, Deserialize, Serialize)]
enum MediaKind {
    Histogram,
    Image,
    Text(String),
}

/// The prefix of the names of media tensors in a checkpoint.
pub(super) const PREFIX: &str = "media/";

/// Returns the name under which a checkpoint stores the tensor of the `nth` value.
fn key(nth: usize) -> String {
    format!("{PREFIX}{nth}")
}
