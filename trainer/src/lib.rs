//! A training loop for `tch` in which everything around the loop is a hook.
//!
//! Annotate a function, and it becomes part of training. The linker collects it, even from other
//! crates. The type of its context determines when it runs, and the compiler checks that the values
//! it reads exist at that time. [`Trainer::describe_hooks`] shows exactly what will run. If you are
//! new here, begin with [Getting started](guide::getting_started).
//!
//! ```standalone_crate
//! use trainer::prelude::*;
//!
//! /// Logs the mean gradient of the first layer.
//! #[hook(ord = 10)]
//! fn after_backward(cx: &Cx<AfterBackward>) -> Result<()> {
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
//!     fn after_loss(&mut self, cx: &Cx<AfterLoss>) {
//!         self.0 = self.0.min(cx.loss().double_value(&[]));
//!     }
//! }
//!
//! fn main() -> Result<()> {
//!     let vs = nn::VarStore::new(Device::Cpu);
//!     let net = nn::linear(&vs.root() / "fc1", 4, 2, Default::default());
//!     let loss = |logits: &Tensor, labels: &Tensor| logits.cross_entropy_for_logits(labels);
//!     let task = Supervised::new(vs, net, loss);
//!     let mut trainer = Trainer::builder(task)
//!         .optimizer(AdamW::new(1e-2))
//!         .epochs(3)
//!         .auto_device()
//!         .hook(Lowest(f64::INFINITY)) // in addition to every #[hook] function that is linked in
//!         .build()?;
//!     trainer.describe_hooks().print();
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
//! # Overview
//!
//! 1. The [lifecycle](mod@lifecycle) is a tree of operations, declared once. Each operation has a
//!    point before it and a point after it, and hooks can wrap it. [`lifecycle!`](macro@lifecycle)
//!    declares further operations and points.
//! 2. [`#[hook]`](macro@hook) attaches a function, or the methods of an `impl` block, to the point
//!    or operation that the type of the context names. [`language`] is the reference.
//! 3. [`Cx`] is the run as a hook sees it. Reading a value at a point where it does not exist is a
//!    compile error.
//! 4. The [builder](TrainerBuilder) takes a [`Task`], an [optimizer](optim::Optimizer) and stateful
//!    hooks, and adds every hook that is linked into the program. It then fixes the order of the
//!    hooks at each point and in each phase in a table.
//! 5. [`fit`](Trainer::fit), [`validate`](Trainer::validate), [`test`](Trainer::test) and
//!    [`predict`](Trainer::predict) run the loop over a [loader](data::Loader).
//!
//! # Name the crates that hooks come from
//!
//! Rust does not link a crate that the program never names, so listing a crate of hooks in
//! `Cargo.toml` is not enough: also write `use that_crate as _;`. Call
//! [`require_crate`](TrainerBuilder::require_crate) to make [`build`](TrainerBuilder::build) fail
//! if the hooks of such a crate are missing. The guide has [more on
//! this](guide::hooks#a-crate-of-hooks), including static libraries and libraries that are loaded
//! at run time.
//!
//! # The guide
//!
//! The [guide] has a page for each subject, and a table of [what you may want to
//! do](guide#find-what-you-want-to-do):
//!
//! - **first**: [getting started](guide::getting_started); for single tasks,
//!   [recipes](guide::recipes);
//! - **your model and its data**: [data](guide::data), [training](guide::training),
//!   [metrics](guide::metrics), [records](guide::records), [checkpoints](guide::checkpoints);
//! - **code of your own in the loop**: [hooks](guide::hooks), [lifecycle](guide::lifecycle),
//!   [testing](guide::testing);
//! - **methods and models**: [training methods](guide::methods), [optimizers](guide::optimizers),
//!   [models](guide::models), [fine-tuning](guide::fine_tuning), [modules](guide::modules);
//! - **runs**: [settings](guide::settings), [runs](guide::runs), [watching](guide::watching),
//!   [errors](guide::errors), [profiling](guide::profiling), [tapes and locks](guide::tape);
//! - **machines**: [deployment](guide::deployment), [GPUs](guide::gpus),
//!   [several processes](guide::distributed), [clusters](guide::clusters),
//!   [compatibility](guide::compatibility).
//!
//! Coming from another framework? [`migration`] maps its names to ours and lists the differences.
//!
//! # Installation
//!
//! No version has been published yet: a program depends on a clone of the repository, with
//! `trainer = { path = "…/trainer" }`. The [`prelude`] re-exports `tch`, so a program does not list
//! it as a dependency. libtorch itself is not part of the crate. Provide it in one of these ways:
//!
//! - `export LIBTORCH=<folder>`, the folder with the `include` and `lib` of libtorch 2.13.0;
//! - `export LIBTORCH_USE_PYTORCH=1`, for the torch 2.13.0 of the `python3` on the `PATH`;
//! - the feature `download-libtorch`, which makes the build download it;
//! - `make libtorch` in a clone of the repository, for the programs in its workspace;
//! - `trainer libtorch`, for the projects that [`trainer
//!   new`](guide::getting_started#a-project-in-one-command) writes.
//!
//! A build that finds no libtorch fails with "Cannot find a libtorch install". A program that is
//! started by its path rather than by cargo finds the library through
//! `LD_LIBRARY_PATH=$LIBTORCH/lib`, or through an rpath that its build script adds. The build
//! script reads the folder from the environment variable `DEP_TRAINER_LIBTORCH_LIB`.
//!
//! # Features
//!
//! No feature is enabled by default.
//!
//! | feature | adds |
//! |---|---|
//! | `cli` | [`cli`](guide::settings): the settings of a program from a file and the command line |
//! | `csv` | rows of CSV files as [data](guide::data) |
//! | `dashboard` | the hook `Dashboard`, which shows the run full-screen in the terminal |
//! | `distributed` | training in [several processes](guide::distributed), with libtorch's c10d |
//! | `doc-only` | builds without libtorch, for `cargo check` and `cargo doc` only |
//! | `download-libtorch` | the download of libtorch by `tch`, during the build |
//! | `image` | folders of images as [data](guide::data) |
//! | `mlflow` | the logger `MlFlow`, for an MLflow server |
//! | `nccl` | averaging of gradients on GPUs through NCCL; needs the CUDA and NCCL headers |
//! | `nvml` | the monitor of NVIDIA GPUs; needs the NVIDIA driver at run time |
//! | `parquet` | parquet files as [data](guide::data); compiles zstd, in C |
//! | `system` | the monitor of the process and the machine |
//! | `tar` | tar files as [data](guide::data), in the layout of WebDataset |
//! | `tracing` | [spans](guide::profiling) for operations and hooks, through the crate `tracing` |
//! | `wandb` | the logger `Wandb`, whose files the client of Weights & Biases uploads |
//!
//! # Compatibility
//!
//! - **Rust** 1.95 or newer, and a C++ compiler.
//! - **libtorch** 2.13.0 exactly, through `tch` 0.26. `tch` is part of the public API, so a release
//!   for a different version of `tch` is a breaking release.
//! - **Linux** on x86-64, the platform that the tests run on. See
//!   [Compatibility](guide::compatibility) for other systems.
//! - **NVIDIA GPUs** need a driver for CUDA 13: see [GPUs](guide::gpus).

// docs.rs marks the items that need a feature.
#![cfg_attr(docsrs, feature(doc_cfg))]

// Lets macro-generated paths (`::trainer::…`) resolve inside this crate as well.
extern crate self as trainer;

// First, because rustdoc shows impl blocks in the order of their modules: the pages of `Trainer` and
// `TrainerBuilder` begin with their own methods, before those that hooks and tools add.
mod training;

pub mod checkpoint;
pub mod data;
// Without the feature, the type of the connections of a `World` is uninhabited.
#[cfg_attr(not(feature = "distributed"), allow(unreachable_code, unused_variables))]
pub mod distributed;
mod error;
mod hook;
#[doc(alias = "callbacks")]
pub mod hooks;
mod io;
mod libtorch;
mod log;
pub mod loggers;
pub mod metrics;
mod model;
mod moments;
mod optimizers;
mod pages;
mod run;
mod tools;
mod values;

#[doc(inline)]
pub use libtorch::cuda;
#[doc(inline)]
pub use model::{losses, modules};
#[doc(inline)]
pub use moments::{lifecycle, moment, phase};
#[doc(inline)]
pub use optimizers::{optim, schedule};
#[doc(inline)]
pub use pages::{guide, language, migration};
#[doc(inline)]
pub use run::profile;
#[cfg(feature = "cli")]
#[doc(inline)]
pub use tools::cli;
#[doc(inline)]
pub use tools::{estimate, finders, testing};
#[doc(inline)]
pub use training::{lock, prelude};

// At the root, so that rustc's messages name a moment by its shortest path.
#[doc(no_inline)]
pub use moments::lifecycle::*;

pub use checkpoint::averages::Averages;
pub use error::{
    BoxError, BuildError, CancelledBy, CancelledError, Error, FileError, HookError, Location, OperationError,
    Result, did_you_mean,
};
pub use hook::set::HookSet;
pub use hook::{Discover, HookRow, HookTable, stages};
pub use io::terminal::{DivertedLines, Line, divert_lines, eprint_line, print_line};
pub use libtorch::{Autocast, Heap, MatmulPrecision, RandomState, wide};
pub use log::history::{History, Metrics, Summary};
pub use log::record::{Histogram, Image, Record, Span};
pub use log::{Goal, IntoValue, Reduce, Value};
pub use model::added::{AddVariables, NewVariables};
pub use model::grad_hook::{GradHook, GradOutcome, OnGrad};
pub use model::leaves::{Leaf, Leaves};
pub use model::norms::norms;
pub use model::vars::{Grads, Var, VarName, Vars};
pub use moments::counters::{Counters, Plan};
pub use moments::moment::{Main, OnAllRanks};
pub use moments::phase::{Phase, PhaseSet};
pub use run::cancel::{CancelToken, OnSignal};
pub use run::context::Cx;
pub use run::dispatch::{ClosureHook, Done, HookOptions, Next, ObserverClosure};
pub use run::layers::{Call, Layer};
pub use run::run_folder::{RunFile, RunFolder};
/// The `tch` crate, in the version that this crate uses.
pub use tch;
pub use tools::replay::Replayed;
pub use training::tape::Tape;
pub use training::task::{
    BackwardDone, ForwardDone, LossDone, MetricInputs, Mode, StepDone, Supervised, Task, TrainStep,
};
pub use training::{Trainer, TrainerBuilder};
pub use values::amount::Amount;
pub use values::every::Every;
pub use values::hyperparameter::Hyperparameter;

#[doc(inline)]
pub use run::dispatch::added::IntoHook;
pub use run::dispatch::registration::{AsHook, Hooks};
/// Registers a free function, or the methods of an inherent impl block, as hooks.
///
/// The [`language`] page lists every form, key and point.
///
/// ```standalone_crate
/// use trainer::prelude::*;
///
/// #[hook(after = trainer::stages::Display, only = train, every = 100)]
/// fn print_loss(cx: &Cx<AfterLoss>) {
///     let text = format!("{} {:.4}", cx.counters().batches_seen, cx.loss().double_value(&[]));
///     trainer::print_line(text); // unlike `println!`, leaves the progress bar intact
/// }
/// # fn main() {}
/// ```
#[doc(alias = "Callback")]
pub use trainer_macros::hook;

/// Declares a custom lifecycle: operations and points to which any crate can attach hooks.
///
/// ```standalone_crate
/// use trainer::prelude::*;
///
/// trainer::lifecycle! {
///     within step {
///         /// The processing of one half of a batch.
///         operation half_step: batch {
///             /// Half of the batch was processed.
///             point at_half;
///         }
///     }
/// }
///
/// /// Runs the operation and fires the point.
/// #[hook]
/// fn halves(cx: &mut Cx<AfterTransfer>) -> Result<()> {
///     cx.run::<HalfStep>(|cx| cx.fire::<AtHalf>())?;
///     Ok(())
/// }
///
/// /// Prints the size of the batch; this hook can be in any crate.
/// #[hook]
/// fn print_size(cx: &Cx<BeforeHalfStep>) -> Result<()> {
///     println!("{:?}", cx.batch::<(Tensor, Tensor)>()?.0.size());
///     Ok(())
/// }
/// # fn main() {}
/// ```
///
/// A *moment* is an operation or a point.
///
/// - **`within step { … }`** names the operation that contains the moments: an operation in [`at`],
///   or an operation of another custom lifecycle by its path, `within gan::Generator`. The moments
///   can only be reached from within that operation, and
///   [`describe_hooks`](Trainer::describe_hooks) lists them there. They inherit its phases and its
///   unit for `every`, unless the declaration changes these (`in train`, `counts epochs`).
/// - **`within step by MyTask { … }`** also names the task, or the hooks, that reach the moments.
///   If a trainer has neither that task nor any of these hooks, a hook at one of the moments is an
///   error, because the hook would never run.
/// - **`: batch + loss`** declares which values exist at a moment and at every moment within it,
///   using the nouns of [`has`]. The moment can only be reached from moments where these values
///   exist.
/// - **`operation x`** declares the marker types `BeforeX`, `X` and `AfterX`, and **`point y`**
///   declares `Y`. **`point sampled(Samples)`** declares a point that is fired with a value, its
///   [payload](moment::HasPayload). Other declarations refer to these moments through the module
///   `at`, which the macro creates next to the declaration. **`again pred;`** states that a moment
///   declared elsewhere also runs at this position in the tree.
/// - **`exists fake: HasFake from after_x to y;`** declares a custom value that exists at some of
///   the moments. `HasFake` is the trait bound for methods that read the value. The compiler
///   messages about this trait are like those about the trainer's own traits.
/// - **`crate = my_framework::trainer;`** is for crates that access `trainer` through a different
///   path. It must come first.
///
/// The declaration must be in a module, not in a function. It creates a module `at` next to itself,
/// so a module that contains `use trainer::at;` needs a separate module for the declaration.
///
/// A hook runs a custom operation with [`Cx::run`] and fires a custom point with [`Cx::fire`] or
/// [`Cx::fire_with`]. A task uses [`TrainStep::run`], [`TrainStep::fire`] and
/// [`TrainStep::fire_with`].
pub use trainer_macros::lifecycle;

/// Implementation details of the macros, and access for tests and benchmarks. Not public API.
#[doc(hidden)]
pub mod __private {
    // For `crate = path` in an attribute.
    pub extern crate self as trainer;

    pub use inventory;

    pub use crate::checkpoint::StateOf;
    pub use crate::data::batch::Skipped;
    pub use crate::data::rows::common_row_count as same_rows;
    pub use crate::hook::constraint::{OrderConstraint, id_of_own};
    pub use crate::hook::definition::{HookResult, Origin, phase_of};
    pub use crate::hook::discovery::AutoWhen;
    pub use crate::hook::read::Read;
    pub use crate::hook::selected::Selected;
    pub use crate::hook::set::{SetRef, Stage};
    pub use crate::libtorch::OnAnyThread;
    pub use crate::model::added::VariablesOf;
    pub use crate::modules::ModulePattern;
    pub use crate::moments::tree::{Lifecycle, LifecycleRegistration};
    pub use crate::run::dispatch::registration::{
        Auto, Definitions, Discovered, Extras, FurtherBlocksNeedHookMore, HookImpl, Hooks, MoreHooks,
        target_type,
    };
    pub use crate::run::dispatch::shim::{NoContext, Probe, target_fn};
    pub use crate::run::dispatch::shim::{
        around_outcome, call_around_nth, call_nth, define_around, define_at, holds, is_due, lent,
        main_only_guard, next_of, observed, outcome, pass_on, selected_by_nth,
    };
    pub use crate::run::{Rest, Run};
    pub use crate::training::lock::{assert_golden, assert_lock};
    pub use crate::values::facts::SettingsOf;

    /// Returns the function that computes the dispatch-table row of `O`, the operation that
    /// contains a custom lifecycle.
    #[must_use]
    pub const fn within<O: crate::moment::AtOperation + crate::lifecycle::HasTask>() -> fn() -> usize {
        O::index
    }

    /// Returns the displayed paths of all hook types in this crate. Used by tests.
    #[must_use]
    pub fn paths_of_hooks() -> Vec<String> {
        let own = inventory::iter::<HookImpl>().map(|block| &block.origin);
        let own = own.filter(|origin| origin.is_own());
        own.map(|origin| crate::values::paths::public_path(&origin.path).into_owned()).collect()
    }

    /// Calls the hooks of one point. Used by benchmarks.
    ///
    /// # Errors
    ///
    /// Returns the error of the first hook that fails.
    #[inline]
    pub fn fire<P: crate::moment::AtPoint, T>(trainer: &mut crate::Trainer<T>) -> crate::Result<()> {
        crate::hook::call::Loop::fire::<P>(&mut trainer.run)
    }

    /// Makes the trainer read logged CPU tensors as late as GPU tensors. Used by tests.
    pub fn leave_unread<T>(trainer: &mut crate::Trainer<T>) {
        trainer.run.logs_mut().leave_unread();
    }

    /// The number of logged tensors that the trainer has read. Used by tests.
    #[must_use]
    pub fn reads<T>(trainer: &crate::Trainer<T>) -> u64 {
        trainer.run.logs().reads()
    }

    /// Runs an operation with the hooks around it, and returns whether it took place. Used by
    /// benchmarks.
    ///
    /// # Errors
    ///
    /// Returns the error of the first hook that fails.
    #[inline]
    pub fn operate<O: crate::moment::AtOperation, T>(trainer: &mut crate::Trainer<T>) -> crate::Result<bool> {
        let done = crate::hook::call::Loop::inside::<O>(&mut trainer.run, |run| {
            std::hint::black_box(run.counters().epoch);
            Ok(())
        })?;
        Ok(done.took_place())
    }
}
