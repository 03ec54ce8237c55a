//! The data and the model: noisy images of shapes, and a convolutional network that names the
//! shape.
//!
//! For images in files, `trainer::data::ImageFolder` (feature `image`) has a folder for each class.

use trainer::metrics::Accuracy;
use trainer::prelude::*;
use trainer::{Summary, TrainerBuilder};

use crate::Settings;

/// The default learning rate.
pub const LR: f64 = 2e-3;
/// The default number of channels of the first layer.
pub const WIDTH: i64 = 16;
/// The default number of rows in each batch.
pub const BATCH_SIZE: usize = 64;
/// The default number of epochs.
pub const EPOCHS: u64 = 10;

const SIZE: i64 = 16;
const SHAPES: usize = 4;

type Data = InMemory<(Tensor, Tensor)>;

/// Returns data for training and for validation.
///
/// # Errors
///
/// Returns an error if the tensors have different numbers of rows.
pub fn data(settings: &Settings) -> Result<(Data, Data)> {
    tch::manual_seed(1);
    let train = InMemory::new(shapes(4000))?.batch_size(settings.batch_size).shuffle(1);
    let valid = InMemory::new(shapes(1000))?.batch_size(500);
    Ok((train, valid))
}

/// Returns noisy images of one channel, `[images, 1, SIZE, SIZE]`, and what each shows: 0 for a
/// disk, 1 for a square, 2 for a diamond, 3 for a cross.
fn shapes(images: i64) -> (Tensor, Tensor) {
    let options = (Kind::Float, Device::Cpu);
    let axis = Tensor::linspace(-1.0, 1.0, SIZE, options);
    let distance = || axis.view([1, SIZE]) - (Tensor::rand([images, 1], options) - 0.5);
    let x = distance().abs().unsqueeze(1);
    let y = distance().abs().unsqueeze(2);
    let disk = (x.square() + y.square()).sqrt();
    let cross = x.minimum(&y) * 4.0 + x.maximum(&y).gt(0.6);
    let shapes = Tensor::stack(&[disk, x.maximum(&y), &x + &y, cross], 1).lt(0.5);
    let labels = Tensor::randint(SHAPES as i64, [images], (Kind::Int64, Device::Cpu));
    let index = labels.view([images, 1, 1, 1]).expand([images, 1, SIZE, SIZE], false);
    let images = shapes.gather(1, &index, false).to_kind(Kind::Float);
    (&images + images.randn_like() * 0.4, labels)
}

/// Returns the network, whose weights are random at first.
pub fn network(vars: &nn::Path<'_>, width: i64) -> nn::Sequential {
    let config = nn::ConvConfig { padding: 1, ..Default::default() };
    nn::seq()
        .add(nn::conv2d(vars / "conv1", 1, width, 3, config))
        .add_fn(|xs| xs.relu().max_pool2d_default(2))
        .add(nn::conv2d(vars / "conv2", width, 2 * width, 3, config))
        .add_fn(|xs| xs.relu().max_pool2d_default(2).flatten(1, -1))
        .add(nn::linear(vars / "fc", 2 * width * (SIZE / 4) * (SIZE / 4), SHAPES as i64, Default::default()))
}

/// Returns the builder with the model, its loss, its optimizer and its metric.
pub(crate) fn builder(
    settings: &Settings,
) -> Result<TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor> + use<>>> {
    let vars = nn::VarStore::new(Device::Cpu);
    let net = network(&vars.root(), settings.width);
    let loss = |logits: &Tensor, shapes: &Tensor| logits.cross_entropy_for_logits(shapes);
    let builder = Trainer::builder(Supervised::new(vars, net, loss));
    Ok(builder.optimizer(AdamW::new(settings.lr)).hook(Accuracy::multiclass(SHAPES)))
}

/// Returns what the program prints after training.
///
/// # Errors
///
/// Returns an error if the model cannot be called.
pub fn report(_: &mut Trainer<impl Task>, summary: &Summary) -> Result<String> {
    Ok(format!("{:.1} % of the shapes are named", 100.0 * summary.metrics["valid/accuracy"]))
}
