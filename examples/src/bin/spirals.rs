//! The program at the end of Getting started: points on three arms of a spiral, a hook, curves, and
//! a run that can be killed and continued.

use tch::nn::Module;
use trainer::RunFolder;
use trainer::hooks::{Checkpoint, Progress};
use trainer::loggers::{Csv, TensorBoard};
use trainer::metrics::Accuracy;
use trainer::prelude::*;

/// Logs the norm of all gradients.
#[hook(every = 10)]
fn gradient_norm(cx: &Cx<BeforeOptStep>) {
    let norms: Vec<_> = cx.grads().map(|(_, grad)| grad.norm()).collect();
    cx.log("gradient_norm", Tensor::stack(&norms, 0).norm());
}

/// Returns noisy points on three arms of a spiral, and the number of the arm of each point.
fn noisy_spirals(points: i64) -> (Tensor, Tensor) {
    let options = (Kind::Float, Device::Cpu);
    let arms = Tensor::randint(3, [points], (Kind::Int64, Device::Cpu));
    let radii = Tensor::rand([points], options);
    let angles = &radii * 5.0 + &arms * 2.1 + Tensor::randn([points], options) * 0.2;
    (Tensor::stack(&[&radii * angles.cos(), &radii * angles.sin()], 1), arms)
}

fn main() -> Result<()> {
    tch::manual_seed(1);
    tch::set_num_threads(1); // the fastest for a network this small
    let mut train = InMemory::new(noisy_spirals(6000))?.batch_size(64).shuffle(1);
    let mut valid = InMemory::new(noisy_spirals(1000))?.batch_size(500);

    let vs = nn::VarStore::new(Device::Cpu);
    let root = vs.root();
    let net = nn::seq()
        .add(nn::linear(&root / "fc1", 2, 64, Default::default()))
        .add_fn(Tensor::relu)
        .add(nn::linear(&root / "fc2", 64, 64, Default::default()))
        .add_fn(Tensor::relu)
        .add(nn::linear(&root / "fc3", 64, 3, Default::default()));
    let task = Supervised::new(vs, net, |logits, arms| logits.cross_entropy_for_logits(arms));
    let mut trainer = Trainer::builder(task)
        .optimizer(AdamW::new(3e-3))
        .epochs(300)
        .auto_device()
        .run_folder(RunFolder::numbered("runs")) // runs/0001, runs/0002, …
        .resume(Resume::Auto)
        .hook(Accuracy::multiclass(3))
        .hook(Checkpoint::in_run_folder().every(Every::Steps(200)))
        .hook(TensorBoard::new())
        .hook(Csv::new())
        .hook(Progress::new())
        .build()?;
    trainer.describe_hooks().only_used().print();

    let summary = trainer.fit(&mut train, Some(&mut valid))?;
    println!("{:.1} % of the points are on the predicted arm", 100.0 * summary.metrics["valid/accuracy"]);
    trainer.save_weights("spirals.safetensors")?;

    let points = Tensor::from_slice(&[0.3_f32, 0.4, -0.1, 0.5]).view([2, 2]);
    let points = points.to_device(trainer.task().vars().device());
    let logits = tch::no_grad(|| trainer.task().net().forward(&points));
    println!("the arms of two points: {:?}", Vec::<i64>::try_from(logits.argmax(-1, false))?);
    Ok(())
}
