//! A training loop for `tch` in which everything around the loop is a hook.
//!
//! Annotate a function, and it is part of training: the linker collects it, across crates; the
//! compiler checks that the moment it names exists, and that what it reads exists at that moment;
//! [`Trainer::describe_hooks`] prints exactly what will run.
//!
//! ```standalone_crate
//! use trainer::prelude::*;
//!
//! /// Logs the mean gradient of the first layer.
//! #[hook(ord = 10)]
//! fn after_backward(cx: &mut Cx<AfterBackward>) -> Result<()> {
//!     let grad = cx.grad("fc1.weight")?.abs().mean(Kind::Float);
//!     cx.log("grad/fc1", grad);
//!     Ok(())
//! }
//!
//! /// Keeps the lowest loss.
//! struct Lowest(f64);
//!
//! #[hook]
//! impl Lowest {
//!     fn after_loss(&mut self, cx: &mut Cx<AfterLoss>) {
//!         self.0 = self.0.min(cx.loss().double_value(&[]));
//!     }
//! }
//!
//! fn main() -> Result<()> {
//!     let vs = nn::VarStore::new(Device::cuda_if_available());
//!     let net = nn::linear(&vs.root() / "fc1", 4, 2, Default::default());
//!     let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
//!     let mut trainer = Trainer::builder(task)
//!         .optimizer(AdamW::new(1e-2))
//!         .epochs(3)
//!         .hook(Lowest(f64::INFINITY)) // explicit, with a state; and every discovered #[hook]
//!         .build()?;
//!     println!("{}", trainer.describe_hooks());
//!
//!     let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
//!     let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
//!     let mut train = InMemory::new((inputs, labels))?.batch_size(16).shuffle(1);
//!     let summary = trainer.fit(&mut train, None)?;
//!
//!     assert!(trainer.hook::<Lowest>().unwrap().0 <= summary.metrics.get("train/loss").unwrap());
//!     assert!(summary.metrics.get("train/grad/fc1").is_some());
//!     Ok(())
//! }
//! ```
//!
//! # The parts
//!
//! 1. The [lifecycle](mod@lifecycle) is a tree of operations, declared once. Each has a point before and after it, and hooks
//!    can go around it. [`lifecycle!`](macro@lifecycle) declares more.
//! 2. [`#[hook]`](macro@hook) puts a function, or the methods of a block, there; the [`language`] page has all of it.
//! 3. [`Cx`] is the run as a hook sees it. What does not exist at its point cannot be read there.
//! 4. The [builder](TrainerBuilder) takes a [`Task`], an [optimizer](optim::Optimizer), hooks with a state, and every
//!    hook that is linked into the program; it freezes one table for each point and phase.
//! 5. [`fit`](Trainer::fit), [`validate`](Trainer::validate), [`test`](Trainer::test) and [`predict`](Trainer::predict)
//!    run it over a [loader](data::Loader).
//!
//! Who comes from another trainer finds its names in [`migration`], each with ours and with what differs.
//!
//! # What it does not do
//!
//! Rust does not link a crate that nothing names. A program that only lists a crate of hooks in its
//! `Cargo.toml` does not have them: write `use that_crate as _;`, and
//! [`require_crate`](TrainerBuilder::require_crate) to be told if it is missing.
//!
//! A static library needs all of its objects for its hooks: link it with `-Wl,--whole-archive` (on macOS
//! `-Wl,-force_load`). Without it, [`build`](TrainerBuilder::build) reports that the registrations are missing. A library that
//! is loaded at run time has its own copy of this crate, and cannot add hooks to the program that loads it.

// What the macros expand to names this crate, in here too.
extern crate self as trainer;

mod cancel;
pub mod checkpoint;
mod context;
mod counters;
pub mod data;
mod error;
mod float;
mod history;
mod hook;
pub mod hooks;
pub mod language;
mod libtorch;
pub mod lifecycle;
mod metrics;
pub mod migration;
pub mod moment;
mod next;
pub mod optim;
pub mod phase;
pub mod prelude;
mod reach;
mod run;
pub mod schedule;
mod task;
mod training;
mod tree;
mod vars;

pub use cancel::{CancelToken, CancelledBy, OnSignal};
pub use context::Cx;
pub use counters::Counters;
pub use error::{BoxError, BuildError, CancelledError, Error, HookError, OperationError, Place, Result};
pub use history::History;
pub use hook::{ClosureHook, Discover, HookOptions, HookRow, HookTable};
pub use hooks::ord;
// At the root, so that rustc's messages name a moment by its shortest path.
#[doc(no_inline)]
pub use lifecycle::*;
pub use metrics::{Metrics, Reduce, Value};
pub use next::Next;
pub use phase::{Phase, PhaseSet};
pub use task::{BackwardDone, ForwardDone, LossDone, Mode, StepDone, Supervised, Task, TrainStep};
/// The version of tch that this crate is built on.
pub use tch;
pub use training::{Every, Limit, Summary, Trainer, TrainerBuilder};
pub use vars::{Grads, Var, VarName, Vars};

#[doc(inline)]
pub use hook::definition::Hooks;
/// Makes a free function, or methods of an inherent impl block, part of training.
///
/// The [`language`] page has every form, every key and every point.
///
/// ```standalone_crate
/// use trainer::prelude::*;
///
/// #[hook(after_loss, ord = trainer::ord::PROGRESS + 1, only = train, every = 100)]
/// fn print_loss(cx: &mut Cx<AfterLoss>) {
///     println!("{} {:.4}", cx.counters().batches_seen, cx.loss().double_value(&[]));
/// }
/// # fn main() {}
/// ```
pub use trainer_macros::hook;

/// Declares a lifecycle of one's own: operations and points that hooks of any crate can stand at.
///
/// ```standalone_crate
/// use trainer::prelude::*;
///
/// trainer::lifecycle! {
///     within step {
///         /// The two halves of a batch, each by itself.
///         operation half_step: batch {
///             /// A half was looked at.
///             point at_half;
///         }
///     }
/// }
///
/// /// Reaches it.
/// #[hook(after_transfer)]
/// fn halves(cx: &mut Cx<AfterTransfer>) -> Result<()> {
///     cx.run::<HalfStep>(|cx| cx.fire::<AtHalf>())?;
///     Ok(())
/// }
///
/// /// Stands at it, here or in any other crate: `#[hook(that_crate::at::before_half_step)]`.
/// #[hook(at::before_half_step)]
/// fn look(cx: &mut Cx<BeforeHalfStep>) -> Result<()> {
///     println!("{:?}", cx.batch::<(Tensor, Tensor)>()?.0.size());
///     Ok(())
/// }
/// # fn main() {}
/// ```
///
/// - **`within step { … }`** says where the tree hangs: in an operation of [`at`], or of another crate's lifecycle by its path.
///   Only from there can its moments be reached, phases and what `every` counts are those of that operation unless the
///   declaration says otherwise (`in train`, `counts epochs`), and there [`describe_hooks`](Trainer::describe_hooks) shows them.
/// - **`within step by MyTask { … }`** says, too, which task, or which hooks, reach it. A hook there is then an error in a
///   trainer that has none of them: it would never fire.
/// - **`: batch + loss`** says what exists at a moment and at all that lies in it: the nouns of [`has`]. It can then
///   be reached only from where that exists.
/// - **`operation x`** gives the markers `BeforeX`, `X`, `AfterX`; **`point y`** gives `Y`; their names lie in a module
///   `at` beside the declaration. **`again pred;`** shows that another operation runs in there too.
/// - **`exists fake: HasFake from after_x to y;`** declares something of one's own that exists at some of these moments:
///   a trait to bound methods of one's own by, with messages like the trainer's.
/// - **`crate = my_framework::trainer;`**, first of all, is for a crate that reaches `trainer` by another path.
///
/// The declaration goes into a module, not into a function. Its names are in a module `at` beside it: where `use trainer::at;`
/// stands, put the declaration into a module of its own.
///
/// A hook reaches an operation by [`Cx::run`], a point by [`Cx::fire`]; a task by [`TrainStep::run`] and [`TrainStep::fire`].
pub use trainer_macros::lifecycle;

/// What the macros expand to. Not for people.
#[doc(hidden)]
pub mod __private {
    pub use inventory;

    pub use crate::checkpoint::StateOf;
    pub use crate::data::rows::same as same_rows;
    pub use crate::hook::constraint::{OrderConstraint, id_of_fn, id_of_own, id_of_type};
    pub use crate::hook::definition::{HookDef, HookResult, Hooks, Origin, due, every_of, phase_of};
    pub use crate::hook::discovery::{Auto, Discovered, HookImpl};
    pub use crate::hook::shim::{call_nth, context_at, next_at, outcome, pass_on};
    pub use crate::run::Run;
    pub use crate::tree::{Lifecycle, LifecycleRegistration};

    /// The row of the operation that a lifecycle hangs from.
    #[must_use]
    pub const fn within<O: crate::moment::AtOperation>() -> fn() -> usize {
        O::index
    }

    /// Runs the hooks of one point, for benchmarks.
    ///
    /// # Errors
    ///
    /// That of the first hook that fails.
    #[inline]
    pub fn fire<P: crate::moment::AtPoint, T>(trainer: &mut crate::Trainer<T>) -> crate::Result<()> {
        trainer.run.fire::<P>()
    }

    /// Leaves every logged tensor unread for as long as one on a GPU would be, for tests.
    pub fn leave_unread<T>(trainer: &mut crate::Trainer<T>) {
        trainer.run.log.leaves_unread = true;
    }

    /// How many tensors the trainer has read, for tests.
    #[must_use]
    pub fn reads<T>(trainer: &crate::Trainer<T>) -> u64 {
        trainer.run.log.reads()
    }

    /// Runs an operation within the hooks around it, for benchmarks.
    ///
    /// # Errors
    ///
    /// That of the first hook that fails.
    #[inline]
    pub fn operate<O: crate::moment::AtOperation, T>(trainer: &mut crate::Trainer<T>) -> crate::Result<bool> {
        let done = trainer.run.inside::<O>(|run| {
            std::hint::black_box(run.counters.epoch);
            Ok(())
        })?;
        Ok(done.took_place())
    }
}
