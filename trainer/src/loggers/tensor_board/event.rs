//! The events in TensorBoard's event files.

use crate::loggers::proto::Message;
use crate::{Histogram, Hyperparameter, Image, Phase, Record, Span};

/// A buffer of events with the same step and time.
pub(super) struct Events {
    pub(super) bytes: Vec<u8>,
    /// The time in seconds since the Unix epoch.
    pub(super) time: f64,
    pub(super) step: u64,
}

/// The outcome of a session, as the hyperparameter plugin encodes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Success = 1,
    Failure = 2,
}

impl Events {
    fn event(&self) -> Message {
        Message::default().double(1, self.time).integer(2, self.step)
    }

    /// Appends the first event of a file, the version.
    pub(super) fn version(&mut self) {
        frame(&mut self.bytes, &Message::default().double(1, self.time).field(3, "brain.Event:2"));
    }

    /// Appends the start of a session. When a running TensorBoard reads this event, it discards the
    /// events from `step` on that it has read before. It discards nothing at the first session
    /// start that it reads.
    pub(super) fn session_start(&mut self, step: u64) {
        let event = Message::default().double(1, self.time).integer(2, step);
        frame(&mut self.bytes, &event.message(7, &Message::default().integer(1, 1)));
    }

    /// Appends the hyperparameters of the run.
    pub(super) fn hyperparameters(&mut self, hyperparameters: &[(String, Hyperparameter)]) {
        let mut session = Message::default();
        for (name, value) in hyperparameters {
            let value = match value {
                Hyperparameter::Number(number) => Message::default().double(2, *number),
                Hyperparameter::Bool(switch) => Message::default().integer(4, u64::from(*switch)),
                Hyperparameter::Text(text) => Message::default().field(3, text),
            };
            session = session.message(1, &Message::default().field(1, name).message(2, &value));
        }
        session = session.double(5, self.time);
        self.plugin("_hparams_/session_start_info", &Message::default().message(3, &session));
    }

    /// Appends the end of the session with its outcome.
    pub(super) fn end(&mut self, status: Status) {
        let session = Message::default().integer(1, status as u64).double(2, self.time);
        self.plugin("_hparams_/session_end_info", &Message::default().message(4, &session));
    }

    /// Appends an event for the hyperparameter plugin.
    fn plugin(&mut self, tag: &str, content: &Message) {
        let value = Message::default().field(1, tag).message(9, &metadata("hparams", content));
        let event = self.event();
        frame(&mut self.bytes, &event.message(5, &Message::default().message(1, &value)));
    }

    /// Appends the values of a record as one event. Images that cannot be encoded are left out.
    pub(super) fn record(&mut self, record: &Record) {
        let mut summary = Message::default();
        let mut add = |value: &Message| summary = std::mem::take(&mut summary).message(1, value);
        let tag = |name: &str| {
            // The metrics of an epoch have the same names as those of its steps.
            let is_of_epoch = record.phase() == Phase::Train && record.span() == Span::Pass;
            let tag = if is_of_epoch { format!("epoch/{name}") } else { name.to_owned() };
            Message::default().field(1, tag)
        };
        for (name, value) in record.scalars() {
            add(&tag(name).float(2, value as f32));
        }
        for (name, histogram) in record.histograms() {
            add(&tag(name).message(5, &histogram_message(histogram)));
        }
        for (name, image) in record.images() {
            if let Some(message) = image_message(image) {
                add(&tag(name).message(4, &message));
            }
        }
        for (name, text) in record.texts() {
            let one = Message::default().message(2, &Message::default().integer(1, 1));
            let tensor = Message::default().integer(1, 7).message(2, &one).field(8, text);
            add(&tag(name).message(8, &tensor).message(9, &metadata("text", &Message::default())));
        }
        let event = self.event();
        frame(&mut self.bytes, &event.message(5, &summary));
    }
}

/// Returns the metadata that assigns a value to a TensorBoard plugin.
fn metadata(plugin: &str, content: &Message) -> Message {
    let plugin = Message::default().field(1, plugin).message(2, content);
    Message::default().message(1, &plugin)
}

fn histogram_message(histogram: &Histogram) -> Message {
    Message::default()
        .double(1, histogram.min)
        .double(2, histogram.max)
        .double(3, histogram.count as f64)
        .double(4, histogram.sum)
        .double(5, histogram.sum_squares)
        .doubles(6, histogram.limits.iter().copied())
        .doubles(7, histogram.counts.iter().map(|count| *count as f64))
}

/// The minimum number of pixels on the longer side of an image. Smaller images are enlarged,
/// because TensorBoard would smooth an image that it enlarges itself.
const MIN_SIDE: u32 = 128;

/// Encodes an image; returns `None` if that fails.
fn image_message(image: &Image) -> Option<Message> {
    let image = image.enlarged(MIN_SIDE);
    let png = image.png().ok()?;
    let message = Message::default().integer(1, u64::from(image.height)).integer(2, u64::from(image.width));
    Some(message.integer(3, u64::from(image.channels)).field(4, png))
}

/// Appends a message to the bytes of an event file in TensorFlow's `TFRecord` format: the length
/// and the content, each followed by a masked CRC-32C.
fn frame(bytes: &mut Vec<u8>, message: &Message) {
    let length = (message.bytes().len() as u64).to_le_bytes();
    bytes.extend(length);
    bytes.extend(masked(&length));
    bytes.extend(message.bytes());
    bytes.extend(masked(message.bytes()));
}

fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_masked_as_in_tensorflow() {
        // The length of the version event at the beginning of TensorFlow's event files: 24 bytes.
        assert_eq!(masked(&24_u64.to_le_bytes()), [0xa3, 0x7f, 0x4b, 0x22]);
    }
}
