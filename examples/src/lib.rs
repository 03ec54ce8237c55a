//! What the examples share: the readers of their data, and a metric.

mod accuracy;
pub mod digits;
pub mod idx;

pub use accuracy::Accuracy;
