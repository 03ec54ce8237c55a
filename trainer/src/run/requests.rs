//! [`Requests`]: what hooks have requested from the training loop.

use serde::{Deserialize, Serialize};

/// What hooks have requested from the training loop.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    skip_batch: bool,
    end_of_pass: EndOfPass,
    keep_state: bool,
    /// The reason to return to the kept state before the next batch of training.
    roll_back: Option<String>,
    stop: Option<Stop>,
}

/// A request to end the current pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EndOfPass {
    #[default]
    No,
    Requested,
    /// All ranks know of the request.
    Agreed,
}

/// A request to end the fit.
#[derive(Debug)]
struct Stop {
    reason: String,
    by: StoppedBy,
    effect: Effect,
}

/// Who has requested a stop.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum StoppedBy {
    Hook,
    /// The setting `max_time`.
    Clock,
}

/// What a request to stop has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Requested,
    /// All ranks know of the request.
    Agreed,
    /// All ranks know of the request, and it has prevented planned training or validation.
    CutShort,
}

/// The requests that a checkpoint contains.
#[derive(Deserialize, Serialize)]
pub(crate) struct SavedRequests {
    stop: Option<String>,
    end_epoch: bool,
    is_cut_short: bool,
}

impl Requests {
    /// Requests that the current batch is skipped.
    pub(crate) fn skip_batch(&mut self, skips: bool) {
        self.skip_batch = skips;
    }

    /// Whether the current batch is to be skipped.
    pub(crate) fn skips_batch(&self) -> bool {
        self.skip_batch
    }

    pub(crate) fn take_skip(&mut self) -> bool {
        std::mem::take(&mut self.skip_batch)
    }

    /// Requests that the current pass ends after this batch. `is_solo` says whether there are no
    /// other ranks, which would have to agree.
    pub(crate) fn end_pass(&mut self, is_solo: bool) {
        if self.end_of_pass == EndOfPass::No {
            self.end_of_pass = if is_solo { EndOfPass::Agreed } else { EndOfPass::Requested };
        }
    }

    pub(crate) fn has_end_of_pass(&self) -> bool {
        self.end_of_pass != EndOfPass::No
    }

    /// Takes the request to end the pass: because the pass has ended, or until the passes within it
    /// have ended.
    pub(crate) fn take_end_of_pass(&mut self) -> EndOfPass {
        std::mem::take(&mut self.end_of_pass)
    }

    /// Returns to the request of an outer pass.
    pub(crate) fn return_to(&mut self, outer: EndOfPass) {
        self.end_of_pass = outer;
    }

    /// Requests that the state is kept before the next batch of training.
    pub(crate) fn keep_state(&mut self, keeps: bool) {
        self.keep_state = keeps;
    }

    pub(crate) fn keeps_state(&self) -> bool {
        self.keep_state
    }

    /// Requests a return to the kept state. The first reason counts.
    pub(crate) fn roll_back(&mut self, reason: String) {
        self.roll_back.get_or_insert(reason);
    }

    pub(crate) fn reason_to_roll_back(&self) -> Option<&str> {
        self.roll_back.as_deref()
    }

    pub(crate) fn take_roll_back(&mut self) -> Option<String> {
        self.roll_back.take()
    }

    /// Requests that the fit ends. The first reason counts.
    pub(crate) fn stop(&mut self, reason: String, by: StoppedBy, is_solo: bool) {
        let effect = if is_solo { Effect::Agreed } else { Effect::Requested };
        self.stop.get_or_insert(Stop { reason, by, effect });
    }

    /// The reason for a stop, if one was requested.
    pub(crate) fn reason_to_stop(&self) -> Option<&str> {
        self.stop.as_ref().map(|stop| stop.reason.as_str())
    }

    /// The reason for a stop that the ranks have not agreed on, and who has requested it.
    pub(crate) fn new_stop(&self) -> Option<(&str, StoppedBy)> {
        let stop = self.stop.as_ref().filter(|stop| stop.effect == Effect::Requested)?;
        Some((&stop.reason, stop.by))
    }

    /// Whether all ranks know that the fit is to end.
    #[inline]
    pub(crate) fn has_stop(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.effect != Effect::Requested)
    }

    /// Whether all ranks know that the pass is to end.
    #[inline]
    pub(crate) fn ends_pass(&self) -> bool {
        self.end_of_pass == EndOfPass::Agreed
    }

    /// Notes that a stop has prevented planned training or validation.
    pub(crate) fn cut_short(&mut self) {
        self.stop.iter_mut().for_each(|stop| stop.effect = Effect::CutShort);
    }

    /// The reason for a stop that has prevented planned training or validation.
    pub(crate) fn reason_cut_short(&self) -> Option<&str> {
        self.stop.as_ref().filter(|stop| stop.effect == Effect::CutShort).map(|stop| stop.reason.as_str())
    }

    /// Applies what any rank has requested for the pass and the next batch.
    pub(crate) fn agree(&mut self, ends_pass: bool, keeps_state: bool, roll_back: Option<String>) {
        self.end_of_pass = if ends_pass { EndOfPass::Agreed } else { EndOfPass::No };
        self.keep_state = keeps_state;
        self.roll_back = roll_back;
    }

    /// Applies the stop that a rank has requested.
    pub(crate) fn agree_on_stop(&mut self, reason: String, by: StoppedBy) {
        self.stop = Some(Stop { reason, by, effect: Effect::Agreed });
    }

    /// Returns the requests for a checkpoint. `skip_batch` concerns a single batch, and a state is
    /// kept or returned to before a checkpoint is written. A stop by the clock is left out: the
    /// resumed fit checks the time itself.
    pub(crate) fn saved(&self) -> SavedRequests {
        let Requests { skip_batch: _, keep_state: _, roll_back: _, end_of_pass, stop } = self;
        let stop = stop.as_ref().filter(|stop| stop.by == StoppedBy::Hook);
        SavedRequests {
            stop: stop.map(|stop| stop.reason.clone()),
            end_epoch: *end_of_pass != EndOfPass::No,
            is_cut_short: stop.is_some_and(|stop| stop.effect == Effect::CutShort),
        }
    }

    /// Returns the requests of a checkpoint.
    pub(crate) fn restored(
        SavedRequests { stop, end_epoch, is_cut_short }: SavedRequests,
        is_solo: bool,
    ) -> Self {
        let mut requests = Requests::default();
        if end_epoch {
            requests.end_pass(is_solo);
        }
        if let Some(reason) = stop {
            requests.stop(reason, StoppedBy::Hook, is_solo);
        }
        if is_cut_short {
            requests.cut_short();
        }
        requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_takes_effect_once_all_ranks_know_of_it() {
        for is_solo in [true, false] {
            let mut requests = Requests::default();
            requests.end_pass(is_solo);
            requests.stop("first".to_owned(), StoppedBy::Hook, is_solo);
            requests.stop("second".to_owned(), StoppedBy::Clock, is_solo);
            assert_eq!((requests.ends_pass(), requests.has_stop()), (is_solo, is_solo));
            assert_eq!(requests.new_stop(), (!is_solo).then_some(("first", StoppedBy::Hook)));
            requests.agree(true, false, None);
            requests.agree_on_stop("of rank 1".to_owned(), StoppedBy::Hook);
            assert!(requests.ends_pass() && requests.has_stop());
            assert_eq!((requests.reason_cut_short(), requests.new_stop()), (None, None));
            requests.cut_short();
            assert_eq!(requests.reason_cut_short(), Some("of rank 1"));
            let restored = Requests::restored(requests.saved(), is_solo);
            assert_eq!(restored.reason_to_stop(), Some("of rank 1"));
            assert_eq!(restored.ends_pass(), is_solo);
        }
        let mut of_clock = Requests::default();
        of_clock.stop("`max_time`".to_owned(), StoppedBy::Clock, true);
        assert_eq!(Requests::restored(of_clock.saved(), true).reason_to_stop(), None);
    }
}
