//! The Vision Transformer (Dosovitskiy et al., 2020), with the variable names of
//! `ViTForImageClassification`.

use std::path::Path;

use serde::{Deserialize, Serialize};
use trainer::checkpoint::LoadWeights;
use trainer::modules::{self, Name, Named};
use trainer::prelude::*;
use trainer::tch::nn::{Init, ModuleT};

use crate::Activation;
use crate::config::{check_dropout, check_sizes, read};
use crate::layers::{join_heads, layer_norm, layers, linear, linear_with, normal, split_heads};

/// The configuration of a ViT. The fields are named as in `config.json`. The default is
/// [`base_16_224`](VitConfig::base_16_224) with 2 classes, as in `transformers`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct VitConfig {
    /// The height and width of an image, in pixels. The size of a patch must divide it.
    pub image_size: i64,
    /// The height and width of a patch, in pixels.
    pub patch_size: i64,
    /// The number of channels of an image.
    pub num_channels: i64,
    /// The width of the hidden states.
    pub hidden_size: i64,
    /// The number of layers.
    pub num_hidden_layers: i64,
    /// The number of attention heads of each layer. It must divide the width.
    pub num_attention_heads: i64,
    /// The width inside each layer's MLP.
    pub intermediate_size: i64,
    /// The activation function of each layer's MLP.
    pub hidden_act: Activation,
    /// The dropout probability of the embeddings, and at the end of each residual branch.
    pub hidden_dropout_prob: f64,
    /// The dropout probability of the attention weights.
    pub attention_probs_dropout_prob: f64,
    /// The ε of each layer norm.
    pub layer_norm_eps: f64,
    /// The standard deviation of the initial weights. With 0, all of them are 0, which is the
    /// fastest option for a model whose weights are then loaded.
    pub initializer_range: f64,
    /// Whether queries, keys and values have a bias.
    pub qkv_bias: bool,
    /// The number of classes. In a file, this is the number of names in `id2label`.
    pub num_labels: i64,
}

impl VitConfig {
    /// Returns the configuration of the published `google/vit-base-patch16-224`. It has 86 million
    /// parameters and the 1000 classes of ImageNet.
    #[must_use]
    pub fn base_16_224() -> Self {
        VitConfig {
            image_size: 224,
            patch_size: 16,
            num_channels: 3,
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            hidden_act: Activation::Gelu,
            hidden_dropout_prob: 0.0,
            attention_probs_dropout_prob: 0.0,
            layer_norm_eps: 1e-12,
            initializer_range: 0.02,
            qkv_bias: true,
            num_labels: 1000,
        }
    }

    /// Returns the configuration of the published `google/vit-large-patch16-224`. It has 304
    /// million parameters and the 1000 classes of ImageNet.
    #[must_use]
    pub fn large_16_224() -> Self {
        VitConfig {
            hidden_size: 1024,
            num_hidden_layers: 24,
            num_attention_heads: 16,
            intermediate_size: 4096,
            ..VitConfig::base_16_224()
        }
    }

    /// Returns the configuration of the published `WinKawaks/vit-tiny-patch16-224`. It has 5.7
    /// million parameters and the 1000 classes of ImageNet.
    #[must_use]
    pub fn tiny_16_224() -> Self {
        VitConfig {
            hidden_size: 192,
            num_attention_heads: 3,
            intermediate_size: 768,
            ..VitConfig::base_16_224()
        }
    }

    /// Sets the number of classes.
    #[must_use]
    pub fn classes(self, classes: i64) -> Self {
        VitConfig { num_labels: classes, ..self }
    }

    /// Sets every dropout probability.
    #[must_use]
    pub fn dropout(self, probability: f64) -> Self {
        VitConfig { hidden_dropout_prob: probability, attention_probs_dropout_prob: probability, ..self }
    }

    /// Reads the `config.json` of a published ViT.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, belongs to a different kind of model, or needs
    /// a feature that [`Vit`] does not have.
    pub fn from_json(path: impl AsRef<Path>) -> Result<Self> {
        read(path.as_ref(), "vit", &[], VitConfig::check)
    }

    fn check(&self) -> Result<()> {
        let sizes = [
            ("image_size", self.image_size),
            ("patch_size", self.patch_size),
            ("num_channels", self.num_channels),
            ("hidden_size", self.hidden_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("intermediate_size", self.intermediate_size),
            ("num_labels", self.num_labels),
        ];
        check_sizes(&sizes, self.hidden_size, self.num_attention_heads)?;
        let (image, patch) = (self.image_size, self.patch_size);
        if image % patch != 0 {
            return Err(Error::msg(format!(
                "`image_size`, {image}, is not a multiple of `patch_size`, {patch}"
            )));
        }
        check_dropout(&[
            ("hidden_dropout_prob", self.hidden_dropout_prob),
            ("attention_probs_dropout_prob", self.attention_probs_dropout_prob),
        ])
    }

    fn linear(&self, path: nn::Path<'_>, inputs: i64, outputs: i64) -> Named<nn::Linear> {
        linear(path, inputs, outputs, self.initializer_range)
    }

    fn norm(&self, path: nn::Path<'_>) -> Named<nn::LayerNorm> {
        layer_norm(path, self.hidden_size, self.layer_norm_eps)
    }
}

impl Default for VitConfig {
    fn default() -> Self {
        VitConfig::base_16_224().classes(2)
    }
}

/// The modules `vit.embeddings.*`.
#[derive(Debug)]
struct Embeddings {
    name: Name,
    class: Tensor,
    positions: Tensor,
    projection: Named<nn::Conv2D>,
    image: [i64; 3],
    dropout: f64,
}

impl Embeddings {
    fn new(path: &nn::Path<'_>, config: &VitConfig) -> Self {
        let (width, patch) = (config.hidden_size, config.patch_size);
        let patches = (config.image_size / patch).pow(2);
        // `transformers` truncates these at ±2, which is a hundred standard deviations away.
        let init = normal(config.initializer_range);
        let options =
            nn::ConvConfig { stride: patch, ws_init: init, bs_init: Init::Const(0.0), ..Default::default() };
        Embeddings {
            name: path.into(),
            class: path.var("cls_token", &[1, 1, width], init),
            positions: path.var("position_embeddings", &[1, patches + 1, width], init),
            projection: modules::named(path / "patch_embeddings" / "projection", |path| {
                nn::conv2d(path, config.num_channels, width, patch, options)
            }),
            image: [config.num_channels, config.image_size, config.image_size],
            dropout: config.hidden_dropout_prob,
        }
    }

    fn forward(&self, images: &Tensor, train: bool) -> Tensor {
        let size = images.size();
        assert!(
            size.len() == 4 && size[1..] == self.image,
            "images have the shape {size:?}: expected [batch, {}, {}, {}]",
            self.image[0],
            self.image[1],
            self.image[2]
        );
        self.name.run(images, |images| {
            let patches = images.apply(&self.projection).flatten(2, 3).transpose(1, 2);
            let class = self.class.expand([size[0], -1, -1], false);
            (Tensor::cat(&[class, patches], 1) + &self.positions).dropout(self.dropout, train)
        })
    }
}

/// The self-attention of a layer.
#[derive(Debug)]
struct Attention {
    name: Name,
    heads: i64,
    query: Named<nn::Linear>,
    key: Named<nn::Linear>,
    value: Named<nn::Linear>,
    output: Named<nn::Linear>,
    attention_dropout: f64,
    dropout: f64,
}

impl Attention {
    fn new(path: &nn::Path<'_>, config: &VitConfig) -> Self {
        let width = config.hidden_size;
        let stdev = config.initializer_range;
        let part = |name| linear_with(path / "attention" / name, width, width, stdev, config.qkv_bias);
        Attention {
            name: path.into(),
            heads: config.num_attention_heads,
            query: part("query"),
            key: part("key"),
            value: part("value"),
            output: config.linear(path / "output" / "dense", width, width),
            attention_dropout: config.attention_probs_dropout_prob,
            dropout: config.hidden_dropout_prob,
        }
    }
}

impl Attention {
    fn forward(&self, xs: &Tensor, train: bool) -> Tensor {
        self.name.run(xs, |xs| {
            let [queries, keys, values] =
                [&self.query, &self.key, &self.value].map(|part| split_heads(&xs.apply(part), self.heads));
            let dropout = if train { self.attention_dropout } else { 0.0 };
            let mixed = Tensor::scaled_dot_product_attention::<&Tensor>(
                &queries, &keys, &values, None, dropout, false, None, false,
            );
            join_heads(&mixed).apply(&self.output).dropout(self.dropout, train)
        })
    }
}

/// One of the layers `vit.encoder.layer.*`.
#[derive(Debug)]
struct Layer {
    name: Name,
    before: Named<nn::LayerNorm>,
    attention: Attention,
    after: Named<nn::LayerNorm>,
    intermediate: Named<nn::Linear>,
    activation: Activation,
    output: Named<nn::Linear>,
    dropout: f64,
}

impl Layer {
    fn new(path: &nn::Path<'_>, config: &VitConfig) -> Self {
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        Layer {
            name: path.into(),
            before: config.norm(path / "layernorm_before"),
            attention: Attention::new(&(path / "attention"), config),
            after: config.norm(path / "layernorm_after"),
            intermediate: config.linear(path / "intermediate" / "dense", width, inner),
            activation: config.hidden_act,
            output: config.linear(path / "output" / "dense", inner, width),
            dropout: config.hidden_dropout_prob,
        }
    }

    fn forward(&self, xs: &Tensor, train: bool) -> Tensor {
        self.name.run(xs, |xs| {
            let xs = xs + self.attention.forward(&xs.apply(&self.before), train);
            let inner = self.activation.apply(&xs.apply(&self.after).apply(&self.intermediate));
            xs + inner.apply(&self.output).dropout(self.dropout, train)
        })
    }
}

/// A Vision Transformer that classifies images. As a [`ModuleT`], it maps images
/// `[batch, channels, height, width]` to logits `[batch, num_labels]`. The published models expect
/// values from -1 to 1.
///
/// Its variables have the names that published files of `ViTForImageClassification` in
/// `transformers` use, such as `vit.encoder.layer.0.attention.attention.query.weight`. Its modules
/// are named like these variables: `vit.embeddings`, the layers `vit.encoder.layer.0` …, each with
/// `layernorm_before`, `attention` (`attention.attention.query`, `key`, `value`,
/// `attention.output.dense`), `layernorm_after`, `intermediate.dense` and `output.dense`, then
/// `vit.layernorm` and `classifier`.
///
/// ```
/// use models::{Vit, VitConfig};
/// use trainer::prelude::*;
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let small = VitConfig {
///     image_size: 8,
///     patch_size: 4,
///     hidden_size: 16,
///     num_hidden_layers: 2,
///     num_attention_heads: 2,
///     intermediate_size: 32,
///     ..VitConfig::base_16_224()
/// };
/// let vit = Vit::new(&vs.root(), &small.classes(10));
/// let images = Tensor::zeros([2, 3, 8, 8], (Kind::Float, Device::Cpu));
/// assert_eq!(images.apply_t(&vit, false).size(), [2, 10]);
/// ```
#[derive(Debug)]
pub struct Vit {
    embeddings: Embeddings,
    layers: Vec<Layer>,
    norm: Named<nn::LayerNorm>,
    classifier: Named<nn::Linear>,
}

impl Vit {
    /// Creates a ViT with random weights, usually at the root of a `VarStore`.
    ///
    /// # Panics
    ///
    /// Panics if a size of the configuration is not positive, if the number of heads does not
    /// divide the width, if the patch size does not divide the image size, or if a dropout
    /// probability is not in `0..1`.
    #[must_use]
    pub fn new(path: &nn::Path<'_>, config: &VitConfig) -> Self {
        if let Err(error) = config.check() {
            panic!("{error}");
        }
        let root = path / "vit";
        let layers = &root / "encoder" / "layer";
        Vit {
            embeddings: Embeddings::new(&(&root / "embeddings"), config),
            layers: (0..config.num_hidden_layers).map(|nth| Layer::new(&(&layers / nth), config)).collect(),
            norm: config.norm(&root / "layernorm"),
            classifier: config.linear(path / "classifier", config.hidden_size, config.num_labels),
        }
    }

    /// Returns the patterns of the layers' parameters, from the first layer to the last, for
    /// layer-wise learning rates: `AdamW::new(1e-4).layer_decay(0.75, vit.layers())`.
    #[must_use]
    pub fn layers(&self) -> Vec<String> {
        layers("vit.embeddings.*", "vit.encoder.layer", self.layers.len(), "classifier.*")
    }

    /// Returns options that load the file of a published ViT into a model at the root of a
    /// `VarStore`. They accept files with and without the prefix `vit.`, and skip the pooler and
    /// the mask token. The file of a model that was not trained to classify has no classifier, and
    /// therefore needs `.partial(true)`. A different number of classes needs
    /// `.skip_mismatched(true)`.
    #[must_use]
    pub fn published() -> LoadWeights<'static> {
        LoadWeights::new().rename(|name| {
            let name = if name.starts_with("vit.") || name.starts_with("classifier.") {
                name.to_owned()
            } else {
                format!("vit.{name}")
            };
            let is_unused = name.starts_with("vit.pooler.") || name == "vit.embeddings.mask_token";
            (!is_unused).then_some(name)
        })
    }
}

impl ModuleT for Vit {
    fn forward_t(&self, images: &Tensor, train: bool) -> Tensor {
        let embedded = self.embeddings.forward(images, train);
        let hidden = self.layers.iter().fold(embedded, |xs, layer| layer.forward(&xs, train));
        hidden.apply(&self.norm).select(1, 0).apply(&self.classifier)
    }
}
