//! The data and the model: a table of houses in a CSV file, and a network that estimates prices.

use serde::Deserialize;
use trainer::data::read_csv;
use trainer::metrics::MeanSquaredError;
use trainer::prelude::*;
use trainer::{Summary, TrainerBuilder};

use crate::Settings;

/// The default learning rate.
pub const LR: f64 = 1e-2;
/// The default number of units of each hidden layer.
pub const WIDTH: i64 = 32;
/// The default number of rows in each batch.
pub const BATCH_SIZE: usize = 32;
/// The default number of epochs.
pub const EPOCHS: u64 = 60;

/// A line of `data/table.csv`, by the names in its first line.
#[derive(Clone, Deserialize)]
struct House {
    area: f32,
    rooms: f32,
    age: f32,
    district: District,
    price: f32,
}

/// A value that is not listed here is an error that names the line.
#[derive(Clone, Copy, Deserialize)]
enum District {
    Harbor,
    Hill,
    Mill,
}

const COLUMNS: usize = 6;
type Row = ([f32; COLUMNS], [f32; 1]);

impl House {
    /// Returns the inputs and the target of the network. A column with names becomes a column for
    /// each name.
    fn row(&self) -> Row {
        let mut inputs = [self.area, self.rooms, self.age, 0.0, 0.0, 0.0];
        inputs[3 + self.district as usize] = 1.0;
        (inputs, [self.price])
    }
}

/// Returns the rows for training and for validation.
fn rows() -> Result<[impl Dataset<Row = Row>; 2]> {
    let rows = read_csv::<House>("data/table.csv")?.map(|house, _| Ok(house.row()));
    Ok(rows.random_split(1, [0.8, 0.2]))
}

/// Returns data for training and for validation.
///
/// # Errors
///
/// Returns an error if `data/table.csv` cannot be read.
pub fn data(
    settings: &Settings,
) -> Result<(impl Loader<(Tensor, Tensor)> + use<>, impl Loader<(Tensor, Tensor)> + use<>)> {
    let [train, valid] = rows()?;
    let train = DataLoader::new(train).batch_size(settings.batch_size).shuffle(1);
    Ok((train, DataLoader::new(valid).batch_size(500)))
}

/// Returns the network, whose weights are random at first. The means and the deviations of the
/// columns of the training data are saved with its weights.
fn network(vars: &nn::Path<'_>, width: i64, train: &impl Dataset<Row = Row>) -> Result<nn::Sequential> {
    let rows: Vec<Row> = train.rows().collect::<Result<_>>()?;
    let scale = |name: &str, columns: Tensor| {
        let scale = vars / name;
        let size = [columns.size()[1]];
        let [mut mean, mut std] = [scale.zeros_no_train("mean", &size), scale.ones_no_train("std", &size)];
        mean.copy_(&columns.mean_dim(0, false, Kind::Float));
        std.copy_(&columns.std_dim(0, true, false).clamp_min(1e-6));
        (mean, std)
    };
    let inputs: Vec<f32> = rows.iter().flat_map(|(inputs, _)| *inputs).collect();
    let prices: Vec<f32> = rows.iter().map(|(_, price)| price[0]).collect();
    let (mean, std) = scale("inputs", Tensor::from_slice(&inputs).view([-1, COLUMNS as i64]));
    let (mean_price, std_price) = scale("price", Tensor::from_slice(&prices).unsqueeze(1));
    Ok(nn::seq()
        .add_fn(move |xs| (xs - &mean) / &std)
        .add(nn::linear(vars / "fc1", COLUMNS as i64, width, Default::default()))
        .add_fn(Tensor::relu)
        .add(nn::linear(vars / "fc2", width, width, Default::default()))
        .add_fn(Tensor::relu)
        .add(nn::linear(vars / "fc3", width, 1, Default::default()))
        .add_fn(move |xs| xs * &std_price + &mean_price))
}

/// Returns the builder with the model, its loss, its optimizer and its metric.
pub(crate) fn builder(
    settings: &Settings,
) -> Result<TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor> + use<>>> {
    let vars = nn::VarStore::new(Device::Cpu);
    let [train, _] = rows()?;
    let net = network(&vars.root(), settings.width, &train)?;
    let loss = |estimates: &Tensor, prices: &Tensor| estimates.mse_loss(prices, Reduction::Mean);
    let builder = Trainer::builder(Supervised::new(vars, net, loss));
    Ok(builder.optimizer(AdamW::new(settings.lr)).hook(MeanSquaredError::new().root(true)))
}

/// Returns what the program prints after training.
///
/// # Errors
///
/// Returns an error if the model cannot be called.
pub fn report(_: &mut Trainer<impl Task>, summary: &Summary) -> Result<String> {
    Ok(format!("the estimates are off by {:.1} (root mean square)", summary.metrics["valid/rmse"]))
}
