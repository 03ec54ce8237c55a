//! Faults in child processes: allocations that fail, power losses and kills. On Linux only, because
//! a preloaded library injects them.

#[cfg(target_os = "linux")]
mod allocations;
#[cfg(target_os = "linux")]
mod changes;
#[cfg(target_os = "linux")]
mod kills;
#[cfg(target_os = "linux")]
#[path = "../it/log_rows.rs"]
mod log_rows;
#[cfg(target_os = "linux")]
mod loggers;
#[cfg(target_os = "linux")]
#[allow(dead_code)] // the integration tests use the rest
#[path = "../it/model.rs"]
mod model;
#[cfg(target_os = "linux")]
mod power_loss;
#[cfg(target_os = "linux")]
mod preload;
#[cfg(target_os = "linux")]
#[path = "../it/pt_archive.rs"]
mod pt_archive;
#[cfg(target_os = "linux")]
mod streams;
#[cfg(target_os = "linux")]
#[allow(dead_code)]
#[path = "../it/support.rs"]
mod support;
