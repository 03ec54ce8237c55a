//! Loggers: hooks that write the [records](crate::Record) of a run.
//!
//! Each logger is a hook that uses only the public API. [`ToFile`] builds a logger from a closure.
//! See also [the guide](crate::guide::records).
//!
//! ```no_run
//! use trainer::loggers::{Csv, TensorBoard};
//! use trainer::prelude::*;
//!
//! # fn train(task: impl Task<Batch = Tensor>, train: &mut InMemory<Tensor>) -> Result<()> {
//! let mut trainer = Trainer::builder(task)
//!     .optimizer(AdamW::new(1e-3))
//!     .run_folder("runs/first")
//!     .record_every(Every::Steps(20))
//!     .hook(TensorBoard::new()) // tensorboard --logdir runs
//!     .hook(Csv::new()) // runs/first/values.csv
//!     .build()?;
//! trainer.fit(train, None)?;
//! # Ok(())
//! # }
//! ```

mod axis;
mod console;
mod csv;
#[cfg(test)]
mod file_faults;
mod growing_file;
mod json_lines;
#[cfg(feature = "mlflow")]
mod ml_flow;
mod report;
mod tape_file;
mod tensor_board;
mod to_file;

pub use axis::Axis;
pub use console::Console;
pub use csv::Csv;
pub use growing_file::GrowingFile;
pub use json_lines::JsonLines;
#[cfg(feature = "mlflow")]
pub use ml_flow::MlFlow;
pub use report::Report;
pub use tape_file::TapeFile;
pub use tensor_board::TensorBoard;
pub use to_file::ToFile;

use std::time::{SystemTime, UNIX_EPOCH};

use crate::hooks::stages;

/// Converts a time to seconds since the Unix epoch.
fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
