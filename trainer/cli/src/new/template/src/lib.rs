//! The task, the data and the settings of the program: its tests use them as well.

use template_hooks as _; // Rust links only crates that the program names
use trainer::TrainerBuilder;
use trainer::cli::{clap, float};
use trainer::hooks::{Checkpoint, Progress};
use trainer::loggers::Csv;
use trainer::metrics::Accuracy;
use trainer::prelude::*;

/// Inputs and labels.
pub type Data = InMemory<(Tensor, Tensor)>;

/// Classifies points by the arm of the spiral that they are on.
#[derive(clap::Args)]
pub struct Settings {
    /// Learning rate
    #[arg(long, default_value_t = 3e-3, value_parser = float(1e-9..))]
    pub lr: f64,
    /// Units of each hidden layer
    #[arg(long, default_value_t = 64, value_name = "UNITS", value_parser = clap::value_parser!(i64).range(1..))]
    pub width: i64,
    /// Rows in each batch
    #[arg(long, default_value_t = 64, value_name = "ROWS")]
    pub batch_size: usize,
}

/// Returns data for training and for validation.
///
/// # Errors
///
/// Returns an error if the tensors do not fit into memory.
pub fn data(settings: &Settings) -> Result<(Data, Data)> {
    tch::manual_seed(1);
    let train = InMemory::new(noisy_spirals(6000))?.batch_size(settings.batch_size).shuffle(1);
    let valid = InMemory::new(noisy_spirals(1000))?.batch_size(500);
    Ok((train, valid))
}

/// Returns noisy points on three arms of a spiral, and the number of the arm of each point.
fn noisy_spirals(points: i64) -> (Tensor, Tensor) {
    let options = (Kind::Float, Device::Cpu);
    let arms = Tensor::randint(3, [points], (Kind::Int64, Device::Cpu));
    let radii = Tensor::rand([points], options);
    let angles = &radii * 5.0 + &arms * 2.1 + Tensor::randn([points], options) * 0.2;
    (Tensor::stack(&[&radii * angles.cos(), &radii * angles.sin()], 1), arms)
}

/// Returns the network, whose weights are random at first.
pub fn network(vars: &nn::Path, width: i64) -> nn::Sequential {
    nn::seq()
        .add(nn::linear(vars / "fc1", 2, width, Default::default()))
        .add_fn(Tensor::relu)
        .add(nn::linear(vars / "fc2", width, width, Default::default()))
        .add_fn(Tensor::relu)
        .add(nn::linear(vars / "fc3", width, 3, Default::default()))
}

/// Returns the builder of the trainer, to which the program adds what was set on the command line.
pub fn builder(settings: &Settings) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor)> + use<>> {
    let vars = nn::VarStore::new(Device::Cpu);
    let net = network(&vars.root(), settings.width);
    let task =
        Supervised::new(vars, net, |logits: &Tensor, arms: &Tensor| logits.cross_entropy_for_logits(arms));
    Trainer::builder(task)
        .optimizer(AdamW::new(settings.lr))
        .auto_device()
        .resume(Resume::Auto)
        .require_crate("template_hooks")
        .hook(Accuracy::multiclass(3))
        .hook(Checkpoint::in_run_folder())
        .hook(Csv::new())
        .hook(Progress::new())
}
