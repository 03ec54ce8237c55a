//! Tools for programs and tests that use trainers: hyperparameter finders, settings from a file and
//! the command line, and a harness for testing hooks.

#[cfg(feature = "cli")]
pub mod cli;
pub mod estimate;
pub mod finders;
pub(crate) mod replay;
pub mod testing;
