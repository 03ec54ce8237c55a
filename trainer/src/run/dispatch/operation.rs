//! Running operations, with the hooks around them.

use super::observers;
use crate::error::{BoxError, Error, Result};
use crate::hook::table::{Entry, HookId, Range};
use crate::moment::{AtOperation, MomentInfo};
use crate::run::{Ending, Frame, Rest, Run};

/// The error of a hook that returned a `Done` without using its own `next`.
const OTHER_DONE: &str =
    "the hook returned a `Done` of another operation: return the one that its own `next` returned";

/// The output of an operation, and the method of `Cx` with which a hook sets it.
#[derive(Clone, Copy)]
pub(crate) struct OperationOutput {
    pub(crate) name: &'static str,
    pub(crate) setter: &'static str,
}

impl Run {
    /// Runs an operation with the hooks before, around and after it.
    ///
    /// Returns whether the operation took place. If it did not, the hooks after it were not called.
    pub(crate) fn operate<O: AtOperation>(
        &mut self,
        body: impl FnOnce(&mut Run) -> Result<()>,
    ) -> Result<bool> {
        self.fire::<O::Before>()?;
        let took_place = self.inside::<O>(body)?.took_place();
        if took_place {
            self.fire::<O::After>()?;
        }
        Ok(took_place)
    }

    /// Runs an operation with the hooks around it, but without the points before and after it.
    ///
    /// Returns how the operation ended.
    #[inline]
    pub(crate) fn inside<O: AtOperation>(
        &mut self,
        body: impl FnOnce(&mut Run) -> Result<()>,
    ) -> Result<Ending> {
        let around = self.hooks.table.range(O::index(), self.place.phase);
        self.inside_range::<O>(around, body)
    }

    /// Does the same as [`inside`](Run::inside) for a subset of the hooks around the operation.
    #[inline]
    pub(super) fn inside_range<O: AtOperation>(
        &mut self,
        mut around: Range,
        body: impl FnOnce(&mut Run) -> Result<()>,
    ) -> Result<Ending> {
        let Some(first) = around.take_first() else {
            let outer = std::mem::replace(&mut self.place.operation, O::INFO);
            let result = body(self).map(|()| Ending::Ran).map_err(|error| self.locate(error));
            self.place.operation = outer;
            return result;
        };
        let mut body = Some(body);
        let frame = &mut Frame {
            operation: O::INFO,
            remaining_hooks: around,
            ending: Ending::Open,
            responsible: None,
            body: |run: &mut Run| {
                body.take().expect("`Next::run` consumes the `Next`, so the body runs once")(run)
            },
        };
        self.around(first, frame)?;
        Ok(frame.ending)
    }

    /// Runs an operation that has `around` hooks, the outermost of which is `first`.
    fn around(&mut self, first: u32, frame: Rest<'_>) -> Result<()> {
        let mut place = self.place;
        place.hook = None;
        self.place.operation = frame.operation;
        let result = self.call_around(first, frame);
        // A hook may have caught a panic that left the run at a different place.
        self.place = place;
        result.map_err(|error| self.locate_in(frame.operation, error))
    }

    /// Adds this operation and the batch to an error that this run has not located yet.
    #[cold]
    fn locate_in(&mut self, operation: &'static MomentInfo, error: Error) -> Error {
        let outer = std::mem::replace(&mut self.place.operation, operation);
        let error = self.locate(error);
        self.place.operation = outer;
        error
    }

    /// Calls the `around` hook at this index of the table.
    #[inline]
    fn call_around(&mut self, index: u32, rest: Rest<'_>) -> Result<()> {
        let Entry { call, slot, hook } = self.hooks.table.around(index);
        self.place.hook = Some(hook);
        let result = call(self, slot, rest);
        let result = self.called(hook, rest.operation, result);
        if rest.ending != Ending::Ran && result.is_ok() { self.not_run(hook, rest) } else { result }
    }

    /// Notes that this hook skipped or replaced an operation, or handled its error, unless an inner
    /// hook already did.
    #[cold]
    fn not_run(&mut self, hook: HookId, rest: Rest<'_>) -> Result<()> {
        if rest.ending == Ending::Open {
            return Err(self.hook_failed(hook, rest.operation, OTHER_DONE.into()));
        }
        if rest.responsible.is_none() && self.hooks.table.hook(hook).definition.observes {
            return Err(self.hook_failed(hook, rest.operation, observers::not_run(rest.ending)));
        }
        self.dispatch.responsible = Some(*rest.responsible.get_or_insert(hook));
        Ok(())
    }

    /// Runs the body of an operation.
    #[inline]
    fn run_body(&mut self, rest: Rest<'_>) -> Result<()> {
        self.place.hook = None;
        rest.ending = Ending::Failed;
        (rest.body)(self).map_err(|error| self.locate(error))?;
        rest.ending = Ending::Ran;
        Ok(())
    }

    /// Calls the next hook around an operation, or runs the body of the operation if no hook is
    /// left.
    #[inline]
    pub(crate) fn run_rest(&mut self, rest: Rest<'_>) -> Result<()> {
        match rest.remaining_hooks.take_first() {
            Some(index) => self.call_further(index, rest),
            None => self.run_body(rest),
        }
    }

    /// Calls a hook that is not the outermost one. Not inlined, because most operations have only
    /// one hook, and a function that contains this call must save more registers.
    #[inline(never)]
    fn call_further(&mut self, index: u32, rest: Rest<'_>) -> Result<()> {
        self.call_around(index, rest)
    }

    /// Does the same as [`run_rest`](Run::run_rest) within a hook, which may return the error as
    /// its own.
    pub(super) fn run_next(&mut self, rest: Rest<'_>) -> Result<()> {
        self.check_logged()?;
        let this_hook = self.place.hook;
        let result = self.run_rest(rest);
        self.place.hook = this_hook;
        result
    }

    /// Runs an operation that produces an output, with the hooks around it.
    ///
    /// Returns an error if a hook skips the operation. Also returns an error if a hook replaces the
    /// operation, or handles its error, without setting the output.
    #[inline]
    pub(crate) fn produce<O: AtOperation>(
        &mut self,
        output: OperationOutput,
        body: impl FnOnce(&mut Run) -> Result<()>,
    ) -> Result<()> {
        self.dispatch.output_overridden = false;
        let done = self.inside::<O>(body)?;
        self.check_output::<O>(done, output)
    }

    /// Returns an error if neither the operation nor a hook produced the output.
    #[inline]
    pub(crate) fn check_output<O: AtOperation>(
        &mut self,
        done: Ending,
        output: OperationOutput,
    ) -> Result<()> {
        match done {
            Ending::Ran => Ok(()),
            Ending::Replaced | Ending::Failed if self.dispatch.output_overridden => Ok(()),
            _ => Err(self.missing_output(done, output, O::INFO)),
        }
    }

    #[cold]
    pub(crate) fn missing_output(
        &self,
        done: Ending,
        OperationOutput { name: output, setter }: OperationOutput,
        operation: &'static MomentInfo,
    ) -> Error {
        let name = operation.name;
        let output = match output.chars().next() {
            Some('a' | 'e' | 'i' | 'o' | 'u') => format!("an {output}"),
            _ => format!("a {output}"),
        };
        let text = match done {
            Ending::Replaced => {
                format!(
                    "the hook replaced `{name}` without setting {output}: call `cx.{setter}(…)` in the replacement"
                )
            }
            Ending::Failed => format!(
                "the hook handled the error of `{name}` without setting {output}: return the error, or call `cx.{setter}(…)`"
            ),
            _ => format!(
                "the hook skipped `{name}`, which must produce {output}: call `next.run(cx)`, or \
                 `next.replace(cx, |cx| …)` with `cx.{setter}(…)` in it"
            ),
        };
        self.blame_responsible(operation, text.into())
    }

    /// Builds an error that names the hook responsible for how the most recent operation with
    /// `around` hooks ended: the hook that skipped or replaced the operation, or handled its error.
    #[cold]
    pub(crate) fn blame_responsible(&self, operation: &'static MomentInfo, source: BoxError) -> Error {
        let responsible =
            self.dispatch.responsible.expect("a hook skipped or replaced the operation or handled its error");
        self.hook_failed(responsible, operation, source)
    }
}
