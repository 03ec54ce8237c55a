//! The hook language: every form of a hook, every key of `#[hook(…)]`, every point and operation.
//!
//! # Forms
//!
//! | form | what it is |
//! |---|---|
//! | `#[hook] fn after_step(cx: &mut Cx<AfterStep>)` | a free function at the point that it is named after; **discovered**: active in every trainer of a program that links its crate |
//! | `#[hook(after_step)] fn any_name(…)` | a free function with any name, at the given point |
//! | `#[hook(my_crate::at::my_point)] fn …` | a free function at a point of a [custom lifecycle](macro@crate::lifecycle), by its path |
//! | `#[hook(around = backward)] fn any_name(cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done>` | around an operation: [`Next`](crate::Next) runs it |
//! | `#[hook] impl Monitor { … }` | stateful hooks: every method whose first argument after `self` is a [`Cx`](crate::Cx) is a hook; a value is added with [`.hook(…)`](crate::TrainerBuilder::hook) |
//! | `#[hook(auto)] impl Monitor { … }` | discovered stateful hooks: each trainer creates a value with `Default`, unless one is added |
//! | `#[hook] impl MyTask { … }` | hooks of the task itself, which run after all other hooks of equal `ord` |
//! | [`.on::<AfterStep>("name", \|cx\| …)`](crate::TrainerBuilder::on) | a closure, which can use values known only at run time; it returns `()` or a [`Result<()>`](crate::Result). [`HookOptions`](crate::HookOptions) in place of the name set the other keys |
//!
//! A hook returns `()` or a `Result<(), E>` for any error `E` that is `Send + Sync`; an error ends
//! the run and is returned with the name of the hook. A hook around an operation returns
//! `Result<Done, E>`: the [`Done`](crate::Done), which only `next` makes, says how the operation ended.
//!
//! A hook type can be generic. A hook function cannot, because it is registered once. A closure
//! cannot have `before`, `after` or `around`; its other keys are methods of
//! [`HookOptions`](crate::HookOptions), except `main_only`, which is
//! [`.on::<Main<AfterStep>>`](crate::Main).
//!
//! `#[hook]` sees a block before the macro calls in it are expanded, so a macro call in it is an
//! error. Blocks and [`lifecycle!`](macro@crate::lifecycle) do not work in a module with
//! `#![no_implicit_prelude]`.
//!
//! # Keys
//!
//! Each key is one of the [constants](#constants) below, so that editors complete it and show its
//! docs. On an `impl` block, a key applies to all hooks of the block, and a method's own attribute
//! overrides it key by key. One further key, on a function or a block, is for packages that do not
//! depend on `trainer` directly: `crate = my_framework::trainer`. A renamed dependency is found
//! without it.
//!
//! # Order
//!
//! At every point, and around every operation, `before` and `after` decide first, then the lower
//! `ord`. Ties: the builder's hooks in the order they were added, then discovered hooks by crate,
//! module path and name, then the task's hooks. Around an operation, the lower `ord` is the outer
//! hook. [`describe_hooks`](crate::Trainer::describe_hooks) shows the order, and marks with `=`
//! neighbors that neither a constraint nor `ord` orders.
//!
//! # Points and operations
//!
//! Every operation `x` has the points `before_x` and `after_x`, and can have hooks `around = x`. A
//! point fires in every phase that reaches it.
//!
#![doc = crate::lifecycle::moments_table!()]
#![allow(non_upper_case_globals)]

/// `ord = 10`: the order of the hook. Lower runs first, and around an operation further outside.
/// Accepts any constant expression of type `i32`, as in `ord = trainer::ord::PROGRESS + 1`.
/// Defaults to 0.
pub const ord: () = ();

/// `only = train`, `only(valid, test)`: runs the hook in these [phases](mod@crate::phase) only.
/// This is resolved when the trainer is built, so that the hook costs nothing in other phases.
/// Defaults to all phases that reach its point.
pub const only: () = ();

/// `every = 100`: runs the hook on every 100th batch, optimizer step, epoch or record, whichever
/// its [point](crate::language#points-and-operations) counts. At other times, the operation of a
/// hook with `around` runs without the hook. Defaults to 1.
pub const every: () = ();

/// `of = "encoder.*"`, `of("fc1", "head.?")`: at the moments of a [module](crate::modules), runs
/// the hook only at modules whose names match. `*` matches any text and `?` any single character. A
/// pattern that matches no named module is an error when the trainer is built, or after `setup` if
/// a hook of the program runs at `setup` and may add modules, unless the pattern is optional:
/// `of = optional("encoder.*")`. A pattern whose modules are never called leads to a warning. On a
/// method, `of = self.modules` takes the [`Patterns`](crate::modules::Patterns) in a field of the
/// value. Defaults to all modules.
pub const of: () = ();

/// `before = my_crate::clip`, `before(a, B)`: runs the hook before these hooks, whatever their
/// `ord`. Each path names a hook function, or a hook type, which stands for all its hooks at the
/// same moment. A hook that the trainer does not have is an error when the trainer is built, unless
/// it is written `before = optional(…)`.
pub const before: () = ();

/// `after = my_crate::Clip`, `after(a, B)`: runs the hook after these hooks, with the same rules as
/// [`before`].
pub const after: () = ();

/// `around = backward`: the hook runs around this operation, and takes [`next`](crate::Next) as its
/// second argument.
pub const around: () = ();

/// `main_only`: runs the hook in the process of [rank](crate::TrainerBuilder::rank) 0 only. Its
/// context is [`Cx<Main<AfterStep>>`](crate::Main), which has no collectives. It is not available
/// for hooks around an operation, because they decide whether the operation runs, which must not
/// differ between ranks.
pub const main_only: () = ();

/// `auto`, on a block: the hooks are discovered. Each trainer creates a value with `Default`,
/// unless one is added with [`.hook(…)`](crate::TrainerBuilder::hook). `auto = ranks`: only if
/// several processes train together, and then even with [`Discover::None`](crate::Discover::None),
/// like [`DataParallel`](crate::hooks::DataParallel).
pub const auto: () = ();

/// `single`, on a block: a trainer accepts at most one value of the type.
pub const single: () = ();

/// `state`, on a block: checkpoints contain the [state](crate::checkpoint::State) of each value.
/// `state = self.progress`: that of this field, whose type derives serde's traits or implements
/// [`State`](crate::checkpoint::State); the other fields keep the values of the program.
pub const state: () = ();

/// `settings`, on a block: a resume compares the [settings](crate::checkpoint::Settings) of each
/// value with those of the interrupted run, and they must be equal on all ranks.
pub const settings: () = ();

/// `trial`: [`find_lr`](crate::Trainer::find_lr) and
/// [`find_batch_size`](crate::Trainer::find_batch_size) run the hook, which is part of what a step
/// computes and keeps nothing from one step to the next. A hook whose value has a [`state`] needs
/// no `trial`, because its state is restored afterwards; `trial = false` leaves it out.
pub const trial: () = ();

#[doc = include_str!("operations.md")]
pub mod operations {}

/// Every valid first word in `#[hook(…)]`, for editors.
#[doc(hidden)]
pub mod first {
    pub use super::{
        after, around, auto, before, every, main_only, of, only, ord, settings, single, state, trial,
    };
    pub use crate::lifecycle::at::*;
}
