//! The hook language: every form of a hook, every key of `#[hook(…)]`, every point and operation.
//!
//! The type of a hook's context, such as `Cx<AfterStep>`, determines when the hook runs. Nothing
//! else does: the hook's name is free, except that giving it the name of a different point is an
//! error.
//!
//! # Forms
//!
//! | form | what it is |
//! |---|---|
//! | `#[hook] fn any_name(cx: &Cx<AfterStep>)` | a free function at a point; **discovered**: active in every trainer of a program that links its crate |
//! | `cx: &mut Cx<AfterStep>` | a hook that may change training; with `&Cx`, it [observes](crate::Cx#observers) |
//! | `cx: &Cx<Main<AfterStep>>` | a hook that runs in the process of rank 0 only: [`Main`](crate::Main) |
//! | `cx: &mut Cx<Backward>, next: Next<Backward>`, with the result `Result<Done>` | around an operation: [`Next`](crate::Next) runs it |
//! | `cx: &Cx<my_crate::AtSpike>` | at a moment of a [custom lifecycle](macro@crate::lifecycle) |
//! | `#[hook] impl Monitor { … }` | stateful hooks: every method whose first argument after `self` is a [`Cx`](crate::Cx) is a hook; a value is added with [`.hook(…)`](crate::TrainerBuilder::hook) |
//! | `#[hook(auto)] impl Monitor { … }` | discovered stateful hooks: each trainer creates a value with `Default`, unless one is added |
//! | `#[hook] impl MyTask { … }` | hooks of the task itself, which run after all other hooks of equal `ord`; those of a generic task are added with [`.task_hooks()`](crate::TrainerBuilder::task_hooks) |
//! | [`.on::<AfterStep>("name", \|cx\| …)`](crate::TrainerBuilder::on) | a closure, which can use values known only at run time; it returns `()` or a [`Result<()>`](crate::Result). To set keys, pass [`HookOptions`](crate::HookOptions) instead of the name |
//!
//! A hook returns `()` or a `Result<(), E>` for any error `E` that is `Send + Sync`; an error ends
//! the run and is returned with the name of the hook. A hook around an operation returns
//! `Result<Done, E>`: the [`Done`](crate::Done), which only `next` can create, records how the
//! operation ended.
//!
//! A hook type can be generic, even over the moment: `impl<P: AtPoint> Timer<P>`, with
//! [`AtPoint`](crate::moment::AtPoint). A hook function cannot be generic, because it is registered
//! once. A closure can be a hook at a point but not around an operation, and cannot have `before`
//! or `after`; the other keys are methods of [`HookOptions`](crate::HookOptions).
//!
//! The type of the context can be an alias of a `Cx`. In a block, a method that uses an alias needs
//! its own `#[hook]`, because a method is recognized as a hook only if the type of its first
//! argument is written `Cx<…>`. Any other method with a context among its arguments is an error.
//! `Next`, and `#[hook]` on a method, cannot be renamed, because the macro looks for these words.
//! Other methods of a block cannot call its hooks. Helpers go into a second `impl` block, and so do
//! functions without `self` that take a context, such as a condition for [`when`].
//!
//! `#[hook]` sees a block before macro calls are expanded, so a macro call among the methods of the
//! block is an error. Blocks and [`lifecycle!`](macro@crate::lifecycle) do not work in a module
//! with `#![no_implicit_prelude]`, and no hook compiles in a crate with
//! `#![forbid(non_upper_case_globals)]`, because the registration must allow this lint.
//!
//! # Keys
//!
//! Each key is one of the [constants](#constants) below, so editors can complete it and show its
//! docs. On an `impl` block, a key applies to all hooks of the block, and a method's own attribute
//! overrides it key by key. One further key, on a function or a block, is for packages that do not
//! depend on `trainer` directly: `crate = my_framework::trainer`. A renamed dependency is found
//! without it.
//!
//! # Order
//!
//! At every point, and around every operation, `before` and `after` decide first, then the earlier
//! [stage](crate::stages), then the lower `ord`. Ties are broken in this order: first the builder's
//! hooks in the order in which they were added, then discovered hooks by crate, module path and
//! name, then the task's hooks. Around an operation, the first hook is the outermost.
//! [`describe_hooks`](crate::Trainer::describe_hooks) shows the order, and marks tied neighbors
//! with `=`. A full [tape](crate::guide::tape) warns if tied hooks change the same value.
//!
//! # Points and operations
//!
//! Every operation `X` has the points `BeforeX` and `AfterX`, and can have hooks around it. A point
//! fires in every phase that reaches it. Tables and messages show moments in lower case:
//! `after_step` is `AfterStep`.
//!
#![doc = crate::lifecycle::moments_table!()]
#![allow(non_upper_case_globals)]

/// `ord = 10`: the order of the hook among the hooks of its [stage](crate::stages), or among the
/// hooks without a stage. Lower runs first or, around an operation, further outside. Accepts any
/// constant expression of type `i32`. Defaults to 0.
pub const ord: () = ();

/// `only = train`, `only(valid, test)`: runs the hook in these [phases](mod@crate::phase) only.
/// This is resolved when the trainer is built, so the hook costs nothing in other phases. On a
/// method, `only = self.phases` reads a field of the value: a [`PhaseSet`](crate::PhaseSet), a
/// [`Phase`](crate::Phase) or a list of phases. Defaults to all phases that reach the moment.
pub const only: () = ();

/// `every = 100`: runs the hook on every 100th batch, optimizer step, epoch or record, whichever
/// its [moment](crate::language#points-and-operations) counts. If the hook is around an operation,
/// the operation runs without it at other times. Accepts any constant expression. On a method,
/// `every = self.every` reads a field of the value when the trainer is built: an unsigned
/// integer, or an `Option` that contains an unsigned integer. Defaults to 1.
pub const every: () = ();

/// `when = is_late`: runs the hook only if this function returns `true`. The function takes the
/// context of the hook by shared reference: `fn is_late(cx: &Cx<AfterStep>) -> bool`, or, for hooks
/// at several moments, `fn is_late<P>(cx: &Cx<P>) -> bool`. It is called each time that the hook is
/// due according to [`every`]. If the hook is around an operation and the function returns `false`,
/// the operation runs without the hook.
pub const when: () = ();

/// `of = "encoder.*"`, `of("fc1", "head.?")`: at the moments of a [module](crate::modules), runs
/// the hook only at modules whose names match. `*` matches any text and `?` any single character. A
/// pattern that matches no named module is an error, unless it is optional:
/// `of = optional("encoder.*")`. The error is returned when the trainer is built, or after `setup`
/// if a hook of the program runs at `setup` and may add modules. A pattern whose modules are never
/// called leads to a warning. On a method, `of = self.modules` reads the
/// [`Patterns`](crate::modules::Patterns) from a field of the value. Defaults to all modules.
pub const of: () = ();

/// `in = my_crate::Clipping`, `in(A, B)`: adds the hook to these [sets](crate::HookSet), or to one
/// of the [stages](crate::stages), which are sets with a position. A set is a type, so its name
/// must not begin with a lowercase letter. With [`before`] and [`after`], other hooks run before or
/// after all hooks of a set.
pub const r#in: () = ();

/// `before = my_crate::clip`, `before(a, B)`: runs the hook before these hooks, whatever their
/// stage and `ord`. Each path names a hook function, a hook type, which stands for all its hooks at
/// the same moment, or a [set](crate::HookSet). A path whose last segment begins with a capital
/// letter names a type or a set, and any other path names a function. Naming a hook that the
/// trainer does not have is an error when the trainer is built, unless the path is written
/// `before = optional(…)`. A set may be empty.
pub const before: () = ();

/// `after = my_crate::Clip`, `after(a, B)`: runs the hook after these hooks, with the same rules as
/// [`before`].
pub const after: () = ();

/// `auto`, on a block: the hooks are discovered. Each trainer creates a value with `Default`,
/// unless one is added with [`.hook(…)`](crate::TrainerBuilder::hook). `auto = ranks`, which
/// [`DataParallel`](crate::hooks::DataParallel) has: the hooks are discovered if and only if
/// several processes train together, even with [`Discover::None`](crate::Discover::None).
/// `auto = my_crate::is_requested`: the hooks are discovered only if this function, which takes no
/// arguments and returns a `bool`, returns `true` when the trainer is built. Use this for a hook
/// that an environment variable enables.
pub const auto: () = ();

/// `writes`: the hook writes files, or anything else that outlives the process, as loggers do.
/// [`describe_hooks`](crate::Trainer::describe_hooks) shows this key. The
/// [tape](crate::guide::tape) omits the state of the hook's value, because it may contain times and
/// positions in files. [`check_golden`](crate::Trainer::check_golden) does not run the hook.
pub const writes: () = ();

/// `may_fail`, for a hook that only observes, such as a logger or a monitor: an error or a panic of
/// the hook is a [warning](crate::Summary::warnings), and the run continues with the same result.
/// After an error, the hook is called again the next time. After a panic, only the `teardown` of
/// its value is called in the same entry point. The same holds for saving and restoring the [state]
/// of the value, and for dropping it. An error that is marked with
/// [`Error::fatal`](crate::Error::fatal) ends the run: use it at `setup` for a setting that cannot
/// work. Without this key, an error of any hook ends the run.
pub const may_fail: () = ();

/// `more`, on a block: marks a further block of a type that already has a block with `#[hook]`, for
/// example in another file. Keys about the values of the type (`auto`, `single`, `state`,
/// `settings`, `variables`) must be on the first block, and the type cannot have type parameters.
pub const more: () = ();

/// `single`, on a block: a trainer accepts at most one value of the type.
/// `single = my_crate::Other`, where the other type must have `single` too: at most one value of
/// both types together. An added value of one type then replaces the [automatic](auto) value of the
/// other, as [`LocalSgd`](crate::hooks::LocalSgd) replaces
/// [`DataParallel`](crate::hooks::DataParallel).
pub const single: () = ();

/// `state`, on a block: checkpoints contain the [state](crate::checkpoint::State) of each value.
/// `state = self.progress`: only the state of this field, whose type must derive serde's traits or
/// implement [`State`](crate::checkpoint::State). On resume, the other fields keep the values set
/// by the program.
pub const state: () = ();

/// `settings`, on a block: on resume, the [settings](crate::checkpoint::Settings) of each value are
/// compared with those of the interrupted run. The settings must also be equal on all ranks.
pub const settings: () = ();

/// `variables`, on a block: each value [adds variables](crate::AddVariables) to the model when the
/// trainer is built, before the optimizers are created. Not allowed on the block of a task, which
/// creates its own variables.
pub const variables: () = ();

/// `trial`: [`find_lr`](crate::Trainer::find_lr) and
/// [`find_batch_size`](crate::Trainer::find_batch_size) run the hook. Use this for a hook that is
/// part of the computation of a step and keeps nothing from one step to the next. If a value may
/// change training and has a [`state`], its hooks run by default, because the state is restored
/// afterwards; `trial = false` excludes them.
pub const trial: () = ();

/// `observes`, on a hook around an operation: the hook only [observes](crate::Cx#observers), like a
/// hook at a point that takes `&Cx`. It always runs the operation, and changes nothing.
pub const observes: () = ();

#[doc = include_str!("operations.md")]
pub mod operations {}
