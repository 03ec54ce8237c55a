//! The data and the model: points of a plane, and the arm of the spiral that each is on.

use trainer::metrics::Accuracy;
use trainer::prelude::*;
use trainer::{Summary, TrainerBuilder};

use crate::Settings;

/// The default learning rate.
pub const LR: f64 = 3e-3;
/// The default number of units of each hidden layer.
pub const WIDTH: i64 = 64;
/// The default number of rows in each batch.
pub const BATCH_SIZE: usize = 64;
/// The default number of epochs.
pub const EPOCHS: u64 = 10;

type Data = InMemory<(Tensor, Tensor)>;

/// Returns data for training and for validation.
///
/// # Errors
///
/// Returns an error if the tensors have different numbers of rows.
pub fn data(settings: &Settings) -> Result<(Data, Data)> {
    tch::manual_seed(1);
    let train = InMemory::new(noisy_spirals(6000))?.batch_size(settings.batch_size).shuffle(1);
    let valid = InMemory::new(noisy_spirals(1000))?.batch_size(500);
    Ok((train, valid))
}

/// Returns noisy points on three arms of a spiral, `[points, 2]`, and the number of the arm of each
/// point.
fn noisy_spirals(points: i64) -> (Tensor, Tensor) {
    let options = (Kind::Float, Device::Cpu);
    let arms = Tensor::randint(3, [points], (Kind::Int64, Device::Cpu));
    let radii = Tensor::rand([points], options);
    let angles = &radii * 5.0 + &arms * 2.1 + Tensor::randn([points], options) * 0.2;
    (Tensor::stack(&[&radii * angles.cos(), &radii * angles.sin()], 1), arms)
}

/// Returns the network, whose weights are random at first.
pub fn network(vars: &nn::Path<'_>, width: i64) -> nn::Sequential {
    nn::seq()
        .add(nn::linear(vars / "fc1", 2, width, Default::default()))
        .add_fn(Tensor::relu)
        .add(nn::linear(vars / "fc2", width, width, Default::default()))
        .add_fn(Tensor::relu)
        .add(nn::linear(vars / "fc3", width, 3, Default::default()))
}

/// Returns the builder with the model, its loss, its optimizer and its metric.
pub(crate) fn builder(
    settings: &Settings,
) -> Result<TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor> + use<>>> {
    let vars = nn::VarStore::new(Device::Cpu);
    let net = network(&vars.root(), settings.width);
    let loss = |logits: &Tensor, arms: &Tensor| logits.cross_entropy_for_logits(arms);
    let builder = Trainer::builder(Supervised::new(vars, net, loss));
    Ok(builder.optimizer(AdamW::new(settings.lr)).hook(Accuracy::multiclass(3)))
}

/// Returns what the program prints after training.
///
/// # Errors
///
/// Returns an error if the model cannot be called.
pub fn report(_: &mut Trainer<impl Task>, summary: &Summary) -> Result<String> {
    Ok(format!("{:.1} % of the points are on the predicted arm", 100.0 * summary.metrics["valid/accuracy"]))
}
