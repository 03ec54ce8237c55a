//! The settings of the program, and what it trains with. The model and its data are in [`task`].

pub mod task;

use template_hooks as _; // Rust links only crates that the program names
use trainer::TrainerBuilder;
use trainer::cli::{SettingsParser, clap, float};
use trainer::hooks::{Checkpoint, Progress};
use trainer::loggers::Csv;
use trainer::prelude::*;

/// ABOUT
#[derive(clap::Args)]
pub struct Settings {
    /// Learning rate
    #[arg(long, default_value_t = task::LR, value_parser = float(1e-9..))]
    pub lr: f64,
    /// Units of each hidden layer
    #[arg(long, default_value_t = task::WIDTH, value_name = "UNITS", value_parser = clap::value_parser!(i64).range(1..))]
    pub width: i64,
    /// Rows in each batch
    #[arg(long, default_value_t = task::BATCH_SIZE, value_name = "ROWS")]
    pub batch_size: usize,
}

/// Returns the parser of the settings, with the defaults of this program.
pub fn parser() -> SettingsParser {
    SettingsParser::new().default_value("epochs", task::EPOCHS).default_value("run_folder", "numbered:runs")
}

/// Returns the builder of the trainer, to which the program adds what was set on the command line.
///
/// # Errors
///
/// Returns an error if the model does not exist with these settings.
pub fn builder(
    settings: &Settings,
) -> Result<TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor> + use<>>> {
    tch::set_num_threads(1); // the fastest for a network this small
    tch::manual_seed(1); // each start makes the same initial weights
    let builder = task::builder(settings)?;
    Ok(builder
        .auto_device() // a GPU if there is one
        .resume(Resume::Auto)
        .require_crate("template_hooks")
        .hook(Checkpoint::in_run_folder())
        .hook(Csv::new())
        .hook(Progress::new()))
}
