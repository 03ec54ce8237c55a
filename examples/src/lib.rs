//! Code that the examples share: readers of their data, and a table of metrics per class.

pub mod digits;
pub mod idx;
pub mod per_class;
pub mod text;
