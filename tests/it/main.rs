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
mod flow;
mod hooks;
mod instances;
mod lifecycles;
mod model;
mod numbers;
mod operations;
mod optimizers;
mod order;
mod parts;
mod reference;
mod resume;
mod schedules;
mod settings;
mod traces;
mod ways_out;
mod weights;
