//! [`Reports`]: what a run tells the person who started it, and failures that do not end it.

use std::cell::{Ref, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{BoxError, Error, Result, discard_panic, panic_text};
use crate::hook::call::Panic;
use crate::io::terminal;
use crate::libtorch::GradMode;

/// The warnings and failures of an entry point.
pub(crate) struct Reports {
    /// The rank of this process among the processes that train together.
    rank: u32,
    /// Whether nothing is reported, because what runs is only measured.
    is_muted: bool,
    /// The warnings for the summary of the current entry point or, between entry points, of the
    /// next one.
    warnings: RefCell<Vec<String>>,
    /// What has failed in the current entry point without ending it.
    failures: RefCell<Vec<Failed>>,
    /// For the summary of the current entry point, the names of the logs that lack some of its
    /// rows.
    incomplete_logs: RefCell<Vec<String>>,
}

/// A failure that did not end the run.
#[derive(Debug)]
struct Failed {
    /// Who failed, such as the path of a hook.
    who: String,
    /// The number of failures after the first, which was reported when it happened.
    further: u64,
    /// The last further failure.
    last: String,
}

impl Reports {
    pub(super) fn new(rank: u32) -> Self {
        Reports {
            rank,
            is_muted: false,
            warnings: RefCell::default(),
            failures: RefCell::default(),
            incomplete_logs: RefCell::default(),
        }
    }

    /// Begins an entry point. Keeps the warnings since the last one.
    pub(super) fn begin(&mut self) {
        self.incomplete_logs.get_mut().clear();
    }

    /// Sets whether warnings and notices are dropped.
    pub(crate) fn mute(&mut self, is_muted: bool) {
        self.is_muted = is_muted;
    }

    #[inline]
    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    /// Adds a warning to the summary of the current entry point or, between entry points, of the
    /// next one, unless the summary already contains it. The process of rank 0 prints the warning.
    pub(crate) fn warn(&self, text: String) {
        let mut warnings = self.warnings.borrow_mut();
        if !self.is_muted && !warnings.contains(&text) {
            self.notice(&format!("warning: {text}"));
            warnings.push(text);
        }
    }

    /// Adds a warning about something that only this rank has seen. Unlike [`warn`](Self::warn),
    /// this prints the warning on any rank.
    pub(crate) fn warn_on_any_rank(&self, text: String) {
        if self.rank > 0 && !self.is_muted {
            terminal::eprint_line(format!("warning: rank {}: {text}", self.rank));
        }
        self.warn(text);
    }

    /// Prints a line on standard error in the process of rank 0. Not for warnings.
    pub(crate) fn notice(&self, text: &str) {
        if self.rank == 0 && !self.is_muted {
            terminal::eprint_line(text);
        }
    }

    /// The warnings for the summary of an entry point.
    pub(crate) fn warnings(&self) -> Ref<'_, Vec<String>> {
        self.warnings.borrow()
    }

    /// Takes the warnings for the summary of an entry point.
    pub(crate) fn take_warnings(&mut self) -> Vec<String> {
        self.warnings.take()
    }

    /// Records that rows are missing from the log with this name.
    pub(crate) fn note_incomplete(&self, log: String) {
        let mut incomplete = self.incomplete_logs.borrow_mut();
        if !incomplete.contains(&log) {
            incomplete.push(log);
        }
    }

    /// Takes the names of the logs that lack rows.
    pub(crate) fn take_incomplete_logs(&mut self) -> Vec<String> {
        self.incomplete_logs.take()
    }

    /// Calls code that only observes the run: if it fails or panics, the run continues without its
    /// result. The first failure of each `who` in an entry point is a warning, and
    /// [`end_failures`](Self::end_failures) adds how many followed.
    ///
    /// # Errors
    ///
    /// Returns an error that was marked with [`Error::fatal`], and a cancellation.
    pub(crate) fn tolerate<R>(
        &self,
        who: &str,
        call: impl FnOnce() -> Result<R, BoxError>,
    ) -> Result<Option<R>, BoxError> {
        match caught(call) {
            Ok(value) => Ok(Some(value)),
            Err((error, panic)) => {
                panic.into_iter().for_each(discard_panic);
                let error = ending(error)?;
                self.note_failure(who, format!("{who} failed: {error}"), "the run continues");
                Ok(None)
            }
        }
    }

    /// Reports the first failure of `who` in an entry point, and counts the others.
    #[cold]
    pub(super) fn note_failure(&self, who: &str, text: String, then: &str) {
        let mut failures = self.failures.borrow_mut();
        if let Some(known) = failures.iter_mut().find(|known| known.who == who) {
            known.further += 1;
            known.last = text;
            return;
        }
        failures.push(Failed { who: who.to_owned(), further: 0, last: String::new() });
        drop(failures);
        self.warn_on_any_rank(format!("{text}; {then}"));
    }

    /// Adds a warning for each hook or file that failed more than once in the entry point that
    /// ends.
    pub(crate) fn end_failures(&mut self) {
        for Failed { further, last, .. } in self.failures.take() {
            match further {
                0 => {}
                1 => self.warn_on_any_rank(format!("{last}; it failed once more")),
                _ => self
                    .warn_on_any_rank(format!("{last}; it failed {further} more times, this was the last")),
            }
        }
    }
}

/// Calls `body`, and converts a panic to an error. A panic may have left a `tch::no_grad` active,
/// so the mode before the call is restored.
pub(super) fn caught<R>(body: impl FnOnce() -> Result<R, BoxError>) -> Result<R, (BoxError, Option<Panic>)> {
    let mode = GradMode::current();
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result.map_err(|error| (error, None)),
        Err(panic) => {
            mode.set();
            Err((panic_text(&*panic).into(), Some(panic)))
        }
    }
}

/// Returns an error that ends the run even in a hook that may fail as `Err`, and any other error as
/// `Ok`.
pub(super) fn ending(error: BoxError) -> Result<BoxError, BoxError> {
    match error.downcast::<Error>().map(|error| *error) {
        Ok(Error::Fatal(error)) => Err(*error),
        Ok(error) if error.is_cancelled() => Err(error.into()),
        Ok(error) => Ok(error.into()),
        Err(other) => Ok(other),
    }
}
