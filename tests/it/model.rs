//! A small model with fixed weights, and data for it.

use trainer::TrainerBuilder;
use trainer::moment::{MomentInfo, MomentKind};
use trainer::prelude::*;

use crate::support::device;

/// Returns a task: a network of two layers with cross entropy. Its batches are inputs `[n, 4]` and
/// labels `[n]`.
pub(crate) fn task() -> Supervised<nn::Sequential, impl Fn(&Tensor, &Tensor) -> Tensor + Send + 'static> {
    with_net(net, |logits: &Tensor, labels: &Tensor| logits.cross_entropy_for_logits(labels))
}

/// Returns [`task`] with its first layer as the named module `fc1`.
pub(crate) fn named_task() -> Supervised<nn::Sequential, impl Fn(&Tensor, &Tensor) -> Tensor + Send + 'static>
{
    named_task_with(|logits, labels| logits.cross_entropy_for_logits(labels))
}

/// Returns [`named_task`] with this loss function.
pub(crate) fn named_task_with<L>(loss: L) -> Supervised<nn::Sequential, L>
where
    L: Fn(&Tensor, &Tensor) -> Tensor + Send + 'static,
{
    let net: fn(&nn::Path<'_>) -> nn::Sequential = |root| {
        let fc1 = nn::linear(root / "fc1", 4, 8, Default::default()).named(root / "fc1");
        nn::seq().add(fc1).add_fn(Tensor::relu).add(nn::linear(root / "fc2", 8, 3, Default::default()))
    };
    with_net(net, loss)
}

fn with_net<L>(net: fn(&nn::Path<'_>) -> nn::Sequential, loss: L) -> Supervised<nn::Sequential, L>
where
    L: Fn(&Tensor, &Tensor) -> Tensor + Send + 'static,
{
    tch::set_num_threads(1); // more threads slow down a model of this size
    let vs = nn::VarStore::new(device());
    let net = net(&vs.root());
    let _guard = tch::no_grad_guard();
    for (name, mut tensor) in vs.variables() {
        let values = Tensor::arange(i64::try_from(tensor.numel()).unwrap(), (Kind::Float, device()));
        let wave = (values + name.len() as f64).sin() * 0.3;
        tensor.copy_(&wave.view_as(&tensor));
    }
    Supervised::new(vs, net, loss)
}

/// Returns a builder for a trainer of [`task`], with SGD and without discovered hooks.
pub(crate) fn builder() -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    Trainer::builder(task()).optimizer(Sgd::new(0.1)).discover(Discover::None)
}

/// Returns the text of an error, with line numbers replaced by `_`.
pub(crate) fn message(error: &impl ToString) -> String {
    let text = error.to_string();
    let mut parts = text.split(".rs:");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + ".rs:_" + part.trim_start_matches(|letter: char| letter.is_ascii_digit())
    })
}

fn net(root: &nn::Path<'_>) -> nn::Sequential {
    nn::seq().add(nn::linear(root / "fc1", 4, 8, Default::default())).add_fn(Tensor::relu).add(nn::linear(
        root / "fc2",
        8,
        3,
        Default::default(),
    ))
}

/// Returns `count` rows of data for [`task`], in batches of four.
pub(crate) fn rows(count: i64) -> InMemory<(Tensor, Tensor)> {
    let inputs = Tensor::arange(count * 4, (Kind::Float, device())).view([count, 4]).sin();
    let labels = Tensor::arange(count, (Kind::Int64, device())).remainder(3);
    InMemory::new((inputs, labels)).unwrap().batch_size(4)
}

/// Returns the built-in points, in the order of a run.
pub(crate) fn points() -> impl Iterator<Item = &'static MomentInfo> {
    trainer::lifecycle::MOMENTS.iter().filter(|moment| moment.kind != MomentKind::Operation)
}
