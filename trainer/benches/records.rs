//! Measures the overhead of logging in a training step, without and with loggers, and that of a run
//! folder, in which the trainer says once a second what it is doing.

#![allow(missing_docs, clippy::disallowed_methods)]

mod mlp;
mod ratio;

use std::path::PathBuf;

use ratio::{Case, compare};
use trainer::data::from_fn;
use trainer::loggers::{Csv, TensorBoard};
use trainer::prelude::*;

const STEPS: i64 = 500;
/// The steps of a run with a folder, which lasts for several updates of `live.json`. Files that are
/// written once in a run count little.
const LONG: i64 = 40_000;

/// The hooks that a case adds to the trainer.
#[derive(Clone, Copy, PartialEq)]
enum Adds {
    Nothing,
    /// A hook that logs ten CPU tensors as scalars in each step.
    Scalars,
    /// The same hook, and loggers for TensorBoard and CSV, which receive a record every 50 steps.
    Loggers,
    /// A run folder: `run.json` at the ends of the run, and `live.json` once a second.
    Folder,
}

/// Returns an empty folder for the files of a case.
fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("trainer-bench-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

/// Returns a function that trains an MLP 64→32→10 for a number of batches of 32.
fn run<'a>(adds: Adds, steps: i64, inputs: &'a Tensor, labels: &'a Tensor) -> Box<dyn FnMut() + 'a> {
    let mut builder = Trainer::builder(mlp::task()).optimizer(Sgd::new(1e-3));
    if matches!(adds, Adds::Scalars | Adds::Loggers) {
        let names: Vec<String> = (0..10).map(|nth| format!("value{nth}")).collect();
        let values: Vec<Tensor> = (0..10).map(|nth| Tensor::from(f64::from(nth))).collect();
        builder = builder.on::<AfterStep>("values", move |cx| {
            for (name, value) in names.iter().zip(&values) {
                cx.log(name, value);
            }
        });
    }
    if adds == Adds::Loggers {
        let folder = scratch("records");
        builder = builder.hook(TensorBoard::at(&folder)).hook(Csv::at(folder.join("values.csv")));
    }
    if adds == Adds::Folder {
        builder = builder.run_folder(scratch("folder"));
    }
    let mut trainer = builder.build().expect("the settings are valid");
    Box::new(move || {
        let mut loader = from_fn(|_| (0..steps).map(|_| (inputs.shallow_clone(), labels.shallow_clone())));
        trainer.fit(&mut loader, None).expect("nothing fails");
    })
}

fn main() {
    tch::set_num_threads(1);
    let (inputs, labels) = mlp::batch();
    let cases: &mut [Case<'_>] = &mut [
        ("nothing logged but the loss", run(Adds::Nothing, STEPS, &inputs, &labels)),
        ("10 scalars of CPU tensors in each step", run(Adds::Scalars, STEPS, &inputs, &labels)),
        ("… and TensorBoard and CSV every 50 steps", run(Adds::Loggers, STEPS, &inputs, &labels)),
    ];
    let steps = u32::try_from(STEPS).expect("`STEPS` fits in a `u32`");
    compare(&format!("{STEPS} steps of an MLP 64→32→10, batch 32, one thread, plain SGD"), 2, steps, cases);

    let cases: &mut [Case<'_>] = &mut [
        ("no run folder", run(Adds::Nothing, LONG, &inputs, &labels)),
        ("a run folder, with live.json once a second", run(Adds::Folder, LONG, &inputs, &labels)),
    ];
    let steps = u32::try_from(LONG).expect("`LONG` fits in a `u32`");
    compare(&format!("{LONG} steps of the same"), 1, steps, cases);
}
