//! Measures the cost of a training step with each optimizer, compared to a hand-written loop with
//! tch's optimizers.

#![allow(missing_docs)]

mod ratio;

use ratio::compare;
use tch::nn::{ModuleT, OptimizerConfig};
use trainer::TrainerBuilder;
use trainer::data::from_fn;
use trainer::hooks::Ema;
use trainer::optim::{Adagrad, Adam, Lion, Muon, RmsProp};
use trainer::prelude::*;

const MAX_NORM: f64 = 0.1;

/// A network, the shape of its inputs, and the number of steps that are timed together.
struct Model {
    name: &'static str,
    net: fn(&nn::Path<'_>) -> nn::SequentialT,
    input: [i64; 4],
    steps: u32,
}

const MODELS: [Model; 3] = [
    Model {
        name: "an MLP 64→32→10",
        net: |root| mlp(root, &[64, 32, 10]),
        input: [32, 64, 1, 1],
        steps: 200,
    },
    Model {
        name: "an MLP of 21 layers, 42 parameters",
        net: |root| mlp(root, &[[64].as_slice(), &[32; 20], &[10]].concat()),
        input: [32, 64, 1, 1],
        steps: 20,
    },
    Model { name: "a CNN, 28×28", net: cnn, input: [32, 1, 28, 28], steps: 3 },
];

fn mlp(root: &nn::Path<'_>, widths: &[i64]) -> nn::SequentialT {
    let layers = widths.windows(2).enumerate();
    layers.fold(nn::seq_t().add_fn(|it| it.flat_view()), |net, (nth, width)| {
        let net = if nth == 0 { net } else { net.add_fn(Tensor::relu) };
        net.add(nn::linear(root / format!("fc{nth}"), width[0], width[1], Default::default()))
    })
}

fn cnn(root: &nn::Path<'_>) -> nn::SequentialT {
    let same = nn::ConvConfig { padding: 1, ..Default::default() };
    nn::seq_t()
        .add(nn::conv2d(root / "conv1", 1, 16, 3, same))
        .add_fn(|it| it.relu().max_pool2d_default(2))
        .add(nn::conv2d(root / "conv2", 16, 32, 3, same))
        .add_fn(|it| it.relu().max_pool2d_default(2).flat_view())
        .add(nn::linear(root / "fc", 32 * 7 * 7, 10, Default::default()))
}

fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Tensor {
    logits.cross_entropy_for_logits(labels)
}

/// Returns the hand-written loop, including the mean of the loss, which the trainer also computes.
fn by_hand<'a>(
    model: &'a Model,
    config: impl OptimizerConfig,
    clips: bool,
    (inputs, labels): &'a (Tensor, Tensor),
) -> Box<dyn FnMut() + 'a> {
    let vs = nn::VarStore::new(Device::Cpu);
    let net = (model.net)(&vs.root());
    let mut optimizer = config.build(&vs, 1e-3).expect("tch builds its own optimizer");
    Box::new(move || {
        let mut sum = 0.0;
        for _ in 0..model.steps {
            let loss = cross_entropy(&net.forward_t(inputs, true), labels);
            optimizer.zero_grad();
            loss.backward();
            if clips {
                optimizer.clip_grad_norm(MAX_NORM);
            }
            optimizer.step();
            sum += loss.double_value(&[]);
        }
        std::hint::black_box(sum);
    })
}

type Network = Supervised<nn::SequentialT, fn(&Tensor, &Tensor) -> Tensor>;

/// Returns the same loop, run by a trainer.
fn ours<'a>(
    model: &'a Model,
    optimizer: impl Optimizer + 'static,
    clips: bool,
    batch: &'a (Tensor, Tensor),
) -> Box<dyn FnMut() + 'a> {
    let with = if clips { |it: TrainerBuilder<Network>| it.clip_grad_norm(MAX_NORM) } else { |it| it };
    ours_with(model, optimizer, batch, with)
}

/// Returns the same loop, run by a trainer with hooks.
fn ours_with<'a>(
    model: &'a Model,
    optimizer: impl Optimizer + 'static,
    (inputs, labels): &'a (Tensor, Tensor),
    with: fn(TrainerBuilder<Network>) -> TrainerBuilder<Network>,
) -> Box<dyn FnMut() + 'a> {
    let vs = nn::VarStore::new(Device::Cpu);
    let net = (model.net)(&vs.root());
    let task: Network = Supervised::new(vs, net, cross_entropy);
    let builder = Trainer::builder(task).optimizer(optimizer);
    let mut trainer = with(builder).build().expect("a trainer of valid hooks");
    Box::new(move || {
        // Handles of a single batch, which the hand-written loop also reuses.
        let mut loader =
            from_fn(|_| (0..model.steps).map(|_| (inputs.shallow_clone(), labels.shallow_clone())));
        trainer.fit(&mut loader, None).expect("nothing fails");
    })
}

fn main() {
    tch::set_num_threads(1);
    for model in &MODELS {
        let batch = (
            Tensor::randn(model.input, (Kind::Float, Device::Cpu)),
            Tensor::randint(10, [model.input[0]], (Kind::Int64, Device::Cpu)),
        );
        let batch = &batch;
        let against = |what: &str, theirs: Box<dyn FnMut() + '_>, ours: Box<dyn FnMut() + '_>| {
            let title = format!("{} steps of {}, batch {}, {what}", model.steps, model.name, model.input[0]);
            compare(&title, 1, model.steps, &mut [("tch by hand", theirs), ("trainer", ours)]);
        };
        let momentum = nn::Sgd { momentum: 0.9, ..Default::default() };
        let plain = |optimizer: Box<dyn Optimizer>| ours(model, optimizer, false, batch);
        let sgd = || by_hand(model, nn::Sgd::default(), false, batch);
        against("Sgd", sgd(), plain(Box::new(Sgd::new(1e-3))));
        against(
            "Sgd with momentum",
            by_hand(model, momentum, false, batch),
            plain(Box::new(Sgd::new(1e-3).momentum(0.9))),
        );
        against("Adam", by_hand(model, nn::Adam::default(), false, batch), plain(Box::new(Adam::new(1e-3))));
        against(
            "AdamW",
            by_hand(model, nn::AdamW::default(), false, batch),
            plain(Box::new(AdamW::new(1e-3))),
        );
        against(
            "AdamW, gradients clipped",
            by_hand(model, nn::AdamW::default(), true, batch),
            ours(model, AdamW::new(1e-3), true, batch),
        );
        against(
            "RmsProp",
            by_hand(model, nn::RmsProp::default(), false, batch),
            plain(Box::new(RmsProp::new(1e-3))),
        );
        let title = format!("{} steps of {}, AdamW with averaged weights", model.steps, model.name);
        let averaged = ours_with(model, AdamW::new(1e-3), batch, |it| it.hook(Ema::new(0.999)));
        let mut cases = [("AdamW", plain(Box::new(AdamW::new(1e-3)))), ("AdamW and Ema", averaged)];
        compare(&title, 1, model.steps, &mut cases);
        // tch has no counterpart of these: compare with its plain SGD.
        against("Adagrad against nn::Sgd", sgd(), plain(Box::new(Adagrad::new(1e-3))));
        against("Lion against nn::Sgd", sgd(), plain(Box::new(Lion::new(1e-4))));
        if model.input[1] == 64 {
            let muon = Muon::new(1e-2).group("*.bias", AdamW::new(1e-3));
            against("Muon against nn::Sgd", sgd(), plain(Box::new(muon)));
        }
    }
}
