//! The closures of a test as hooks. Unlike other hooks, they may borrow from the test.

use std::any::TypeId;
use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

use scoped_tls_hkt::scoped_thread_local;

use crate::dispatch::shim::pass_on;
use crate::hook::definition::{HookDef, HookResult, Origin};
use crate::moment::{Index, Moment, MomentInfo, MomentKind};
use crate::phase::{Phase, PhaseSet};
use crate::run::Run;
use crate::training::TrainerBuilder;
use crate::training::task::Task;

/// Calls a closure of the running harness. Returns `None` if the hook belongs to another harness,
/// or if the closure is already running.
type Call<'a> = dyn Fn(CheckId, &mut Run) -> Option<HookResult> + 'a;

// Set while a harness runs its trainer.
scoped_thread_local!(static CALL: for<'a> &'a Call<'a>);

type Closure<'a> = Box<dyn FnMut(&mut Run) -> HookResult + 'a>;

/// A closure of a test, and the moment at which it is called.
pub(super) struct Check<'a> {
    pub(super) moment: &'static MomentInfo,
    row: Index,
    place: &'static Location<'static>,
    /// What its hook does when the closure cannot be called: after the run of the harness, or while
    /// the closure is already running.
    otherwise: fn(&mut Run) -> HookResult,
    closure: Closure<'a>,
}

impl<'a> Check<'a> {
    /// Defines a closure at the point `M`, or around the operation `M`.
    pub(super) fn new<M: Moment>(place: &'static Location<'static>, closure: Closure<'a>) -> Self {
        let is_operation = M::INFO.kind == MomentKind::Operation;
        let otherwise = if is_operation { pass_on::<M> } else { |_: &mut Run| Ok(()) };
        Check { moment: M::INFO, row: M::index, place, otherwise, closure }
    }
}

/// Identifies a closure.
#[derive(Clone, Copy)]
struct CheckId {
    harness: u64,
    index: usize,
}

/// The value of the hook that calls a closure.
#[derive(Clone, Copy)]
struct CheckHook {
    id: CheckId,
    otherwise: fn(&mut Run) -> HookResult,
}

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
    /// Adds a hook for each closure to the builder, after all other hooks at its moment, in the
    /// given phase or, by default, in all phases.
    pub(super) fn add<T: Task>(
        checks: Vec<Check<'a>>,
        builder: TrainerBuilder<T>,
        phase: Option<Phase>,
    ) -> (Self, TrainerBuilder<T>) {
        static HARNESSES: AtomicU64 = AtomicU64::new(0);
        let harness = HARNESSES.fetch_add(1, Ordering::Relaxed);
        let (mut running, mut builder) = (Vec::new(), builder);
        for (index, Check { moment, row, place, otherwise, closure }) in checks.into_iter().enumerate() {
            let name = if index == 0 { "harness".to_owned() } else { format!("harness #{}", index + 1) };
            let definition = HookDef {
                origin: Origin {
                    module: "",
                    path: name.into(),
                    method: None,
                    version: None,
                    binary: false,
                    file: place.file(),
                    line: place.line(),
                    docs: "A closure of a test",
                },
                id: TypeId::of::<CheckHook>(),
                ord: i32::MAX,
                moment,
                row,
                only: phase.map_or(PhaseSet::NONE, |phase| PhaseSet::NONE.with(phase)),
                every: None,
                of: &[],
                of_value: None,
                main_only: false,
                constraints: &[],
                call,
            };
            builder = builder.hook_with(CheckHook { id: CheckId { harness, index }, otherwise }, definition);
            running.push(Running { moment, closure: RefCell::new(closure), is_reached: Cell::new(false) });
        }
        (Checks { harness, checks: running }, builder)
    }

    /// Runs `entry`, during which the hooks call the closures.
    pub(super) fn during<R>(&self, entry: impl FnOnce() -> R) -> R {
        let call = |id: CheckId, run: &mut Run| {
            let Running { closure, is_reached, .. } =
                self.checks.get(id.index).filter(|_| id.harness == self.harness)?;
            is_reached.set(true);
            // The closure is already running if it fired its own custom moment.
            let mut closure = closure.try_borrow_mut().ok()?;
            Some(closure(run))
        };
        CALL.set(&call, entry)
    }

    /// Returns the moment of the first closure that was not called.
    pub(super) fn first_unreached(&self) -> Option<&'static MomentInfo> {
        self.checks.iter().find(|check| !check.is_reached.get()).map(|check| check.moment)
    }
}

/// The function that the dispatch table calls for the hook of a closure.
fn call(run: &mut Run, slot: u32) -> HookResult {
    let value = run.hooks.instances[slot as usize].value.as_ref();
    let CheckHook { id, otherwise } =
        *value.and_then(|value| value.downcast_ref()).expect("only `call` reads the value");
    let called = if CALL.is_set() { CALL.with(|call| call(id, run)) } else { None };
    called.unwrap_or_else(|| otherwise(run))
}
