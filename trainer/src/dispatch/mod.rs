//! Dispatch: calling the hooks of points and operations from the frozen table.

pub(crate) mod closure;
mod custom;
pub(crate) mod modules;
mod next;
pub(crate) mod selection;
pub(crate) mod shim;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use closure::{ClosureHook, HookOptions};
pub(crate) use custom::enter_custom;
pub use next::Next;
pub(crate) use selection::HookSelection;

use crate::error::{BoxError, Error, HookError, Result, discard_panic, panic_text};
use crate::hook::definition::HookResult;
use crate::hook::table::{HookId, Range};
use crate::moment::{AtOperation, AtPoint, MomentInfo};
use crate::run::{Body, Done, Run};

/// The output of an operation, and the method of `Cx` with which a hook sets it.
#[derive(Clone, Copy)]
pub(crate) struct OperationOutput {
    pub(crate) name: &'static str,
    pub(crate) setter: &'static str,
}

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

    /// Calls the hook at one index of the table.
    #[inline]
    pub(crate) fn call_one(&mut self, index: u32, at: &'static MomentInfo) -> Result<()> {
        let entry = self.hooks.table.entry(index);
        self.place.hook = Some(entry.hook);
        let result = (entry.call)(self, entry.slot);
        if result.is_err() || self.log.failed.is_some() {
            Err(self.call_failed(entry.hook, at, result))
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
        let logged = self.log.failed.take();
        let source = result.err().or_else(|| Some(Box::new(logged?)));
        self.hook_failed(hook, at, source.expect("the hook returned an error or logged an invalid value"))
    }

    /// Calls every hook of the point `P`, even after one fails or panics. Used for cleanup.
    ///
    /// Returns all errors, and the payload of the first panic.
    pub(crate) fn fire_all<P: AtPoint>(&mut self) -> (Vec<Error>, Option<Panic>) {
        let (mut errors, mut panic) = (Vec::new(), None);
        for index in self.hooks.table.range(P::index(), self.place.phase).indices() {
            let entry = self.hooks.table.entry(index);
            let result = match catch_unwind(AssertUnwindSafe(|| self.call_one(index, P::INFO))) {
                Ok(result) => result,
                Err(payload) => {
                    self.log.failed = None;
                    let error = self.hook_failed(entry.hook, P::INFO, panic_text(&*payload).into());
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

    /// Builds the error of a hook. An error that the hook received from within an operation, and
    /// returned, keeps its own location.
    #[cold]
    pub(crate) fn hook_failed(&mut self, hook: HookId, at: &'static MomentInfo, source: BoxError) -> Error {
        let source = match source.downcast::<Error>() {
            Ok(error)
                if std::mem::take(&mut self.dispatch.error_is_located) && error.location().is_some() =>
            {
                return *error;
            }
            Ok(error) => error,
            Err(other) => other,
        };
        let origin = &self.hooks.table.hook(hook).definition.origin;
        let (hook, file, line) = (origin.name(), origin.file, origin.line);
        Error::Hook(Box::new(HookError {
            hook,
            file,
            line,
            location: self.location(at),
            source,
            cleanup: Vec::new(),
        }))
    }

    /// Runs an operation with the hooks before, around and after it.
    ///
    /// Returns whether the operation took place. If not, the hooks after it were not called.
    pub(crate) fn operate_with<O: AtOperation>(
        &mut self,
        body: impl FnOnce(&mut Run) -> Result<()>,
    ) -> Result<bool> {
        self.fire::<O::Before>()?;
        let took_place = self.inside_with::<O>(body)?.took_place();
        if took_place {
            self.fire::<O::After>()?;
        }
        Ok(took_place)
    }

    /// Runs an operation that produces an output, with the hooks around it.
    ///
    /// Returns an error if a hook skips the operation, or replaces it or handles its error without
    /// setting the output.
    #[inline]
    pub(crate) fn produce<O: AtOperation>(&mut self, output: OperationOutput, body: Body) -> Result<()> {
        self.dispatch.output_overridden = false;
        let done = self.inside::<O>(body)?;
        self.check_output::<O>(done, output)
    }

    /// Does the same as [`produce`](Run::produce) for a body that captures variables.
    pub(crate) fn produce_with<O: AtOperation>(
        &mut self,
        output: OperationOutput,
        body: impl FnOnce(&mut Run) -> Result<()>,
    ) -> Result<()> {
        self.dispatch.output_overridden = false;
        let done = self.inside_with::<O>(body)?;
        self.check_output::<O>(done, output)
    }

    /// Returns an error if neither the operation nor a hook produced the output.
    #[inline]
    pub(crate) fn check_output<O: AtOperation>(&mut self, done: Done, output: OperationOutput) -> Result<()> {
        match done {
            Done::Ran => Ok(()),
            Done::Replaced | Done::Failed if self.dispatch.output_overridden => Ok(()),
            _ => Err(self.missing_output(done, output, O::INFO)),
        }
    }

    #[cold]
    pub(crate) fn missing_output(
        &mut self,
        done: Done,
        OperationOutput { name: output, setter }: OperationOutput,
        operation: &'static MomentInfo,
    ) -> Error {
        let name = operation.name;
        let output = match output.chars().next() {
            Some('a' | 'e' | 'i' | 'o' | 'u') => format!("an {output}"),
            _ => format!("a {output}"),
        };
        let text = match done {
            Done::Replaced => {
                format!(
                    "the hook replaced `{name}` without setting {output}: call `cx.{setter}(…)` in the replacement"
                )
            }
            Done::Failed => format!(
                "the hook handled the error of `{name}` without setting {output}: return the error, or call `cx.{setter}(…)`"
            ),
            _ => format!(
                "the hook skipped `{name}`, which must produce {output}: call `next.run(cx)?`, or \
                 `next.replace(cx, |cx| …)` with `cx.{setter}(…)` in it"
            ),
        };
        self.blame_responsible(operation, text.into())
    }

    /// Builds an error that names the hook that skipped or replaced the most recent operation with
    /// `around` hooks, or handled its error.
    #[cold]
    pub(crate) fn blame_responsible(&mut self, operation: &'static MomentInfo, source: BoxError) -> Error {
        let responsible =
            self.dispatch.responsible.expect("a hook skipped or replaced the operation or handled its error");
        let hook = self.hooks.table.entry(responsible).hook;
        self.hook_failed(hook, operation, source)
    }
}
