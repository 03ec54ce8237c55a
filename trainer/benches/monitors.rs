//! Measures the overhead of each monitor in a training step, if it logs every step and if it logs
//! every 50 steps.

#![allow(missing_docs)]

mod mlp;
mod ratio;

use mlp::Mlp;
use ratio::{Case, compare};
use trainer::TrainerBuilder;
use trainer::data::from_fn;
use trainer::hooks::{HyperparameterMonitor, NanGuard, ParameterMonitor, ThroughputMonitor};
use trainer::modules::Patterns;
use trainer::prelude::*;

const STEPS: i64 = 500;

/// A function that adds hooks to a trainer.
type Add = fn(TrainerBuilder<Mlp>) -> TrainerBuilder<Mlp>;

/// Returns a function that trains an MLP 64→32→10 for [`STEPS`] batches of 32.
fn run<'a>(add: Add, inputs: &'a Tensor, labels: &'a Tensor) -> Box<dyn FnMut() + 'a> {
    let builder = Trainer::builder(mlp::task()).optimizer(Sgd::new(1e-3));
    let mut trainer = add(builder).build().expect("the settings are valid");
    Box::new(move || {
        let mut loader = from_fn(|_| (0..STEPS).map(|_| (inputs.shallow_clone(), labels.shallow_clone())));
        trainer.fit(&mut loader, None).expect("nothing fails");
    })
}

fn main() {
    tch::set_num_threads(1);
    let (inputs, labels) = mlp::batch();
    let cases: [(&str, Add); 13] = [
        ("no monitor", |builder| builder),
        ("hyperparameters, every step", |builder| builder.hook(HyperparameterMonitor::new().every(1))),
        ("hyperparameters, every 50 steps", |builder| builder.hook(HyperparameterMonitor::new().every(50))),
        ("throughput, every step", |builder| builder.hook(ThroughputMonitor::new().every(1))),
        ("throughput, every 50 steps", |builder| builder.hook(ThroughputMonitor::new().every(50))),
        ("gradients, every step", |builder| builder.hook(ParameterMonitor::new(Patterns::all()).every(1))),
        ("gradients, every 50 steps", |builder| {
            builder.hook(ParameterMonitor::new(Patterns::all()).every(50))
        }),
        ("gradients, weights, updates, every step", |builder| {
            builder.hook(ParameterMonitor::new(Patterns::all()).weights(true).updates(true).every(1))
        }),
        ("gradients, weights, updates, every 50 steps", |builder| {
            builder.hook(ParameterMonitor::new(Patterns::all()).weights(true).updates(true).every(50))
        }),
        ("guard of the loss, every step", |builder| builder.hook(NanGuard::fail())),
        ("guard of the loss, every 50 steps", |builder| builder.hook(NanGuard::fail().every(50))),
        ("process and machine, every step", system::<1>),
        ("process and machine, every 50 steps", system::<50>),
    ];
    let cases =
        cases.into_iter().filter(|(name, _)| cfg!(feature = "system") || !name.starts_with("process"));
    let mut cases: Vec<Case<'_>> = cases.map(|(name, add)| (name, run(add, &inputs, &labels))).collect();
    let steps = u32::try_from(STEPS).expect("`STEPS` fits in a `u32`");
    compare(
        &format!("{STEPS} steps of an MLP 64→32→10, batch 32, one thread, plain SGD"),
        2,
        steps,
        &mut cases,
    );
}

#[cfg(feature = "system")]
fn system<const EVERY: u64>(builder: TrainerBuilder<Mlp>) -> TrainerBuilder<Mlp> {
    builder.hook(trainer::hooks::SystemMonitor::new().every(EVERY))
}

#[cfg(not(feature = "system"))]
fn system<const EVERY: u64>(builder: TrainerBuilder<Mlp>) -> TrainerBuilder<Mlp> {
    builder
}
