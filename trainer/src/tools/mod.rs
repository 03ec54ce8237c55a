//! Tools for programs and tests that use trainers: finders of hyperparameters, settings from a file
//! and the command line, and tests of hooks.

#[cfg(feature = "cli")]
pub mod cli;
pub mod finders;
pub(crate) mod replay;
pub mod testing;
