//! Lifecycles of one's own: how hooks and tasks reach their points and run their operations.

use crate::Cx;
use crate::error::{Error, Result};
use crate::moment::{AtOperation, AtPoint, Moment, ReachFrom};
use crate::run::Run;
use crate::tree;

impl<P> Cx<P> {
    /// Fires a point of a lifecycle of one's own.
    ///
    /// # Errors
    ///
    /// That of the first hook that fails; a point that is being fired already.
    ///
    /// ```standalone_crate
    /// use trainer::prelude::*;
    ///
    /// trainer::lifecycle! {
    ///     within step {
    ///         /// The loss is higher than ever before.
    ///         point at_spike: loss;
    ///     }
    /// }
    ///
    /// /// Looks for spikes of the loss.
    /// struct Spikes(f64);
    ///
    /// #[hook]
    /// impl Spikes {
    ///     fn after_loss(&mut self, cx: &mut Cx<AfterLoss>) -> Result<()> {
    ///         let loss = cx.loss().double_value(&[]);
    ///         if loss > self.0 {
    ///             self.0 = loss;
    ///             cx.fire::<AtSpike>()?;
    ///         }
    ///         Ok(())
    ///     }
    /// }
    ///
    /// /// A hook of anybody's.
    /// #[hook(at::at_spike)]
    /// fn tell(cx: &mut Cx<AtSpike>) {
    ///     println!("{} at step {}", cx.loss(), cx.counters().batches_seen);
    /// }
    /// # fn main() {}
    /// ```
    pub fn fire<Q: AtPoint + ReachFrom<P>>(&mut self) -> Result<()> {
        reach::<Q, _>(self.run_mut(), |run| run.fire::<Q>())
    }

    /// Runs an operation of a lifecycle of one's own, with the hooks before, around and after it.
    ///
    /// Whether it took place: a hook around it may have skipped it, and then the point after it did not fire.
    ///
    /// # Errors
    ///
    /// Those of the body and of the hooks; an operation that is running already.
    pub fn run<O: AtOperation + ReachFrom<P>>(
        &mut self,
        body: impl FnOnce(&mut Cx<O>) -> Result<()>,
    ) -> Result<bool> {
        reach::<O, _>(self.run_mut(), |run| run.operate_with::<O>(|run| body(Cx::from_run(run))))
    }
}

/// Reaches a moment from user code, unless that is what is going on already.
pub(crate) fn reach<Q: Moment, R>(run: &mut Run, body: impl FnOnce(&mut Run) -> Result<R>) -> Result<R> {
    run.check_logged()?;
    let moment = Q::index();
    if run.dispatch.custom_scopes.contains(&moment) {
        return Err(within_itself(run));
    }
    let (depth, running) = (run.dispatch.custom_scopes.len(), run.dispatch.current_hook);
    run.dispatch.custom_scopes.push(moment);
    let result = body(run);
    run.dispatch.custom_scopes.truncate(depth);
    run.dispatch.current_hook = running;
    run.dispatch.error_is_located |= result.is_err();
    result
}

#[cold]
fn within_itself(run: &Run) -> Error {
    let path: Vec<_> = run
        .dispatch
        .custom_scopes
        .iter()
        .map(|&moment| format!("`{}`", tree::moments()[moment].path()))
        .collect();
    Error::usage(format!("{} is going on already, and cannot be reached from itself", path.join(" → ")))
}
