//! [`Every`]: the interval of a recurring action.

use serde::{Deserialize, Serialize};

use crate::moments::counters::Counters;
use crate::values::amount::{floor_with_tolerance, fraction_mistake};

/// The interval of a recurring action of the loop, such as validation.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Every {
    /// Every `n` epochs.
    Epochs(u64),
    /// Every `n` optimizer steps, counted over all epochs.
    Steps(u64),
    /// Each time this fraction of the batches of an epoch has been processed: `Fraction(0.25)` is
    /// four times per epoch.
    Fraction(f64),
}

/// # For a hook that takes an interval as a setting
///
/// ```
/// use trainer::checkpoint::{SettingList, Settings};
/// use trainer::prelude::*;
///
/// /// Prints the loss from time to time.
/// struct PrintLoss {
///     every: Every,
///     /// The number of optimizer steps when the loss was printed last.
///     printed: u64,
/// }
///
/// #[hook(settings)]
/// impl PrintLoss {
///     #[hook(only = train)]
///     fn after_step(&mut self, cx: &Cx<AfterStep>) {
///         if self.every.is_due(self.printed, cx.counters(), cx.plan().batches) {
///             self.printed = cx.counters().optimizer_steps;
///             trainer::print_line(format!("{:?}", cx.step_loss()));
///         }
///     }
/// }
///
/// impl Settings for PrintLoss {
///     fn settings(&self) -> SettingList {
///         SettingList::new() // it only observes
///     }
///
///     fn mistakes(&self) -> Vec<String> {
///         self.every.mistake().map(|mistake| format!("`every`: {mistake}")).into_iter().collect()
///     }
/// }
/// ```
impl Every {
    /// Returns why the interval is invalid: it is 0, or a fraction that is not above 0.0 and at
    /// most 1.0.
    #[must_use]
    pub fn mistake(self) -> Option<String> {
        match self {
            Every::Epochs(0) | Every::Steps(0) => Some("expected at least 1".to_owned()),
            Every::Fraction(fraction) => fraction_mistake(fraction),
            _ => None,
        }
    }

    /// Whether an interval ends with the training batch before `now`. `last` is the number of
    /// optimizer steps when the action was taken last, because several batches can have the same
    /// number of steps. `batches` is the number of batches in the epoch; if it is unknown, no
    /// fraction is due. An interval of epochs ends only [after an
    /// epoch](Every::is_due_after_epoch).
    #[must_use]
    pub fn is_due(self, last: u64, now: Counters, batches: Option<u64>) -> bool {
        match self {
            Every::Epochs(_) => false,
            Every::Steps(n) => now.optimizer_steps.checked_div(n) > last.checked_div(n),
            Every::Fraction(fraction) => {
                batches.is_some_and(|batches| ends_interval(fraction, batches, now.batch_idx))
            }
        }
    }

    /// Whether an interval ends with the epoch that has just ended: one of epochs or, if the epoch
    /// had fewer batches than announced, the last fraction of it.
    #[must_use]
    pub fn is_due_after_epoch(self, now: Counters, batches: Option<u64>) -> bool {
        match self {
            Every::Epochs(n) => (now.epoch + 1).is_multiple_of(n),
            Every::Steps(_) => false,
            Every::Fraction(fraction) => batches.is_some_and(|batches| {
                now.batch_idx < batches && !ends_interval(fraction, batches, now.batch_idx)
            }),
        }
    }
}

/// Whether an interval ends after `done` of the `batches` batches in a pass. The length of an
/// interval is `fraction` of the pass.
fn ends_interval(fraction: f64, batches: u64, done: u64) -> bool {
    let [before, now] = [done.saturating_sub(1), done]
        .map(|done| floor_with_tolerance(done as f64 / (batches as f64 * fraction)));
    now > before
}
