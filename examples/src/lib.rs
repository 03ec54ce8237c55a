//! Shared code of the examples: the readers of their data, and a metric.

mod accuracy;
pub mod digits;
pub mod idx;
pub mod sonnets;

pub use accuracy::Accuracy;
