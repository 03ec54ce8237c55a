//! What programs and tests do with trainers: finders of hyperparameters, and tests of hooks.

pub mod finders;
pub(crate) mod replay;
pub mod testing;
