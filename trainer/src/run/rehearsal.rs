//! [`Rehearsal`]: the first steps of a fit, whose results are compared with a golden file.

/// The results of the first steps of a fit. A run that has a rehearsal ends after these steps, and
/// writes no checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Rehearsal {
    /// The number of optimizer steps after which the run ends.
    pub(crate) steps: u64,
    /// The hash of the weights before the first step.
    pub(crate) start: String,
    pub(crate) recorded: Vec<Rehearsed>,
    /// The losses since the last step, each with its name and its weight.
    pub(crate) losses: Vec<(String, f64, f64)>,
}

/// The results of one optimizer step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rehearsed {
    /// The losses by name, each the mean over the batches of the step.
    pub(crate) losses: Vec<(String, f64)>,
    /// The hash of the weights after the step.
    pub(crate) weights: String,
    /// The number of training batches up to the end of the step.
    pub(crate) batches: u64,
}

impl Rehearsal {
    pub(crate) fn new(steps: u64) -> Self {
        Rehearsal { steps, ..Rehearsal::default() }
    }

    /// Whether all steps have been taken.
    pub(crate) fn is_over(&self) -> bool {
        self.recorded.len() as u64 >= self.steps
    }

    /// Returns the hash of the weights before the first step, and the results of each step.
    pub(crate) fn into_recorded(self) -> (String, Vec<Rehearsed>) {
        (self.start, self.recorded)
    }
}
