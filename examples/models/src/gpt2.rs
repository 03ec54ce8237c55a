//! GPT-2 (Radford et al., 2019), with the variable names of `GPT2LMHeadModel`.

use std::path::Path;

use serde::{Deserialize, Serialize};
use trainer::checkpoint::LoadWeights;
use trainer::losses::Head;
use trainer::modules::{self, Name, Named};
use trainer::prelude::*;
use trainer::tch::nn::{Init, ModuleT};

use crate::Activation;
use crate::config::{check_dropout, check_sizes, read};
use crate::layers::{
    attention_mask, embedding, join_heads, layer_norm, layers, normal, positions, split_heads,
};

/// The configuration of a GPT-2. The fields are named as in `config.json`. The default is
/// [`small`](Gpt2Config::small).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Gpt2Config {
    /// The number of different tokens.
    pub vocab_size: i64,
    /// The maximum length of a sequence, in tokens.
    pub n_positions: i64,
    /// The width of the hidden states.
    pub n_embd: i64,
    /// The number of blocks.
    pub n_layer: i64,
    /// The number of attention heads of each block. It must divide the width.
    pub n_head: i64,
    /// The width inside each block's MLP; `None` means four times `n_embd`.
    pub n_inner: Option<i64>,
    /// The activation function of each block's MLP.
    pub activation_function: Activation,
    /// The dropout probability at the end of each residual branch.
    pub resid_pdrop: f64,
    /// The dropout probability of the embeddings.
    pub embd_pdrop: f64,
    /// The dropout probability of the attention weights.
    pub attn_pdrop: f64,
    /// The ε of each layer norm.
    pub layer_norm_epsilon: f64,
    /// The standard deviation of the initial weights. With 0, all of them are 0, which is the
    /// fastest option for a model whose weights are then loaded.
    pub initializer_range: f64,
}

impl Gpt2Config {
    /// Returns the configuration of the published `openai-community/gpt2`, which has 124 million
    /// parameters.
    #[must_use]
    pub fn small() -> Self {
        Gpt2Config {
            vocab_size: 50257,
            n_positions: 1024,
            n_embd: 768,
            n_layer: 12,
            n_head: 12,
            n_inner: None,
            activation_function: Activation::GeluNew,
            resid_pdrop: 0.1,
            embd_pdrop: 0.1,
            attn_pdrop: 0.1,
            layer_norm_epsilon: 1e-5,
            initializer_range: 0.02,
        }
    }

    /// Returns the configuration of the published `openai-community/gpt2-medium`, which has 355
    /// million parameters.
    #[must_use]
    pub fn medium() -> Self {
        Gpt2Config { n_embd: 1024, n_layer: 24, n_head: 16, ..Gpt2Config::small() }
    }

    /// Returns the configuration of the published `openai-community/gpt2-large`, which has 774
    /// million parameters.
    #[must_use]
    pub fn large() -> Self {
        Gpt2Config { n_embd: 1280, n_layer: 36, n_head: 20, ..Gpt2Config::small() }
    }

    /// Returns the configuration of the published `openai-community/gpt2-xl`, which has 1.6 billion
    /// parameters.
    #[must_use]
    pub fn xl() -> Self {
        Gpt2Config { n_embd: 1600, n_layer: 48, n_head: 25, ..Gpt2Config::small() }
    }

    /// Returns the configuration of the published `distilbert/distilgpt2`, which has 82 million
    /// parameters.
    #[must_use]
    pub fn distil() -> Self {
        Gpt2Config { n_layer: 6, ..Gpt2Config::small() }
    }

    /// Sets every dropout probability.
    #[must_use]
    pub fn dropout(self, probability: f64) -> Self {
        Gpt2Config { resid_pdrop: probability, embd_pdrop: probability, attn_pdrop: probability, ..self }
    }

    /// Reads the `config.json` of a published GPT-2.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, belongs to a different kind of model, or needs
    /// a feature that [`Gpt2`] does not have.
    pub fn from_json(path: impl AsRef<Path>) -> Result<Self> {
        let fixed = [
            ("add_cross_attention", false.into()),
            ("scale_attn_by_inverse_layer_idx", false.into()),
            ("scale_attn_weights", true.into()),
            ("tie_word_embeddings", true.into()),
        ];
        read(path.as_ref(), "gpt2", &fixed, Gpt2Config::check)
    }

    fn check(&self) -> Result<()> {
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("n_positions", self.n_positions),
            ("n_embd", self.n_embd),
            ("n_layer", self.n_layer),
            ("n_head", self.n_head),
            ("n_inner", self.n_inner.unwrap_or(1)),
        ];
        check_sizes(&sizes, self.n_embd, self.n_head)?;
        check_dropout(&[
            ("resid_pdrop", self.resid_pdrop),
            ("embd_pdrop", self.embd_pdrop),
            ("attn_pdrop", self.attn_pdrop),
        ])
    }
}

impl Default for Gpt2Config {
    fn default() -> Self {
        Gpt2Config::small()
    }
}

/// A linear layer whose weight has the shape `[inputs, outputs]`, like `Conv1D` in `transformers`.
#[derive(Debug)]
pub struct Conv1d {
    /// The weight, `[inputs, outputs]`.
    pub weight: Tensor,
    /// The bias, `[outputs]`.
    pub bias: Tensor,
}

impl Conv1d {
    fn named(path: nn::Path<'_>, inputs: i64, outputs: i64, stdev: f64) -> Named<Self> {
        modules::named(path, |path| Conv1d {
            weight: path.var("weight", &[inputs, outputs], normal(stdev)),
            bias: path.var("bias", &[outputs], Init::Const(0.0)),
        })
    }
}

impl nn::Module for Conv1d {
    fn forward(&self, xs: &Tensor) -> Tensor {
        xs.linear(&self.weight.tr(), Some(&self.bias))
    }
}

/// The keys and values of the tokens that a [`Gpt2`] has read, for [`Gpt2::forward_cached`].
#[derive(Debug, Default)]
pub struct Cache {
    /// The keys and values of each block, `[batch, heads, time, width / heads]`.
    blocks: Vec<Option<(Tensor, Tensor)>>,
}

impl Cache {
    /// Creates an empty cache.
    #[must_use]
    pub fn new() -> Self {
        Cache::default()
    }

    /// Returns the number of tokens in the cache.
    #[must_use]
    pub fn time(&self) -> i64 {
        self.blocks.first().and_then(Option::as_ref).map_or(0, |(keys, _)| keys.size()[2])
    }
}

/// The tokens that a token attends to.
enum Attended {
    /// Itself and earlier tokens.
    Causal,
    /// All tokens.
    All,
    /// Tokens that are `true` in a mask that broadcasts to `[batch, heads, new, time]`.
    Masked(Tensor),
}

/// The causal self-attention of a block.
#[derive(Debug)]
struct Attention {
    name: Name,
    heads: i64,
    c_attn: Named<Conv1d>,
    c_proj: Named<Conv1d>,
    attention_dropout: f64,
    dropout: f64,
}

impl Attention {
    fn new(path: &nn::Path<'_>, config: &Gpt2Config) -> Self {
        let width = config.n_embd;
        Attention {
            name: path.into(),
            heads: config.n_head,
            c_attn: Conv1d::named(path / "c_attn", width, 3 * width, config.initializer_range),
            c_proj: Conv1d::named(path / "c_proj", width, width, residual_stdev(config)),
            attention_dropout: config.attn_pdrop,
            dropout: config.resid_pdrop,
        }
    }

    /// Maps `[batch, time, width]` to the same shape. Adds keys and values to the cache, if there
    /// is one.
    fn forward(
        &self,
        xs: &Tensor,
        attended: &Attended,
        cache: Option<&mut Option<(Tensor, Tensor)>>,
        train: bool,
    ) -> Tensor {
        self.name.run(xs, |xs| {
            let parts = xs.apply(&self.c_attn).chunk(3, 2);
            let [queries, mut keys, mut values] = [0, 1, 2].map(|nth| split_heads(&parts[nth], self.heads));
            if let Some(cache) = cache {
                if let Some((old_keys, old_values)) = cache.take() {
                    keys = Tensor::cat(&[old_keys, keys], 2);
                    values = Tensor::cat(&[old_values, values], 2);
                }
                *cache = Some((keys.shallow_clone(), values.shallow_clone()));
            }
            let (mask, is_causal) = match attended {
                Attended::Causal => (None, true),
                Attended::All => (None, false),
                Attended::Masked(mask) => (Some(mask), false),
            };
            let dropout = if train { self.attention_dropout } else { 0.0 };
            let mixed = Tensor::scaled_dot_product_attention(
                &queries, &keys, &values, mask, dropout, is_causal, None, false,
            );
            join_heads(&mixed).apply(&self.c_proj).dropout(self.dropout, train)
        })
    }
}

/// The MLP of a block.
#[derive(Debug)]
struct Mlp {
    c_fc: Named<Conv1d>,
    c_proj: Named<Conv1d>,
    activation: Activation,
    dropout: f64,
}

impl Mlp {
    fn named(path: nn::Path<'_>, config: &Gpt2Config) -> modules::NamedT<Self> {
        let width = config.n_embd;
        let inner = config.n_inner.unwrap_or(4 * width);
        modules::named_t(path, |path| Mlp {
            c_fc: Conv1d::named(path / "c_fc", width, inner, config.initializer_range),
            c_proj: Conv1d::named(path / "c_proj", inner, width, residual_stdev(config)),
            activation: config.activation_function,
            dropout: config.resid_pdrop,
        })
    }
}

impl ModuleT for Mlp {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        self.activation.apply(&xs.apply(&self.c_fc)).apply(&self.c_proj).dropout(self.dropout, train)
    }
}

/// One of the blocks `transformer.h.*`.
#[derive(Debug)]
struct Block {
    name: Name,
    ln_1: Named<nn::LayerNorm>,
    attn: Attention,
    ln_2: Named<nn::LayerNorm>,
    mlp: modules::NamedT<Mlp>,
}

impl Block {
    fn new(path: &nn::Path<'_>, config: &Gpt2Config) -> Self {
        let norm = |name| layer_norm(path / name, config.n_embd, config.layer_norm_epsilon);
        Block {
            name: path.into(),
            ln_1: norm("ln_1"),
            attn: Attention::new(&(path / "attn"), config),
            ln_2: norm("ln_2"),
            mlp: Mlp::named(path / "mlp", config),
        }
    }

    fn forward(
        &self,
        xs: &Tensor,
        attended: &Attended,
        cache: Option<&mut Option<(Tensor, Tensor)>>,
        train: bool,
    ) -> Tensor {
        self.name.run(xs, |xs| {
            let xs = xs + self.attn.forward(&xs.apply(&self.ln_1), attended, cache, train);
            let mlp = xs.apply(&self.ln_2).apply_t(&self.mlp, train);
            xs + mlp
        })
    }
}

/// Returns the standard deviation of the initial weights at the end of a residual branch. It is the
/// standard deviation of other weights, divided by the square root of the number of branches
/// (Radford et al., 2019, section 2.3).
fn residual_stdev(config: &Gpt2Config) -> f64 {
    config.initializer_range / (2.0 * config.n_layer as f64).sqrt()
}

/// A GPT-2, which predicts each token of a text from the previous tokens. As a [`ModuleT`], it maps
/// token IDs `[batch, time]` to logits `[batch, time, vocab_size]`.
///
/// Its variables have the names of `GPT2LMHeadModel` in `transformers`, such as
/// `transformer.h.0.attn.c_attn.weight`. The output layer has no weights of its own; it uses those
/// of the embedding `transformer.wte`. Its modules are named like these variables:
/// `transformer.wte`, `transformer.wpe`, `transformer.drop`, the blocks `transformer.h.0` …, each
/// with `ln_1`, `attn` (`c_attn`, `c_proj`), `ln_2` and `mlp` (`c_fc`, `c_proj`), then
/// `transformer.ln_f` and `lm_head`.
///
/// ```
/// use models::{Gpt2, Gpt2Config, loss};
/// use trainer::prelude::*;
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let sizes = Gpt2Config { n_embd: 16, n_layer: 2, n_head: 2, ..Gpt2Config::small() };
/// let config = Gpt2Config { vocab_size: 256, ..sizes };
/// let gpt2 = Gpt2::new(&vs.root(), &config);
/// let tokens = Tensor::from_slice(b"to be or not").to_kind(Kind::Int64).unsqueeze(0);
/// let logits = tokens.apply_t(&gpt2, false);
/// assert_eq!(logits.size(), [1, 12, 256]);
/// let loss = loss::next_token(&logits, &tokens);
/// # assert!((loss.double_value(&[]) - 256f64.ln()).abs() < 0.5);
/// ```
#[derive(Debug)]
pub struct Gpt2 {
    config: Gpt2Config,
    wte: Named<nn::Embedding>,
    wpe: Named<nn::Embedding>,
    drop: Name,
    blocks: Vec<Block>,
    ln_f: Named<nn::LayerNorm>,
    lm_head: Name,
}

impl Gpt2 {
    /// Creates a GPT-2 with random weights, usually at the root of a `VarStore`.
    ///
    /// # Panics
    ///
    /// Panics if a size of the configuration is not positive, if the number of heads does not
    /// divide the width, or if a dropout probability is not in `0..1`.
    #[must_use]
    pub fn new(path: &nn::Path<'_>, config: &Gpt2Config) -> Self {
        if let Err(error) = config.check() {
            panic!("{error}");
        }
        let root = path / "transformer";
        let stdev = config.initializer_range;
        Gpt2 {
            wte: embedding(&root / "wte", config.vocab_size, config.n_embd, stdev),
            wpe: embedding(&root / "wpe", config.n_positions, config.n_embd, stdev),
            drop: (&root / "drop").into(),
            blocks: (0..config.n_layer).map(|nth| Block::new(&(&root / "h" / nth), config)).collect(),
            ln_f: layer_norm(&root / "ln_f", config.n_embd, config.layer_norm_epsilon),
            lm_head: (path / "lm_head").into(),
            config: config.clone(),
        }
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> &Gpt2Config {
        &self.config
    }

    /// Returns the patterns of the layers' parameters, from the first layer to the last, for
    /// layer-wise learning rates: `AdamW::new(1e-4).layer_decay(0.75, gpt2.layers())`.
    #[must_use]
    pub fn layers(&self) -> Vec<String> {
        layers("transformer.w?e.*", "transformer.h", self.blocks.len(), "transformer.ln_f.*")
    }

    /// Returns the device of the weights.
    pub(crate) fn device(&self) -> Device {
        self.wte.ws.device()
    }

    /// Returns options that load the file of a published GPT-2 into a model at the root of a
    /// `VarStore`. They accept files with and without the prefix `transformer.`, and skip a copy of
    /// the tied output layer and the masks that older versions of `transformers` saved as buffers
    /// (`attn.bias`, `attn.masked_bias`).
    #[must_use]
    pub fn published() -> LoadWeights<'static> {
        LoadWeights::new().rename(|name| {
            let is_unused = [".attn.bias", ".attn.masked_bias"].iter().any(|mask| name.ends_with(mask));
            match name {
                "lm_head.weight" => None,
                _ if is_unused => None,
                _ if name.starts_with("transformer.") => Some(name.to_owned()),
                _ => Some(format!("transformer.{name}")),
            }
        })
    }

    /// Returns the logits `[batch, time, vocab_size]` for token IDs `[batch, time]`.
    ///
    /// `positions`, `[batch, time]` or `[1, time]`, contains the positions of the tokens in their
    /// sequences. It defaults to `0..time`. No token attends to a later token; `mask` further
    /// restricts which tokens may be attended to. The shape of `mask` is `[batch, time]` for
    /// padding, or `[batch, 1, time, time]` for packed sequences. Its elements are booleans, or
    /// numbers that are nonzero for tokens that may be attended to.
    ///
    /// ```
    /// # use models::{Gpt2, Gpt2Config};
    /// # use trainer::prelude::*;
    /// # let vs = nn::VarStore::new(Device::Cpu);
    /// # let sizes = Gpt2Config { n_embd: 16, n_layer: 2, n_head: 2, ..Gpt2Config::small() };
    /// # let config = Gpt2Config { vocab_size: 256, ..sizes };
    /// # let gpt2 = Gpt2::new(&vs.root(), &config);
    /// // Two sequences of 3 and 2 tokens in one row.
    /// let ids = Tensor::from_slice(&[10i64, 11, 12, 20, 21]).unsqueeze(0);
    /// let positions = Tensor::from_slice(&[0i64, 1, 2, 0, 1]).unsqueeze(0);
    /// let sequence = Tensor::from_slice(&[0i64, 0, 0, 1, 1]).unsqueeze(0);
    /// let mask = sequence.unsqueeze(2).eq_tensor(&sequence.unsqueeze(1)).unsqueeze(1);
    /// let logits = gpt2.forward(&ids, Some(&positions), Some(&mask), false);
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if the sequences are longer than `n_positions` or if a shape does not fit, and on the
    /// CPU if a token or a position is out of range.
    pub fn forward(
        &self,
        ids: &Tensor,
        positions: Option<&Tensor>,
        mask: Option<&Tensor>,
        train: bool,
    ) -> Tensor {
        self.logits(&self.hidden(ids, positions, &attended(ids, mask), None, train))
    }

    /// Returns the output before the last layer, whose loss needs no logits, for the arguments of
    /// [`forward`](Gpt2::forward). The module `lm_head` is not called.
    ///
    /// ```
    /// # use models::{Gpt2, Gpt2Config};
    /// # use trainer::prelude::*;
    /// # let vs = nn::VarStore::new(Device::Cpu);
    /// # let sizes = Gpt2Config { n_embd: 16, n_layer: 2, n_head: 2, ..Gpt2Config::small() };
    /// # let config = Gpt2Config { vocab_size: 256, ..sizes };
    /// # let gpt2 = Gpt2::new(&vs.root(), &config);
    /// let tokens = Tensor::from_slice(b"to be or not").to_kind(Kind::Int64).unsqueeze(0);
    /// let head = gpt2.head(&tokens.narrow(1, 0, 11), None, None, true);
    /// let loss = head.cross_entropy(&tokens.narrow(1, 1, 11))?;
    /// # Ok::<(), trainer::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// As [`forward`](Gpt2::forward).
    pub fn head(&self, ids: &Tensor, positions: Option<&Tensor>, mask: Option<&Tensor>, train: bool) -> Head {
        Head::new(self.hidden(ids, positions, &attended(ids, mask), None, train), &self.wte.ws)
    }

    /// Returns the logits for new token IDs, which follow the tokens in the cache, and adds the new
    /// tokens to the cache. The logits are equal to those that [`forward`](Gpt2::forward) returns
    /// for the new tokens as part of the whole sequence.
    ///
    /// # Panics
    ///
    /// Panics if the sequences become longer than `n_positions`, or if the cache belongs to a
    /// different number of sequences.
    pub fn forward_cached(&self, ids: &Tensor, cache: &mut Cache) -> Tensor {
        let past = cache.time();
        let new = ids.size()[1];
        let attended = if past == 0 {
            Attended::Causal
        } else if new == 1 {
            Attended::All
        } else {
            Attended::Masked(Tensor::ones([new, past + new], (Kind::Bool, ids.device())).tril(past))
        };
        self.logits(&self.hidden(ids, None, &attended, Some(cache), false))
    }

    fn logits(&self, hidden: &Tensor) -> Tensor {
        self.lm_head.run(hidden, |xs| xs.linear::<&Tensor>(&self.wte.ws, None))
    }

    fn hidden(
        &self,
        ids: &Tensor,
        given: Option<&Tensor>,
        attended: &Attended,
        mut cache: Option<&mut Cache>,
        train: bool,
    ) -> Tensor {
        let time = *ids.size().get(1).expect("token ids are [batch, time]");
        let past = cache.as_ref().map_or(0, |cache| cache.time());
        let positions = match given {
            Some(positions) => positions.shallow_clone(),
            None => positions(past, time, self.config.n_positions, ids.device()),
        };
        let embedded = ids.apply(&self.wte) + positions.apply(&self.wpe);
        let mut hidden = self.drop.run(&embedded, |xs| xs.dropout(self.config.embd_pdrop, train));
        if let Some(cache) = &mut cache {
            cache.blocks.resize_with(self.blocks.len(), || None);
        }
        for (nth, block) in self.blocks.iter().enumerate() {
            let cache = cache.as_mut().map(|cache| &mut cache.blocks[nth]);
            hidden = block.forward(&hidden, attended, cache, train);
        }
        hidden.apply(&self.ln_f)
    }
}

/// Returns the tokens that a token attends to: not to a later one, nor to one that a mask excludes.
fn attended(ids: &Tensor, mask: Option<&Tensor>) -> Attended {
    let Some(mask) = mask else { return Attended::Causal };
    let time = ids.size()[1];
    let causal = Tensor::ones([time, time], (Kind::Bool, ids.device())).tril(0);
    Attended::Masked(attention_mask(mask).logical_and(&causal))
}

impl ModuleT for Gpt2 {
    fn forward_t(&self, ids: &Tensor, train: bool) -> Tensor {
        self.forward(ids, None, None, train)
    }
}
