//! The program of the README.

use trainer::hooks::{Checkpoint, Progress};
use trainer::prelude::*;

/// Logs the norm of all gradients. A hook is active once it is linked in, from any crate.
#[hook(every = 10)]
fn gradient_norm(cx: &Cx<BeforeOptStep>) {
    let norms: Vec<_> = cx.grads().map(|(_, grad)| grad.norm()).collect();
    cx.log("gradient_norm", Tensor::stack(&norms, 0).norm());
}

fn main() -> Result<()> {
    tch::manual_seed(1); // each start makes the same data and the same initial weights
    let inputs = Tensor::randn([512, 4], (Kind::Float, Device::Cpu));
    let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
    let mut train = InMemory::new((inputs, labels))?.batch_size(32).shuffle(1);

    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
    let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
    let mut trainer = Trainer::builder(task)
        .optimizer(AdamW::new(1e-2))
        .epochs(5)
        .auto_device() // a GPU if there is one
        .resume(Resume::Auto) // killed at any moment, it continues as if nothing had happened
        .hook(Checkpoint::new("checkpoints"))
        .hook(Progress::new())
        .build()?;
    trainer.describe_hooks().print(); // exactly what will run, in which order
    trainer.fit(&mut train, None)?;
    trainer.save_weights("weights.safetensors")
}
