//! What the examples share: the readers of their data.

pub mod digits;
pub mod idx;
