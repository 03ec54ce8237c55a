//! The settings of the loop, as methods of the builder.

use std::time::Duration;

use tch::Device;

use super::builder::TrainerBuilder;
use super::device::first_device;
use super::task::Task;
use crate::checkpoint::Resume;
use crate::distributed::World;
use crate::libtorch::{Heap, MatmulPrecision};
use crate::run::cancel::{CancelToken, OnSignal};
use crate::run::run_folder::RunFolder;
use crate::values::amount::Amount;
use crate::values::every::Every;
use crate::values::hyperparameter::{Given, GivenBy, Hyperparameter};

/// # Length of training
impl<T: Task> TrainerBuilder<T> {
    /// Sets the number of epochs that a call to `fit` trains. Defaults to 1, or to no limit if
    /// [`max_steps`](TrainerBuilder::max_steps) or [`max_time`](TrainerBuilder::max_time) is set.
    #[doc(alias("max_epochs", "num_train_epochs"))]
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.settings.epochs = Some(epochs);
        self
    }

    /// Sets the maximum number of optimizer steps in a call to `fit`. When it is reached, the pass
    /// over the training data ends, but a validation that is due at the end of the epoch still
    /// runs.
    ///
    /// With [`accumulate`](TrainerBuilder::accumulate), an optimizer step covers more than one
    /// batch. With several optimizers, a batch in which any of them steps counts as one step.
    pub fn max_steps(mut self, steps: u64) -> Self {
        self.settings.max_steps = Some(steps);
        self
    }

    /// Stops a call to `fit` after it has run for `time`, as [`Cx::stop`](crate::Cx::stop) does. An
    /// open accumulation window is completed first. The time before a resume counts too.
    pub fn max_time(mut self, time: Duration) -> Self {
        self.settings.max_time = Some(time);
        self
    }

    /// Ignores [`stop`](crate::Cx::stop) and `max_time` until a call to `fit` has trained `epochs`
    /// epochs. A stop that was requested earlier then takes effect. Defaults to 0.
    pub fn min_epochs(mut self, epochs: u64) -> Self {
        self.settings.min_epochs = epochs;
        self
    }

    /// Ignores [`stop`](crate::Cx::stop) and `max_time` until a call to `fit` has taken `steps`
    /// optimizer steps. A stop that was requested earlier then takes effect. Defaults to 0.
    pub fn min_steps(mut self, steps: u64) -> Self {
        self.settings.min_steps = steps;
        self
    }
}

/// # Batches
impl<T: Task> TrainerBuilder<T> {
    /// Sets the number of batches whose gradients are accumulated for each optimizer step. The step
    /// uses the mean of these gradients over all elements: each batch counts with its
    /// [weight](crate::Task::weight), so the batches are equivalent to one large batch, whatever
    /// their sizes. Defaults to 1.
    ///
    /// The last batch of an epoch ends its window, and so does the next batch after a hook has
    /// requested the end of the epoch or of the run. The mean is then over the batches so far. A
    /// batch contributes nothing if a hook skips it or its backward pass, or if its weight is 0. A
    /// window without any gradient takes no optimizer step. If a hook skips the last batch of an
    /// epoch, the window continues in the next epoch, or is dropped at the end of the fit.
    ///
    /// At `after_backward`, the gradients are running sums, relative to the weight of the first
    /// batch of the window. From `before_opt_step` on, they are the mean.
    #[doc(alias("accumulate_grad_batches", "gradient_accumulation_steps"))]
    pub fn accumulate(self, batches: u64) -> Self {
        self.accumulate_from(0, batches)
    }

    /// Sets [`accumulate`](TrainerBuilder::accumulate) from this epoch on. Epochs are counted from
    /// 0 over all calls to `fit`. Use this when later epochs should train on larger batches.
    pub fn accumulate_from(mut self, epoch: u64, batches: u64) -> Self {
        self.settings.accumulate.retain(|(from, _)| *from != epoch);
        self.settings.accumulate.push((epoch, batches));
        self
    }

    /// Limits the number of batches in each training epoch, to a number such as `10` or a fraction
    /// such as `0.1`.
    pub fn limit_train_batches(mut self, limit: impl Into<Amount>) -> Self {
        self.settings.limit_train = Some(limit.into());
        self
    }

    /// Limits the batches of each validation, including the sanity check and
    /// [`validate`](crate::Trainer::validate).
    #[doc(alias = "limit_val_batches")]
    pub fn limit_valid_batches(mut self, limit: impl Into<Amount>) -> Self {
        self.settings.limit_valid = Some(limit.into());
        self
    }

    /// Limits the batches of [`test`](crate::Trainer::test).
    pub fn limit_test_batches(mut self, limit: impl Into<Amount>) -> Self {
        self.settings.limit_test = Some(limit.into());
        self
    }

    /// Limits the batches of [`predict`](crate::Trainer::predict) and
    /// [`predict_each`](crate::Trainer::predict_each).
    pub fn limit_predict_batches(mut self, limit: impl Into<Amount>) -> Self {
        self.settings.limit_predict = Some(limit.into());
        self
    }
}

/// # Validation
impl<T: Task> TrainerBuilder<T> {
    /// Sets the interval at which `fit` validates. Defaults to `Every::Epochs(1)`.
    ///
    /// `Every::Steps` and `Every::Fraction` validate within the epoch, after each batch that
    /// completes an interval, instead of after the epoch.
    #[doc(alias = "val_check_interval")]
    #[doc(alias("check_val_every_n_epoch", "eval_steps"))]
    pub fn validate_every(mut self, every: Every) -> Self {
        self.settings.validate_every = Some(every);
        self
    }

    /// Sets the number of batches of the sanity check: before training, `fit` validates this many
    /// batches of each validation loader, in the phase `sanity`. A mistake in the validation then
    /// shows immediately instead of after an epoch. Defaults to 0, which skips the check. The
    /// metrics of the check are dropped when the first epoch begins.
    #[doc(alias = "num_sanity_val_steps")]
    pub fn sanity_batches(mut self, batches: u64) -> Self {
        self.settings.sanity_batches = batches;
        self
    }
}

/// # Trying a program out
impl<T: Task> TrainerBuilder<T> {
    /// Smoke test: runs one epoch with `batches` batches per pass, ignoring all other length
    /// settings and `validate_every`, and skips the sanity check and the checkpoints of the
    /// [`Checkpoint`](crate::hooks::Checkpoint) hook. Hooks that only observe are
    /// [checked](crate::TrainerBuilder::check_observers).
    pub fn fast_dev_run(mut self, batches: u64) -> Self {
        self.settings.fast_dev_run = Some(batches);
        self
    }

    /// Overfits a few batches, to check that the model can learn at all: every epoch trains on the
    /// first `limit` batches of epoch 0. The same limit applies to validation.
    pub fn overfit_batches(mut self, limit: impl Into<Amount>) -> Self {
        self.settings.overfit = Some(limit.into());
        self
    }

    /// Whether libtorch checks every gradient for NaN. Applies to the whole process while an entry
    /// point runs. A NaN then ends the run with an error that names the function that computed it.
    /// This is slow. Defaults to `false`.
    pub fn detect_anomaly(mut self, detect: bool) -> Self {
        self.settings.detect_anomaly = detect;
        self
    }
}

/// # Device and numbers
impl<T: Task> TrainerBuilder<T> {
    /// Moves the task to this device. Defaults to the device that its `VarStore` was created on.
    /// Use this when the program or its user chooses the device, and otherwise
    /// [`auto_device`](TrainerBuilder::auto_device).
    #[doc(alias = "devices")]
    pub fn device(mut self, device: Device) -> Self {
        self.settings.device = Some(device);
        self
    }

    /// Moves the task to the first available of CUDA, MPS and CPU, in this order. Use this in a
    /// program that runs on any machine, and [`device`](TrainerBuilder::device) to choose. If
    /// several processes train together, each uses the GPU of its [rank on the
    /// host](crate::distributed::Launch::local_rank).
    ///
    /// If libtorch was built for CUDA but finds no GPU, a line on standard error gives the reason
    /// when the first entry point begins.
    #[doc(alias = "accelerator")]
    pub fn auto_device(self) -> Self {
        self.device(first_device())
    }

    /// Seeds libtorch's random number generator at the start of each entry point. Dropout, for
    /// example, draws from it. A further call to `fit` draws different numbers, which depend on the
    /// seed and on the number of epochs before it.
    ///
    /// libtorch has one such generator for the whole process. A seeded entry point is therefore
    /// reproducible only if no other thread draws from the generator meanwhile. Another trainer on
    /// another thread is reported once on standard error, but a thread that creates random tensors
    /// is not. Run seeded entry points one after the other, or each in its own process. If a hook
    /// or the task of a run calls a seeded entry point of another trainer, the random numbers of
    /// the outer run do not change.
    ///
    /// Weights are initialized before the builder exists: call [`tch::manual_seed`] first to seed
    /// them. Loaders have their own seeds.
    #[doc(alias = "seed_everything")]
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = Some(seed);
        self
    }

    /// Whether libtorch uses deterministic algorithms. Applies to the whole process while an entry
    /// point runs. An operation without a deterministic algorithm then returns an error that names
    /// the operation. Defaults to `false`.
    #[doc(alias = "use_deterministic_algorithms")]
    pub fn deterministic(mut self, deterministic: bool) -> Self {
        self.settings.deterministic = deterministic;
        self
    }

    /// Sets the precision of `Float` matrix products. Applies to the whole process while an entry
    /// point runs. With [`MatmulPrecision::High`], GPUs from the Ampere generation on use TF32,
    /// which is several times as fast. Defaults to the current precision of libtorch, which is
    /// `Highest` unless the program has changed it.
    ///
    /// Convolutions on a GPU use TF32 regardless of this setting, as in PyTorch. Results depend on
    /// the precision, so a resumed run must use the same one.
    #[doc(alias("set_float32_matmul_precision", "tf32"))]
    pub fn matmul_precision(mut self, precision: MatmulPrecision) -> Self {
        self.settings.matmul_precision = Some(precision);
        self
    }

    /// Whether cuDNN measures its algorithms for each new convolution shape and then uses the
    /// fastest one. Applies to the whole process while an entry point runs. Defaults to `false`.
    ///
    /// This helps if the shapes of the batches repeat. A different algorithm may be the fastest in
    /// the next process, so the results of two runs may differ in the last bits. `build` therefore
    /// returns an error if [`deterministic`](TrainerBuilder::deterministic) is set too.
    pub fn cudnn_benchmark(mut self, benchmark: bool) -> Self {
        self.settings.cudnn_benchmark = benchmark;
        self
    }

    /// Whether the four-dimensional weights of the task, and the four-dimensional tensors of each
    /// batch, are laid out in memory with the channels last, which is how tensor cores read the
    /// images of a convolution. Their shape remains `[N, C, H, W]`. Defaults to `false`.
    ///
    /// Checkpoints and weight files hold the same values in the usual layout. `build` converts the
    /// weights, and the operation `transfer` converts each batch.
    pub fn channels_last(mut self, channels_last: bool) -> Self {
        self.settings.channels_last = channels_last;
        self
    }

    /// Sets what glibc's heap does with the memory of freed tensors on the CPU while an entry point
    /// runs. Defaults to [`Heap::Keep`].
    ///
    /// By itself, glibc returns memory to the system again and again, and the system clears it each
    /// time: thousands of page faults in each step. With `Keep`, memory of tensors below 32 MiB
    /// stays with the process, which makes steps faster and changes no result. The last entry point
    /// that ends returns all free memory, and leaves the limits at the values that glibc itself
    /// reaches in a process with large tensors: the limits cannot be read. If the program has
    /// called `mallopt`, use `System`.
    ///
    /// The heap is left as it is, and [`run.json`](crate::guide::records) says why, if the
    /// environment sets a variable `MALLOC_…` or a tunable `glibc.malloc.…`, or if memory comes
    /// from another allocator.
    pub fn heap(mut self, heap: Heap) -> Self {
        self.settings.heap = heap;
        self
    }
}

/// # Records and the run folder
impl<T: Task> TrainerBuilder<T> {
    /// Sets the interval, in optimizer steps, at which the logged values become a
    /// [record](crate::Record) for loggers. Defaults to `Every::Steps(50)`.
    ///
    /// A record is also created at the end of each pass over data, and one with the remaining
    /// values at the end of the entry point. With `Every::Epochs(1)`, there are no records within a
    /// pass.
    #[doc(alias = "log_every_n_steps")]
    #[doc(alias = "logging_steps")]
    pub fn record_every(mut self, every: Every) -> Self {
        self.settings.record_every = Some(every);
        self
    }

    /// Sets the folder of the run, which holds the files of loggers and checkpoints:
    /// `run_folder("runs/first")`, or [`RunFolder::numbered("runs")`](RunFolder::numbered).
    ///
    /// The first entry point describes the run in its file `run.json`: the settings, the
    /// hyperparameters, the hooks, the versions of this crate, of libtorch and of rustc, the git
    /// commit of the working directory, the device, the number of threads, the seed, and the
    /// command line. Each entry point updates the status: `running`, then `finished`, `failed` or
    /// `cancelled`. When it ends, it also adds the last and the best value of each metric. If the
    /// process is killed, the status remains `running`, but the file has the ID and the start time
    /// of the process, so the command `trainer` reports the run as `killed`. Environment variables
    /// are not recorded.
    ///
    /// The environment variable `TRAINER_RUN_FOLDER` replaces this folder, so that another program,
    /// such as `trainer sweep`, can choose it. A trainer without this setting never has a folder.
    ///
    /// A folder that already holds a run is refused, unless that run is
    /// [resumed](TrainerBuilder::resume). With [`fast_dev_run`](TrainerBuilder::fast_dev_run)
    /// nothing is written, and `Resume::Auto` resumes nothing.
    #[doc(alias("output_dir", "default_root_dir", "work_dir"))]
    pub fn run_folder(mut self, folder: impl Into<RunFolder>) -> Self {
        self.folder.setting = Some(folder.into());
        self
    }

    /// Whether the [run folder](TrainerBuilder::run_folder) records the command line. Defaults to
    /// `true`.
    pub fn record_command_line(mut self, record: bool) -> Self {
        self.folder.omits_command_line = !record;
        self
    }

    /// Adds a hyperparameter: a value that the results depend on, such as the width of the network.
    /// Loggers and the [run folder](TrainerBuilder::run_folder) record it, and a resume compares it
    /// with the value in the checkpoint. The hyperparameters of the optimizer and the settings of
    /// the trainer and of its hooks are added automatically, and so are the settings that the
    /// program
    #[cfg_attr(feature = "cli", doc = "[parses](crate::cli);")]
    #[cfg_attr(not(feature = "cli"), doc = "parses (feature `cli`);")]
    /// `build` returns an error if one of these names is added here.
    #[doc(alias = "save_hyperparameters")]
    pub fn hyperparameter(mut self, name: impl Into<String>, value: impl Into<Hyperparameter>) -> Self {
        let (name, value) = (name.into(), value.into());
        self.hyperparameters.push(Given { name, value, by: GivenBy::Call });
        self
    }
}

/// # Resuming
impl<T: Task> TrainerBuilder<T> {
    /// Resumes the next `fit` exactly where a checkpoint was written. `from` is a checkpoint or a
    /// folder of checkpoints. In a folder, the newest undamaged checkpoint is used.
    /// [`Resume::Auto`] is the folder of the [`Checkpoint`](crate::hooks::Checkpoint) hook; if that
    /// folder has no checkpoint yet, the fit starts from the beginning.
    ///
    /// If the fit cannot resume exactly, it returns an error with the reasons, unless
    /// [`allow_inexact_resume`](TrainerBuilder::allow_inexact_resume) is set.
    #[doc(alias("ckpt_path", "resume_from_checkpoint", "load_checkpoint", "initial_epoch"))]
    pub fn resume(mut self, from: impl Into<Resume>) -> Self {
        self.resume = Some(from.into());
        self
    }

    /// Whether a fit may resume even if its results can differ from those of an uninterrupted one,
    /// for example on a different number of threads or with changed data. The reasons are printed
    /// on standard error. Defaults to `false`.
    pub fn allow_inexact_resume(mut self, allow: bool) -> Self {
        self.settings.inexact = allow;
        self
    }
}

/// # Cancelling
impl<T: Task> TrainerBuilder<T> {
    /// Sets the effect of Ctrl-C, SIGTERM and SIGHUP while an entry point runs. Defaults to
    /// [`OnSignal::Exit`].
    pub fn on_signal(mut self, on_signal: OnSignal) -> Self {
        self.settings.on_signal = on_signal;
        self
    }

    /// Sets a token that cancels every entry point of this trainer, for example from another
    /// thread.
    pub fn cancel_token(mut self, token: CancelToken) -> Self {
        self.settings.cancel_token = token;
        self
    }
}

/// # Several processes
impl<T: Task> TrainerBuilder<T> {
    /// Sets the processes that train together: either those that the program itself has
    /// [joined](crate::distributed::World::join), or only this process, even if a launcher started
    /// several ([`World::solo`](crate::distributed::World::solo)). Defaults to the processes that
    /// the [launcher](crate::distributed::Launch::from_env) started.
    pub fn world(mut self, world: World) -> Self {
        self.world = Some(world);
        self
    }

    /// Sets the rank of this process among the processes that train together, from 0. Defaults to
    /// the rank that [`world`](TrainerBuilder::world) or the
    /// [launcher](crate::distributed::Launch::from_env) assigned, then to the environment variable
    /// `RANK`, then to 0. A rank that contradicts an assigned one is an error. Hooks with
    /// [`Main`](crate::Main) in their context run on rank 0 only.
    pub fn rank(mut self, rank: u32) -> Self {
        self.rank = Some(rank);
        self
    }
}
