//! A first program: a small network learns the sine function from noisy samples.

use trainer::hooks::Progress;
use trainer::prelude::*;

/// Logs the largest error of each pass over the validation set, as `valid/largest_error`.
#[hook(only = valid)]
fn largest_error(cx: &Cx<AfterStep>) -> Result<()> {
    let (_, targets) = cx.batch::<(Tensor, Tensor)>()?;
    let error = (cx.pred::<Tensor>()? - targets).abs().max();
    cx.log_as("largest_error", error, Reduce::Max);
    Ok(())
}

fn main() -> Result<()> {
    tch::manual_seed(1);
    tch::set_num_threads(1); // the fastest for a network this small
    let inputs = Tensor::rand([4000, 1], (Kind::Float, Device::Cpu)) * 6.0 - 3.0;
    let targets = inputs.sin() + inputs.randn_like() * 0.1;
    let mut train = InMemory::new((inputs, targets))?.batch_size(32).shuffle(1);
    let inputs = Tensor::linspace(-3.0, 3.0, 101, (Kind::Float, Device::Cpu)).unsqueeze(1);
    let mut valid = InMemory::new((inputs.copy(), inputs.sin()))?.batch_size(101); // without noise

    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::seq_t()
        .add(nn::linear(vs.root() / "fc1", 1, 32, Default::default()))
        .add_fn(Tensor::tanh)
        .add(nn::linear(vs.root() / "fc2", 32, 1, Default::default()));
    let task = Supervised::new(vs, net, |outputs, targets| outputs.mse_loss(targets, Reduction::Mean));
    let mut trainer = Trainer::builder(task)
        .optimizer(AdamW::new(0.01))
        .epochs(10)
        .auto_device()
        .hook(Progress::new())
        .build()?;

    let summary = trainer.fit(&mut train, Some(&mut valid))?;
    println!("largest error for inputs from -3 to 3: {:.3}", summary.metrics["valid/largest_error"]);
    Ok(())
}
