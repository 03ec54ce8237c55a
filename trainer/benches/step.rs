//! Measures the cost of a training step, compared to a hand-written loop that uses only tch.

#![allow(missing_docs)]

mod mlp;
mod ratio;

use ratio::{Case, compare};
use tch::nn::{Module, OptimizerConfig};
use trainer::data::from_fn;
use trainer::prelude::*;

const STEPS: i64 = 200;

/// Returns the hand-written loop, including the mean of the loss, which the trainer also computes.
fn by_hand<'a>(
    config: impl OptimizerConfig,
    inputs: &'a Tensor,
    labels: &'a Tensor,
) -> Box<dyn FnMut() + 'a> {
    let vs = nn::VarStore::new(Device::Cpu);
    let net = mlp::net(&vs.root());
    let mut optimizer = config.build(&vs, 1e-3).expect("tch builds its own optimizer");
    Box::new(move || {
        let mut sum = 0.0;
        for _ in 0..STEPS {
            let loss = mlp::cross_entropy(&net.forward(inputs), labels);
            optimizer.zero_grad();
            loss.backward();
            optimizer.step();
            sum += loss.double_value(&[]);
        }
        std::hint::black_box(sum);
    })
}

/// Returns the same loop, run by a trainer.
fn ours<'a>(
    optimizer: impl Optimizer + 'static,
    inputs: &'a Tensor,
    labels: &'a Tensor,
) -> Box<dyn FnMut() + 'a> {
    let mut trainer =
        Trainer::builder(mlp::task()).optimizer(optimizer).build().expect("a trainer without hooks");
    Box::new(move || {
        // Handles of a single batch, which the hand-written loop also reuses.
        let mut loader = from_fn(|_| (0..STEPS).map(|_| (inputs.shallow_clone(), labels.shallow_clone())));
        trainer.fit(&mut loader, None).expect("nothing fails");
    })
}

fn main() {
    tch::set_num_threads(1);
    let steps = u32::try_from(STEPS).expect("`STEPS` fits in a `u32`");
    let (inputs, labels) = mlp::batch();
    let sgd: &mut [Case<'_>] = &mut [
        ("tch by hand, nn::Sgd", by_hand(nn::Sgd::default(), &inputs, &labels)),
        ("trainer, Sgd", ours(Sgd::new(1e-3), &inputs, &labels)),
    ];
    compare(&format!("{STEPS} steps of an MLP 64→32→10, batch 32, one thread, plain SGD"), 5, steps, sgd);
    let adamw: &mut [Case<'_>] = &mut [
        ("tch by hand, nn::AdamW", by_hand(nn::AdamW::default(), &inputs, &labels)),
        ("trainer, AdamW", ours(AdamW::new(1e-3), &inputs, &labels)),
    ];
    compare(&format!("{STEPS} steps of the same, AdamW"), 5, steps, adamw);
}
