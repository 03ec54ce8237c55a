//! Dispatch: calling the hooks of points and operations from the frozen table.

pub(crate) mod closure;
mod compute;
mod custom;
pub(crate) mod guard;
mod modules;
mod next;
pub(crate) mod observers;
mod operation;
pub(crate) mod selection;
pub(crate) mod shim;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use closure::{ClosureHook, HookOptions, ObserverClosure};
pub(crate) use compute::computing;
pub(crate) use custom::{enter_custom, fire_with};
pub use next::{Done, Next};
pub(crate) use operation::OperationOutput;
pub(crate) use selection::{HookSelection, of_task_variables};

use crate::error::{BoxError, Error, HookError, Result, discard_panic, panic_text};
use crate::hook::definition::HookResult;
use crate::hook::table::{Entry, HookId, Range};
use crate::moment::{AtPoint, MomentInfo};
use crate::run::Run;

/// The payload of a panic.
pub(crate) type Panic = Box<dyn Any + Send>;

impl Run {
    /// Calls the hooks of the point `P` until one fails, and returns its error.
    #[inline]
    pub(crate) fn fire<P: AtPoint>(&mut self) -> Result<()> {
        let range = self.hooks.table.range(P::index(), self.place.phase);
        if range.is_empty() { Ok(()) } else { self.call(range, P::INFO) }
    }

    #[inline]
    pub(crate) fn call(&mut self, range: Range, at: &'static MomentInfo) -> Result<()> {
        for index in range.indices() {
            self.call_one(index, at)?;
        }
        self.place.hook = None;
        Ok(())
    }

    /// Calls the point hook at this index of the table.
    #[inline]
    pub(crate) fn call_one(&mut self, index: u32, at: &'static MomentInfo) -> Result<()> {
        let Entry { call, slot, hook } = self.hooks.table.point(index);
        self.place.hook = Some(hook);
        let result = call(self, slot);
        self.called(hook, at, result)
    }

    /// Checks the result of a hook, and what the hook logged.
    #[inline]
    fn called(&mut self, hook: HookId, at: &'static MomentInfo, result: HookResult) -> Result<()> {
        if result.is_err() || self.log.get_mut().failed.is_some() {
            Err(self.call_failed(hook, at, result))
        } else {
            Ok(())
        }
    }

    /// Builds the error of a hook that returned an error or logged an invalid value. The returned
    /// error takes precedence.
    #[cold]
    #[inline(never)]
    fn call_failed(&mut self, hook: HookId, at: &'static MomentInfo, result: HookResult) -> Error {
        self.place.hook = None;
        let logged = self.log.get_mut().failed.take();
        let source = result.err().or_else(|| Some(Box::new(logged?)));
        self.hook_failed(hook, at, source.expect("the hook returned an error or logged an invalid value"))
    }

    /// Calls every hook of the point `P`, even after one fails or panics. Used for cleanup.
    ///
    /// Returns all errors, and the payload of the first panic.
    pub(crate) fn fire_all<P: AtPoint>(&mut self) -> (Vec<Error>, Option<Panic>) {
        let mut errors = Vec::new();
        let mut panic = None;
        for index in self.hooks.table.range(P::index(), self.place.phase).indices() {
            let hook = self.hooks.table.point(index).hook;
            let result = match catch_unwind(AssertUnwindSafe(|| self.call_one(index, P::INFO))) {
                Ok(result) => result,
                Err(payload) => {
                    self.log.get_mut().failed = None;
                    let error = self.hook_failed(hook, P::INFO, panic_text(&*payload).into());
                    match panic {
                        None => panic = Some(payload),
                        Some(_) => discard_panic(payload),
                    }
                    Err(error)
                }
            };
            errors.extend(result.err());
        }
        (errors, panic)
    }

    /// Builds the error of a hook. If the hook received the error from within an operation and
    /// returned it, the error keeps its own location.
    #[cold]
    pub(crate) fn hook_failed(&self, hook: HookId, at: &'static MomentInfo, source: BoxError) -> Error {
        match source.downcast::<Error>() {
            Ok(error) if self.has_located(&error) => *error,
            Ok(error) => self.blame(hook, at, error),
            Err(other) => self.blame(hook, at, other),
        }
    }

    /// Builds an error that names the hook.
    #[cold]
    pub(super) fn blame(&self, hook: HookId, at: &'static MomentInfo, source: BoxError) -> Error {
        let source = match source.downcast::<Error>().map(|error| *error) {
            Ok(Error::Fatal(error)) => *error,
            Ok(error) => error.into(),
            Err(other) => other,
        };
        let origin = &self.hooks.table.hook(hook).definition.origin;
        let hook = origin.name();
        let file = origin.file;
        let line = origin.line;
        Error::Hook(Box::new(HookError {
            hook,
            file,
            line,
            location: self.location(at),
            origin: self.dispatch.origin,
            source,
            cleanup: Vec::new(),
        }))
    }
}
