//! Histograms, images and texts that hooks log.

use super::Run;
use crate::error::Result;
use crate::log::record::{Content, Pending};
use crate::phase::Phase;

impl Run {
    /// Whether a histogram, image or text that is logged now becomes part of a record.
    pub(crate) fn keeps_media(&self) -> bool {
        let phase = self.place.phase;
        self.records.watched.contains(phase) && (self.records.is_due || !self.is_in_training_batch())
    }

    fn is_in_training_batch(&self) -> bool {
        self.place.phase == Phase::Train && self.step.batch_len.is_some()
    }

    /// Warns of each histogram, image and text that was only logged in training batches without a
    /// record. Unless `all` were seen, as at the end of a fit that was not resumed, leaves out those
    /// since which no record was due, except if none ever is.
    pub(crate) fn warn_of_unrecorded(&mut self, all: bool) {
        let records = self.records.counts[Phase::Train as usize][0];
        let is_judged = all || self.settings.record_every().is_none();
        let lost =
            self.records.names.iter().filter(|it| !it.is_recorded && (is_judged || records > it.since));
        let lost: Vec<String> = lost.map(|it| it.name.clone()).collect();
        for name in lost {
            self.warn(format!(
                "`train/{name}` is in no record, because no record was due in the batches that logged it: log it where \
                 `cx.is_record_due()` is true, or at `after_train_epoch`, or set `.record_every(Every::Steps(1))`"
            ));
        }
    }

    /// Implements `Cx::log_histogram`, `log_image` and `log_text`. The last value of a name wins.
    pub(crate) fn log_media(&mut self, name: &str, content: impl FnOnce() -> Result<Content>) {
        if self.is_in_training_batch() && self.records.watched.contains(Phase::Train) {
            self.records.note_name(name);
        }
        if !self.keeps_media() {
            return;
        }
        let content = match content() {
            Ok(content) => content,
            Err(error) => return self.log.cannot_log(name, &error),
        };
        let (phase, is_of_batch) = (self.place.phase, self.is_in_training_batch());
        let name = self.metric_name(name).into_owned();
        let pending = Pending { phase, name, content, is_of_batch };
        let known = self.records.pending.iter_mut().find(|it| it.phase == phase && it.name == pending.name);
        match known {
            Some(known) => *known = pending,
            None => self.records.pending.push(pending),
        }
    }
}
