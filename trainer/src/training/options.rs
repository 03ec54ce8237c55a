//! The builder's methods that tell the loop how long, over how much of the data, how often.

use std::time::Duration;

use tch::{Cuda, Device};

use super::TrainerBuilder;
use super::limit::{Every, Limit};
use crate::cancel::{CancelToken, OnSignal};
#[cfg(doc)]
use crate::hooks::GradClip;
use crate::task::Task;

impl<T: Task> TrainerBuilder<T> {
    /// How many epochs a call of `fit` trains. Unless set: one; with [`max_steps`](TrainerBuilder::max_steps) or
    /// [`max_time`](TrainerBuilder::max_time) as many as those leave time for.
    #[doc(alias = "max_epochs")]
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.settings.epochs = Some(epochs);
        self
    }

    /// Holds back a hook's [`stop`](crate::Cx::stop), and `max_time`, until a call of `fit` has trained so many epochs. What it asked for then
    /// happens.
    pub fn min_epochs(mut self, epochs: u64) -> Self {
        self.settings.min_epochs = epochs;
        self
    }

    /// How many optimizer steps a call of `fit` takes at most. The epoch that it then ends is closed in order, validation included.
    ///
    /// With [`accumulate`](TrainerBuilder::accumulate) an optimizer step is more than one batch, so that the same number of steps is
    /// the same training; of more than one optimizer the steps of all count.
    pub fn max_steps(mut self, steps: u64) -> Self {
        self.settings.max_steps = Some(steps);
        self
    }

    /// As [`min_epochs`](TrainerBuilder::min_epochs), in optimizer steps.
    pub fn min_steps(mut self, steps: u64) -> Self {
        self.settings.min_steps = steps;
        self
    }

    /// Stops a `fit` that has taken so long, after the optimizer step that is running, as [`Cx::stop`](crate::Cx::stop) does.
    pub fn max_time(mut self, time: Duration) -> Self {
        self.settings.max_time = Some(time);
        self
    }

    /// Trains on so many batches of each epoch only: a number of them, or a share, `0.1`.
    pub fn limit_train_batches(mut self, limit: impl Into<Limit>) -> Self {
        self.settings.limit_train = Some(limit.into());
        self
    }

    /// Validates on so many batches only, in the sanity check and in [`validate`](crate::Trainer::validate) too.
    #[doc(alias = "limit_val_batches")]
    pub fn limit_valid_batches(mut self, limit: impl Into<Limit>) -> Self {
        self.settings.limit_valid = Some(limit.into());
        self
    }

    /// Tests on so many batches only.
    pub fn limit_test_batches(mut self, limit: impl Into<Limit>) -> Self {
        self.settings.limit_test = Some(limit.into());
        self
    }

    /// Predicts so many batches only.
    pub fn limit_predict_batches(mut self, limit: impl Into<Limit>) -> Self {
        self.settings.limit_predict = Some(limit.into());
        self
    }

    /// To see whether a model can learn at all: trains on so many batches, in each epoch those of epoch 0, and validates on as
    /// many of the validation data.
    pub fn overfit_batches(mut self, limit: impl Into<Limit>) -> Self {
        self.settings.overfit = Some(limit.into());
        self
    }

    /// To see whether a program runs to its end: one epoch, and so many batches of every pass, whatever else is set for its length;
    /// without a sanity check, and without checkpoints.
    pub fn fast_dev_run(mut self, batches: u64) -> Self {
        self.settings.fast_dev_run = Some(batches);
        self
    }

    /// How often `fit` validates; after each epoch unless set.
    ///
    /// `Every::Steps` and `Every::Fraction` validate within the epoch, at the end of the last step of their interval, and only there.
    #[doc(alias = "val_check_interval")]
    #[doc(alias = "check_val_every_n_epoch")]
    pub fn validate_every(mut self, every: Every) -> Self {
        self.settings.validate_every = Some(every);
        self
    }

    /// `fit` first validates so many batches, in the phase `sanity`, so that a mistake there shows at once and not after an
    /// epoch; none unless set. Its metrics are kept apart: they are gone when the first epoch begins.
    #[doc(alias = "num_sanity_val_steps")]
    pub fn sanity_steps(mut self, batches: u64) -> Self {
        self.settings.sanity_steps = batches;
        self
    }

    /// Accumulates the gradients of this many batches for each optimizer step, which uses their mean over all elements: each
    /// batch counts by its [weight](crate::Task::weight), so that batches of any size equal one large batch. Defaults to 1.
    ///
    /// The last batch of an epoch ends the window that it is in, and so does the batch after a hook requests the end of the epoch or of the run: the
    /// mean is then over the batches that there are. A batch that a hook leaves out, whose backward pass it skips, or whose weight is 0,
    /// contributes nothing, and a window without any gradient takes no optimizer step. If the batch that is left out is the last of its
    /// epoch, the window continues in the next one; at the end of the fit it is dropped.
    ///
    /// At `after_backward` gradients are running sums, relative to the weight of the first batch of the window; from `before_opt_step`
    /// on they are the mean.
    #[doc(alias = "accumulate_grad_batches")]
    pub fn accumulate(self, batches: u64) -> Self {
        self.accumulate_from(0, batches)
    }

    /// As [`accumulate`](TrainerBuilder::accumulate), from this epoch on; epochs are counted from 0.
    pub fn accumulate_from(mut self, epoch: u64, batches: u64) -> Self {
        self.settings.accumulate.retain(|(from, _)| *from != epoch);
        self.settings.accumulate.push((epoch, batches));
        self
    }

    /// Clips the gradients before each optimizer step so that their norm, all of them taken as one vector, is at most this:
    /// [`Cx::clip_grad_norm`](crate::Cx::clip_grad_norm). It is a hook, [`GradClip`], around `opt_step`.
    #[doc(alias = "gradient_clip_val")]
    pub fn clip_grad_norm(mut self, max_norm: f64) -> Self {
        self.settings.clip_norm = Some(max_norm);
        self
    }

    /// Clips each element of the gradients before each optimizer step to at most this, up and down:
    /// [`Cx::clip_grad_value`](crate::Cx::clip_grad_value). It is a hook, [`GradClip`], around `opt_step`.
    pub fn clip_grad_value(mut self, max_value: f64) -> Self {
        self.settings.clip_value = Some(max_value);
        self
    }

    /// libtorch takes deterministic algorithms while an entry runs, and refuses operations that have none, by name. This holds for
    /// the whole process meanwhile.
    pub fn deterministic(mut self, deterministic: bool) -> Self {
        self.settings.deterministic = deterministic;
        self
    }

    /// libtorch looks for NaN in every gradient while an entry runs, and ends the run with an error that names the function it
    /// came from. Slow, and for the whole process meanwhile.
    pub fn detect_anomaly(mut self, detect: bool) -> Self {
        self.settings.detect_anomaly = detect;
        self
    }

    /// Seeds libtorch's random numbers at the start of each entry: dropout, say. Another call of `fit` has others, which
    /// depend on the seed and on the epochs before.
    ///
    /// libtorch has one generator of random numbers for the whole process. A seeded entry is therefore reproducible only while no
    /// other thread draws from it: not while another trainer runs on another thread, which is reported once on standard
    /// error, nor beside a thread that computes random tensors. Run seeded entries one after the other, or each in a process of its own.
    /// A seeded entry that a hook or the task of another run calls leaves the random numbers of that run as they were.
    ///
    /// Weights are initialised before there is a builder: for those, call [`tch::manual_seed`] first. Loaders have seeds of
    /// their own.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = Some(seed);
        self
    }

    /// Moves the task to this device; unless set, it stays where its `VarStore` was created.
    pub fn device(mut self, device: Device) -> Self {
        self.settings.device = Some(device);
        self
    }

    /// Moves the task to a GPU if there is one: CUDA first, then MPS; else to the CPU.
    pub fn auto_device(self) -> Self {
        let mps = || if tch::utils::has_mps() { Device::Mps } else { Device::Cpu };
        let device = if Cuda::is_available() { Device::Cuda(0) } else { mps() };
        self.device(device)
    }

    /// What Ctrl-C and SIGTERM do while an entry runs; [`OnSignal::Exit`] unless set.
    pub fn on_signal(mut self, on_signal: OnSignal) -> Self {
        self.settings.on_signal = on_signal;
        self
    }

    /// A token that cancels every entry of this trainer, from another thread, say.
    pub fn cancel_token(mut self, token: CancelToken) -> Self {
        self.settings.cancel_token = token;
        self
    }
}
