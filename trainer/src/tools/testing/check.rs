//! Hooks that call the closures of a test. Unlike other hooks, the closures may borrow from the
//! test.

use std::any::TypeId;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

use scoped_tls_hkt::scoped_thread_local;

use crate::hook::definition::{HookResult, Origin};
use crate::hook::set::SetRef;
use crate::hook::stages;
use crate::moment::{Index, Moment, MomentInfo, MomentKind};
use crate::phase::{Phase, PhaseSet};
use crate::run::dispatch::shim::pass_on;
use crate::run::{HookDef, Shim};
use crate::run::{Rest, Run};
use crate::training::TrainerBuilder;
use crate::training::task::Task;

/// A function that calls a closure of the running harness. If the hook belongs to another harness,
/// or if the closure is already running, the function only runs the rest of the operation, if there
/// is one.
type Call<'a> = dyn Fn(CheckId, &mut Run, Option<Rest<'_>>) -> HookResult + 'a;

// Set while a harness runs its trainer.
scoped_thread_local!(static CALL: for<'a> &'a Call<'a>);

/// A closure of a test. If it is called around an operation, it receives the rest of the operation.
type Closure<'a> = Box<dyn FnMut(&mut Run, Option<Rest<'_>>) -> HookResult + 'a>;

/// A closure of a test, and the moment at which it is called.
pub(super) struct Check<'a> {
    pub(super) moment: &'static MomentInfo,
    row: Index,
    place: &'static Location<'static>,
    observes: bool,
    call: Shim,
    closure: Closure<'a>,
}

impl<'a> Check<'a> {
    /// Defines a closure at the point `M`, or around the operation `M`.
    pub(super) fn new<M: Moment>(
        place: &'static Location<'static>,
        closure: impl FnMut(&mut Run, Option<Rest<'_>>) -> HookResult + 'a,
    ) -> Self {
        let call = match M::INFO.kind {
            MomentKind::Operation => Shim::Around(|run, slot, rest| call(run, slot, Some(rest))),
            _ => Shim::Point(|run, slot| call(run, slot, None)),
        };
        Check { moment: M::INFO, row: M::index, place, observes: false, call, closure: Box::new(closure) }
    }

    /// Declares that the closure leaves the run as it is, so that a run without it can resume.
    pub(super) fn observing(self) -> Self {
        Check { observes: true, ..self }
    }
}

/// Identifies a closure.
#[derive(Clone, Copy)]
struct CheckId {
    harness: u64,
    index: usize,
}

/// The value of the hook that calls a closure.
struct CheckHook(CheckId);

/// The closures of one run of a harness.
pub(super) struct Checks<'a> {
    harness: u64,
    checks: Vec<Running<'a>>,
}

struct Running<'a> {
    moment: &'static MomentInfo,
    closure: RefCell<Closure<'a>>,
    is_reached: Cell<bool>,
}

impl<'a> Checks<'a> {
    /// Adds a hook for each closure to the builder. The hook runs after all other hooks at its
    /// moment, in the given phase only or, if `phase` is `None`, in all phases.
    pub(super) fn add<T: Task>(
        checks: Vec<Check<'a>>,
        mut builder: TrainerBuilder<T>,
        phase: Option<Phase>,
    ) -> (Self, TrainerBuilder<T>) {
        static HARNESSES: AtomicU64 = AtomicU64::new(0);
        let harness = HARNESSES.fetch_add(1, Ordering::Relaxed);
        let mut running = Vec::new();
        for (index, Check { moment, row, place, observes, call, closure }) in checks.into_iter().enumerate() {
            let name = if index == 0 { "harness".to_owned() } else { format!("harness #{}", index + 1) };
            let definition = HookDef {
                origin: Origin::closure(name, place, "A closure of a test"),
                id: TypeId::of::<CheckHook>(),
                ord: i32::MAX,
                moment,
                row,
                only: phase.map_or(PhaseSet::NONE, |phase| PhaseSet::NONE.with(phase)),
                every: None,
                when: None,
                of: &[],
                selected: None,
                main_only: false,
                observes,
                writes: false,
                may_fail: false,
                trial: None,
                reads: &[],
                sets: Cow::Borrowed(const { &[SetRef::of::<stages::Last>("trainer::stages::Last")] }),
                constraints: &[],
                call,
            };
            builder = builder.hook_with(CheckHook(CheckId { harness, index }), definition);
            running.push(Running { moment, closure: RefCell::new(closure), is_reached: Cell::new(false) });
        }
        (Checks { harness, checks: running }, builder)
    }

    /// Runs `entry` with the closures stored in `CALL`, so that the hooks can call them.
    pub(super) fn during<R>(&self, entry: impl FnOnce() -> R) -> R {
        let call = |id: CheckId, run: &mut Run, rest: Option<Rest<'_>>| {
            let Some(check) = self.checks.get(id.index).filter(|_| id.harness == self.harness) else {
                return otherwise(run, rest);
            };
            check.is_reached.set(true);
            // The closure is already running if it fired its own custom moment.
            match check.closure.try_borrow_mut() {
                Ok(mut closure) => closure(run, rest),
                Err(_) => otherwise(run, rest),
            }
        };
        CALL.set(&call, entry)
    }

    /// Returns the moment of the first closure that was not called.
    pub(super) fn first_unreached(&self) -> Option<&'static MomentInfo> {
        self.checks.iter().find(|check| !check.is_reached.get()).map(|check| check.moment)
    }
}

/// Runs the rest of the operation, if there is one, instead of calling a closure.
pub(super) fn otherwise(run: &mut Run, rest: Option<Rest<'_>>) -> HookResult {
    rest.map_or(Ok(()), |rest| pass_on(run, rest))
}

/// Calls a closure, from the entry of the dispatch table for its hook.
fn call(run: &mut Run, slot: u32, rest: Option<Rest<'_>>) -> HookResult {
    let value = run.hooks().instances[slot as usize].value.as_ref();
    let CheckHook(id) = *value.and_then(|value| value.downcast_ref()).expect("only `call` reads the value");
    if CALL.is_set() { CALL.with(|call| call(id, run, rest)) } else { otherwise(run, rest) }
}
