//! [`Next`]: what a hook around an operation goes around.

use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use scoped_tls_hkt::scoped_thread_local;

use crate::Cx;
use crate::error::{Error, Result};
use crate::hook::shim::Outcome;
use crate::hook::table::Range;
use crate::moment::{AtOperation, Moment, MomentInfo};
use crate::run::{Culprit, Run};

type Body<'a> = dyn FnMut(&mut Run) -> Result<()> + 'a;

// What the innermost operation with hooks around it does in the end. It may borrow a loader, which
// a `Next` without a lifetime could not hold: so it lies here for as long as the hooks around it run.
scoped_thread_local!(static mut BODY: for<'a> &'a mut Body<'a>);

/// The hooks around one operation that have not been called yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chain {
    rest: Range,
    /// Tells this time that the operation runs from every other.
    id: u64,
}

/// The rest of an operation: the hooks further inside, then the operation itself.
///
/// A hook around an operation calls [`run`](Next::run) to go on, once at most; one that does not
/// has decided to skip the operation. Then the point after it does not fire, and what counts it does not
/// advance; `transfer`, `pred` and `loss` make something that the step goes on with, so that a hook that
/// skips them sets it: [`set_batch`](Cx::set_batch), [`set_pred`](Cx::set_pred), [`set_loss`](Cx::set_loss).
///
/// ```standalone_crate
/// use trainer::prelude::*;
///
/// /// Updates the parameters with each fourth batch; the gradients add up until then.
/// #[hook(around = opt_step)]
/// fn each_fourth(cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<()> {
///     if (cx.step().batch_idx + 1) % 4 == 0 { next.run(cx) } else { Ok(()) }
/// }
/// # fn main() {}
/// ```
pub struct Next<O> {
    chain: Chain,
    of: PhantomData<fn() -> O>,
    /// The operation lies in a thread-local.
    on_this_thread: PhantomData<*const ()>,
}

impl<O: Moment> Next<O> {
    /// What comes after the hook that is being called.
    #[inline]
    pub(crate) fn of(run: &Run) -> Self {
        Next { chain: run.chain, of: PhantomData, on_this_thread: PhantomData }
    }

    /// Runs the hooks further inside, then the operation itself.
    ///
    /// # Errors
    ///
    /// What went wrong inside; the run is as it was when the error left the operation. A hook that does not
    /// pass it on has dealt with it: the operation did not take place, and the run goes on.
    #[inline]
    pub fn run(self, cx: &mut Cx<O>) -> Result<()> {
        cx.run_mut().go_on(self.chain, O::INFO)
    }

    /// Runs the operation, and then this, whatever happened: after success, an error and a panic alike.
    ///
    /// For what was changed for the operation and is to be put back. Of two errors the operation's is given
    /// back; a panic goes on.
    ///
    /// # Errors
    ///
    /// As for [`run`](Next::run), and those of the second part.
    pub fn run_then<R: Outcome>(self, cx: &mut Cx<O>, then: impl FnOnce(&mut Cx<O>) -> R) -> Result<()> {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.run(cx)));
        let second = then(cx).outcome().map_err(Error::from);
        match outcome {
            Ok(first) => first.and(second),
            Err(panic) => resume_unwind(panic),
        }
    }
}

impl<O: Moment> fmt::Debug for Next<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Next({})", O::INFO.name)
    }
}

impl Run {
    /// Runs the body of an operation within the hooks around it, without the points before and after it.
    ///
    /// Whether it took place: it did not if a hook skipped it, or dealt with its error.
    #[inline]
    pub(crate) fn inside<O: AtOperation>(
        &mut self,
        body: impl FnOnce(&mut Run) -> Result<()>,
    ) -> Result<bool> {
        let outer = std::mem::replace(&mut self.operation, O::INFO);
        let around = self.table.range(O::index(), self.phase);
        let result =
            if around.is_empty() { body(self).map(|()| true) } else { self.around(around, O::INFO, body) };
        let result = result.map_err(|error| self.locate(error));
        self.operation = outer;
        result
    }

    fn around(
        &mut self,
        hooks: Range,
        operation: &'static MomentInfo,
        body: impl FnOnce(&mut Run) -> Result<()>,
    ) -> Result<bool> {
        let (mut body, mut took_place) = (Some(body), false);
        let mut once = |run: &mut Run| {
            let body = body.take().expect("only the last `Next` reaches it, which is consumed");
            let blamed = Blamed { run };
            let result = body(blamed.run);
            took_place = result.is_ok();
            let result = result.map_err(|error| blamed.run.locate(error));
            std::mem::forget(blamed); // its drop is for panics
            result
        };
        let outer = self.chain;
        self.chains += 1;
        let chain = Chain { rest: hooks, id: self.chains };
        self.chain = chain;
        let result = BODY.set(&mut once, || self.go_on(chain, operation));
        self.chain = outer;
        result.map(|()| took_place)
    }

    /// Calls the next hook of the chain, or the operation if there is none.
    #[inline]
    fn go_on(&mut self, mut chain: Chain, operation: &'static MomentInfo) -> Result<()> {
        if chain.id != self.chain.id {
            return Err(kept(operation));
        }
        match chain.rest.take_first() {
            None => BODY.with(|body| body(self)),
            Some(hook) => {
                self.chain = chain;
                self.innermost = hook;
                self.call(hook, operation)
            }
        }
    }
}

#[cold]
fn kept(operation: &'static MomentInfo) -> Error {
    Error::usage(format!("this `next` was kept from an earlier `{}`, which is over", operation.name))
}

/// Notes that a panic came out of the operation, not out of a hook around it.
struct Blamed<'a> {
    run: &'a mut Run,
}

impl Drop for Blamed<'_> {
    #[cold]
    fn drop(&mut self) {
        self.run.panicked.get_or_insert(Culprit::Operation);
    }
}
