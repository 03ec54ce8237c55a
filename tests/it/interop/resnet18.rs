//! A ResNet-18: activations and output gradients match PyTorch's hooks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use trainer::data::from_fn;
use trainer::modules::{self, Name, Named, NamedT, SequentialT};
use trainer::prelude::*;

use super::run_script;
use crate::support::{distance, scratch};

const CLASSES: i64 = 10;

/// The largest permitted difference from PyTorch, relative to the largest magnitude of each tensor.
const TOLERANCE: f64 = 1e-5;

type Relu = Named<nn::Func<'static>>;

fn relu(path: nn::Path<'_>) -> Relu {
    nn::func(Tensor::relu).named(path)
}

fn conv(path: nn::Path<'_>, inputs: i64, outputs: i64, kernel: i64, stride: i64) -> Named<nn::Conv2D> {
    let config = nn::ConvConfig { stride, padding: kernel / 2, bias: false, ..Default::default() };
    modules::named(path, |path| nn::conv2d(path, inputs, outputs, kernel, config))
}

fn norm(path: nn::Path<'_>, channels: i64) -> NamedT<nn::BatchNorm> {
    modules::named_t(path, |path| nn::batch_norm2d(path, channels, Default::default()))
}

/// A residual block of two convolutions.
#[derive(Debug)]
struct BasicBlock {
    name: Name,
    first: (Named<nn::Conv2D>, NamedT<nn::BatchNorm>, Relu),
    second: (Named<nn::Conv2D>, NamedT<nn::BatchNorm>, Relu),
    downsample: Option<SequentialT>,
}

impl BasicBlock {
    fn new(path: &nn::Path<'_>, inputs: i64, outputs: i64, stride: i64) -> Self {
        let downsample = (stride != 1 || inputs != outputs).then(|| {
            let path = path / "downsample";
            let config = nn::ConvConfig { stride, bias: false, ..Default::default() };
            modules::seq_t(&path)
                .add(nn::conv2d(&path / 0, inputs, outputs, 1, config))
                .add(nn::batch_norm2d(&path / 1, outputs, Default::default()))
        });
        BasicBlock {
            name: path.into(),
            first: (
                conv(path / "conv1", inputs, outputs, 3, stride),
                norm(path / "bn1", outputs),
                relu(path / "relu1"),
            ),
            second: (
                conv(path / "conv2", outputs, outputs, 3, 1),
                norm(path / "bn2", outputs),
                relu(path / "relu2"),
            ),
            downsample,
        }
    }
}

impl nn::ModuleT for BasicBlock {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        self.name.run(xs, |xs| {
            let (conv, norm, relu) = &self.first;
            let ys = xs.apply(conv).apply_t(norm, train).apply(relu);
            let (conv, norm, relu) = &self.second;
            let ys = ys.apply(conv).apply_t(norm, train);
            (ys + xs.apply_opt_t(&self.downsample, train)).apply(relu)
        })
    }
}

fn net(root: &nn::Path<'_>) -> nn::SequentialT {
    let mut net = nn::seq_t()
        .add(conv(root / "conv1", 3, 64, 7, 2))
        .add(norm(root / "bn1", 64))
        .add(relu(root / "relu"))
        .add(nn::func(|xs| xs.max_pool2d([3, 3], [2, 2], [1, 1], [1, 1], false)).named(root / "maxpool"));
    for (nth, (inputs, outputs)) in [(64, 64), (64, 128), (128, 256), (256, 512)].into_iter().enumerate() {
        let path = root / format!("layer{}", nth + 1);
        let stride = if nth == 0 { 1 } else { 2 };
        net = net.add(
            modules::seq_t(&path)
                .add_named(BasicBlock::new(&(&path / 0), inputs, outputs, stride))
                .add_named(BasicBlock::new(&(&path / 1), outputs, outputs, 1)),
        );
    }
    net.add(nn::func(|xs| xs.adaptive_avg_pool2d([1, 1])).named(root / "avgpool"))
        .add_fn(|xs| xs.flatten(1, -1))
        .add(modules::named(root / "fc", |path| nn::linear(path, 512, CLASSES, Default::default())))
}

#[test]
#[ignore = "run by `make interop`"]
fn activations_and_output_gradients_of_a_resnet18_match_pytorch() {
    let folder = scratch("interop-resnet18");
    tch::set_num_threads(1);
    tch::manual_seed(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let net = net(&vs.root());
    let inputs = Tensor::randn([4, 3, 64, 64], (Kind::Float, Device::Cpu));
    let labels = Tensor::arange(4, (Kind::Int64, Device::Cpu));
    let weights: Vec<_> = vs.variables().into_iter().collect();
    let weights: Vec<_> = weights.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    Tensor::write_safetensors(&weights, folder.join("weights.safetensors")).unwrap();
    Tensor::write_safetensors(&[("inputs", &inputs), ("labels", &labels)], folder.join("batch.safetensors"))
        .unwrap();
    run_script("resnet18.py", &folder);

    let flops = modules::summary(&vs, &net, &inputs).unwrap().flops();
    type Kept = Arc<Mutex<(Vec<String>, Vec<String>, BTreeMap<String, Tensor>)>>;
    let kept = Kept::default();
    let after = Arc::clone(&kept);
    let backward = Arc::clone(&kept);
    let task =
        Supervised::new(vs, net, |logits: &Tensor, labels: &Tensor| logits.cross_entropy_for_logits(labels));
    let mut trainer = Trainer::builder(task)
        .optimizer(Sgd::new(0.0))
        .discover(Discover::None)
        .on::<AfterModuleForward>("outputs", move |cx| {
            let mut kept = after.lock().unwrap();
            kept.0.push(cx.module().to_owned());
            kept.2.insert(format!("{}/output", cx.module()), cx.output().detach().copy());
        })
        .on::<AfterModuleBackward>("gradients", move |cx| {
            let mut kept = backward.lock().unwrap();
            kept.1.push(cx.module().to_owned());
            kept.2.insert(format!("{}/grad", cx.module()), cx.output_grad().copy());
        })
        .build()
        .unwrap();
    let mut data = from_fn(|_| [(inputs.shallow_clone(), labels.shallow_clone())]);
    let summary = trainer.fit(&mut data, None).unwrap();

    let theirs: BTreeMap<_, _> =
        Tensor::read_safetensors(folder.join("hooks.safetensors")).unwrap().into_iter().collect();
    let order: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("hooks.json")).unwrap()).unwrap();
    let names = |key: &str| -> Vec<String> {
        order[key].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
    };
    let (forward, backward, ours) = std::mem::take(&mut *kept.lock().unwrap());
    assert_eq!(forward, names("forward"), "the order of the forward pass");
    assert_eq!(flops, order["flops"].as_u64().unwrap());
    let loss = order["loss"].as_f64().unwrap();
    assert!((summary.metrics["train/loss"] - loss).abs() <= TOLERANCE * loss);
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    assert_eq!(ours.len(), 2 * forward.len());
    let mut largest: (f64, &str) = (0.0, "");
    for (name, own) in &ours {
        let other = &theirs[name];
        assert_eq!(own.size(), other.size(), "{name}");
        let difference = distance(own, other) / other.abs().max().double_value(&[]).max(1e-30);
        assert!(difference <= TOLERANCE, "{name} differs by {difference:.1e}");
        if difference > largest.0 {
            largest = (difference, name);
        }
    }
    assert_eq!(backward, names("backward"), "the order of the backward pass");
    println!(
        "{} layers, {flops} FLOPs; the largest difference from PyTorch is {:.1e} ({})",
        forward.len(),
        largest.0,
        largest.1
    );
    std::fs::remove_dir_all(&folder).unwrap();
}
