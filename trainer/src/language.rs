//! The hook language: every form of a hook, every key of `#[hook(…)]`, every point and operation.
//!
//! # Forms
//!
//! | form | what it is |
//! |---|---|
//! | `#[hook] fn after_step(cx: &mut Cx<AfterStep>)` | a free function at the point that it is named after; **discovered**: linked in means active |
//! | `#[hook(after_step)] fn any_name(…)` | the same under a name of its own |
//! | `#[hook(my_crate::at::my_point)] fn …` | at a point of another crate's [lifecycle](macro@crate::lifecycle): a path is taken as it is |
//! | `#[hook(around = backward)] fn any_name(cx: &mut Cx<Backward>, next: Next<Backward>)` | around an operation: [`Next`](crate::Next) runs it |
//! | `#[hook] impl Monitor { … }` | hooks with a state: every method whose argument after `self` is a [`Cx`](crate::Cx) is one; a value is added with [`.hook(…)`](crate::TrainerBuilder::hook) |
//! | `#[hook(auto)] impl Monitor { … }` | the same, discovered: each trainer makes a value with `Default`, unless it is given one |
//! | `#[hook] impl MyTask { … }` | hooks of the task itself, after those of equal `ord` |
//! | [`.on::<AfterStep>("name", \|cx\| …)`](crate::TrainerBuilder::on) | a closure, for what is known only at run time; it returns `()` or a [`Result<()>`](crate::Result), and [`HookOptions`](crate::HookOptions) in place of the name have its other keys |
//!
//! A hook returns `()` or a `Result<(), E>` for any error `E` that is `Send + Sync`; an error ends the run, and names the hook.
//!
//! A hook type may be generic. A hook function may not: it is registered once, as it stands. Nor can a closure carry
//! `before` or `after`, because its type has no name to point at; its other keys are methods of
//! [`HookOptions`](crate::HookOptions).
//!
//! A block is read before macros are expanded, so a macro call in it cannot make hooks, and is refused. Blocks and
//! [`lifecycle!`](macro@crate::lifecycle) do not work in a module under `#![no_implicit_prelude]`.
//!
//! # Keys
//!
//! They are below, each a constant, so that an editor completes them and shows what they mean. On an impl block a key
//! holds for all its hooks, and a method's own attribute overrides it, key by key. One more, on a
//! function or a block, is for packages that do not depend on `trainer` themselves: `crate = my_framework::trainer`. A
//! dependency under another name is found without it.
//!
//! # Order
//!
//! At every point, and around every operation: `before` and `after` first; then the lower `ord`; where that is equal
//! the hooks of the builder as they were added, then discovered ones by crate, module path and name, then the task's. The
//! lower `ord` is the outer one around an operation. [`describe_hooks`](crate::Trainer::describe_hooks) shows it, and marks
//! with `=` what neither a constraint nor its `ord` tells from its neighbour.
//!
//! # Points and operations
//!
//! Every operation `x` has the points `before_x` and `after_x`, and hooks `around = x`. A point fires once for each phase
//! that reaches it.
//!
#![doc = crate::lifecycle::moments_table!()]
#![allow(non_upper_case_globals)]

/// `ord = 10`: lower runs first, at every point, and further outside around an operation; 0 unless given. Any constant
/// expression of type `i32`: `ord = trainer::ord::PROGRESS + 1`.
pub const ord: () = ();

/// `only = train`, `only(valid, test)`: only in these [phases](mod@crate::phase). Resolved when the trainer is built, so that it
/// costs nothing elsewhere.
pub const only: () = ();

/// `every = 100`: each hundredth step; at the points of an epoch each hundredth epoch. Around an operation it goes on by
/// itself the other times.
pub const every: () = ();

/// `before = my_crate::clip`, `before(a, B)`: before this hook, whatever their `ord`. The path of a hook function, or of a hook
/// type for all its hooks of the same moment. `before = optional(…)` if it may be absent; else that is an error when the
/// trainer is built.
pub const before: () = ();

/// `after = my_crate::Clip`: after this hook; otherwise as [`before`].
pub const after: () = ();

/// `around = backward`: around this operation; the function takes [`next`](crate::Next) too.
pub const around: () = ();

/// `main_only`: only in the process of [rank](crate::TrainerBuilder::rank) 0.
pub const main_only: () = ();

/// `auto`, on a block: discovered; each trainer makes a value with `Default`, unless it is given one with
/// [`.hook(…)`](crate::TrainerBuilder::hook).
pub const auto: () = ();

/// `single`, on a block: a trainer takes one value of the type at most.
pub const single: () = ();

/// `state`, on a block: the [state](crate::checkpoint::State) of each value is a part of checkpoints.
pub const state: () = ();

#[doc = include_str!("operations.md")]
pub mod operations {}

/// Everything that can come first in `#[hook(…)]`, for editors.
#[doc(hidden)]
pub mod first {
    pub use super::{after, around, auto, before, every, main_only, only, ord, single, state};
    pub use crate::lifecycle::at::*;
}
