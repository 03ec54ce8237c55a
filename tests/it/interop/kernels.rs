//! Operators that run in a training step on the CPU: whether PyTorch's dispatcher, in a build for
//! CUDA, has a kernel of each for a GPU.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value as Json;
use tch::Reduction;
use trainer::TrainerBuilder;
use trainer::hooks::{Amp, Ema, KernelProfiler, MixUp, NanGuard, ParameterMonitor, Sam};
use trainer::metrics::{Accuracy, Auroc, FBeta};
use trainer::optim::{Adagrad, Adam, Lion, Muon, RmsProp};
use trainer::prelude::*;

use super::run_script;
use crate::support::scratch;

type Net = Supervised<nn::SequentialT, fn(&Tensor, &Tensor) -> Tensor>;

fn task() -> Net {
    let vs = nn::VarStore::new(Device::Cpu);
    let root = vs.root();
    let padded = nn::ConvConfig { padding: 1, ..Default::default() };
    let net = nn::seq_t()
        .add(nn::conv2d(&root / "conv", 3, 8, 3, padded))
        .add(nn::batch_norm2d(&root / "norm", 8, Default::default()))
        .add_fn_t(|x, train| x.gelu("none").max_pool2d_default(2).dropout(0.1, train))
        .add_fn(|x| x.flatten(2, 3).transpose(1, 2))
        .add(nn::layer_norm(&root / "ln", vec![8], Default::default()))
        .add_fn(|x| Tensor::scaled_dot_product_attention(x, x, x, None::<Tensor>, 0.0, true, None, false))
        .add_fn(|x| x.mean_dim([1_i64].as_slice(), false, None))
        .add(nn::linear(&root / "fc", 8, 4, Default::default()));
    // Labels or, from MixUp, probabilities.
    let loss: fn(&Tensor, &Tensor) -> Tensor =
        |logits, targets| logits.cross_entropy_loss(targets, None::<Tensor>, Reduction::Mean, -100, 0.0);
    Supervised::new(vs, net, loss)
}

type Change = fn(TrainerBuilder<Net>) -> TrainerBuilder<Net>;

#[test]
#[ignore = "run by `make interop`"]
fn every_operator_of_a_training_step_has_a_kernel_for_cuda() {
    let configurations: [Change; 9] = [
        |builder| builder.optimizer(Sgd::new(0.1).momentum(0.9)).clip_grad_norm(1.0).hook(Amp::bf16()),
        |builder| builder.optimizer(AdamW::new(1e-3)).clip_grad_value(0.1).hook(Ema::new(0.9)),
        |builder| builder.optimizer(Adam::new(1e-3).amsgrad(true)).accumulate(2),
        |builder| builder.optimizer(Adagrad::new(1e-2)).hook(NanGuard::skip_batch()),
        |builder| builder.optimizer(RmsProp::new(1e-3)).hook(Sam::new(0.05)),
        |builder| {
            builder.optimizer(Lion::new(1e-4)).hook(ParameterMonitor::new("*").updates(true).histograms(true))
        },
        |builder| {
            // `fc.weight` is the only matrix.
            let others = ["conv.*", "norm.*", "ln.*", "fc.bias"].into_iter();
            let muon = others.fold(Muon::new(1e-2), |muon, names| muon.group(names, AdamW::new(1e-3)));
            builder.optimizer(muon)
        },
        |builder| builder.optimizer(Sgd::new(0.1)).hook(MixUp::new(0.2).classes(4)),
        |builder| {
            let builder = builder.optimizer(Sgd::new(0.1)).hook(Accuracy::multiclass(4));
            builder.hook(Auroc::multiclass(4)).hook(FBeta::multiclass(4))
        },
    ];
    let folder = scratch("kernels");
    let mut operators = BTreeSet::new();
    for (nth, configure) in configurations.into_iter().enumerate() {
        let trace = folder.join(format!("{nth}.json"));
        let builder =
            configure(Trainer::builder(task())).discover(Discover::None).record_every(Every::Steps(1));
        let mut trainer = builder.epochs(1).hook(KernelProfiler::new(&trace, 0..4)).build().unwrap();
        let images = Tensor::randn([16, 3, 8, 8], (Kind::Float, Device::Cpu));
        let labels = Tensor::randint(4, [16], (Kind::Int64, Device::Cpu));
        trainer.fit(&mut InMemory::new((images, labels)).unwrap().batch_size(4), None).unwrap();
        let trace: Json = serde_json::from_str(&fs::read_to_string(trace).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let names =
            events.iter().filter(|event| event["cat"] == "cpu_op").map(|event| event["name"].as_str());
        operators.extend(names.flatten().filter(|name| name.starts_with("aten::")).map(str::to_owned));
    }
    assert!(operators.len() > 60, "{operators:?}");
    fs::write(folder.join("operators.json"), serde_json::to_string(&operators).unwrap()).unwrap();
    run_script("cuda_kernels.py", &folder);
    fs::remove_dir_all(&folder).unwrap();
}
