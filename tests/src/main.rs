//! A program that does not name the library of its package, which has the same name.
//! `it/discovery.rs` runs it.

use trainer::prelude::*;

/// A hook of the program.
#[hook]
fn after_fit(_: &mut Cx<AfterFit>) {}

fn main() {
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::linear(vs.root(), 1, 1, Default::default());
    let task =
        Supervised::new(vs, net, |pred: &Tensor, target: &Tensor| pred.mse_loss(target, Reduction::Mean));
    let built = Trainer::builder(task).optimizer(Sgd::new(0.1)).require_crate(env!("CARGO_PKG_NAME")).build();
    match built {
        Ok(trainer) => println!("{}", trainer.describe_hooks()),
        Err(error) => println!("{error}"),
    }
}
