//! Shared code of the examples: the readers of their data, and a table of a metric per class.

pub mod digits;
pub mod idx;
pub mod per_class;
pub mod text;
