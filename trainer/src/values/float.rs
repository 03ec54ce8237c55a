//! [`Float`]: numbers in JSON that keep NaN and infinities; numbers as text.

pub(crate) use trainer_formats::{Float, exact, readable};
