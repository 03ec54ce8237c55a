//! BERT (Devlin et al., 2018), with the variable names of `BertForMaskedLM` and
//! `BertForSequenceClassification`.

use std::path::Path;

use serde::{Deserialize, Serialize};
use trainer::checkpoint::LoadWeights;
use trainer::modules::{self, Name, Named};
use trainer::prelude::*;
use trainer::tch::nn::ModuleT;

use crate::Activation;
use crate::config::{check_dropout, check_sizes, read};
use crate::layers::{
    attention_mask, embedding, join_heads, layer_norm, layers, linear, normal, positions, split_heads,
};

/// The configuration of a BERT. The fields are named as in `config.json`. The default is
/// [`base`](BertConfig::base).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct BertConfig {
    /// The number of different tokens.
    pub vocab_size: i64,
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
    /// The dropout probability before the classifier; `None` means `hidden_dropout_prob`.
    pub classifier_dropout: Option<f64>,
    /// The maximum length of a sequence, in tokens.
    pub max_position_embeddings: i64,
    /// The number of segment types, for example 2 for the two sentences of a pair.
    pub type_vocab_size: i64,
    /// The ε of each layer norm.
    pub layer_norm_eps: f64,
    /// The standard deviation of the initial weights. With 0, all of them are 0, which is the
    /// fastest option for a model whose weights are then loaded.
    pub initializer_range: f64,
    /// The padding token, whose embedding starts at 0 and is not trained. `None` means that there
    /// is no such token.
    pub pad_token_id: Option<i64>,
    /// The number of classes of a classifier. In a file, this is the number of names in `id2label`.
    pub num_labels: i64,
}

impl BertConfig {
    /// Returns the configuration of the published `google-bert/bert-base-uncased`, which has 110
    /// million parameters.
    #[must_use]
    pub fn base() -> Self {
        BertConfig {
            vocab_size: 30522,
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            hidden_act: Activation::Gelu,
            hidden_dropout_prob: 0.1,
            attention_probs_dropout_prob: 0.1,
            classifier_dropout: None,
            max_position_embeddings: 512,
            type_vocab_size: 2,
            layer_norm_eps: 1e-12,
            initializer_range: 0.02,
            pad_token_id: Some(0),
            num_labels: 2,
        }
    }

    /// Returns the configuration of the published `google-bert/bert-large-uncased`, which has 335
    /// million parameters.
    #[must_use]
    pub fn large() -> Self {
        BertConfig {
            hidden_size: 1024,
            num_hidden_layers: 24,
            num_attention_heads: 16,
            intermediate_size: 4096,
            ..BertConfig::base()
        }
    }

    /// Sets the number of classes of a classifier.
    #[must_use]
    pub fn classes(self, classes: i64) -> Self {
        BertConfig { num_labels: classes, ..self }
    }

    /// Sets every dropout probability.
    #[must_use]
    pub fn dropout(self, probability: f64) -> Self {
        BertConfig {
            hidden_dropout_prob: probability,
            attention_probs_dropout_prob: probability,
            classifier_dropout: None,
            ..self
        }
    }

    /// Reads the `config.json` of a published BERT.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, belongs to a different kind of model, or needs
    /// a feature that these models do not have.
    pub fn from_json(path: impl AsRef<Path>) -> Result<Self> {
        let fixed = [
            ("add_cross_attention", false.into()),
            ("is_decoder", false.into()),
            ("position_embedding_type", "absolute".into()),
            ("tie_word_embeddings", true.into()),
        ];
        read(path.as_ref(), "bert", &fixed, BertConfig::check)
    }

    fn check(&self) -> Result<()> {
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("intermediate_size", self.intermediate_size),
            ("max_position_embeddings", self.max_position_embeddings),
            ("type_vocab_size", self.type_vocab_size),
            ("num_labels", self.num_labels),
        ];
        check_sizes(&sizes, self.hidden_size, self.num_attention_heads)?;
        if let Some(padding) = self.pad_token_id.filter(|padding| !(0..self.vocab_size).contains(padding)) {
            return Err(Error::msg(format!(
                "`pad_token_id` is {padding}: expected at least 0 and less than `vocab_size`, {}",
                self.vocab_size
            )));
        }
        check_dropout(&[
            ("hidden_dropout_prob", self.hidden_dropout_prob),
            ("attention_probs_dropout_prob", self.attention_probs_dropout_prob),
            ("classifier_dropout", self.classifier_dropout.unwrap_or(0.0)),
        ])
    }

    fn linear(&self, path: nn::Path<'_>, inputs: i64, outputs: i64) -> Named<nn::Linear> {
        linear(path, inputs, outputs, self.initializer_range)
    }

    fn norm(&self, path: nn::Path<'_>) -> Named<nn::LayerNorm> {
        layer_norm(path, self.hidden_size, self.layer_norm_eps)
    }
}

impl Default for BertConfig {
    fn default() -> Self {
        BertConfig::base()
    }
}

/// The input of a BERT. Only the token IDs, `[batch, time]`, are required.
#[derive(Debug, Batch)]
pub struct Text {
    /// The token IDs, `[batch, time]`.
    pub ids: Tensor,
    /// The tokens that may be attended to: `[batch, time]`, with 0 for padding, or
    /// `[batch, 1, time, time]` for packed sequences. Defaults to all tokens.
    pub mask: Option<Tensor>,
    /// The segment types of the tokens, `[batch, time]`: 0 in the first sentence of a pair, 1 in
    /// the second. Defaults to 0.
    pub types: Option<Tensor>,
    /// The positions of the tokens in their sequences, `[batch, time]`. Defaults to `0..time`.
    pub positions: Option<Tensor>,
}

impl From<Tensor> for Text {
    /// Creates the input from sequences of token IDs without padding.
    fn from(ids: Tensor) -> Self {
        Text { ids, mask: None, types: None, positions: None }
    }
}

/// The modules `bert.embeddings.*`.
#[derive(Debug)]
struct Embeddings {
    name: Name,
    words: Named<nn::Embedding>,
    positions: Named<nn::Embedding>,
    types: Named<nn::Embedding>,
    norm: Named<nn::LayerNorm>,
    limit: i64,
    dropout: f64,
}

impl Embeddings {
    fn new(path: &nn::Path<'_>, config: &BertConfig) -> Self {
        let (width, stdev) = (config.hidden_size, config.initializer_range);
        let padding = config.pad_token_id;
        let words = modules::named(path / "word_embeddings", |path| {
            let padding_idx = padding.unwrap_or(-1);
            let options = nn::EmbeddingConfig { ws_init: normal(stdev), padding_idx, ..Default::default() };
            nn::embedding(path, config.vocab_size, width, options)
        });
        if let Some(padding) = padding {
            let _no_grad = tch::no_grad_guard();
            let _ = words.ws.get(padding).zero_();
        }
        Embeddings {
            name: path.into(),
            words,
            positions: embedding(path / "position_embeddings", config.max_position_embeddings, width, stdev),
            types: embedding(path / "token_type_embeddings", config.type_vocab_size, width, stdev),
            norm: config.norm(path / "LayerNorm"),
            limit: config.max_position_embeddings,
            dropout: config.hidden_dropout_prob,
        }
    }

    fn forward(&self, text: &Text, train: bool) -> Tensor {
        self.name.run(&text.ids, |ids| {
            let time = *ids.size().get(1).expect("token ids are [batch, time]");
            let positions = match &text.positions {
                Some(positions) => positions.shallow_clone(),
                None => positions(0, time, self.limit, ids.device()),
            };
            let types = match &text.types {
                Some(types) => types.shallow_clone(),
                None => ids.zeros_like(),
            };
            let sum = ids.apply(&self.words) + types.apply(&self.types) + positions.apply(&self.positions);
            sum.apply(&self.norm).dropout(self.dropout, train)
        })
    }
}

/// One of the layers `bert.encoder.layer.*`.
#[derive(Debug)]
struct Layer {
    name: Name,
    attention: Attention,
    intermediate: Named<nn::Linear>,
    activation: Activation,
    output: Output,
}

/// The self-attention of a layer.
#[derive(Debug)]
struct Attention {
    name: Name,
    heads: i64,
    query: Named<nn::Linear>,
    key: Named<nn::Linear>,
    value: Named<nn::Linear>,
    output: Output,
    dropout: f64,
}

/// The end of a residual branch: a linear layer, dropout, the sum and a layer norm.
#[derive(Debug)]
struct Output {
    name: Name,
    dense: Named<nn::Linear>,
    norm: Named<nn::LayerNorm>,
    dropout: f64,
}

impl Output {
    fn new(path: &nn::Path<'_>, inputs: i64, config: &BertConfig) -> Self {
        Output {
            name: path.into(),
            dense: config.linear(path / "dense", inputs, config.hidden_size),
            norm: config.norm(path / "LayerNorm"),
            dropout: config.hidden_dropout_prob,
        }
    }

    fn forward(&self, branch: &Tensor, xs: &Tensor, train: bool) -> Tensor {
        self.name.run(branch, |branch| {
            (branch.apply(&self.dense).dropout(self.dropout, train) + xs).apply(&self.norm)
        })
    }
}

impl Attention {
    fn new(path: &nn::Path<'_>, config: &BertConfig) -> Self {
        let width = config.hidden_size;
        let part = |name| config.linear(path / "self" / name, width, width);
        Attention {
            name: path.into(),
            heads: config.num_attention_heads,
            query: part("query"),
            key: part("key"),
            value: part("value"),
            output: Output::new(&(path / "output"), width, config),
            dropout: config.attention_probs_dropout_prob,
        }
    }

    fn forward(&self, xs: &Tensor, mask: Option<&Tensor>, train: bool) -> Tensor {
        self.name.run(xs, |xs| {
            let [queries, keys, values] =
                [&self.query, &self.key, &self.value].map(|part| split_heads(&xs.apply(part), self.heads));
            let dropout = if train { self.dropout } else { 0.0 };
            let mixed = Tensor::scaled_dot_product_attention(
                &queries, &keys, &values, mask, dropout, false, None, false,
            );
            self.output.forward(&join_heads(&mixed), xs, train)
        })
    }
}

impl Layer {
    fn new(path: &nn::Path<'_>, config: &BertConfig) -> Self {
        let inner = config.intermediate_size;
        Layer {
            name: path.into(),
            attention: Attention::new(&(path / "attention"), config),
            intermediate: config.linear(path / "intermediate" / "dense", config.hidden_size, inner),
            activation: config.hidden_act,
            output: Output::new(&(path / "output"), inner, config),
        }
    }

    fn forward(&self, xs: &Tensor, mask: Option<&Tensor>, train: bool) -> Tensor {
        self.name.run(xs, |xs| {
            let xs = self.attention.forward(xs, mask, train);
            let branch = self.activation.apply(&xs.apply(&self.intermediate));
            self.output.forward(&branch, &xs, train)
        })
    }
}

/// The encoder that the tasks share: the modules `bert.*`, without the pooler.
#[derive(Debug)]
struct Encoder {
    embeddings: Embeddings,
    layers: Vec<Layer>,
}

impl Encoder {
    fn new(path: &nn::Path<'_>, config: &BertConfig) -> Self {
        if let Err(error) = config.check() {
            panic!("{error}");
        }
        let layers = path / "encoder" / "layer";
        Encoder {
            embeddings: Embeddings::new(&(path / "embeddings"), config),
            layers: (0..config.num_hidden_layers).map(|nth| Layer::new(&(&layers / nth), config)).collect(),
        }
    }

    fn layers(&self, head: &str) -> Vec<String> {
        layers("bert.embeddings.*", "bert.encoder.layer", self.layers.len(), head)
    }

    /// Returns the hidden states, `[batch, time, width]`.
    fn forward(&self, text: &Text, train: bool) -> Tensor {
        let mask = text.mask.as_ref().map(attention_mask);
        let embedded = self.embeddings.forward(text, train);
        self.layers.iter().fold(embedded, |xs, layer| layer.forward(&xs, mask.as_ref(), train))
    }
}

/// Maps a name in a published file to the name of our variable: adds the prefix `bert.` where it is
/// missing, and replaces names of the first implementation.
fn current_name(name: &str) -> String {
    let name = match name.rsplit_once('.') {
        Some((path, "gamma")) => format!("{path}.weight"),
        Some((path, "beta")) => format!("{path}.bias"),
        _ => name.to_owned(),
    };
    if ["bert.", "cls.", "classifier."].iter().any(|prefix| name.starts_with(prefix)) {
        name
    } else {
        format!("bert.{name}")
    }
}

/// A BERT that predicts the tokens that were replaced by `[MASK]`. As a [`ModuleT`], it maps token
/// IDs `[batch, time]` to logits `[batch, time, vocab_size]`.
///
/// Its variables have the names of `BertForMaskedLM` in `transformers`, such as
/// `bert.encoder.layer.0.attention.self.query.weight`. The output layer uses the weights of the
/// embedding. Its modules are named like these variables: `bert.embeddings`, the layers
/// `bert.encoder.layer.0` …, each with `attention` (`attention.self.query`, `key`, `value`,
/// `attention.output`), `intermediate.dense` and `output`, then `cls.predictions.transform` and
/// `cls.predictions.decoder`.
///
/// The loss is [`loss::cross_entropy`](crate::loss::cross_entropy), with labels that are
/// [`IGNORED`](crate::loss::IGNORED) for tokens that were not replaced.
#[derive(Debug)]
pub struct BertMaskedLm {
    bert: Encoder,
    transform: Name,
    dense: Named<nn::Linear>,
    activation: Activation,
    norm: Named<nn::LayerNorm>,
    decoder: Name,
    bias: Tensor,
}

impl BertMaskedLm {
    /// Creates a BERT with random weights, usually at the root of a `VarStore`.
    ///
    /// # Panics
    ///
    /// Panics if a size of the configuration is not positive, if the number of heads does not
    /// divide the width, or if a dropout probability is not in `0..1`.
    #[must_use]
    pub fn new(path: &nn::Path<'_>, config: &BertConfig) -> Self {
        let bert = Encoder::new(&(path / "bert"), config);
        let head = path / "cls" / "predictions";
        let transform = &head / "transform";
        BertMaskedLm {
            bert,
            dense: config.linear(&transform / "dense", config.hidden_size, config.hidden_size),
            activation: config.hidden_act,
            norm: config.norm(&transform / "LayerNorm"),
            transform: transform.into(),
            decoder: (&head / "decoder").into(),
            bias: head.zeros("bias", &[config.vocab_size]),
        }
    }

    /// Returns the patterns of the layers' parameters, from the first layer to the last, for
    /// layer-wise learning rates: `AdamW::new(1e-4).layer_decay(0.75, bert.layers())`.
    #[must_use]
    pub fn layers(&self) -> Vec<String> {
        self.bert.layers("cls.*")
    }

    /// Returns options that load the file of a published BERT into a model at the root of a
    /// `VarStore`. They skip the pooler, the classifier of sentence pairs and copies of tied
    /// weights, and accept names of older files (`LayerNorm.gamma`) and files without the prefix
    /// `bert.`. Such files have no `cls.predictions.*`, and therefore need `.partial(true)`.
    #[must_use]
    pub fn published() -> LoadWeights<'static> {
        LoadWeights::new().rename(|name| {
            let name = current_name(name);
            let unused = ["bert.pooler.", "cls.seq_relationship.", "cls.predictions.decoder.", "classifier."];
            let is_unused =
                name.ends_with(".position_ids") || unused.iter().any(|part| name.starts_with(part));
            (!is_unused).then_some(name)
        })
    }

    /// Returns the logits, `[batch, time, vocab_size]`.
    ///
    /// # Panics
    ///
    /// Panics if the sequences are longer than `max_position_embeddings` or if a shape does not
    /// fit, and on the CPU if a token is out of range.
    pub fn forward(&self, text: &Text, train: bool) -> Tensor {
        let hidden = self.transform.run(&self.bert.forward(text, train), |xs| {
            self.activation.apply(&xs.apply(&self.dense)).apply(&self.norm)
        });
        let words = &self.bert.embeddings.words.ws;
        self.decoder.run(&hidden, |xs| xs.linear(words, Some(&self.bias)))
    }
}

impl ModuleT for BertMaskedLm {
    fn forward_t(&self, ids: &Tensor, train: bool) -> Tensor {
        self.forward(&Text::from(ids.shallow_clone()), train)
    }
}

/// A BERT that classifies sequences or pairs of sequences. As a [`ModuleT`], it maps token IDs
/// `[batch, time]` to logits `[batch, num_labels]`.
///
/// Its variables have the names of `BertForSequenceClassification` in `transformers`. Its modules
/// are those of [`BertMaskedLm`], with `bert.pooler` and `classifier` instead of `cls.*`.
///
/// ```
/// use models::bert::{BertClassifier, BertConfig, Text};
/// use trainer::prelude::*;
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let sizes = BertConfig { hidden_size: 16, num_attention_heads: 2, ..BertConfig::base() };
/// let config = BertConfig { num_hidden_layers: 1, ..sizes }.classes(3);
/// let bert = BertClassifier::new(&vs.root(), &config);
/// let ids = Tensor::from_slice(&[101i64, 7592, 102, 0, 0]).unsqueeze(0);
/// let text = Text { mask: Some(ids.ne(0)), ..ids.into() };
/// assert_eq!(bert.forward(&text, false).size(), [1, 3]);
/// ```
#[derive(Debug)]
pub struct BertClassifier {
    bert: Encoder,
    pooler: Name,
    dense: Named<nn::Linear>,
    classifier: Named<nn::Linear>,
    dropout: f64,
}

impl BertClassifier {
    /// Creates a BERT with random weights, usually at the root of a `VarStore`.
    ///
    /// # Panics
    ///
    /// Panics if a size of the configuration is not positive, if the number of heads does not
    /// divide the width, or if a dropout probability is not in `0..1`.
    #[must_use]
    pub fn new(path: &nn::Path<'_>, config: &BertConfig) -> Self {
        let bert = Encoder::new(&(path / "bert"), config);
        let pooler = path / "bert" / "pooler";
        BertClassifier {
            bert,
            dense: config.linear(&pooler / "dense", config.hidden_size, config.hidden_size),
            pooler: pooler.into(),
            classifier: config.linear(path / "classifier", config.hidden_size, config.num_labels),
            dropout: config.classifier_dropout.unwrap_or(config.hidden_dropout_prob),
        }
    }

    /// Returns the patterns of the layers' parameters, from the first layer to the last, for
    /// layer-wise learning rates: `AdamW::new(1e-4).layer_decay(0.75, bert.layers())`.
    #[must_use]
    pub fn layers(&self) -> Vec<String> {
        self.bert.layers("classifier.*")
    }

    /// Returns options that load the file of a published classifier into a model at the root of a
    /// `VarStore`. They accept files with and without the prefix `bert.`, and names of older files
    /// (`LayerNorm.gamma`). A published language model has no classifier, and therefore needs
    /// `.partial(true)`: the report then lists the classifier as missing.
    #[must_use]
    pub fn published() -> LoadWeights<'static> {
        LoadWeights::new().rename(|name| {
            let name = current_name(name);
            let is_unused = name.ends_with(".position_ids") || name.starts_with("cls.");
            (!is_unused).then_some(name)
        })
    }

    /// Returns the logits, `[batch, num_labels]`.
    ///
    /// # Panics
    ///
    /// Panics if the sequences are longer than `max_position_embeddings` or if a shape does not
    /// fit, and on the CPU if a token is out of range.
    pub fn forward(&self, text: &Text, train: bool) -> Tensor {
        let hidden = self.bert.forward(text, train);
        let pooled = self.pooler.run(&hidden, |xs| xs.select(1, 0).apply(&self.dense).tanh());
        pooled.dropout(self.dropout, train).apply(&self.classifier)
    }
}

impl ModuleT for BertClassifier {
    fn forward_t(&self, ids: &Tensor, train: bool) -> Tensor {
        self.forward(&Text::from(ids.shallow_clone()), train)
    }
}
