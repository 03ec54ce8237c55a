//! Named modules: hooks can observe and replace their inputs, outputs and gradients.
//!
//! tch has no module hooks. Here, each call of a named module runs as the `module_forward`
//! operation of the lifecycle:
//!
//! ```standalone_crate
//! use trainer::modules;
//! use trainer::prelude::*;
//!
//! /// Logs the standard deviation of the output of each layer of the encoder.
//! #[hook(of = "encoder.*", only = train, every = 20)]
//! fn activations(cx: &Cx<AfterModuleForward>) {
//!     let name = format!("std/{}", cx.module());
//!     let std = cx.output().detach().std(false);
//!     cx.log(name, std);
//! }
//!
//! fn net(root: &nn::Path<'_>) -> nn::Sequential {
//!     let path = root / "encoder";
//!     let encoder = modules::seq(&path) // `encoder`, and its layers `encoder.0` and `encoder.1`
//!         .add(nn::linear(&path / 0, 4, 8, Default::default()))
//!         .add_fn(Tensor::relu);
//!     nn::seq().add(encoder).add(nn::linear(root / "head", 8, 2, Default::default()).named(root / "head"))
//! }
//! # fn main() {}
//! ```
//!
//! - [`.named(…)`](Naming::named) names a [`Module`](tch::nn::Module) and
//!   [`.named_t(…)`](Naming::named_t) a [`ModuleT`](tch::nn::ModuleT). [`named`](named()) builds
//!   and names a module in one call. [`seq`] and [`seq_t`] name every layer of a sequence.
//!   [`Name::run`] turns any part of a forward pass into a module.
//! - [`BeforeModuleForward`](crate::BeforeModuleForward), [`ModuleForward`](crate::ModuleForward)
//!   and [`AfterModuleForward`](crate::AfterModuleForward) are the moments of a call, and
//!   [`BeforeModuleBackward`](crate::BeforeModuleBackward),
//!   [`AfterModuleGrads`](crate::AfterModuleGrads) and
//!   [`AfterModuleBackward`](crate::AfterModuleBackward) those of its [backward
//!   pass](#the-backward-pass).
//!   [`of`](constant@crate::language::of) selects modules by name.
//! - [`outputs`](outputs()) returns the outputs of modules outside of a run.
//! - [`summary`](summary()) lists the shapes, parameters and floating-point operations of a model.
//!   [`OnGrad`](crate::OnGrad) observes the gradient of a single tensor.
//!
//! # What is observed
//!
//! Hooks run at modules that the task calls in [`Task::pred`](crate::Task::pred) and
//! [`Task::loss`](crate::Task::loss), or in the code that replaces these in its
//! [`train_step`](crate::Task::train_step). Everywhere else (on another thread, outside of a run,
//! and in a hook), a named module behaves like an unnamed one. A hook at a module therefore does
//! not recurse if it calls a module itself. Calls nest: if a module calls another module, or
//! itself, the inner operation runs inside the outer one. Each call is observed separately, even if
//! several modules share a name.
//!
//! While a module computes, the task, its batch and its prediction are borrowed. They are therefore
//! unavailable at the moments of a module: reading them there does not compile.
//!
//! `every` counts batches: in a batch, either all calls are observed or none.
//!
//! # The backward pass
//!
//! | use | when it fires | what it has |
//! |---|---|---|
//! | `before_module_backward` | while the pass runs, when the gradient of an output is there: once for each call, before the gradients within the module are computed | [`output_grad`](crate::Cx::output_grad), which [`set_output_grad`](crate::Cx::set_output_grad) replaces |
//! | `after_module_grads` | while the pass runs, when the gradients of all parameters below the name of the module are accumulated: once in each pass, however often the module was called | [`module_grads`](crate::Cx::module_grads) |
//! | `after_module_backward` | when the pass has ended, once for each call | [`output_grad`](crate::Cx::output_grad), [`input_grad`](crate::Cx::input_grad) |
//!
//! The first two are PyTorch's `register_full_backward_pre_hook`, and
//! `register_post_accumulate_grad_hook` on each parameter of a module: they fire at the same calls,
//! in the same order, and leave the same gradients. Use them to measure the time of a module, or to
//! send or move its gradients early. Use the third to look at gradients: it costs the pass less,
//! works on every device, and has the gradient of the input.
//!
//! - They fire in the operation `backward` and in [`Cx::backward`](crate::Cx::backward). They do
//!   not fire when a hook or the task calls `Tensor::backward` itself, or
//!   [computes the gradients again](crate::Cx::recompute_grads).
//! - With [activation checkpointing](crate::hooks::ActivationCheckpointing), they fire as without
//!   it, not again for what is recomputed.
//! - A parameter belongs to the modules whose names its own begins with. A tied weight therefore
//!   belongs to the module under whose name it is registered, and is complete after all of its
//!   uses. A parameter that is frozen, or that the loss does not depend on, is not waited for.
//! - As in PyTorch, libtorch records no gradients while the pass runs, so tensors that a hook
//!   computes have no graph.
//! - If a hook fails, the pass continues without hooks, so that other ranks do not wait, and then
//!   `backward` returns the error.
//! - On a GPU, libtorch runs the pass on a thread of its own. Hooks cannot be called from there
//!   yet, so [`build`](crate::TrainerBuilder::build) refuses those at the first two moments unless
//!   the task is on the CPU.
//!
//! # Errors
//!
//! A forward pass returns a tensor rather than a `Result`, so the error of a hook cannot end it.
//! The remaining layers compute without hooks, and then the `pred` or `loss` operation returns the
//! error. A hook around an outer module receives the error from `next.run`, and can handle it by
//! setting an output. A panic propagates immediately.
//!
//! # Cost
//!
//! A named module without a hook costs one read of a thread-local variable. A call with hooks also
//! costs a shallow clone of the input and the calls of the hooks; `make bench` measures both.
//! `after_module_backward` gives the observed modules an alias of their input, and keeps the
//! gradients of their inputs and outputs until the end of the backward pass. `after_module_grads`
//! walks the graph of the loss before each backward pass.

mod layer;
pub(crate) mod name;
mod named;
pub(crate) mod outputs;
mod pattern;
mod sequential;
pub(crate) mod summary;
pub(crate) mod watcher;

pub use layer::Layer;
pub use name::{Name, all_names};
pub use named::{Named, NamedT, Naming, named, named_t};
pub use outputs::{Outputs, outputs};
pub(crate) use pattern::is_for;
pub use pattern::{AsPatterns, ModulePattern, Patterns};
pub use sequential::{Sequential, SequentialT, seq, seq_t};
pub use summary::{ModuleRow, SummaryRecorder, SummaryTable, summary};
pub(crate) use watcher::WatchGuard;
