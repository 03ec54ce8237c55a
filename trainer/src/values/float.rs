//! [`Float`]: a number that stays NaN or infinite in JSON. Also functions that format numbers as
//! text.

pub(crate) use trainer_formats::{Float, exact, readable};
