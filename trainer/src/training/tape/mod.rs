//! The tape of a run: what each hook and each operation changes.
//!
//! [`Recording`] is the layer, [`Recorder`] finds the changes, and the hook
//! [`loggers::TapeFile`](crate::loggers::TapeFile) writes its records into a file. [`seen`] keeps
//! what each hook changed, for `describe_hooks` and for warnings.

mod entries;
mod recorder;
mod seen;
mod settings;

pub(crate) use entries::{Recording, read, with};
pub(crate) use recorder::Recorder;
pub use settings::Tape;
