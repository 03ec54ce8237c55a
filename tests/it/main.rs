//! Integration tests: what the documentation promises, checked on real runs.

use plugin as _;

mod allocation;
mod amp;
mod around;
mod averaging;
mod bad_input;
#[cfg(unix)]
mod cancel;
mod checkpoints;
mod data;
mod describe;
mod discovery;
mod error_attribution;
mod errors;
mod exit_paths;
#[cfg(unix)]
mod files;
mod flow;
#[cfg(target_os = "linux")]
mod forged_manifests;
mod harness;
mod hooks;
mod instances;
mod kernel_profiler;
mod lifecycles;
mod metrics;
mod model;
mod nan_guard;
mod numbers;
mod operations;
mod optimizers;
mod order;
mod parameters;
mod parts;
mod profile;
#[cfg(unix)]
mod recovery;
mod reference;
mod regressions_trainer_tools;
mod resume;
mod schedules;
mod settings;
mod support;
mod traces;
mod variables;
mod weights;
