//! The files that [`trainer`](https://docs.rs/trainer) writes to the folder of a run, for programs
//! that read them. This crate does not need libtorch.
//!
//! - [`report`]: the report about one or more runs, as a single HTML file.
//! - [`run`]: the folder of a run: its settings, status, metrics and curves.
//! - [`sweep`]: the trials of a sweep.
//! - [`tape`]: what each hook and each operation of a run changed, and the difference between two
//!   runs.

mod float;
mod layout;
pub mod report;
pub mod run;
pub mod sweep;
pub mod tape;
mod text;

pub use float::{Float, brief, exact, readable};
pub use layout::{columns, columns_within, duration, fit, padded, without_path};
pub use text::{one_line, quoted, shortened, visible, visible_json};

/// The code in the README, which must compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
