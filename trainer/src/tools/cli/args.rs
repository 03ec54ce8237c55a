//! [`TrainerArgs`]: the settings of the trainer.

use std::time::Duration;

use clap::ValueEnum;
use tch::Device;

use super::values::{self, above_zero};
use crate::checkpoint::Resume;
use crate::hooks::Amp;
use crate::libtorch::MatmulPrecision;
use crate::run::run_folder::RunFolder;
use crate::training::TrainerBuilder;
use crate::training::task::Task;
use crate::values::amount::Amount;
use crate::values::every::Every;
use crate::values::hyperparameter::Given;

/// The settings of the trainer that a file or the command line can set, together with a record
/// of the program's own settings: see [`parse`](super::parse).
///
/// Each setting has the name of the [builder](crate::TrainerBuilder) method that it calls, except
/// [`precision`](TrainerArgs::precision), which adds the hook [`Amp`]. A setting that is `None`,
/// `false` or empty leaves the builder unchanged.
// In the help, the default of the program replaces `[default: …]`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Trainer")]
#[non_exhaustive]
pub struct TrainerArgs {
    /// Epochs to train [default: 1, or no limit with `max_steps` or `max_time`]
    #[arg(long, value_name = "EPOCHS", value_parser = clap::value_parser!(u64).range(1..))]
    pub epochs: Option<u64>,
    /// Epochs before a request to stop takes effect [default: 0]
    #[arg(long, value_name = "EPOCHS")]
    pub min_epochs: Option<u64>,
    /// Optimizer steps to train at most [default: no limit]
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_steps: Option<u64>,
    /// Optimizer steps before a request to stop takes effect [default: 0]
    #[arg(long, value_name = "STEPS")]
    pub min_steps: Option<u64>,
    /// Time to train at most, such as `90min` or `1h 30m` [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub max_time: Option<Duration>,
    /// Batches per training epoch, as a number or a fraction such as 0.1 [default: all]
    #[arg(long, value_name = "BATCHES", value_parser = values::amount)]
    pub limit_train_batches: Option<Amount>,
    /// Batches per validation, as a number or a fraction [default: all]
    #[arg(long, value_name = "BATCHES", value_parser = values::amount)]
    pub limit_valid_batches: Option<Amount>,
    /// Batches per test, as a number or a fraction [default: all]
    #[arg(long, value_name = "BATCHES", value_parser = values::amount)]
    pub limit_test_batches: Option<Amount>,
    /// Batches per prediction, as a number or a fraction [default: all]
    #[arg(long, value_name = "BATCHES", value_parser = values::amount)]
    pub limit_predict_batches: Option<Amount>,
    /// Trains on the same few batches in every epoch, to check that the model can learn
    /// [default: off]
    #[arg(long, value_name = "BATCHES", value_parser = values::amount)]
    pub overfit_batches: Option<Amount>,
    /// Smoke test with this many batches per pass: writes nothing [default: off]
    #[arg(long, value_name = "BATCHES", value_parser = clap::value_parser!(u64).range(1..))]
    pub fast_dev_run: Option<u64>,
    /// Interval of validation: `epochs:2`, `steps:500` or `fraction:0.25` of an epoch
    /// [default: epochs:1]
    #[arg(long, value_name = "INTERVAL", value_parser = values::every)]
    pub validate_every: Option<Every>,
    /// Interval of records for loggers: `steps:50`, or `epochs:1` for the end of each pass
    /// [default: steps:50]
    #[arg(long, value_name = "INTERVAL", value_parser = values::record_every)]
    pub record_every: Option<Every>,
    /// Validation batches before training, to find mistakes early [default: 0]
    #[arg(long, value_name = "BATCHES")]
    pub sanity_batches: Option<u64>,
    /// Batches per optimizer step, whose gradients are accumulated [default: 1]
    #[arg(long, value_name = "BATCHES", value_parser = clap::value_parser!(u64).range(1..))]
    pub accumulate: Option<u64>,
    /// Largest global norm of the gradients, to which they are clipped [default: no limit]
    #[arg(long, value_name = "NORM", value_parser = above_zero())]
    pub clip_grad_norm: Option<f64>,
    /// Largest magnitude of an element of the gradients [default: no limit]
    #[arg(long, value_name = "VALUE", value_parser = above_zero())]
    pub clip_grad_value: Option<f64>,
    /// Precision of the forward pass: `f32`, or mixed with `bf16` or `fp16` [default: f32]
    #[arg(long, value_name = "DTYPE", hide_possible_values = true)]
    pub precision: Option<Precision>,
    /// Device: `cpu`, `cuda`, `cuda:1`, `mps`, or `auto` for the first available GPU
    /// [default: that of the model]
    #[arg(long, value_name = "DEVICE", value_parser = values::device)]
    pub device: Option<Device>,
    /// Seed of libtorch's random numbers while the trainer runs [default: not seeded]
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u64>,
    /// Only uses algorithms of libtorch that are deterministic
    #[arg(long)]
    pub deterministic: bool,
    /// Precision of products of f32 matrices: `highest`, `high` for TF32, or `medium` for bf16
    /// [default: highest]
    #[arg(long, value_name = "PRECISION", hide_possible_values = true)]
    pub matmul_precision: Option<MatmulPrecision>,
    /// Lets cuDNN measure its algorithms for each shape, and use the fastest
    #[arg(long)]
    pub cudnn_benchmark: bool,
    /// Lays out images and the weights of convolutions with the channels last
    #[arg(long)]
    pub channels_last: bool,
    /// Checks every gradient for NaN, which is slow
    #[arg(long)]
    pub detect_anomaly: bool,
    /// Folder of the run, or `numbered:runs` for `runs/0001`, `runs/0002`, …; the variable
    /// TRAINER_RUN_FOLDER sets it too [default: none, nothing is written]
    #[arg(long, value_name = "FOLDER", value_parser = values::run_folder)]
    pub run_folder: Option<RunFolder>,
    /// Resumes from this checkpoint, or with `auto` from the newest one of this run
    /// [default: starts anew]
    #[arg(long, value_name = "CHECKPOINT", value_parser = values::resume)]
    pub resume: Option<Resume>,
    /// Resumes even if the results can differ from those of an uninterrupted run
    #[arg(long)]
    pub allow_inexact_resume: bool,
    /// Excludes the hook with this path, or all hooks of a type; can be given several times
    /// [default: none]
    #[arg(long, value_name = "HOOK")]
    pub without: Vec<String>,
    /// The program's own settings, which [`apply`](TrainerArgs::apply) adds to the hyperparameters.
    #[arg(skip)]
    pub(super) recorded: Vec<Given>,
}

/// The precision of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum Precision {
    /// The dtype of the model, usually `f32`.
    F32,
    /// Mixed precision with bf16: [`Amp::bf16`].
    Bf16,
    /// Mixed precision with fp16 and a gradient scaler: [`Amp::fp16`].
    Fp16,
}

impl TrainerArgs {
    /// Applies the settings to a builder, and adds the settings of the program to its
    /// [hyperparameters](TrainerBuilder::hyperparameter).
    ///
    /// A setting that a file, the command line or a
    /// [default](super::SettingsParser::default_value) sets replaces the previous value in the
    /// builder. Any other setting leaves the builder unchanged.
    pub fn apply<T: Task>(&self, builder: TrainerBuilder<T>) -> TrainerBuilder<T> {
        // Names every field, so that a new field cannot be forgotten.
        let TrainerArgs {
            epochs,
            min_epochs,
            max_steps,
            min_steps,
            max_time,
            limit_train_batches,
            limit_valid_batches,
            limit_test_batches,
            limit_predict_batches,
            overfit_batches,
            fast_dev_run,
            validate_every,
            record_every,
            sanity_batches,
            accumulate,
            clip_grad_norm,
            clip_grad_value,
            precision,
            device,
            seed,
            deterministic,
            matmul_precision,
            cudnn_benchmark,
            channels_last,
            detect_anomaly,
            run_folder,
            resume,
            allow_inexact_resume,
            without,
            recorded,
        } = self;
        type B<T> = TrainerBuilder<T>;
        let mut builder = set(builder, *epochs, B::epochs);
        builder = set(builder, *min_epochs, B::min_epochs);
        builder = set(builder, *max_steps, B::max_steps);
        builder = set(builder, *min_steps, B::min_steps);
        builder = set(builder, *max_time, B::max_time);
        builder = set(builder, *limit_train_batches, B::limit_train_batches);
        builder = set(builder, *limit_valid_batches, B::limit_valid_batches);
        builder = set(builder, *limit_test_batches, B::limit_test_batches);
        builder = set(builder, *limit_predict_batches, B::limit_predict_batches);
        builder = set(builder, *overfit_batches, B::overfit_batches);
        builder = set(builder, *fast_dev_run, B::fast_dev_run);
        builder = set(builder, *validate_every, B::validate_every);
        builder = set(builder, *record_every, B::record_every);
        builder = set(builder, *sanity_batches, B::sanity_batches);
        builder = set(builder, *accumulate, B::accumulate);
        builder = set(builder, *clip_grad_norm, B::clip_grad_norm);
        builder = set(builder, *clip_grad_value, B::clip_grad_value);
        builder = set(builder, *device, B::device);
        builder = set(builder, *seed, B::seed);
        builder = set(builder, deterministic.then_some(true), B::deterministic);
        builder = set(builder, *matmul_precision, B::matmul_precision);
        builder = set(builder, cudnn_benchmark.then_some(true), B::cudnn_benchmark);
        builder = set(builder, channels_last.then_some(true), B::channels_last);
        builder = set(builder, detect_anomaly.then_some(true), B::detect_anomaly);
        builder = set(builder, run_folder.clone(), B::run_folder);
        builder.folder.is_decided = run_folder.is_some();
        builder = set(builder, resume.clone(), B::resume);
        builder = set(builder, allow_inexact_resume.then_some(true), B::allow_inexact_resume);
        builder = without.iter().fold(builder, B::without);
        builder = match precision {
            None | Some(Precision::F32) => builder,
            Some(Precision::Bf16) => builder.hook(Amp::bf16()),
            Some(Precision::Fp16) => builder.hook(Amp::fp16()),
        };
        builder.hyperparameters.extend(recorded.iter().cloned());
        builder
    }
}

/// Calls `method` with the value if there is one; otherwise returns the builder unchanged.
fn set<B, V>(builder: B, value: Option<V>, method: impl FnOnce(B, V) -> B) -> B {
    match value {
        Some(value) => method(builder, value),
        None => builder,
    }
}
