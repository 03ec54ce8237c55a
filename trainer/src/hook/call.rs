//! [`Loop`]: a loop that calls hooks. Its provided methods fire the points of the loop and run its
//! operations, with the hooks in its [`Table`].

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::definition::HookResult;
use super::frame::{Ending, Frame, HookId, Range, Rest};
use super::table::{Entry, Table};
use crate::error::{BoxError, Error, Result, discard_panic, panic_text};
use crate::moment::{AtOperation, AtPoint, MomentInfo, Unit};
use crate::phase::Phase;

/// The payload of a panic.
pub(crate) type Panic = Box<dyn Any + Send>;

/// The error of a hook that returned a `Done` without using its own `next`.
const OTHER_DONE: &str =
    "the hook returned a `Done` of another operation: return the one that its own `next` returned";
/// The part of a message that says why a hook around an operation must only observe.
pub(crate) const PROMISE: &str = "has the key `observes`";
/// The advice for a hook around an operation that does more than observe.
pub(crate) const FIX: &str = "remove the key";

/// The state of a loop, as far as hooks depend on it.
pub(crate) trait Loop: Sized + 'static {
    /// What a value with hooks has besides its hooks.
    type Extras: Copy + Default + 'static;
    /// The position of the loop, to which it returns when an operation with hooks around it ends.
    type Place: Copy;

    /// The hooks.
    fn table(&self) -> &Table<Self>;
    /// The position.
    fn place_mut(&mut self) -> &mut Self::Place;
    /// The phase.
    fn phase(&self) -> Phase;
    /// The running operation.
    fn operation_mut(&mut self) -> &mut &'static MomentInfo;
    /// The hook that is being called.
    fn hook(&self) -> Option<HookId>;
    /// Sets the hook that is being called.
    fn set_hook(&mut self, hook: Option<HookId>);
    /// Returns the number that the key `every` counts in this unit, from 1.
    fn count(&self, unit: Unit) -> u64;
    /// Notes that the key `every` of a hook is due.
    fn mark_due(&self, hook: HookId);
    /// The error of something that the current hook did and that could not return it, such as
    /// logging an invalid value.
    fn complaint(&mut self) -> &mut Option<Error>;
    /// Adds the current operation to an error that has no location.
    fn locate(&self, error: Error) -> Error;
    /// Builds the error of a hook. If the hook received the error from within an operation and
    /// returned it, the error keeps its own location.
    fn hook_failed(&self, hook: HookId, at: &'static MomentInfo, source: BoxError) -> Error;
    /// Notes which hook skipped or replaced the operation that ends, or handled its error.
    fn set_responsible(&mut self, hook: HookId);

    /// Calls the hooks of the point `P` until one fails, and returns its error.
    #[inline]
    fn fire<P: AtPoint>(&mut self) -> Result<()> {
        let range = self.table().range(P::index(), self.phase());
        if range.is_empty() { Ok(()) } else { self.call(range, P::INFO) }
    }

    /// Calls the hooks in this range of the table until one fails, and returns its error.
    #[inline]
    fn call(&mut self, range: Range, at: &'static MomentInfo) -> Result<()> {
        for index in range.indices() {
            self.call_one(index, at)?;
        }
        self.set_hook(None);
        Ok(())
    }

    /// Calls the point hook at this index of the table.
    #[inline]
    fn call_one(&mut self, index: u32, at: &'static MomentInfo) -> Result<()> {
        let Entry { call, slot, hook } = self.table().point(index);
        self.set_hook(Some(hook));
        let result = call(self, slot);
        self.called(hook, at, result)
    }

    /// Checks the result of a hook, and what the hook left behind.
    #[inline]
    fn called(&mut self, hook: HookId, at: &'static MomentInfo, result: HookResult) -> Result<()> {
        if result.is_err() || self.complaint().is_some() {
            Err(self.call_failed(hook, at, result))
        } else {
            Ok(())
        }
    }

    /// Builds the error of a hook that returned an error or left one behind. The returned error
    /// takes precedence.
    #[cold]
    #[inline(never)]
    fn call_failed(&mut self, hook: HookId, at: &'static MomentInfo, result: HookResult) -> Error {
        self.set_hook(None);
        let left = self.complaint().take();
        let source = result.err().or_else(|| Some(Box::new(left?)));
        self.hook_failed(hook, at, source.expect("the hook returned an error or left one behind"))
    }

    /// Returns the error that the current hook left behind, if any. Called before other hooks run,
    /// so that the error is not attributed to one of them.
    #[inline]
    fn check_complaint(&mut self) -> Result<()> {
        let failed = self.complaint();
        if failed.is_none() { Ok(()) } else { failed.take().map_or(Ok(()), Err) }
    }

    /// Calls every hook of the point `P`, even after one fails or panics. Used for cleanup.
    ///
    /// Returns all errors, and the payload of the first panic.
    fn fire_all<P: AtPoint>(&mut self) -> (Vec<Error>, Option<Panic>) {
        let mut errors = Vec::new();
        let mut panic = None;
        for index in self.table().range(P::index(), self.phase()).indices() {
            let hook = self.table().point(index).hook;
            let result = match catch_unwind(AssertUnwindSafe(|| self.call_one(index, P::INFO))) {
                Ok(result) => result,
                Err(payload) => {
                    *self.complaint() = None;
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

    /// Runs an operation with the hooks before, around and after it.
    ///
    /// Returns whether the operation took place. If it did not, the hooks after it were not called.
    fn operate<O: AtOperation>(&mut self, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<bool> {
        self.fire::<O::Before>()?;
        let took_place = self.inside::<O>(body)?.took_place();
        if took_place {
            self.fire::<O::After>()?;
        }
        Ok(took_place)
    }

    /// Runs an operation like [`operate`](Loop::operate). If it is resumed, its `before` point does
    /// not fire again.
    fn resume_operation<O: AtOperation>(
        &mut self,
        resumed: bool,
        body: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        if !resumed {
            self.operate::<O>(body)?;
        } else if self.inside::<O>(body)?.took_place() {
            self.fire::<O::After>()?;
        }
        Ok(())
    }

    /// Runs an operation with the hooks around it, but without the points before and after it.
    ///
    /// Returns how the operation ended.
    #[inline]
    fn inside<O: AtOperation>(&mut self, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<Ending> {
        let around = self.table().range(O::index(), self.phase());
        self.inside_range::<O>(around, body)
    }

    /// Does the same as [`inside`](Loop::inside) for a subset of the hooks around the operation.
    #[inline]
    fn inside_range<O: AtOperation>(
        &mut self,
        mut around: Range,
        body: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<Ending> {
        let Some(first) = around.take_first() else {
            let outer = std::mem::replace(self.operation_mut(), O::INFO);
            let result = body(self).map(|()| Ending::Ran).map_err(|error| self.locate(error));
            *self.operation_mut() = outer;
            return result;
        };
        let mut body = Some(body);
        let frame = &mut Frame {
            operation: O::INFO,
            remaining_hooks: around,
            ending: Ending::Open,
            responsible: None,
            body: |run: &mut Self| {
                body.take().expect("`Next::run` consumes the `Next`, so the body runs once")(run)
            },
        };
        self.around(first, frame)?;
        Ok(frame.ending)
    }

    /// Runs an operation that has `around` hooks, the outermost of which is `first`.
    fn around(&mut self, first: u32, frame: Rest<'_, Self>) -> Result<()> {
        self.set_hook(None);
        let place = *self.place_mut();
        *self.operation_mut() = frame.operation;
        let result = self.call_around(first, frame);
        // A hook may have caught a panic that left the loop at a different place.
        *self.place_mut() = place;
        result.map_err(|error| self.locate_in(frame.operation, error))
    }

    /// Adds this operation to an error that has no location.
    #[cold]
    fn locate_in(&mut self, operation: &'static MomentInfo, error: Error) -> Error {
        let outer = std::mem::replace(self.operation_mut(), operation);
        let error = self.locate(error);
        *self.operation_mut() = outer;
        error
    }

    /// Calls the `around` hook at this index of the table.
    #[inline]
    fn call_around(&mut self, index: u32, rest: Rest<'_, Self>) -> Result<()> {
        let Entry { call, slot, hook } = self.table().around(index);
        self.set_hook(Some(hook));
        let result = call(self, slot, rest);
        let result = self.called(hook, rest.operation, result);
        if rest.ending != Ending::Ran && result.is_ok() { self.not_run(hook, rest) } else { result }
    }

    /// Notes that this hook skipped or replaced an operation, or handled its error, unless an inner
    /// hook already did.
    #[cold]
    fn not_run(&mut self, hook: HookId, rest: Rest<'_, Self>) -> Result<()> {
        if rest.ending == Ending::Open {
            return Err(self.hook_failed(hook, rest.operation, OTHER_DONE.into()));
        }
        if rest.responsible.is_none() && self.table().hook(hook).definition.observes {
            return Err(self.hook_failed(hook, rest.operation, not_run(rest.ending)));
        }
        let responsible = *rest.responsible.get_or_insert(hook);
        self.set_responsible(responsible);
        Ok(())
    }

    /// Runs the body of an operation.
    #[inline]
    fn run_body(&mut self, rest: Rest<'_, Self>) -> Result<()> {
        self.set_hook(None);
        rest.ending = Ending::Failed;
        (rest.body)(self).map_err(|error| self.locate(error))?;
        rest.ending = Ending::Ran;
        Ok(())
    }

    /// Calls the next hook around an operation, or runs the body of the operation if no hook is
    /// left.
    #[inline]
    fn run_rest(&mut self, rest: Rest<'_, Self>) -> Result<()> {
        match rest.remaining_hooks.take_first() {
            Some(index) => self.call_further(index, rest),
            None => self.run_body(rest),
        }
    }

    /// Calls a hook that is not the outermost one. Not inlined, because most operations have only
    /// one hook, and a function that contains this call must save more registers.
    #[inline(never)]
    fn call_further(&mut self, index: u32, rest: Rest<'_, Self>) -> Result<()> {
        self.call_around(index, rest)
    }

    /// Does the same as [`run_rest`](Loop::run_rest) within a hook, which may return the error as
    /// its own.
    fn run_next(&mut self, rest: Rest<'_, Self>) -> Result<()> {
        self.check_complaint()?;
        let this_hook = self.hook();
        let result = self.run_rest(rest);
        self.set_hook(this_hook);
        result
    }

    /// Returns whether the hook that is being called is due. Its key `every` counts batches,
    /// optimizer steps, epochs or records.
    #[inline]
    fn is_due(&self) -> bool {
        let Some(id) = self.hook() else { return true };
        let hook = &self.table().hook(id).definition;
        let Some(every) = hook.every else { return true };
        let is_due = self.count(hook.moment.counts.unwrap_or(Unit::Batches)).is_multiple_of(every);
        if is_due {
            self.mark_due(id);
        }
        is_due
    }
}

/// Builds the error for a hook that should only observe, but either did not run the operation or
/// handled an error of the operation.
#[cold]
pub(crate) fn not_run(ending: Ending) -> BoxError {
    let what = if ending == Ending::Failed { "handled an error of" } else { "did not run" };
    format!("the hook {PROMISE}, but {what} the operation: return `next.run(cx)`, or {FIX}").into()
}
