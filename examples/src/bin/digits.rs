//! Classifies handwritten digits with an MLP, with hooks from this file and from another crate.

use digits_hooks as _; // links the crate, which makes its hooks active
use examples::digits::Digits;
use examples::per_class;
use trainer::RunFolder;
use trainer::hooks::{HyperparameterSchedule, Progress};
use trainer::loggers::{Csv, TensorBoard};
use trainer::metrics::{Accuracy, Metric, Precision};
use trainer::prelude::*;
use trainer::schedule::Cosine;

/// Records the gradient of one parameter over time.
struct GradientMonitor {
    parameter: String,
    history: Vec<f64>,
}

#[hook(ord = 10)]
impl GradientMonitor {
    fn new(parameter: impl Into<String>) -> Self {
        GradientMonitor { parameter: parameter.into(), history: Vec::new() }
    }

    /// Records the mean magnitude of the gradient, and logs its distribution.
    fn after_backward(&mut self, cx: &Cx<AfterBackward>) -> Result<()> {
        let grad = cx.grad(&self.parameter)?;
        self.history.push(grad.abs().mean(Kind::Float).double_value(&[]));
        cx.log_histogram(format!("gradient/{}", self.parameter), grad);
        Ok(())
    }

    /// Prints the first and the last recorded value.
    #[hook(ord = 90)]
    fn after_fit(&mut self, _: &Cx<Main<AfterFit>>) {
        if let [first, .., last] = self.history[..] {
            println!(
                "mean gradient of {}: {first:.1e} in the first batch, {last:.1e} in the last",
                self.parameter
            );
        }
    }
}

fn mlp(root: &nn::Path<'_>) -> nn::SequentialT {
    nn::seq_t()
        .add(nn::linear(root / "fc1", 64, 256, Default::default()))
        .add_fn_t(|hidden, train| hidden.relu().dropout(0.3, train))
        .add(nn::linear(root / "fc2", 256, 10, Default::default()))
}

fn main() -> Result<()> {
    tch::manual_seed(1);
    tch::set_num_threads(1); // the fastest for a network this small
    let (train, valid) = Digits::load()?;
    let mut train = InMemory::new((train.images, train.labels))?.batch_size(32).shuffle(1);
    let mut valid = InMemory::new((valid.images, valid.labels))?.batch_size(128);

    let vs = nn::VarStore::new(Device::Cpu);
    let net = mlp(&vs.root());
    let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
    let mut trainer = Trainer::builder(task)
        .optimizer(AdamW::new(5e-3))
        .epochs(20)
        .auto_device()
        .run_folder(RunFolder::numbered("runs"))
        .record_every(Every::Steps(20))
        .hyperparameter("hidden units", 256)
        .require_crate("digits_hooks")
        .hook(HyperparameterSchedule::lr(Cosine::to(0.0).warm_up(50)))
        .hook(GradientMonitor::new("fc1.weight"))
        .hook(Accuracy::multiclass(10).per_class(true))
        .hook(Precision::multiclass(10).per_class(true))
        .hook(Progress::new())
        .hook(TensorBoard::new())
        .hook(Csv::new())
        .build()?;
    if trainer.describe_requested()? || trainer.replay_requested(&mut train, Some(&mut valid))? {
        return Ok(()); // with TRAINER_DESCRIBE=full, for example
    }
    if trainer.is_main() {
        trainer.describe_hooks().only_used().print();
    }

    let summary = trainer.fit(&mut train, Some(&mut valid))?;
    if !trainer.is_main() {
        return Ok(()); // only one process prints the results
    }
    let accuracy = summary.metrics["valid/accuracy"];
    let loss = summary.metrics["valid/loss"];
    println!("validation set: accuracy {:.2} %, loss {loss:.4}", 100.0 * accuracy);
    println!("\n{}", per_class::table(&summary.metrics, "valid", &["accuracy", "precision"], 10));
    println!("curves: pip install tensorboard, then tensorboard --logdir runs");
    Ok(())
}
