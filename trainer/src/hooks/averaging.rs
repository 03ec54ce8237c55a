//! Averages of the weights: [`Ema`] and [`Swa`].

use super::{refused, stages};
use crate::Averages;
use crate::checkpoint::{Saved, SettingList, Settings, State};
use crate::prelude::own::*;

/// Implements the hook methods of a type with the field `averages`: the methods passed to the
/// macro, and the shared ones that swap the averages in and out.
macro_rules! averaging {
    (impl $hook:ident { $($own:tt)* }) => {
        #[hook(in = stages::Averaging, single, state, settings)]
        impl $hook {
            $($own)*

            /// Uses the averages in evaluation passes and the live weights in training, even after
            /// an evaluation pass that ended early.
            #[hook(only(train, valid, test))]
            fn before_step(&mut self, cx: &mut Cx<BeforeStep>) -> Result<()> {
                if cx.phase() == Phase::Train {
                    self.averages.swap_out(&cx.vars())
                } else {
                    self.averages.swap_in(&cx.vars())
                }
            }

            /// Uses the averages in predictions.
            fn before_predict_step(&mut self, cx: &mut Cx<BeforePredictStep>) -> Result<()> {
                self.averages.swap_in(&cx.vars())
            }

            /// Uses the averages while a hook computes with the model.
            fn eval(&mut self, cx: &mut Cx<Eval>, next: Next<Eval>) -> Result<Done> {
                if self.averages.are_in_use() {
                    return next.run(cx);
                }
                self.averages.swap_in(&cx.vars())?;
                let done = next.run(cx);
                self.averages.swap_out(&cx.vars())?;
                done
            }

            /// Restores the live weights.
            fn after_valid(&mut self, cx: &mut Cx<AfterValid>) -> Result<()> {
                self.averages.swap_out(&cx.vars())
            }

            /// Restores the live weights.
            fn after_test(&mut self, cx: &mut Cx<AfterTest>) -> Result<()> {
                self.averages.swap_out(&cx.vars())
            }

            /// Restores the live weights, because the checkpoint saves them. The next batch of an
            /// evaluation pass uses the averages again.
            fn before_save_checkpoint(&mut self, cx: &mut Cx<BeforeSaveCheckpoint>) -> Result<()> {
                self.averages.swap_out(&cx.vars())
            }

            /// Moves the loaded averages to the task's device.
            fn after_load_checkpoint(&mut self, cx: &Cx<AfterLoadCheckpoint>) {
                self.averages.to_device(cx.device());
            }

            /// Restores the live weights, however the entry point ended.
            fn teardown(&mut self, cx: &mut Cx<Teardown>) -> Result<()> {
                self.averages.swap_out(&cx.vars())
            }
        }
    };
}

/// Keeps an exponential moving average of the weights (Polyak and Juditsky, *Acceleration of
/// stochastic approximation by averaging*, 1992). Validation, testing and prediction use the
/// averages, while training updates the live weights.
///
/// Use this when averaged weights should be available throughout the run, with any learning-rate
/// schedule. To average only the last epochs, use [`Swa`].
///
/// After each optimizer step, `average = decay * average + (1 - decay) * weight`, like
/// `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn(decay)`. The first update
/// copies the weights.
///
/// ```no_run
/// # use trainer::hooks::Ema;
/// # use trainer::prelude::*;
/// # fn train(task: impl Task<Batch = Tensor>) -> Result<()> {
/// let trainer = Trainer::builder(task).optimizer(AdamW::new(1e-3)).hook(Ema::new(0.999)).build()?;
/// # Ok(())
/// # }
/// ```
///
/// During a `valid`, `test` or `predict` pass, from its first batch to its end, and in
/// [`Cx::eval`], the variables hold the averages. At all other times, however the run ends, they
/// hold the live weights. In checkpoints, `model.safetensors` contains the live weights, and
/// `averages.safetensors` the averages, which [`load_weights`](crate::Trainer::load_weights)
/// prefers. A checkpoint that [`keep_best`](super::Checkpoint::keep_best) keeps therefore contains
/// the weights that were validated.
///
/// [`average`](Ema::average) returns the averages.
#[doc(alias("ExponentialMovingAverage", "EMACallback", "AveragedModel"))]
#[derive(Debug)]
pub struct Ema {
    decay: f64,
    warm_up: bool,
    every: u64,
    buffers: bool,
    averages: Averages,
    /// The number of updates.
    updates: u64,
    /// The number of optimizer steps at the last update, or when the fit began.
    steps: u64,
}

impl Ema {
    /// Averages with this decay, from 0 to less than 1: 0.999 averages over about the last 1000
    /// steps.
    #[must_use]
    pub fn new(decay: f64) -> Self {
        Ema {
            decay,
            warm_up: false,
            every: 1,
            buffers: false,
            averages: Averages::default(),
            updates: 0,
            steps: 0,
        }
    }

    /// Whether the decay of update `n`, counted from 0, is limited to `(1 + n) / (10 + n)`, so that
    /// the random initial weights soon lose their influence. Defaults to `false`.
    #[must_use]
    pub fn warm_up(mut self, warm_up: bool) -> Self {
        self.warm_up = warm_up;
        self
    }

    /// The number of optimizer steps between two updates, at least 1. Defaults to 1.
    #[must_use]
    pub fn every(mut self, steps: u64) -> Self {
        self.every = steps;
        self
    }

    /// Whether floating-point buffers, such as the running statistics of batch norm, are averaged
    /// too, which suits a model with batch norm. Defaults to `false`: evaluation then uses the
    /// buffers of the live model.
    #[must_use]
    pub fn buffers(mut self, buffers: bool) -> Self {
        self.buffers = buffers;
        self
    }

    /// Returns the averages with the names of their variables. There are none before the first
    /// update.
    pub fn average(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.averages.iter()
    }

    /// The weight of the live value in the next update.
    fn weight(&self) -> f64 {
        let updates = self.updates as f64;
        let limit = if self.warm_up { (1.0 + updates) / (10.0 + updates) } else { 1.0 };
        1.0 - self.decay.min(limit)
    }
}

averaging! {
impl Ema {
    /// Drops the averages of weights that were replaced since the last entry point. Returns an
    /// error if the trainer also has `Swa`.
    fn setup(&mut self, cx: &Cx<Setup>) -> Result<()> {
        if cx.hook::<Swa>().is_ok() {
            return Err(Error::msg(
                "`Ema` and `Swa` both replace the weights in validation: remove one of them",
            ));
        }
        self.averages.replace(&cx.vars(), cx.changed_vars())?;
        if self.averages.is_empty() {
            self.updates = 0;
        }
        Ok(())
    }

    /// Records the number of optimizer steps at the start of the fit.
    fn before_fit(&mut self, cx: &Cx<BeforeFit>) {
        self.steps = cx.counters().optimizer_steps;
    }

    /// Updates the averages if [`every`](Ema::every) optimizer steps have been taken since the last
    /// update.
    #[hook(only = train)]
    fn after_step(&mut self, cx: &Cx<AfterStep>) -> Result<()> {
        let steps = cx.counters().optimizer_steps;
        if steps - self.steps >= self.every {
            self.averages.update(&cx.vars(), self.weight(), self.buffers)?;
            (self.steps, self.updates) = (steps, self.updates + 1);
        }
        Ok(())
    }
}
}

/// Saves the averages, the number of updates, and the number of optimizer steps at the last update.
/// The settings come from the program.
#[diagnostic::do_not_recommend]
impl State for Ema {
    fn save(&self) -> Result<Saved> {
        let mut saved = Saved::new();
        saved.set("updates", &self.updates)?;
        saved.set("steps", &self.steps)?;
        self.averages.save(&mut saved)?;
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        self.updates = saved.get("updates")?;
        self.steps = saved.get("steps")?;
        self.averages = Averages::load(saved);
        Ok(())
    }
}

/// Averages the weights at the end of each epoch, starting with a given epoch and counting all
/// epochs equally (Izmailov et al., *Averaging Weights Leads to Wider Optima and Better
/// Generalization*, 2018), like `torch.optim.swa_utils.AveragedModel`. Usually the learning rate is
/// high and constant in these epochs.
///
/// Use this when the last epochs train with a high, constant learning rate. With any other
/// schedule, use [`Ema`].
///
/// The averages are used, and saved in checkpoints, like those of [`Ema`]. By default, evaluation
/// uses the live model's running statistics of batch norm, which do not fit the averaged weights.
/// To compute them from the training data instead, use
/// [`update_batch_norm`](crate::TrainerBuilder::update_batch_norm); to average them, use
/// [`buffers`](Swa::buffers).
///
/// ```no_run
/// use trainer::hooks::Swa;
/// # use trainer::prelude::*;
/// # fn train(task: impl Task<Batch = Tensor>) -> Result<()> {
/// let builder = Trainer::builder(task).optimizer(Sgd::new(0.05)).epochs(10);
/// let trainer = builder.hook(Swa::from_epoch(7)).build()?; // averages epochs 7, 8 and 9
/// # Ok(())
/// # }
/// ```
#[doc(alias("StochasticWeightAveraging", "AveragedModel"))]
#[derive(Debug)]
pub struct Swa {
    from_epoch: u64,
    buffers: bool,
    pub(super) averages: Averages,
    /// The number of updates.
    updates: u64,
}

impl Swa {
    /// Averages the weights from the end of this epoch on. Epochs are counted from 0.
    #[must_use]
    pub fn from_epoch(epoch: u64) -> Self {
        Swa { from_epoch: epoch, buffers: false, averages: Averages::default(), updates: 0 }
    }

    /// Whether floating-point buffers, such as the running statistics of batch norm, are averaged
    /// too. Defaults to `false`.
    #[must_use]
    pub fn buffers(mut self, buffers: bool) -> Self {
        self.buffers = buffers;
        self
    }

    /// Returns the averages with the names of their variables. There are none before the end of the
    /// first averaged epoch.
    pub fn average(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.averages.iter()
    }
}

averaging! {
impl Swa {
    /// Drops the averages of weights that were replaced since the last entry point.
    fn setup(&mut self, cx: &Cx<Setup>) -> Result<()> {
        self.averages.replace(&cx.vars(), cx.changed_vars())?;
        if self.averages.is_empty() {
            self.updates = 0;
        }
        Ok(())
    }

    /// Updates the averages with the live weights at the end of each epoch from `from_epoch` on.
    fn after_train_epoch(&mut self, cx: &Cx<AfterTrainEpoch>) -> Result<()> {
        if cx.counters().epoch < self.from_epoch {
            return Ok(());
        }
        self.averages.swap_out(&cx.vars())?;
        self.averages.update(&cx.vars(), 1.0 / (self.updates as f64 + 1.0), self.buffers)?;
        self.updates += 1;
        Ok(())
    }
}
}

/// Saves the averages and the number of updates. The settings come from the program.
#[diagnostic::do_not_recommend]
impl State for Swa {
    fn save(&self) -> Result<Saved> {
        let mut saved = Saved::new();
        saved.set("updates", &self.updates)?;
        self.averages.save(&mut saved)?;
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        self.updates = saved.get("updates")?;
        self.averages = Averages::load(saved);
        Ok(())
    }
}

#[diagnostic::do_not_recommend]
impl Settings for Ema {
    fn settings(&self) -> SettingList {
        let Ema { decay, warm_up, every, buffers, averages: _, updates: _, steps: _ } = self;
        let list = SettingList::new().with("decay", decay).with("warm_up", warm_up);
        list.with("every", every).with("buffers", buffers)
    }

    fn mistakes(&self) -> Vec<String> {
        let (decay, every) = (self.decay, self.every);
        refused([
            (
                !(0.0..1.0).contains(&decay),
                format!("`Ema::new({decay:?})`: expected a decay from 0.0 to less than 1.0"),
            ),
            (every == 0, "`.every(0)`: expected at least 1".to_owned()),
        ])
    }
}

#[diagnostic::do_not_recommend]
impl Settings for Swa {
    fn settings(&self) -> SettingList {
        let Swa { from_epoch, buffers, averages: _, updates: _ } = self;
        SettingList::new().with("from_epoch", from_epoch).with("buffers", buffers)
    }
}
