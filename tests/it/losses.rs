//! The loss of a linear layer without its logits: compared with PyTorch, and in training.

use std::collections::HashMap;

use trainer::data::{IGNORED, Sequence, Sequences};
use trainer::losses::{Head, LinearCrossEntropy, linear_cross_entropy};
use trainer::metrics::Perplexity;
use trainer::prelude::*;
use trainer::{MetricInputs, Summary};

#[test]
fn the_loss_and_its_gradients_are_those_of_pytorch() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/reference/linear_cross_entropy.safetensors");
    let reference: HashMap<String, Tensor> = Tensor::read_safetensors(path).unwrap().into_iter().collect();
    let class_weights = &reference["class_weights"];
    for (case, has_bias, is_weighted, smoothing) in [
        ("plain", false, false, 0.0),
        ("bias", true, false, 0.0),
        ("smoothed", false, false, 0.1),
        ("weighted", false, true, 0.0),
        ("all", true, true, 0.1),
    ] {
        let [hidden, weight, bias] =
            ["hidden", "weight", "bias"].map(|name| reference[name].copy().set_requires_grad(true));
        let mut how = LinearCrossEntropy::new().label_smoothing(smoothing);
        if has_bias {
            how = how.bias(&bias);
        }
        if is_weighted {
            how = how.class_weights(class_weights);
        }
        let loss = linear_cross_entropy(&hidden, &weight, &reference["targets"], &how).unwrap();
        loss.backward();
        let own =
            [("loss", &loss), ("hidden", &hidden.grad()), ("weight", &weight.grad()), ("bias", &bias.grad())]
                .map(|(name, own)| (name, own.shallow_clone()));
        for (name, own) in own.into_iter().filter(|(name, _)| *name != "bias" || has_bias) {
            let difference = (own - &reference[&format!("{case}.{name}")]).abs().max().double_value(&[]);
            assert!(difference < 1e-12, "{case}, {name}: {difference}");
        }
    }
}

/// A language model whose last layer uses the weights of its first one.
struct Model {
    vars: nn::VarStore,
    embedding: nn::Embedding,
}

impl Model {
    fn new() -> Self {
        tch::manual_seed(1);
        let vars = nn::VarStore::new(Device::Cpu);
        let embedding = nn::embedding(vars.root() / "embedding", 40, 8, Default::default());
        Model { vars, embedding }
    }
}

/// The model with whole logits.
struct Whole(Model);

/// The model without logits.
struct ByHead(Model);

impl Task for Whole {
    type Batch = Sequences;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.0.vars
    }
    fn pred(&mut self, batch: &Sequences, _: Mode) -> Result<Tensor> {
        Ok(batch.tokens.apply(&self.0.embedding).tanh().linear::<&Tensor>(&self.0.embedding.ws, None))
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

impl Task for ByHead {
    type Batch = Sequences;
    type Pred = Head;

    fn vars(&self) -> &nn::VarStore {
        &self.0.vars
    }
    fn pred(&mut self, batch: &Sequences, _: Mode) -> Result<Head> {
        Ok(Head::new(batch.tokens.apply(&self.0.embedding).tanh(), &self.0.embedding.ws))
    }
    fn loss(&mut self, head: &Head, batch: &Sequences) -> Result<Tensor> {
        head.cross_entropy(&batch.targets)
    }
    fn weight(&self, batch: &Sequences) -> f64 {
        batch.weight()
    }
    fn metric_inputs(&self) -> Option<MetricInputs<Self>> {
        Some(|_, batch, head| Some((head.token_losses()?, batch.targets.shallow_clone())))
    }
}

/// Trains with accumulation over batches of different weights, and validates. Returns the summary
/// and the embedding.
fn trained<T: Task<Batch = Sequences>>(task: T, perplexity: Perplexity) -> (Summary, Tensor) {
    let rows = |seed: i64| -> Vec<Sequence> {
        (0..12)
            .map(|row| Sequence::new((0..3 + row % 5).map(|nth| (seed + row * nth) % 40).collect()))
            .collect()
    };
    let mut trainer = Trainer::builder(task)
        .optimizer(AdamW::new(1e-2))
        .epochs(3)
        .accumulate(2)
        .discover(Discover::None)
        .hook(perplexity.ignore_index(IGNORED))
        .build()
        .unwrap();
    let mut train = DataLoader::new(rows(7)).batch_size(3);
    let mut valid = DataLoader::new(rows(5)).batch_size(5);
    let summary = trainer.fit(&mut train, Some(&mut valid)).unwrap();
    (summary, trainer.vars().get("embedding.weight").unwrap())
}

#[test]
fn a_task_without_logits_trains_like_one_with_them() {
    let (whole, of_whole) = trained(Whole(Model::new()), Perplexity::new());
    let (head, of_head) = trained(ByHead(Model::new()), Perplexity::new().of_token_losses());
    assert!((of_whole - of_head).abs().max().double_value(&[]) < 1e-5);
    for name in ["train/loss", "valid/loss", "valid/perplexity"] {
        let (whole, head) = (whole.metrics[name], head.metrics[name]);
        assert!((whole - head).abs() < 1e-4 * whole, "{name}: {whole} and {head}");
    }
}
