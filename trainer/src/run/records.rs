//! Histograms, images and texts that hooks log.

use super::Run;
use crate::error::Result;
use crate::phase::Phase;
use crate::record::{Content, Pending};

impl Run {
    /// Whether a histogram, image or text that is logged now becomes part of a record.
    pub(crate) fn keeps_media(&self) -> bool {
        let phase = self.progress.phase;
        self.records.watched.contains(phase) && (self.records.is_due || !self.is_in_training_batch())
    }

    fn is_in_training_batch(&self) -> bool {
        self.progress.phase == Phase::Train && self.step.batch_len.is_some()
    }

    /// Implements `Cx::log_histogram`, `log_image` and `log_text`. The last value of a name wins.
    pub(crate) fn log_media(&mut self, name: &str, content: impl FnOnce() -> Result<Content>) {
        if !self.keeps_media() {
            return;
        }
        let content = match content() {
            Ok(content) => content,
            Err(error) => return self.log.cannot_log(name, &error),
        };
        let (phase, is_of_batch) = (self.progress.phase, self.is_in_training_batch());
        let name = self.progress.metric_name(name).into_owned();
        let pending = Pending { phase, name, content, is_of_batch };
        let known = self.records.pending.iter_mut().find(|it| it.phase == phase && it.name == pending.name);
        match known {
            Some(known) => *known = pending,
            None => self.records.pending.push(pending),
        }
    }
}
