//! The folder of a run: its description ([`RunFile`]), whether it is still running
//! ([`Run::status`]), its metrics ([`Run::metrics`]), its curves ([`Run::points`]) and its current
//! activity ([`Live`]).
//!
//! ```no_run
//! use trainer_formats::run::runs_in;
//!
//! for found in runs_in("runs")? {
//!     match found.run {
//!         Ok(run) => println!("{} {}", run.path().display(), run.status().name()),
//!         Err(error) => println!("damaged: {error}"),
//!     }
//! }
//! # Ok::<(), trainer_formats::run::Error>(())
//! ```
//!
//! All files can be read while the trainer writes them. `run.json` is replaced atomically. Loggers
//! only append to their files, except when a run is resumed, which [`Points`] detects. Reading
//! never changes the folder.
//!
//! A run may have come from someone else, so what is read has a limit: symbolic links, pipes and
//! devices are refused, as are a `run.json` or a `live.json` of more than [`MAX_BYTES`], a logger's
//! file of more than [`MAX_POINTS_BYTES`] and a line of it of more than [`MAX_LINE_BYTES`]. JSON
//! may be nested 128 levels deep.
//!
//! `run.json` is JSON that includes the [version](RunFile::parse) of its format.

mod facts;
mod file;
mod folder;
mod live;
mod metric;
mod points;
mod profile;
mod time;

pub use facts::{Settings, data_of, ranked, settings_of, text_of_setting};
pub use file::{MAX_BYTES, MAX_WARNINGS, NotARun, Origin, RUN_FILE, RunFile, Status};
pub use folder::{Found, Run, runs_in};
pub use live::{HookTime, LIVE_FILE, Live, LiveHook, LiveValue};
pub use metric::{Extreme, Goal, Metric, Metrics, metrics_of};
pub use points::{
    CSV_FILE, JSON_LINES_FILE, MAX_LINE_BYTES, MAX_POINTS_BYTES, Point, Points, REPORT_RECORDS_FILE, Span,
    Update,
};
pub use profile::{Profile, ProfileRow};
pub use time::{format_time, parse_time};
pub use trainer_files::{Error, Process};
