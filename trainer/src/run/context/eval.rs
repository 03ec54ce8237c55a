//! Computing with the model as evaluation has it.

use super::Cx;
use super::cx::no_such_task;
use crate::distributed::current;
use crate::error::{Error, Result};
use crate::hook::call::Loop;
use crate::hook::instance::TASK;
use crate::libtorch::Statistics;
use crate::lifecycle::{CanEval, at, available};
use crate::moment::Moment;
use crate::phase::Phase;
use crate::run::Instance;
use crate::run::Run;
use crate::run::dispatch::{computing, enter_custom};

/// # Computing with the model
impl<P> Cx<P> {
    /// Calls `compute` with the task, whose model then computes what it computes in evaluation:
    /// with the averages of [`Ema`](crate::hooks::Ema) and [`Swa`](crate::hooks::Swa), the adapters
    /// of [`Lora`](crate::hooks::Lora) and the precision of [`Amp`](crate::hooks::Amp), and without
    /// gradients. Use this in a hook that writes text, draws samples or evaluates the model itself.
    ///
    #[doc = available!(CanEval)]
    ///
    /// If a hook calls the model of [`cx.task()`](Cx::task) directly, it gets the live weights,
    /// except in an evaluation pass, and no hooks at modules, such as adapters, and no `Amp` apply.
    ///
    /// `compute` runs within the operation [`eval`](crate::lifecycle::Eval), in the phase
    /// [`Predict`](Phase::Predict). Call the model in evaluation mode, with
    /// [`Mode::Eval`](crate::Mode::Eval) or `train = false`, and on inputs on
    /// [`cx.device()`](Cx::device). Each call exchanges the weights with their averages and back,
    /// so compute with all inputs in one call.
    ///
    /// ```standalone_crate
    /// use trainer::prelude::*;
    ///
    /// type Model = Supervised<nn::Linear, fn(&Tensor, &Tensor) -> Tensor>;
    ///
    /// /// Logs the score of one input, as validation would compute it.
    /// #[hook]
    /// fn score(cx: &mut Cx<AfterEpoch>) -> Result<()> {
    ///     let input = Tensor::ones([1, 4], (Kind::Float, cx.device()));
    ///     let score = cx.eval(|task: &mut Model| Ok(input.apply(task.net())))?;
    ///     cx.log("score", score.mean(Kind::Float));
    ///     Ok(())
    /// }
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the error of `compute` or of the first hook that fails, or an error
    ///
    /// - if the task is not a `T`, or while one of the task's own hooks is running;
    /// - within another `eval`;
    /// - if a hook around `eval` skips or replaces it, or handles its error.
    pub fn eval<T: 'static, R>(&mut self, compute: impl FnOnce(&mut T) -> Result<R>) -> Result<R>
    where
        P: CanEval,
    {
        let Instance { type_id, type_name, value, .. } = &self.as_run().hooks.instances[TASK];
        if !value.as_ref().is_some_and(|task| task.is::<T>()) {
            return Err(no_such_task::<T>(*type_id, type_name));
        }
        let mut output = None;
        let result = enter_custom::<at::eval, _>(self.run_mut(), |run| {
            (run.at.place.phase, run.at.place.loader) = (Phase::Predict, None);
            run.operate::<at::eval>(|run| {
                output = Some(compute_with_task(run, compute)?);
                Ok(())
            })
            .and_then(|_| {
                if output.is_some() {
                    Ok(())
                } else {
                    Err(run.blame_responsible(at::eval::INFO, NOT_COMPUTED.into()))
                }
            })
        });
        match result {
            Ok(()) => {}
            // The error of `compute` is that of the hook, which calls it.
            Err(Error::Operation(error)) if error.location.moment == at::eval::INFO.name => {
                return Err(error.source);
            }
            Err(error) => return Err(error),
        }
        Ok(output.expect("the operation returns an error without a result"))
    }
}

fn compute_with_task<T: 'static, R>(run: &mut Run, compute: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
    let _no_grad = tch::no_grad_guard();
    run.hooks.instances[TASK].is_touched.set(true);
    // At `after_module_backward`, there is a call, although no module is computing.
    let calls = std::mem::take(&mut run.modules.calls);
    let result = computing(run, Statistics::Updated, |task, _| compute(task));
    run.modules.calls = calls;
    current::check_layers().and(result)
}

/// The error of a hook around `eval` that leaves it without a result.
const NOT_COMPUTED: &str =
    "the hook did not run `eval`, which must return a result: call `next.run(cx)`, and return its error";
