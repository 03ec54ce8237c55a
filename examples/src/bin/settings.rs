//! Classifies handwritten digits, with settings from a file and the command line:
//!
//! ```sh
//! cargo run -p examples --bin settings -- --help
//! cargo run -p examples --bin settings -- --config examples/settings.toml --lr 0.01
//! ```

use examples::digits::Digits;
use trainer::cli::{SettingsParser, clap, float};
use trainer::hooks::{Checkpoint, Progress};
use trainer::metrics::Accuracy;
use trainer::prelude::*;

/// Classifies handwritten digits.
#[derive(clap::Args)]
struct Settings {
    /// Learning rate
    #[arg(long, default_value_t = 5e-3, value_parser = float(1e-9..))]
    lr: f64,
    /// Units of the hidden layer
    #[arg(long, default_value_t = 256, value_name = "UNITS", value_parser = clap::value_parser!(i64).range(1..))]
    width: i64,
    /// Share of the hidden units that dropout removes
    #[arg(long, default_value_t = 0.3, value_name = "SHARE", value_parser = float(0.0..1.0))]
    dropout: f64,
    /// Rows in each batch
    #[arg(long, default_value_t = 32, value_name = "ROWS")]
    batch_size: usize,
}

fn main() -> Result<()> {
    let parser = SettingsParser::new().default_value("epochs", 20).default_value("seed", 1);
    let (settings, args) = parser.parse::<Settings>()?;
    tch::manual_seed(args.seed.unwrap_or_default() as i64); // for the initial weights
    tch::set_num_threads(1); // the fastest for a network this small
    let (train, valid) = Digits::load()?;
    let mut train = InMemory::new((train.images, train.labels))?.batch_size(settings.batch_size).shuffle(1);
    let mut valid = InMemory::new((valid.images, valid.labels))?.batch_size(128);

    let Settings { lr, width, dropout, .. } = settings;
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::seq_t()
        .add(nn::linear(vs.root() / "fc1", 64, width, Default::default()))
        .add_fn_t(move |hidden, train| hidden.relu().dropout(dropout, train))
        .add(nn::linear(vs.root() / "fc2", width, 10, Default::default()));
    let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
    let builder = Trainer::builder(task)
        .optimizer(AdamW::new(lr))
        .auto_device()
        .hook(Accuracy::multiclass(10))
        .hook(Progress::new());
    let builder = if args.run_folder.is_some() { builder.hook(Checkpoint::in_run_folder()) } else { builder };
    let mut trainer = args.apply(builder).build()?;

    let summary = trainer.fit(&mut train, Some(&mut valid))?;
    println!("validation accuracy {:.2} %", 100.0 * summary.metrics["valid/accuracy"]);
    Ok(())
}
