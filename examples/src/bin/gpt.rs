//! A small GPT that learns to write in the style of Shakespeare's sonnets, byte by byte.
//!
//! Stop it at any time, even with `kill -9`, and start it again: it resumes, and ends with the same
//! weights, bit for bit, as a run that was never stopped. The run folder is `runs/gpt`.

use examples::text;
use trainer::MetricInputs;
use trainer::data::{IGNORED, NamedLoaders, Sequence, Sequences};
use trainer::hooks::{Amp, Checkpoint, Ema, HyperparameterSchedule, Progress};
use trainer::loggers::JsonLines;
use trainer::metrics::Perplexity;
use trainer::prelude::*;
use trainer::schedule::Cosine;

const WIDTH: i64 = 96;
const HEADS: i64 = 4;
const LENGTH: usize = 256;

struct Block([nn::LayerNorm; 2], [nn::Linear; 4]);

impl Block {
    fn new(root: &nn::Path<'_>) -> Self {
        let norm = |name| nn::layer_norm(root / name, vec![WIDTH], Default::default());
        let linear = |name, from, to| nn::linear(root / name, WIDTH * from, WIDTH * to, Default::default());
        let [qkv, out] = [linear("qkv", 1, 3), linear("out", 1, 1)];
        Block([norm("ln_1"), norm("ln_2")], [qkv, out, linear("up", 1, 4), linear("down", 4, 1)])
    }

    fn forward(&self, x: &Tensor, mask: &Tensor, is_train: bool) -> Tensor {
        let Block([ln_1, ln_2], [qkv, out, up, down]) = self;
        let heads = |x: &Tensor| x.unflatten(-1, [HEADS, -1]).transpose(1, 2);
        let qkv: Vec<Tensor> = x.apply(ln_1).apply(qkv).chunk(3, -1).iter().map(heads).collect();
        let [q, k, v] = &qkv[..] else { unreachable!("there are three chunks") };
        let seen = Tensor::scaled_dot_product_attention(q, k, v, Some(mask), 0.0, false, None, false);
        let x = x + seen.transpose(1, 2).flatten(2, 3).apply(out).dropout(0.2, is_train);
        &x + x.apply(ln_2).apply(up).gelu("tanh").apply(down).dropout(0.2, is_train)
    }
}

struct Gpt {
    vars: nn::VarStore,
    embeddings: [nn::Embedding; 2],
    blocks: Vec<Block>,
    norm: nn::LayerNorm,
    head: nn::Linear,
}

fn gpt() -> Gpt {
    let vars = nn::VarStore::new(Device::Cpu);
    let root = vars.root();
    let embedding = |name, count| nn::embedding(&root / name, count, WIDTH, Default::default());
    let embeddings = [embedding("tokens", 256), embedding("positions", LENGTH as i64)];
    let blocks = (0..3).map(|nth| Block::new(&(&root / "blocks" / nth))).collect();
    let norm = nn::layer_norm(&root / "norm", vec![WIDTH], Default::default());
    let head = nn::linear(&root / "head", WIDTH, 256, Default::default());
    Gpt { vars, embeddings, blocks, norm, head }
}

impl Task for Gpt {
    type Batch = Sequences;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, batch: &Sequences, mode: Mode) -> Result<Tensor> {
        let mask = batch.causal_mask();
        let [tokens, positions] = &self.embeddings;
        let x = batch.tokens.apply(tokens) + batch.positions.apply(positions);
        let is_train = mode == Mode::Train;
        let x = self.blocks.iter().fold(x, |x, block| block.forward(&x, &mask, is_train));
        Ok(x.apply(&self.norm).apply(&self.head))
    }
    fn loss(&mut self, logits: &Tensor, batch: &Sequences) -> Result<Tensor> {
        Ok(batch.cross_entropy(logits))
    }
    fn weight(&self, batch: &Sequences) -> f64 {
        batch.weight()
    }
    fn metric_inputs(&self) -> Option<MetricInputs<Self>> {
        Some(|_, batch, logits| Some((logits.shallow_clone(), batch.targets.shallow_clone())))
    }
}

fn main() -> Result<()> {
    tch::manual_seed(1); // for the initial weights
    let (train, valid) = text::sonnets();
    let packed = |texts: Vec<Sequence>| DataLoader::new(texts).batch_size(4).shuffle(1).pack(LENGTH);
    let mut valid = NamedLoaders::new().add("sonnets", packed(valid)).add("prose", packed(text::prose()));
    let mut trainer = Trainer::builder(gpt())
        .optimizer(AdamW::new(2e-3).weight_decay(0.1))
        .max_steps(250) // the number of packed batches in an epoch is not known
        .seed(1) // for dropout
        .auto_device()
        .clip_grad_norm(1.0)
        .run_folder("runs/gpt")
        .resume(Resume::Auto)
        .hook(HyperparameterSchedule::lr(Cosine::to(0.0).warm_up(50)))
        .hook(Amp::bf16())
        .hook(Ema::new(0.98).warm_up(true))
        .hook(Perplexity::new().ignore_index(IGNORED))
        .hook(Checkpoint::in_run_folder().keep_best(1, "valid/sonnets/perplexity", Goal::Minimize))
        .hook(JsonLines::new())
        .hook(Progress::new())
        .build()?;
    let summary = trainer.fit(&mut packed(train), Some(&mut valid))?;
    println!("perplexity of unseen sonnets: {:.2}", summary.metrics["valid/sonnets/perplexity"]);
    Ok(())
}
