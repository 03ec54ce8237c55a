//! The moments of modules in the backward pass fire like PyTorch's hooks, and leave the same
//! gradients.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use trainer::hooks::ActivationCheckpointing;
use trainer::modules::{self, Name};
use trainer::prelude::*;

use super::run_script;
use crate::support::{distance, scratch};

fn linear(path: nn::Path<'_>, inputs: i64, outputs: i64) -> modules::Named<nn::Linear> {
    modules::named(path, |path| nn::linear(path, inputs, outputs, Default::default()))
}

/// Returns a network of `module_backward.py`.
fn net(root: &nn::Path<'_>, kind: &'static str) -> nn::Func<'static> {
    let first = linear(root / "first", 4, 6);
    let block = root / "block";
    let (fc1, fc2) = (linear(&block / "fc1", 6, 8), linear(&block / "fc2", 8, 6));
    let block = Name::new("block");
    let head = linear(root / "head", 6, 3);
    nn::func(move |xs| {
        let block = |xs: &Tensor| block.run(xs, |xs| xs + xs.apply(&fc1).relu().apply(&fc2));
        let mut xs = block(&xs.apply(&first));
        if kind == "twice" {
            xs = block(&xs.tanh());
        }
        if kind == "tied" {
            xs = xs.matmul(&first.ws).matmul(&first.ws.tr());
        }
        xs.apply(&head)
    })
}

#[test]
#[ignore = "run by `make interop`"]
fn backward_moments_are_the_calls_of_torchs_hooks_in_their_order() {
    tch::set_num_threads(1);
    let folder = scratch("interop-module-backward");
    let vs = nn::VarStore::new(Device::Cpu);
    drop(net(&vs.root(), "plain"));
    vs.save(folder.join("weights.safetensors")).unwrap();
    let inputs = Tensor::randn([16, 4], (Kind::Float, Device::Cpu));
    let labels = inputs.narrow(1, 0, 3).argmax(1, false);
    let data = [("inputs", inputs.shallow_clone()), ("labels", labels.shallow_clone())];
    Tensor::write_safetensors(&data, folder.join("data.safetensors")).unwrap();
    run_script("module_backward.py", &folder);

    for kind in ["plain", "twice", "tied", "frozen", "recomputed", "replaced"] {
        let mut vs = nn::VarStore::new(Device::Cpu);
        let net = net(&vs.root(), kind);
        vs.load(folder.join("weights.safetensors")).unwrap();
        if kind == "frozen" {
            for (name, tensor) in vs.variables() {
                let is_frozen = name.starts_with("first.") || name == "block.fc2.bias";
                let _ = tensor.set_requires_grad(!is_frozen);
            }
        }
        let task = Supervised::new(vs, net, |logits: &Tensor, labels: &Tensor| {
            logits.cross_entropy_for_logits(labels)
        });
        let calls: Arc<Mutex<Vec<String>>> = Arc::default();
        let grads: Arc<Mutex<BTreeMap<String, Tensor>>> = Arc::default();
        let (before, complete, kept) = (Arc::clone(&calls), Arc::clone(&calls), Arc::clone(&grads));
        let mut builder = Trainer::builder(task)
            .optimizer(Sgd::new(0.1))
            .discover(Discover::None)
            .on::<BeforeModuleBackward>("before", move |cx| {
                before.lock().unwrap().push(format!("before {}", cx.module()));
                if kind == "replaced" && cx.module() == "block" {
                    let doubled = cx.output_grad() * 2.0;
                    cx.set_output_grad(doubled)?;
                }
                Ok::<(), Error>(())
            })
            .on::<AfterModuleGrads>("complete", move |cx| {
                complete.lock().unwrap().push(format!("grads {}", cx.module()));
            })
            .on::<AfterBackward>("keep", move |cx| {
                kept.lock().unwrap().extend(cx.grads().map(|(name, grad)| (name.to_string(), grad.copy())));
            });
        if kind == "recomputed" {
            builder = builder.hook(ActivationCheckpointing::new("block"));
        }
        let mut trainer = builder.build().unwrap();
        let rows = (inputs.shallow_clone(), labels.shallow_clone());
        trainer.fit(&mut InMemory::new(rows).unwrap().batch_size(16), None).unwrap();

        let theirs = std::fs::read_to_string(folder.join(format!("{kind}.txt"))).unwrap();
        assert_eq!(*calls.lock().unwrap(), theirs.lines().collect::<Vec<_>>(), "{kind}");
        let theirs = Tensor::read_safetensors(folder.join(format!("{kind}.safetensors"))).unwrap();
        let ours = std::mem::take(&mut *grads.lock().unwrap());
        assert_eq!(ours.len(), theirs.len(), "{kind}");
        for (name, grad) in theirs {
            // The last bit of a product can differ between the two processes.
            assert!(distance(&ours[&name], &grad) < 1e-6, "{kind}: the gradient of {name}");
        }
    }
}
