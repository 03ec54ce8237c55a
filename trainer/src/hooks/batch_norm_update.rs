//! [`BatchNormUpdate`]: the statistics of batch norm for averaged weights.

use std::fmt;

use super::{Swa, stages};
use crate::checkpoint::{SettingList, Settings};
use crate::prelude::own::*;
use crate::{RandomState, TrainerBuilder, Vars};

/// Computes the running statistics of batch norm for the averaged weights of [`Swa`], like
/// `torch.optim.swa_utils.update_bn`. The builder's
/// [`update_batch_norm`](crate::TrainerBuilder::update_batch_norm) adds this hook.
#[doc(alias = "update_bn")]
pub struct BatchNormUpdate<T: Task> {
    loader: Box<dyn Loader<T::Batch> + Send>,
}

impl<T: Task> fmt::Debug for BatchNormUpdate<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchNormUpdate").finish_non_exhaustive()
    }
}

/// # Batch norm of averaged weights
impl<T: Task> TrainerBuilder<T> {
    /// Computes the running statistics of batch norm for the averaged weights of
    /// [`Swa`](crate::hooks::Swa), because the statistics of the live weights do not fit the
    /// averaged ones. `loader` is usually a second loader over the training data.
    ///
    /// At the end of each epoch in which `Swa` averages, the task computes the predictions of all
    /// batches of `loader` with the averaged weights, in [`Mode::Train`] and without gradients. The
    /// new statistics are the means of the batch statistics, as in
    /// `torch.optim.swa_utils.update_bn`. They are used and saved together with the averages. The
    /// live model and the random numbers of training do not change. If the model has no batch norm,
    /// the loader is not read.
    ///
    /// Batches go to [`Task::pred`](crate::Task::pred) in [`Cx::eval`], so adapters and
    /// [`Amp`](crate::hooks::Amp) apply, but hooks around `transfer` and `pred` do not run. If
    /// several processes train together, each rank computes the same statistics from all of the
    /// data.
    ///
    /// ```no_run
    /// # use trainer::hooks::Swa;
    /// # use trainer::prelude::*;
    /// # fn train(task: impl Task<Batch = Tensor>, inputs: Tensor) -> Result<()> {
    /// let mut train = InMemory::new(inputs.shallow_clone())?.batch_size(32).shuffle(1);
    /// let mut trainer = Trainer::builder(task)
    ///     .optimizer(Sgd::new(0.05))
    ///     .epochs(10)
    ///     .hook(Swa::from_epoch(7))
    ///     .update_batch_norm(InMemory::new(inputs)?.batch_size(32))
    ///     .build()?;
    /// trainer.fit(&mut train, None)?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "update_bn")]
    pub fn update_batch_norm(self, loader: impl Loader<T::Batch> + Send + 'static) -> Self {
        self.hook(BatchNormUpdate::<T> { loader: Box::new(loader) })
    }
}

/// A running mean or running variance.
struct Statistic {
    name: String,
    /// The variable, detached.
    running: Tensor,
    /// The value in the live model.
    live: Tensor,
    /// The sum of the running values after each batch. The running value is set to 0 before each
    /// batch.
    sum: Tensor,
    /// The weight of a batch in the running value.
    momentum: f64,
}

impl Statistic {
    /// Returns the statistics of the task, recognized by the names of their variables.
    fn all(vars: &Vars) -> Vec<Self> {
        let buffers = vars.iter().filter(|var| {
            !var.is_parameter && matches!(var.name.rsplit('.').next(), Some("running_mean" | "running_var"))
        });
        let statistics = buffers.map(|var| Statistic {
            name: var.name.clone(),
            running: var.tensor.detach(),
            live: var.tensor.detach().copy(),
            sum: var.tensor.detach().to_kind(Kind::Double).zeros_like(),
            momentum: 0.0,
        });
        statistics.collect()
    }

    /// The mean over the batches, or the value in the live model if the forward pass does not
    /// update the statistic.
    fn mean(&self, batches: f64) -> Tensor {
        if self.momentum < 1e-6 {
            return self.live.shallow_clone();
        }
        (&self.sum / (batches * self.momentum)).to_kind(self.live.kind())
    }
}

/// Measures the momentum of each statistic, after the first batch, with more forward passes of it.
///
/// libtorch computes `(1 - momentum) * running + momentum * of_batch`, and `sum` is the second
/// term. Half precision rounds the result to 3 or 4 digits, so 16 passes with different values are
/// averaged.
fn measure_momentum(statistics: &mut [Statistic], mut forward: impl FnMut() -> Result<()>) -> Result<()> {
    let is_half = |statistic: &Statistic| matches!(statistic.live.kind(), Kind::Half | Kind::BFloat16);
    let passes = if statistics.iter().any(is_half) { 16 } else { 1 };
    let mut kept = vec![0.0; statistics.len()];
    for pass in 0..passes {
        let set = statistics.iter_mut().map(|Statistic { running, .. }| {
            // So large that the statistics of the batch hardly count.
            let scale = if running.kind() == Kind::Half { 16384.0 } else { 1e18 };
            let count = i64::try_from(running.numel()).unwrap_or(i64::MAX);
            let places = Tensor::arange_start(pass * count, (pass + 1) * count, (Kind::Double, Device::Cpu));
            let values = ((places * 0.618_033_988_75).frac() + 1.0) * scale;
            running.f_copy_(&values.f_reshape(running.size())?)?;
            Ok(running.to_kind(Kind::Double).copy())
        });
        let set: Vec<Tensor> = set.collect::<Result<_>>()?;
        forward()?;
        for (kept, (Statistic { running, sum, .. }, set)) in kept.iter_mut().zip(statistics.iter().zip(&set))
        {
            *kept += ((running.to_kind(Kind::Double) - sum) / set).mean(Kind::Double).double_value(&[]);
        }
    }
    for (Statistic { momentum, .. }, kept) in statistics.iter_mut().zip(kept) {
        *momentum = 1.0 - kept / passes as f64;
    }
    Ok(())
}

impl<T: Task> BatchNormUpdate<T> {
    /// Adds up the statistics of all batches, and returns the number of batches.
    fn pass(&mut self, cx: &mut Cx<AfterTrainEpoch>, statistics: &mut [Statistic]) -> Result<f64> {
        let _no_grad = tch::no_grad_guard();
        let limit = if cx.is_fast_dev_run() { 1 } else { usize::MAX };
        let mut batches = 0.0;
        for batch in self.loader.batches(cx.counters().epoch, 0)?.take(limit) {
            let mut batch = batch?;
            batch.move_to(cx.device())?;
            let mut forward = || cx.eval(|task: &mut T| task.pred(&batch, Mode::Train).map(drop));
            for Statistic { running, .. } in statistics.iter_mut() {
                let _ = running.f_zero_()?;
            }
            forward()?;
            for Statistic { running, sum, .. } in statistics.iter_mut() {
                *sum = &*sum + running.to_kind(Kind::Double);
            }
            if batches == 0.0 {
                measure_momentum(statistics, forward)?;
            }
            batches += 1.0;
        }
        if batches == 0.0 {
            return Err(Error::msg(
                "the loader of `.update_batch_norm(…)` yields no batch: pass one with the training data",
            ));
        }
        Ok(batches)
    }
}

#[diagnostic::do_not_recommend]
impl<T: Task> Settings for BatchNormUpdate<T> {
    fn settings(&self) -> SettingList {
        let BatchNormUpdate { loader } = self;
        SettingList::new().with_optional("loader", loader.fingerprint())
    }
}

#[hook(in = stages::Averaging, ord = 1, single, settings)]
impl<T: Task> BatchNormUpdate<T> {
    /// Returns an error if the trainer has no `Swa`.
    #[hook(only = train)]
    fn setup(&mut self, cx: &Cx<Setup>) -> Result<()> {
        if cx.hook::<Swa>().is_ok() {
            return Ok(());
        }
        Err(Error::msg(
            "`.update_batch_norm(…)` computes statistics for averaged weights, but no hook averages weights: add \
             `.hook(Swa::from_epoch(0))`, or remove `.update_batch_norm(…)`",
        ))
    }

    /// Computes the statistics for the averaged weights.
    fn after_train_epoch(&mut self, cx: &mut Cx<AfterTrainEpoch>) -> Result<()> {
        let vars = cx.vars();
        let mut statistics = Statistic::all(&vars);
        if statistics.is_empty() || cx.hook::<Swa>()?.average().next().is_none() {
            return Ok(());
        }
        let random = RandomState::of(cx.device())?;
        // The statistics are set as averages, so they are restored together with the weights, even
        // after a panic.
        let averages = &mut cx.hook_mut::<Swa>()?.averages;
        statistics.iter().for_each(|statistic| averages.set(&statistic.name, &statistic.live));
        averages.swap_in(&vars)?;
        let batches = self.pass(cx, &mut statistics);
        let averages = &mut cx.hook_mut::<Swa>()?.averages;
        averages.swap_out(&vars)?;
        random.restore()?;
        let batches = batches?;
        statistics.iter().for_each(|statistic| averages.set(&statistic.name, &statistic.mean(batches)));
        Ok(())
    }
}
