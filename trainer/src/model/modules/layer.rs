//! [`Layer`]: the parameters of tch's layers.

use std::any::Any;

use tch::{Tensor, nn};

use crate::distributed::SyncBatchNorm;

/// The description of a tch layer or [`SyncBatchNorm`] inside a named module: its kind and its
/// number of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    kind: &'static str,
    parameters: u64,
}

impl Layer {
    /// Returns the description of the module, or `None` if it is neither a supported tch layer nor
    /// `SyncBatchNorm`.
    pub(super) fn of(module: &dyn Any) -> Option<Self> {
        macro_rules! first {
            ($($Type:ident: $ws:ident $bs:ident,)*) => {
                $(if let Some(nn::$Type { ws, bs, .. }) = module.downcast_ref() {
                    return Layer::new(stringify!($Type), elements([first!(@ $ws ws), first!(@ $bs bs)]));
                })*
            };
            (@ tensor $tensor:ident) => { Some($tensor) };
            (@ option $tensor:ident) => { $tensor.as_ref() };
        }
        first! {
            Linear: tensor option,
            Conv1D: tensor option, Conv2D: tensor option, Conv3D: tensor option,
            ConvTranspose1D: tensor option, ConvTranspose2D: tensor option, ConvTranspose3D: tensor option,
            BatchNorm: option option, LayerNorm: option option, GroupNorm: option option,
        }
        if let Some(norm) = module.downcast_ref::<SyncBatchNorm>() {
            let nn::BatchNorm { ws, bs, .. } = norm.inner();
            return Layer::new("SyncBatchNorm", elements([ws.as_ref(), bs.as_ref()]));
        }
        let nn::Embedding { ws, .. } = module.downcast_ref()?;
        Layer::new("Embedding", elements([Some(ws)]))
    }

    #[expect(clippy::unnecessary_wraps, reason = "the result of `of`")]
    fn new(kind: &'static str, parameters: u64) -> Option<Self> {
        Some(Layer { kind, parameters })
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
}

/// Returns the total number of elements of the tensors.
fn elements<'a>(tensors: impl IntoIterator<Item = Option<&'a Tensor>>) -> u64 {
    tensors.into_iter().flatten().map(|tensor| tensor.numel() as u64).sum()
}
