//! [`Layer`]: the parameters and the floating-point operations of tch's layers.

use std::any::Any;

use tch::{Tensor, nn};

use crate::distributed::SyncBatchNorm;

/// The description of a tch layer or [`SyncBatchNorm`] inside a named module: its kind, its number
/// of parameters and its floating-point operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    kind: &'static str,
    parameters: u64,
    work: Work,
}

/// The number of multiply-adds of a layer, per element of its input or output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// No matrix multiplication.
    None,
    /// The number of multiply-adds per element of the input.
    PerInput(u64),
    /// The number of multiply-adds per element of the output.
    PerOutput(u64),
}

impl Layer {
    /// Returns the description of the module, or `None` if it is neither a supported tch layer nor
    /// `SyncBatchNorm`.
    pub(super) fn of(module: &dyn Any) -> Option<Self> {
        linear(module).or_else(|| convolution(module)).or_else(|| other(module))
    }

    /// The name of the layer's type, such as `Linear` or `Conv2D`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// The number of elements of the layer's weight and bias.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.parameters
    }

    /// Returns the number of floating-point operations of a forward pass from `input` to `output`:
    /// two for each multiply-add of a matrix multiplication or a convolution, and none for anything
    /// else, as in `torch.utils.flop_counter`.
    #[must_use]
    pub fn flops(&self, input: &Tensor, output: &Tensor) -> u64 {
        match self.work {
            Work::None => 0,
            Work::PerInput(multiply_adds) => 2 * multiply_adds * input.numel() as u64,
            Work::PerOutput(multiply_adds) => 2 * multiply_adds * output.numel() as u64,
        }
    }
}

/// Returns the total number of elements of the tensors.
fn elements<'a>(tensors: impl IntoIterator<Item = Option<&'a Tensor>>) -> u64 {
    tensors.into_iter().flatten().map(|tensor| tensor.numel() as u64).sum()
}

/// Returns the number of elements in one row (one index of the first dimension) of a weight. If the
/// weight has a row for each output, this is the number of multiply-adds per output.
fn row(weight: &Tensor) -> u64 {
    weight.size().iter().skip(1).product::<i64>().unsigned_abs()
}

fn linear(module: &dyn Any) -> Option<Layer> {
    let nn::Linear { ws, bs } = module.downcast_ref()?;
    let parameters = elements([Some(ws), bs.as_ref()]);
    Some(Layer { kind: "Linear", parameters, work: Work::PerOutput(row(ws)) })
}

fn convolution(module: &dyn Any) -> Option<Layer> {
    macro_rules! first {
        ($($Type:ident $work:ident,)*) => {
            $(if let Some(nn::$Type { ws, bs, .. }) = module.downcast_ref() {
                let parameters = elements([Some(ws), bs.as_ref()]);
                return Some(Layer { kind: stringify!($Type), parameters, work: Work::$work(row(ws)) });
            })*
        };
    }
    // The weight of a transposed convolution has a row for each input channel.
    first! {
        Conv1D PerOutput, Conv2D PerOutput, Conv3D PerOutput,
        ConvTranspose1D PerInput, ConvTranspose2D PerInput, ConvTranspose3D PerInput,
    }
    None
}

fn other(module: &dyn Any) -> Option<Layer> {
    let layer = |kind, parameters| Some(Layer { kind, parameters, work: Work::None });
    if let Some(nn::BatchNorm { ws, bs, .. }) = module.downcast_ref() {
        return layer("BatchNorm", elements([ws.as_ref(), bs.as_ref()]));
    }
    if let Some(norm) = module.downcast_ref::<SyncBatchNorm>() {
        let nn::BatchNorm { ws, bs, .. } = norm.inner();
        return layer("SyncBatchNorm", elements([ws.as_ref(), bs.as_ref()]));
    }
    if let Some(nn::LayerNorm { ws, bs, .. }) = module.downcast_ref() {
        return layer("LayerNorm", elements([ws.as_ref(), bs.as_ref()]));
    }
    if let Some(nn::GroupNorm { ws, bs, .. }) = module.downcast_ref() {
        return layer("GroupNorm", elements([ws.as_ref(), bs.as_ref()]));
    }
    if let Some(nn::Embedding { ws, .. }) = module.downcast_ref() {
        return layer("Embedding", elements([Some(ws)]));
    }
    None
}
