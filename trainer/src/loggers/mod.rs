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

/// Implements a logger whose `rows(&mut self, &Record) -> Result<impl AsRef<[u8]>>` returns what
/// its `file` grows by for each record. With the name of the file in the run folder, also
/// implements its constructors.
macro_rules! file_logger {
    ($logger:ident) => {
        impl $logger {
            /// Whether a failed write ends the run. Defaults to `false`: see
            /// [`GrowingFile::strict`].
            #[must_use]
            pub fn strict(mut self, strict: bool) -> Self {
                self.file = self.file.strict(strict);
                self
            }
        }

        #[hook(in = stages::Loggers, state = self.file, writes, may_fail)]
        impl $logger {
            /// Creates the file of a new run. Returns an error if the file already contains data of
            /// an earlier run.
            fn setup(&mut self, cx: &Cx<Main<Setup>>) -> Result<()> {
                self.file.begin(cx)
            }

            /// Moves the rows written since the checkpoint to a separate file.
            fn after_load_checkpoint(&mut self, cx: &Cx<Main<AfterLoadCheckpoint>>) -> Result<()> {
                self.file.continue_after_resume(cx)
            }

            /// Appends the rows of a record.
            #[hook(only(train, valid, test, predict))]
            fn after_record(&mut self, cx: &Cx<Main<AfterRecord>>) -> Result<()> {
                let rows = self.rows(cx.record())?;
                self.file.append(cx, rows.as_ref())
            }

            /// Writes the rows that could not be written yet, or reports them as missing.
            fn teardown(&mut self, cx: &Cx<Main<Teardown>>) -> Result<()> {
                self.file.finish(cx)
            }
        }
    };
    ($logger:ident, $name:literal) => {
        impl Default for $logger {
            fn default() -> Self {
                $logger { file: GrowingFile::in_run_folder($name) }
            }
        }

        impl $logger {
            #[doc = concat!("Creates a logger that writes `", $name, "` in the")]
            /// [run folder](crate::TrainerBuilder::run_folder).
            #[must_use]
            pub fn new() -> Self {
                $logger::default()
            }

            /// Creates a logger that writes the file at this path.
            pub fn at(path: impl Into<PathBuf>) -> Self {
                $logger { file: GrowingFile::at(path) }
            }
        }

        file_logger!($logger);
    };
}

mod axis;
mod console;
mod csv;
#[cfg(test)]
mod file_faults;
mod growing_file;
mod json_lines;
#[cfg(feature = "mlflow")]
mod ml_flow;
mod proto;
mod report;
mod tape_file;
mod tensor_board;
mod to_file;
#[cfg(feature = "wandb")]
mod wandb;

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
#[cfg(feature = "wandb")]
pub use wandb::Wandb;

use std::time::{SystemTime, UNIX_EPOCH};

use crate::stages;

/// Converts a time to seconds since the Unix epoch.
fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
