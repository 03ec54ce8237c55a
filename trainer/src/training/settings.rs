//! What the loop is told: how long, over how much of the data, how often. Checked when the trainer is built.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use tch::{Cuda, Device};

use super::TrainerBuilder;
use crate::cancel::{CancelToken, OnSignal};
use crate::hooks::GradClip;
use crate::phase::Phase;
use crate::task::Task;

/// How many batches of a pass over data: a number of them, `10`, or a share of all, `0.1`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit(Amount);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Amount {
    /// Checked when the trainer is built: a negative one is a mistake.
    Batches(i128),
    Share(f64),
}

macro_rules! numbers_of_batches {
    ($($number:ty),*) => {$(
        impl From<$number> for Limit {
            fn from(batches: $number) -> Self {
                Limit(Amount::Batches(batches as i128))
            }
        }
    )*};
}

numbers_of_batches!(i32, i64, u32, u64, usize);

impl From<f64> for Limit {
    fn from(share: f64) -> Self {
        Limit(Amount::Share(share))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Amount::Batches(batches) => write!(f, "{batches}"),
            Amount::Share(share) => write!(f, "{share:?}"),
        }
    }
}

impl Limit {
    /// How many batches that is, of so many if that is known.
    pub(super) fn of(self, batches: Option<u64>, setting: &str) -> Result<u64, String> {
        match (self.0, batches) {
            (Amount::Batches(limit), _) => Ok(u64::try_from(limit).unwrap_or(u64::MAX)),
            (Amount::Share(share), Some(batches)) => match whole(batches as f64 * share) {
                0 => Err(format!(
                    "`.{setting}({self})` of {batches} batches leaves none: give a larger share, or a number"
                )),
                some => Ok(some),
            },
            (Amount::Share(_), None) => Err(format!(
                "`.{setting}({self})` is a share, and the loader does not say how many batches it has: give a number"
            )),
        }
    }

    fn check(self, setting: &str, mistakes: &mut Vec<String>) {
        let mistake = match self.0 {
            Amount::Batches(batches) if batches > 0 => return,
            Amount::Batches(_) if setting == "limit_valid_batches" => {
                "nothing would be validated: give `fit` no validation data instead".to_owned()
            }
            Amount::Batches(_) => "expected at least one batch".to_owned(),
            Amount::Share(share) => match share_mistake(share) {
                None => return,
                Some(mistake) => mistake,
            },
        };
        mistakes.push(format!("`.{setting}({self})`: {mistake}"));
    }
}

/// How many whole ones that is: a share of a number is not exact, and 9.999… is 10.
pub(crate) fn whole(number: f64) -> u64 {
    (number + 1e-9 * number.max(1.0)) as u64
}

/// What is wrong with a share of a whole, if anything.
fn share_mistake(share: f64) -> Option<String> {
    let hint = if share > 1.0 && share.fract() == 0.0 && share < 1e9 {
        format!("; for a number of batches, write `{share}` without the point")
    } else {
        String::new()
    };
    (!(share > 0.0 && share <= 1.0)).then(|| format!("a share is above 0.0 and at most 1.0{hint}"))
}

/// How often.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Every {
    /// After each so many epochs.
    Epochs(u64),
    /// After each so many optimizer steps, within the epoch, over all epochs.
    Steps(u64),
    /// After each such share of the batches of an epoch: `Fraction(0.25)` is four times an epoch.
    Fraction(f64),
}

/// What the loop is told.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub(super) epochs: Option<u64>,
    pub(super) min_epochs: u64,
    pub(super) max_steps: Option<u64>,
    pub(super) min_steps: u64,
    pub(super) max_time: Option<Duration>,
    limit_train: Option<Limit>,
    limit_valid: Option<Limit>,
    limit_test: Option<Limit>,
    limit_predict: Option<Limit>,
    overfit: Option<Limit>,
    fast_dev_run: Option<u64>,
    pub(super) validate_every: Option<Every>,
    pub(super) sanity_steps: u64,
    /// From which epoch on how many batches make one optimizer step.
    accumulate: Vec<(u64, u64)>,
    clip_norm: Option<f64>,
    clip_value: Option<f64>,
    pub(super) deterministic: bool,
    pub(super) detect_anomaly: bool,
    pub(super) seed: Option<u64>,
    device: Option<Device>,
    pub(super) on_signal: OnSignal,
    pub(crate) cancel_token: CancelToken,
    /// A run may be resumed though it will not be the same.
    pub(crate) inexact: bool,
}

impl Settings {
    /// How many batches a pass has at most, and which setting says so.
    pub(super) fn limit(&self, phase: Phase) -> Option<(Limit, &'static str)> {
        let own = match phase {
            Phase::Train => self.limit_train.map(|limit| (limit, "limit_train_batches")),
            Phase::Sanity | Phase::Valid => self.limit_valid.map(|limit| (limit, "limit_valid_batches")),
            Phase::Test => self.limit_test.map(|limit| (limit, "limit_test_batches")),
            Phase::Predict => self.limit_predict.map(|limit| (limit, "limit_predict_batches")),
        };
        let overfit = self.overfit.filter(|_| matches!(phase, Phase::Train | Phase::Sanity | Phase::Valid));
        let dev = self.fast_dev_run.map(|batches| (Limit::from(batches), "fast_dev_run"));
        dev.or(overfit.map(|limit| (limit, "overfit_batches"))).or(own)
    }

    /// Is it only to be seen whether the program runs?
    pub(crate) fn is_fast_dev_run(&self) -> bool {
        self.fast_dev_run.is_some()
    }

    /// Each epoch has the batches of the first.
    pub(super) fn repeats_batches(&self) -> bool {
        self.overfit.is_some()
    }

    /// How many batches make one optimizer step in this epoch.
    pub(super) fn accumulate_in(&self, epoch: u64) -> u64 {
        let from = self.accumulate.iter().rev().find(|(from, _)| *from <= epoch);
        from.map_or(1, |(_, batches)| *batches)
    }

    /// How many optimizer steps these epochs are, with so many batches in each.
    pub(super) fn steps_of(&self, epochs: Range<u64>, batches: u64) -> u64 {
        let changes = self.accumulate.iter().map(|(from, _)| *from).filter(|from| epochs.contains(from));
        let starts: Vec<_> =
            [epochs.start].into_iter().chain(changes.filter(|from| *from > epochs.start)).collect();
        let ends = starts[1..].iter().copied().chain([epochs.end]);
        let steps = |(from, to): (&u64, u64)| {
            to.saturating_sub(*from).saturating_mul(batches.div_ceil(self.accumulate_in(*from)))
        };
        starts.iter().zip(ends).map(steps).fold(0, u64::saturating_add)
    }

    /// Ends what contradicts itself with a message for each, and settles what is left.
    pub(super) fn check(&mut self, mistakes: &mut Vec<String>) {
        self.check_length(mistakes);
        self.check_data(mistakes);
        self.check_validation(mistakes);
        self.check_steps(mistakes);
        if let Some(batches) = self.fast_dev_run {
            if batches == 0 {
                mistakes.push("`.fast_dev_run(0)` would run nothing: expected at least one batch".into());
            }
            if self.overfit.is_some() {
                mistakes.push(
                    "`.fast_dev_run(…)` and `.overfit_batches(…)` both say which batches run: take one"
                        .into(),
                );
            }
            self.epochs = Some(1);
            (self.min_epochs, self.max_steps, self.min_steps, self.max_time) = (0, None, 0, None);
            (self.sanity_steps, self.validate_every) = (0, None);
        }
    }

    fn check_length(&self, mistakes: &mut Vec<String>) {
        if self.epochs == Some(0) {
            mistakes.push(
                "`.epochs(0)` would train nothing: ask for at least 1, or call `validate` or `test`".into(),
            );
        }
        if self.max_steps == Some(0) {
            mistakes.push("`.max_steps(0)` would train nothing: ask for at least 1".into());
        }
        if self.max_time == Some(Duration::ZERO) {
            mistakes.push("`.max_time(…)` of no time would train nothing".into());
        }
        let epochs = self.planned_epochs();
        if let Some(epochs) = epochs.filter(|epochs| *epochs > 0 && self.min_epochs > *epochs) {
            let (min, set) = (self.min_epochs, self.of_epochs(epochs));
            mistakes.push(format!("`.min_epochs({min})` is above {set}"));
        }
        if self.epochs.is_none() && epochs.is_some() && self.min_steps > 0 {
            let min = self.min_steps;
            mistakes.push(format!(
                "`.min_steps({min})` wants to know for how long at most: say `.epochs(…)` too"
            ));
        }
        if let Some(steps) = self.max_steps.filter(|steps| *steps > 0 && self.min_steps > *steps) {
            let min = self.min_steps;
            mistakes.push(format!(
                "`.min_steps({min})` is above `.max_steps({steps})`: a run has no more than that"
            ));
        }
    }

    /// How many epochs a fit has, if their number is what ends it.
    pub(super) fn planned_epochs(&self) -> Option<u64> {
        let is_bounded = self.max_steps.is_some() || self.max_time.is_some();
        self.epochs.or((!is_bounded).then_some(1))
    }

    /// The same for a message.
    fn of_epochs(&self, epochs: u64) -> String {
        match self.epochs {
            Some(_) => format!("`.epochs({epochs})`: a fit has no more than that"),
            None => {
                "the one epoch that a fit has unless it is told otherwise: say `.epochs(…)` too".to_owned()
            }
        }
    }

    fn check_data(&self, mistakes: &mut Vec<String>) {
        let limits = [
            ("limit_train_batches", self.limit_train),
            ("limit_valid_batches", self.limit_valid),
            ("limit_test_batches", self.limit_test),
            ("limit_predict_batches", self.limit_predict),
            ("overfit_batches", self.overfit),
        ];
        for (setting, limit) in limits {
            if let Some(limit) = limit {
                limit.check(setting, mistakes);
            }
        }
        for (setting, limit) in &limits[..2] {
            if self.overfit.is_some() && limit.is_some() {
                mistakes.push(format!(
                    "`.overfit_batches(…)` and `.{setting}(…)` both say which batches run: take one"
                ));
            }
        }
    }

    fn check_validation(&self, mistakes: &mut Vec<String>) {
        match self.validate_every {
            Some(Every::Epochs(0) | Every::Steps(0)) => {
                mistakes.push("`.validate_every(…)` of 0 is never: expected at least 1".into());
            }
            Some(Every::Epochs(n)) => {
                if let Some(epochs) = self.planned_epochs().filter(|epochs| n > *epochs && *epochs > 0) {
                    mistakes.push(format!(
                        "`.validate_every(Every::Epochs({n}))` is above {}",
                        self.of_epochs(epochs)
                    ));
                }
            }
            Some(Every::Steps(n)) if self.max_steps.is_some_and(|steps| n > steps) => mistakes.push(format!(
                "`.validate_every(Every::Steps({n}))` is above `.max_steps({})`: a fit has no more than that",
                self.max_steps.unwrap_or_default()
            )),
            Some(Every::Fraction(share)) => {
                if let Some(mistake) = share_mistake(share) {
                    mistakes.push(format!("`.validate_every(Every::Fraction({share:?}))`: {mistake}"));
                }
            }
            _ => {}
        }
    }

    fn check_steps(&mut self, mistakes: &mut Vec<String>) {
        self.accumulate.sort_by_key(|(from, _)| *from);
        if self.accumulate.iter().any(|(_, batches)| *batches == 0) {
            mistakes.push("`.accumulate(0)` would never update the model: expected at least 1".into());
        }
        for (setting, max) in [("clip_grad_norm", self.clip_norm), ("clip_grad_value", self.clip_value)] {
            if let Some(max) = max.filter(|max| !(*max > 0.0 && max.is_finite())) {
                mistakes.push(format!("`.{setting}({max:?})`: expected a finite number above 0"));
            }
        }
        if self.clip_norm.is_some() && self.clip_value.is_some() {
            mistakes.push("`.clip_grad_norm(…)` and `.clip_grad_value(…)` are both set: take one".into());
        }
    }

    /// The hook that clips, if gradients are to be clipped.
    pub(super) fn grad_clip(&self) -> Option<GradClip> {
        self.clip_norm.map(GradClip::norm).or(self.clip_value.map(GradClip::value))
    }

    /// Moves the task where it is to be.
    pub(super) fn place<T: Task>(&self, task: &mut T, mistakes: &mut Vec<String>) {
        let Some(device) = self.device else { return };
        if let Err(mistake) = is_there(device) {
            return mistakes.push(format!("`.device({device:?})`: {mistake}"));
        }
        if task.vars().device() == device {
            return;
        }
        match task.vars_mut() {
            Some(store) => store.set_device(device),
            None => mistakes.push(format!(
                "`.device({device:?})`: the task's `VarStore` is on {:?}, and the task does not give it to be moved: create \
                 it on that device, or implement `Task::vars_mut`",
                task.vars().device()
            )),
        }
    }
}

/// What keeps a device from being used.
fn is_there(device: Device) -> Result<(), String> {
    match device {
        Device::Cpu => Ok(()),
        Device::Cuda(nth) => match Cuda::device_count() {
            _ if !Cuda::is_available() => {
                Err("there is no CUDA device, or libtorch is the build for the CPU".into())
            }
            count if i64::try_from(nth).is_ok_and(|nth| nth < count) => Ok(()),
            1 => Err("there is one CUDA device, `Device::Cuda(0)`".into()),
            count => Err(format!("there are {count} CUDA devices, from 0 on")),
        },
        Device::Mps if tch::utils::has_mps() => Ok(()),
        Device::Vulkan if tch::utils::has_vulkan() => Ok(()),
        Device::Mps | Device::Vulkan => Err("this libtorch was built without it".into()),
    }
}

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

    /// How many batches make one optimizer step: their gradients are gathered, and it takes the mean over them. 1 unless set.
    ///
    /// The last batch of an epoch ends what it is in, and so does the batch after a hook asked for the epoch or the run to end: the mean is
    /// then over as many batches as there are. A batch that a hook leaves out, or whose backward pass it skips, does not count; if
    /// one that is left out is the last of its epoch, the window goes on in the next one, and at the end of the fit it is dropped.
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
    /// [`Cx::clip_grad_norm`](crate::Cx::clip_grad_norm). It is a hook, [`GradClip`], at `before_opt_step`.
    #[doc(alias = "gradient_clip_val")]
    pub fn clip_grad_norm(mut self, max_norm: f64) -> Self {
        self.settings.clip_norm = Some(max_norm);
        self
    }

    /// Clips each element of the gradients before each optimizer step to at most this, up and down:
    /// [`Cx::clip_grad_value`](crate::Cx::clip_grad_value). It is a hook, [`GradClip`], at `before_opt_step`.
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
