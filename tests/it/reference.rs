//! Losses and parameters compared with those of PyTorch, from the file that `reference/losses.py`
//! writes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use trainer::data::from_fn;
use trainer::prelude::*;

use crate::support::device;

fn reference() -> HashMap<String, Tensor> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/reference/losses.safetensors");
    Tensor::read_safetensors(path).unwrap().into_iter().collect()
}

fn mlp(root: &nn::Path<'_>) -> nn::Sequential {
    nn::seq().add(nn::linear(root / "fc1", 64, 32, Default::default())).add_fn(Tensor::relu).add(nn::linear(
        root / "fc2",
        32,
        10,
        Default::default(),
    ))
}

/// Trains like the reference run `name`. Returns the largest deviations of the losses and of the
/// parameters.
fn deviation(name: &str, optimizer: impl Optimizer + 'static) -> (f64, f64) {
    tch::set_num_threads(1);
    let reference = reference();
    let vs = nn::VarStore::new(device());
    let net = mlp(&vs.root());
    {
        let _guard = tch::no_grad_guard();
        for (path, mut tensor) in vs.variables() {
            tensor.copy_(&reference[&format!("init.{path}")]);
        }
    }
    let losses = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&losses);
    let task =
        Supervised::new(vs, net, |logits: &Tensor, labels: &Tensor| logits.cross_entropy_for_logits(labels));
    let mut trainer = Trainer::builder(task)
        .optimizer(optimizer)
        .discover(Discover::None)
        .on::<AfterLoss>("losses", move |cx| log.lock().unwrap().push(cx.loss().double_value(&[])))
        .build()
        .unwrap();
    let inputs = &reference["data.inputs"];
    let labels = &reference["data.labels"];
    let mut batches = from_fn(|_| (0..100).map(|step| (inputs.get(step % 5), labels.get(step % 5))));
    trainer.fit(&mut batches, None).unwrap();

    let expected = Vec::<f64>::try_from(&reference[&format!("losses.{name}")]).unwrap();
    let losses = losses.lock().unwrap();
    assert_eq!(losses.len(), expected.len());
    let of_losses = losses.iter().zip(&expected).map(|(own, theirs)| (own - theirs).abs() / theirs.max(1.0));
    let of_parameters = trainer.vars().parameters().map(|var| {
        let theirs = &reference[&format!("final.{name}.{}", var.name)];
        (&var.tensor - theirs).abs().max().double_value(&[])
    });
    (of_losses.fold(0.0, f64::max), of_parameters.fold(0.0, f64::max))
}

#[test]
fn a_hundred_steps_match_pytorch() {
    let cases = [
        ("sgd", deviation("sgd", Sgd::new(0.1))),
        ("sgd_momentum", deviation("sgd_momentum", Sgd::new(0.05).momentum(0.9).weight_decay(1e-3))),
        ("sgd_nesterov", deviation("sgd_nesterov", Sgd::new(0.05).momentum(0.9).nesterov(true))),
        ("adamw", deviation("adamw", AdamW::new(1e-3))),
    ];
    for (name, (losses, parameters)) in cases {
        println!("{name}: losses within {losses:.1e}, parameters within {parameters:.1e}");
        // On another processor, each step may change the weights, and so the loss, by one rounding
        // error.
        let rounding = 100.0 * f64::from(f32::EPSILON);
        assert!(losses <= rounding, "{name}: a loss deviates by {losses:e}");
        assert!(parameters <= rounding, "{name}: a parameter deviates by {parameters:e}");
    }
}
