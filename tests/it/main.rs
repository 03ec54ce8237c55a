//! Whole programs: what is promised of the trainer, tried on real runs.

use plugin as _;

mod allocation;
mod around;
mod bad_input;
mod blame;
#[cfg(unix)]
mod cancel;
mod checkpoints;
mod data;
mod defects;
mod describe;
mod discovery;
mod errors;
#[cfg(unix)]
mod files;
mod flow;
mod hooks;
#[cfg(target_os = "linux")]
mod hostile;
mod instances;
mod lifecycles;
mod model;
mod nan_guard;
mod numbers;
mod operations;
mod optimizers;
mod order;
mod parameters;
mod parts;
#[cfg(unix)]
mod recovery;
mod reference;
mod resume;
mod schedules;
mod settings;
mod traces;
mod variables;
mod ways_out;
mod weights;
