//! [`Replay`]: what makes a run one that repeats a part of a recorded run.

/// A run that repeats a part of a recorded run, and writes nothing.
#[derive(Debug)]
pub(crate) struct Replay {
    /// The number of training batches, since the start of the recorded run, after which it ends.
    pub(crate) until: u64,
    /// Whether that many batches are trained.
    pub(crate) has_ended: bool,
}
