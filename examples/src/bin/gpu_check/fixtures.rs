//! The models, the data and the comparisons that the checks share.

use std::path::PathBuf;

use trainer::TrainerBuilder;
use trainer::prelude::*;

use crate::{Found, ensure};

/// A small network with dropout, which classifies rows of 16 numbers.
pub(crate) struct Mlp {
    vs: nn::VarStore,
    fc1: nn::Linear,
    fc2: nn::Linear,
    dropout: f64,
}

impl Mlp {
    /// Creates the network on the CPU, with the same weights each time.
    fn new(dropout: f64) -> Self {
        tch::manual_seed(3);
        let vs = nn::VarStore::new(Device::Cpu);
        let fc1 = nn::linear(vs.root() / "fc1", 16, 64, Default::default());
        let fc2 = nn::linear(vs.root() / "fc2", 64, 2, Default::default());
        Mlp { vs, fc1, fc2, dropout }
    }
}

impl Task for Mlp {
    type Batch = (Tensor, Tensor);
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vs
    }

    fn vars_mut(&mut self) -> Option<&mut nn::VarStore> {
        Some(&mut self.vs)
    }

    fn pred(&mut self, (inputs, _): &(Tensor, Tensor), mode: Mode) -> Result<Tensor> {
        let hidden = inputs.apply(&self.fc1).relu().dropout(self.dropout, mode == Mode::Train);
        Ok(hidden.apply(&self.fc2))
    }

    fn loss(&mut self, logits: &Tensor, (_, labels): &(Tensor, Tensor)) -> Result<Tensor> {
        Ok(logits.cross_entropy_for_logits(labels))
    }
}

/// A small convolutional network with batch normalization.
pub(crate) struct Conv {
    vs: nn::VarStore,
    conv1: nn::Conv2D,
    norm: nn::BatchNorm,
    conv2: nn::Conv2D,
    fc: nn::Linear,
}

impl Conv {
    pub(crate) fn new() -> Self {
        tch::manual_seed(4);
        let vs = nn::VarStore::new(Device::Cpu);
        let root = vs.root();
        let padded = nn::ConvConfig { padding: 1, ..Default::default() };
        Conv {
            conv1: nn::conv2d(&root / "conv1", 3, 16, 3, padded),
            norm: nn::batch_norm2d(&root / "norm", 16, Default::default()),
            conv2: nn::conv2d(&root / "conv2", 16, 16, 3, padded),
            fc: nn::linear(&root / "fc", 16, 2, Default::default()),
            vs,
        }
    }
}

impl Task for Conv {
    type Batch = (Tensor, Tensor);
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vs
    }

    fn vars_mut(&mut self) -> Option<&mut nn::VarStore> {
        Some(&mut self.vs)
    }

    fn pred(&mut self, (images, _): &(Tensor, Tensor), mode: Mode) -> Result<Tensor> {
        let hidden = images.apply(&self.conv1).apply_t(&self.norm, mode == Mode::Train).relu();
        let features = hidden.apply(&self.conv2).relu().mean_dim([2_i64, 3].as_slice(), false, None);
        Ok(features.apply(&self.fc))
    }

    fn loss(&mut self, logits: &Tensor, (_, labels): &(Tensor, Tensor)) -> Result<Tensor> {
        Ok(logits.cross_entropy_for_logits(labels))
    }
}

/// Returns a loader of rows for [`Mlp`], in batches of 16.
pub(crate) fn rows(count: i64) -> Result<InMemory<(Tensor, Tensor)>> {
    tch::manual_seed(7);
    let inputs = Tensor::randn([count, 16], (Kind::Float, Device::Cpu));
    let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
    Ok(InMemory::new((inputs, labels))?.batch_size(16).shuffle(1))
}

/// Returns a loader of images for [`Conv`], in batches of 8.
pub(crate) fn images(count: i64) -> Result<InMemory<(Tensor, Tensor)>> {
    tch::manual_seed(8);
    let images = Tensor::randn([count, 3, 16, 16], (Kind::Float, Device::Cpu));
    let labels = images.mean_dim([1_i64, 2, 3].as_slice(), false, None).gt(0.0).to_kind(Kind::Int64);
    Ok(InMemory::new((images, labels))?.batch_size(8).shuffle(1))
}

/// Returns a builder for [`Mlp`], without discovered hooks.
pub(crate) fn mlp(dropout: f64) -> TrainerBuilder<Mlp> {
    Trainer::builder(Mlp::new(dropout)).discover(Discover::None)
}

/// Returns a builder for [`Conv`], without discovered hooks.
pub(crate) fn conv() -> TrainerBuilder<Conv> {
    Trainer::builder(Conv::new()).discover(Discover::None)
}

/// Returns copies of the variables on the CPU.
pub(crate) fn weights(trainer: &Trainer<impl Task>) -> Vec<Tensor> {
    trainer.vars().iter().map(|var| var.tensor.detach().to_device(Device::Cpu).copy()).collect()
}

/// Returns the largest difference between two lists of tensors on the CPU.
pub(crate) fn difference(one: &[Tensor], other: &[Tensor]) -> f64 {
    assert_eq!(one.len(), other.len());
    let largest = |(a, b): (&Tensor, &Tensor)| {
        (a.to_kind(Kind::Double) - b.to_kind(Kind::Double)).abs().max().double_value(&[])
    };
    // Unlike in `f64::max`, NaN counts as the largest difference.
    let largest = one.iter().zip(other).map(largest);
    largest.fold(0.0, |so_far, next| if next.is_nan() || next > so_far { next } else { so_far })
}

/// Returns the largest difference, or an error if it exceeds the tolerance.
pub(crate) fn close(one: &[Tensor], other: &[Tensor], tolerance: f64) -> Result<Found> {
    let found = difference(one, other);
    ensure(found <= tolerance, || format!("they differ by {found:.1e}, expected at most {tolerance:.0e}"))?;
    Ok(format!("they differ by {found:.1e}").into())
}

/// Returns an empty folder for a check.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("gpu-check-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}
