//! [`Run`] as the [`Loop`] whose hooks are called from the frozen table, and what surrounds these
//! calls.

pub(crate) mod added;
pub(crate) mod closure;
mod compute;
mod custom;
pub(crate) mod describe;
pub(crate) mod guard;
mod module_gradients;
mod module_hooks;
mod next;
pub(crate) mod observers;
mod operation;
pub(crate) mod registration;
pub(crate) mod shim;

pub(crate) use added::of_task_variables;
pub use closure::{ClosureHook, HookOptions, ObserverClosure};
pub(crate) use compute::computing;
pub(crate) use custom::{enter_custom, fire_with};
pub(crate) use module_gradients::{needs_the_cpu, needs_whole_gradients, plan_of_pass};
pub use next::{Done, Next};
pub(crate) use operation::OperationOutput;

use crate::error::{BoxError, Error, HookError, OperationError};
use crate::hook::call::Loop;
use crate::hook::frame::HookId;
use crate::moment::{MomentInfo, Unit};
use crate::phase::Phase;
use crate::run::{Place, Run, Table};

impl Loop for Run {
    type Extras = registration::Extras;
    type Place = Place;

    #[inline]
    fn table(&self) -> &Table {
        &self.hooks.table
    }

    #[inline]
    fn place_mut(&mut self) -> &mut Place {
        &mut self.at.place
    }

    #[inline]
    fn phase(&self) -> Phase {
        self.at.place.phase
    }

    #[inline]
    fn operation_mut(&mut self) -> &mut &'static MomentInfo {
        &mut self.at.place.operation
    }

    #[inline]
    fn hook(&self) -> Option<HookId> {
        self.at.place.hook
    }

    #[inline]
    fn set_hook(&mut self, hook: Option<HookId>) {
        self.at.place.hook = hook;
    }

    #[inline]
    fn count(&self, unit: Unit) -> u64 {
        match unit {
            Unit::Epochs => self.progress.counters.epoch + 1,
            Unit::Steps => self.step.step_number,
            Unit::Records => self.log.borrow().records.number,
            Unit::Batches => self.progress.batch_number,
        }
    }

    #[inline]
    fn mark_due(&self, hook: HookId) {
        self.dispatch.mark_due(hook);
    }

    #[inline]
    fn complaint(&mut self) -> &mut Option<Error> {
        &mut self.log.get_mut().failed
    }

    fn locate(&self, source: Error) -> Error {
        if self.dispatch.has_located(&source) {
            return source;
        }
        let location = self.location(self.at.place.operation);
        let batch = self.step.describe_batch();
        let origin = self.dispatch.origin;
        Error::Operation(Box::new(OperationError { location, origin, batch, source, cleanup: Vec::new() }))
    }

    fn set_responsible(&mut self, hook: HookId) {
        self.dispatch.responsible = Some(hook);
    }

    /// Builds the error of a hook. If the hook received the error from within an operation and
    /// returned it, the error keeps its own location.
    #[cold]
    fn hook_failed(&self, hook: HookId, at: &'static MomentInfo, source: BoxError) -> Error {
        match source.downcast::<Error>() {
            Ok(error) if self.dispatch.has_located(&error) => *error,
            Ok(error) => self.blame(hook, at, error),
            Err(other) => self.blame(hook, at, other),
        }
    }
}

impl Run {
    /// Builds an error that names the hook.
    #[cold]
    fn blame(&self, hook: HookId, at: &'static MomentInfo, source: BoxError) -> Error {
        let source = match source.downcast::<Error>().map(|error| *error) {
            Ok(Error::Fatal(error)) => *error,
            Ok(error) => error.into(),
            Err(other) => other,
        };
        let origin = &self.hooks.table.hook(hook).definition.origin;
        let is_own = origin.is_own();
        let hook = origin.name();
        let file = origin.file;
        let line = origin.line;
        Error::Hook(Box::new(HookError {
            hook,
            file,
            line,
            location: self.location(at),
            origin: self.dispatch.origin,
            is_own,
            source,
            cleanup: Vec::new(),
        }))
    }
}
