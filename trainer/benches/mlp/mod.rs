//! A model that is so small that the loop around it is a large part of a step: an MLP 64→32→10, on
//! batches of 32 rows.

#![allow(dead_code, reason = "each benchmark uses a part of it")]

use trainer::prelude::*;

/// The model with its loss.
pub(crate) type Mlp = Supervised<nn::Sequential, fn(&Tensor, &Tensor) -> Tensor>;

pub(crate) fn net(root: &nn::Path<'_>) -> nn::Sequential {
    let first = nn::linear(root / "fc1", 64, 32, Default::default());
    nn::seq().add(first).add_fn(Tensor::relu).add(nn::linear(root / "fc2", 32, 10, Default::default()))
}

pub(crate) fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Tensor {
    logits.cross_entropy_for_logits(labels)
}

pub(crate) fn task() -> Mlp {
    let vs = nn::VarStore::new(Device::Cpu);
    let net = net(&vs.root());
    Supervised::new(vs, net, cross_entropy)
}

/// Returns random inputs and labels.
pub(crate) fn batch() -> (Tensor, Tensor) {
    let inputs = Tensor::randn([32, 64], (Kind::Float, Device::Cpu));
    (inputs, Tensor::randint(10, [32], (Kind::Int64, Device::Cpu)))
}
