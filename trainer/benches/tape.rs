//! Measures the overhead of a tape: a step of a small network, of a network of 10 million
//! parameters and of a convolutional network, without a tape, with the state after every 100
//! batches, and with what each entry changes.

#![allow(missing_docs)]

mod mlp;
mod ratio;

use mlp::Mlp;
use ratio::compare;
use trainer::prelude::*;
use trainer::{Tape, TrainerBuilder};

fn linear(path: nn::Path<'_>, from: i64, to: i64) -> nn::Linear {
    nn::linear(path, from, to, Default::default())
}

fn large(root: &nn::Path<'_>) -> nn::Sequential {
    nn::seq()
        .add(linear(root / "fc1", 64, 2048))
        .add_fn(Tensor::relu)
        .add(linear(root / "fc2", 2048, 2048))
        .add_fn(Tensor::relu)
        .add(linear(root / "fc3", 2048, 2944))
        .add_fn(Tensor::relu)
        .add(linear(root / "fc4", 2944, 10))
}

fn cnn(root: &nn::Path<'_>) -> nn::Sequential {
    let padded = nn::ConvConfig { padding: 1, ..Default::default() };
    nn::seq()
        .add_fn(|xs| xs.view([-1, 1, 8, 8]))
        .add(nn::conv2d(root / "conv1", 1, 32, 3, padded))
        .add_fn(Tensor::relu)
        .add(nn::conv2d(root / "conv2", 32, 64, 3, padded))
        .add_fn(|xs| xs.relu().max_pool2d_default(2).flat_view())
        .add(linear(root / "fc1", 1024, 128))
        .add_fn(Tensor::relu)
        .add(linear(root / "fc2", 128, 10))
}

/// Returns a closure that trains for one epoch.
fn epoch(
    net: fn(&nn::Path<'_>) -> nn::Sequential,
    steps: i64,
    tape: Option<(&str, Tape)>,
) -> Box<dyn FnMut()> {
    let vs = nn::VarStore::new(Device::Cpu);
    let net = net(&vs.root());
    let task: Mlp = Supervised::new(vs, net, mlp::cross_entropy);
    let mut builder: TrainerBuilder<Mlp> =
        Trainer::builder(task).optimizer(AdamW::new(1e-3)).discover(Discover::None);
    if let Some((name, tape)) = tape {
        let path = std::env::temp_dir().join(format!("trainer-bench-{}-{name}.tape", std::process::id()));
        builder = builder.tape(tape.at(path));
    }
    let mut trainer = builder.build().expect("the trainer is valid");
    let rows = 32 * steps;
    let inputs = Tensor::randn([rows, 64], (Kind::Float, Device::Cpu));
    let labels = Tensor::randint(10, [rows], (Kind::Int64, Device::Cpu));
    let mut data = InMemory::new((inputs, labels)).expect("as many labels as rows").batch_size(32);
    Box::new(move || {
        trainer.fit(&mut data, None).expect("nothing fails");
    })
}

fn main() {
    tch::set_num_threads(1);
    for (name, net, steps) in [
        ("a network of 2,410 parameters", mlp::net as fn(&nn::Path<'_>) -> nn::Sequential, 400),
        ("a convolutional network", cnn, 40),
        ("a network of 10.4 million parameters", large, 4),
    ] {
        compare(
            name,
            1,
            u32::try_from(steps).expect("few steps"),
            &mut [
                ("off", epoch(net, steps, None)),
                ("steps(100)", epoch(net, steps, Some((&format!("{steps}-steps"), Tape::steps(100))))),
                ("full", epoch(net, steps, Some((&format!("{steps}-full"), Tape::full())))),
            ],
        );
    }
}
