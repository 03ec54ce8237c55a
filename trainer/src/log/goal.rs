//! [`Goal`].

/// Whether smaller or larger values of a metric are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Smaller values are better, as for a loss.
    Minimize,
    /// Larger values are better, as for an accuracy.
    Maximize,
}

impl Goal {
    /// Whether `one` is better than `other`. NaN is never better, and nothing is better than NaN.
    pub(crate) fn is_better(self, one: f64, other: f64) -> bool {
        match self {
            Goal::Minimize => one < other,
            Goal::Maximize => one > other,
        }
    }
}
