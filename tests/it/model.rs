//! A model that is small, and the same each time.

use trainer::TrainerBuilder;
use trainer::prelude::*;

/// A network of two layers and cross entropy: batches of `[n, 4]` and `[n]`.
pub(crate) fn task() -> Supervised<nn::Sequential, impl Fn(&Tensor, &Tensor) -> Tensor + Send + 'static> {
    tch::set_num_threads(1); // many threads for so little, on a busy machine, are slow
    let vs = nn::VarStore::new(Device::Cpu);
    let net = net(&vs.root());
    let _guard = tch::no_grad_guard();
    for (name, mut tensor) in vs.variables() {
        let values = Tensor::arange(i64::try_from(tensor.numel()).unwrap(), (Kind::Float, Device::Cpu));
        let wave = (values + name.len() as f64).sin() * 0.3;
        tensor.copy_(&wave.view_as(&tensor));
    }
    Supervised::new(vs, net, |logits: &Tensor, labels: &Tensor| logits.cross_entropy_for_logits(labels))
}

/// A trainer of it to be: with an optimizer, and no hook but those that are added.
pub(crate) fn builder() -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    Trainer::builder(task()).optimizer(Sgd::new(0.1)).discover(Discover::None)
}

/// The text of an error, without the numbers of lines.
pub(crate) fn told(error: &impl ToString) -> String {
    let text = error.to_string();
    let mut parts = text.split(".rs:");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |told, part| told + ".rs:_" + part.trim_start_matches(|it: char| it.is_ascii_digit()))
}

fn net(root: &nn::Path<'_>) -> nn::Sequential {
    nn::seq().add(nn::linear(root / "fc1", 4, 8, Default::default())).add_fn(Tensor::relu).add(nn::linear(
        root / "fc2",
        8,
        3,
        Default::default(),
    ))
}

/// So many rows of data for it.
pub(crate) fn rows(count: i64) -> InMemory<(Tensor, Tensor)> {
    let inputs = Tensor::arange(count * 4, (Kind::Float, Device::Cpu)).view([count, 4]).sin();
    let labels = Tensor::arange(count, (Kind::Int64, Device::Cpu)).remainder(3);
    InMemory::new((inputs, labels)).unwrap().batch_size(4)
}
