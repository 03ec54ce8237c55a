//! A character-level language model: a GRU that learns to write in the style of Shakespeare's
//! sonnets.
//!
//! Its checkpoints are in `runs/char_lm`, or in the folder given as first argument. Stop it at
//! any moment, even with `kill -9`, and start it again: it resumes, and ends with the same weights,
//! bit for bit, as a run that was never stopped.

use std::path::PathBuf;

use examples::sonnets::{BOUNDARY, PADDING, Sonnets, Vocabulary};
use trainer::checkpoint::LoadWeights;
use trainer::hooks::{Amp, Checkpoint, EarlyStopping, Ema, LrSchedule, NanGuard, Progress};
use trainer::loggers::JsonLines;
use trainer::optim::Group;
use trainer::prelude::*;
use trainer::schedule::Cosine;
use trainer::tch::nn::RNN;

/// Predicts the next character of a text from those before it.
struct CharModel {
    vars: nn::VarStore,
    vocabulary: Vocabulary,
    embedding: nn::Embedding,
    gru: nn::GRU,
    head: nn::Linear,
}

impl CharModel {
    fn new(vars: nn::VarStore, vocabulary: Vocabulary) -> Self {
        let root = vars.root();
        let size = vocabulary.size();
        CharModel {
            embedding: nn::embedding(&root / "embedding", size, 32, Default::default()),
            gru: nn::gru(&root / "gru", 32, 192, Default::default()),
            head: nn::linear(&root / "head", 192, size, Default::default()),
            vars,
            vocabulary,
        }
    }

    /// Writes a text of at most `length` characters. Each character is drawn from the model's
    /// distribution, sharpened by a temperature below 1.
    fn write(&self, length: usize, temperature: f64) -> String {
        tch::no_grad(|| {
            let mut tokens = vec![BOUNDARY];
            let mut state = self.gru.zero_state(1);
            while tokens.len() <= length {
                let last = Tensor::from_slice(&tokens[tokens.len() - 1..]).to_device(self.vars.device());
                state = self.gru.step(&last.apply(&self.embedding), &state);
                let logits = state.value().view([1, -1]).apply(&self.head) / temperature;
                let next = logits.softmax(-1, Kind::Float).multinomial(1, true).int64_value(&[0, 0]);
                if next == BOUNDARY {
                    break;
                }
                tokens.push(next);
            }
            self.vocabulary.decode(&tokens)
        })
    }
}

impl Task for CharModel {
    /// Inputs and targets, both `[texts, positions]`.
    type Batch = (Tensor, Tensor);
    /// Logits: `[texts, positions, tokens]`.
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }

    fn pred(&mut self, (inputs, _): &Self::Batch, mode: Mode) -> Result<Tensor> {
        let embedded = inputs.apply(&self.embedding);
        let (hidden, _) = self.gru.seq(&embedded);
        Ok(hidden.dropout(0.3, mode == Mode::Train).apply(&self.head))
    }

    /// The mean cross-entropy over all positions that are not padding.
    fn loss(&mut self, logits: &Tensor, (_, targets): &Self::Batch) -> Result<Tensor> {
        let logits = logits.flatten(0, 1);
        let targets = targets.flatten(0, 1);
        Ok(logits.cross_entropy_loss::<Tensor>(&targets, None, Reduction::Mean, PADDING, 0.0))
    }

    /// Returns the number of positions over which the loss is a mean. With this weight, two
    /// accumulated batches match one of twice the size, and `valid/loss` is the mean over all
    /// characters, however long each text is.
    fn weight(&self, (_, targets): &Self::Batch) -> f64 {
        targets.ne(PADDING).sum(Kind::Int64).double_value(&[])
    }
}

/// Logs the perplexity of the held-out texts, `valid/perplexity`: the number of equally likely
/// characters among which the model would be as uncertain as it is on average.
#[hook(only = valid)]
fn perplexity(cx: &Cx<AfterValid>) {
    let perplexity = cx.metrics()["valid/loss"].exp();
    cx.log("perplexity", perplexity);
}

/// Logs a text that the model writes with its averaged weights, before `Ema` removes them.
#[hook(before = Ema, only = valid)]
fn sample(cx: &mut Cx<AfterValid>) -> Result<()> {
    let text = cx.task::<CharModel>()?.write(100, 0.6);
    cx.log_text("sample", text);
    Ok(())
}

/// Prints the texts of a record.
#[hook]
fn print_sample(cx: &Cx<Main<AfterRecord>>) {
    for (_, text) in cx.record().texts() {
        println!("    {}", text.replace('\n', "\n    "));
    }
}

fn main() -> Result<()> {
    tch::manual_seed(1); // for the initial weights
    tch::set_num_threads(1); // a resumed run is exact only with the same number of threads
    let folder = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("runs/char_lm"), PathBuf::from);
    let Sonnets { train, valid, vocabulary } = Sonnets::load();
    let mut train = InMemory::new(vocabulary.inputs_and_targets(&train))?.batch_size(4).shuffle(1);
    let mut valid = InMemory::new(vocabulary.inputs_and_targets(&valid))?.batch_size(28);

    let mut trainer = Trainer::builder(CharModel::new(nn::VarStore::new(Device::Cpu), vocabulary))
        // Biases and the embedding have no weight decay.
        .optimizer(
            AdamW::new(4e-3)
                .weight_decay(0.1)
                .group("*bias*", Group::new().weight_decay(0.0))
                .group("embedding.*", Group::new().weight_decay(0.0)),
        )
        .epochs(12)
        .seed(1) // for dropout and the sampled texts
        .accumulate(2)
        .clip_grad_norm(1.0)
        .resume(Resume::Auto)
        .hook(LrSchedule::new(Cosine::to(0.0).warm_up(50)))
        .hook(Amp::bf16())
        .hook(Ema::new(0.98).warm_up(true))
        .hook(NanGuard::fail())
        .hook(EarlyStopping::new("valid/perplexity", Goal::Minimize).patience(3))
        .hook(Checkpoint::new(&folder).every(Every::Steps(20)).keep_best(
            1,
            "valid/perplexity",
            Goal::Minimize,
        ))
        .hook(Progress::new())
        .hook(JsonLines::at(folder.join("records.jsonl")))
        .build()?;
    if trainer.describe_requested()? || trainer.replay_requested(&mut train, Some(&mut valid))? {
        return Ok(());
    }
    let summary = trainer.fit(&mut train, Some(&mut valid))?;
    if !trainer.is_main() {
        return Ok(()); // only rank 0 knows the checkpoints
    }

    if let Some(reason) = &summary.stopped {
        println!("stopped early: {reason}");
    }
    let best = trainer.hook::<Checkpoint>()?.best();
    let (checkpoint, perplexity) = best.ok_or_else(|| Error::msg("no checkpoint was written"))?;
    trainer.load_weights(checkpoint, &LoadWeights::new())?;
    let weights = folder.join("weights.safetensors");
    trainer.save_weights(&weights)?;
    println!("best validation perplexity {perplexity:.2}; weights in {}", weights.display());
    Ok(())
}
