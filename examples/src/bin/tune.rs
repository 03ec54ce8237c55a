//! Classifies handwritten digits, with hyperparameters from the command line. It is meant to be run
//! by `trainer sweep`.
//!
//! ```sh
//! cargo build -p examples --bin tune
//! trainer sweep examples/tune.toml -- target/debug/tune
//! trainer runs runs/tune --sort valid/accuracy
//! ```

use std::str::FromStr;

use examples::digits::Digits;
use trainer::RunFolder;
use trainer::hooks::{Checkpoint, EarlyStopping, HyperparameterSchedule};
use trainer::loggers::Csv;
use trainer::metrics::Accuracy;
use trainer::prelude::*;
use trainer::schedule::Cosine;

/// Returns the value after `--name` on the command line, or the default.
fn argument<T: FromStr>(name: &str, default: T) -> Result<T> {
    let flag = format!("--{name}");
    let Some(value) = std::env::args().skip_while(|word| *word != flag).nth(1) else { return Ok(default) };
    value.parse().map_err(|_| Error::msg(format!("`{flag} {value}`: expected a number")))
}

fn main() -> Result<()> {
    let lr = argument("lr", 5e-3)?;
    let hidden: u32 = argument("hidden", 64)?;
    tch::manual_seed(1);
    tch::set_num_threads(1);
    let (train, valid) = Digits::load()?;
    let mut train = InMemory::new((train.images, train.labels))?.batch_size(32).shuffle(1);
    let mut valid = InMemory::new((valid.images, valid.labels))?.batch_size(128);

    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::seq()
        .add(nn::linear(vs.root() / "fc1", 64, hidden.into(), Default::default()))
        .add_fn(Tensor::relu)
        .add(nn::linear(vs.root() / "fc2", hidden.into(), 10, Default::default()));
    let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
    let mut trainer = Trainer::builder(task)
        .optimizer(AdamW::new(lr))
        .epochs(argument("epochs", 12)?)
        .auto_device()
        .seed(1)
        .run_folder(RunFolder::numbered("runs")) // `trainer sweep` chooses another folder for each trial
        .resume(Resume::Auto) // a trial that was interrupted continues
        .hyperparameter("hidden", hidden)
        .hook(HyperparameterSchedule::lr(Cosine::to(0.0)))
        .hook(Accuracy::multiclass(10))
        .hook(EarlyStopping::new("valid/accuracy", Goal::Maximize).patience(4))
        .hook(Checkpoint::in_run_folder())
        .hook(Csv::new())
        .build()?;
    let summary = trainer.fit(&mut train, Some(&mut valid))?;
    println!("{}", summary.metrics);
    Ok(())
}
