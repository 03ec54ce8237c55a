//! Integration tests: what the documentation promises, checked on real runs.

use plugin as _;

mod accumulators;
mod activation_checkpointing;
mod allocation;
mod amp;
mod api_docs;
mod around;
mod averaging;
mod bad_input;
mod batch_statistics;
#[cfg(unix)]
mod by_length;
mod cancel;
mod checkpoints;
mod checkup;
mod children;
mod cli;
#[cfg(target_os = "linux")]
mod collectives;
#[cfg(unix)]
mod comparison;
mod data;
mod describe;
mod describe_terminal;
mod discovery;
mod distillation;
#[cfg(target_os = "linux")]
mod distributed;
mod divided;
mod divided_hooks;
mod early_stopping;
mod error_attribution;
mod errors;
mod estimate;
mod eval;
mod exact_checkpoints;
mod exit_paths;
#[cfg(unix)]
mod files;
mod finders;
mod fine_tuning;
mod fingerprints;
mod flow;
#[cfg(target_os = "linux")]
mod forged_manifests;
mod fork;
mod golden;
mod guide;
mod harness;
mod heap;
mod hooks;
mod hyperparameters;
mod images;
mod instances;
mod interop;
mod kernel_profiler;
mod layers;
mod lifecycles;
#[cfg(unix)]
mod live;
#[cfg(target_os = "linux")]
mod loaded_weights;
mod local_sgd;
mod lock;
mod log_rows;
mod loggers;
mod lora;
mod losses;
mod may_fail;
mod methods;
mod metrics;
mod mistaken;
mod mixtures;
mod model;
mod module_backward;
mod module_errors;
mod module_gradients;
mod module_hooks;
mod modules;
mod monitors;
mod named_loaders;
mod nan_guard;
mod numbers;
mod observers;
mod odd_tensors;
mod old_checkpoints;
mod operations;
mod optimizers;
mod order;
mod parameters;
mod parts;
mod planted;
mod profile;
mod provenance;
mod pt_archive;
mod pt_files;
mod pt_optimizer;
#[cfg(target_os = "linux")]
mod rank_checkpoints;
#[cfg(target_os = "linux")]
mod rank_harness;
mod ranks;
#[cfg(target_os = "linux")]
mod ranks_compared;
#[cfg(target_os = "linux")]
mod ranks_errors;
#[cfg(target_os = "linux")]
mod ranks_gradients;
#[cfg(target_os = "linux")]
mod ranks_hooks;
#[cfg(target_os = "linux")]
mod ranks_launch;
#[cfg(target_os = "linux")]
mod ranks_support;
#[cfg(unix)]
mod recipes;
mod records;
#[cfg(unix)]
mod recovery;
mod reference;
mod regressions_trainer_tools;
mod replay;
mod reports;
mod resting;
mod run_folder;
mod run_formats;
mod run_length;
mod schedules;
mod second_fit;
mod seen;
mod settings;
#[cfg(target_os = "linux")]
mod sharded;
mod silent_hooks;
#[cfg(target_os = "linux")]
mod slurm;
mod sources;
mod spike_guard;
mod support;
#[cfg(target_os = "linux")]
mod sync_batch_norm;
mod tape;
mod terminal;
mod third_party;
mod traces;
#[cfg(target_os = "linux")]
mod uneven;
mod variables;
mod version_counters;
mod watching;
mod weights;
