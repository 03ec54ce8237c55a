//! The layers that several models share.

use serde::{Deserialize, Serialize};
use trainer::modules::{self, Named};
use trainer::prelude::*;
use trainer::tch::nn::Init;

/// The activation function between the two linear layers of an MLP, named as in `config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// The exact GELU, `x Φ(x)`.
    Gelu,
    /// The approximation of GELU with `tanh`, as in GPT-2.
    #[serde(alias = "gelu_pytorch_tanh")]
    GeluNew,
    /// `max(x, 0)`.
    Relu,
}

impl Activation {
    pub(crate) fn apply(self, xs: &Tensor) -> Tensor {
        match self {
            Activation::Gelu => xs.gelu("none"),
            Activation::GeluNew => xs.gelu("tanh"),
            Activation::Relu => xs.relu(),
        }
    }
}

/// Returns a normal distribution around 0, or zeros for a `stdev` of 0, which is much faster.
pub(crate) fn normal(stdev: f64) -> Init {
    if stdev == 0.0 { Init::Const(0.0) } else { Init::Randn { mean: 0.0, stdev } }
}

/// Creates a linear layer with weights from a normal distribution, and a bias of 0.
pub(crate) fn linear(path: nn::Path<'_>, inputs: i64, outputs: i64, stdev: f64) -> Named<nn::Linear> {
    linear_with(path, inputs, outputs, stdev, true)
}

/// Like [`linear`], but the bias is optional.
pub(crate) fn linear_with(
    path: nn::Path<'_>,
    inputs: i64,
    outputs: i64,
    stdev: f64,
    bias: bool,
) -> Named<nn::Linear> {
    let config = nn::LinearConfig { ws_init: normal(stdev), bs_init: Some(Init::Const(0.0)), bias };
    modules::named(path, |path| nn::linear(path, inputs, outputs, config))
}

/// Creates a layer norm over the last dimension.
pub(crate) fn layer_norm(path: nn::Path<'_>, width: i64, eps: f64) -> Named<nn::LayerNorm> {
    let config = nn::LayerNormConfig { eps, ..Default::default() };
    modules::named(path, |path| nn::layer_norm(path, vec![width], config))
}

/// Creates an embedding with weights from a normal distribution.
pub(crate) fn embedding(path: nn::Path<'_>, count: i64, width: i64, stdev: f64) -> Named<nn::Embedding> {
    let config = nn::EmbeddingConfig { ws_init: normal(stdev), ..Default::default() };
    modules::named(path, |path| nn::embedding(path, count, width, config))
}

/// Splits `[batch, time, width]` into `[batch, heads, time, width / heads]`.
pub(crate) fn split_heads(xs: &Tensor, heads: i64) -> Tensor {
    let (batch, time, width) = xs.size3().expect("the input of attention is [batch, time, width]");
    xs.view([batch, time, heads, width / heads]).transpose(1, 2)
}

/// Undoes [`split_heads`].
pub(crate) fn join_heads(xs: &Tensor) -> Tensor {
    xs.transpose(1, 2).flatten(2, 3)
}

/// Returns a mask as booleans, `[batch, 1 or heads, 1 or time, time]`, with `true` for tokens that
/// may be attended to.
///
/// # Panics
///
/// Panics if the mask has neither 2 nor 4 dimensions.
pub(crate) fn attention_mask(mask: &Tensor) -> Tensor {
    let mask = mask.to_kind(Kind::Bool);
    match mask.dim() {
        2 => mask.unsqueeze(1).unsqueeze(1),
        4 => mask,
        _ => panic!(
            "the attention mask has the shape {:?}: expected [batch, time] or [batch, 1, time, time]",
            mask.size()
        ),
    }
}

/// Returns the positions `start..start + time` as `[1, time]`.
///
/// # Panics
///
/// Panics if they exceed the `limit` positions of a model.
pub(crate) fn positions(start: i64, time: i64, limit: i64, device: Device) -> Tensor {
    assert!(
        start + time <= limit,
        "a sequence of {} tokens is longer than the {limit} positions of the model: shorten it",
        start + time
    );
    Tensor::arange_start(start, start + time, (Kind::Int64, device)).unsqueeze(0)
}

/// Lists the patterns of a model's parameters, from its embeddings to its head.
pub(crate) fn layers(embeddings: &str, blocks: &str, count: usize, head: &str) -> Vec<String> {
    let blocks = (0..count).map(|nth| format!("{blocks}.{nth}.*"));
    std::iter::once(embeddings.to_owned()).chain(blocks).chain([head.to_owned()]).collect()
}
