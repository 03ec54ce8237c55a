//! The guide: how to train with this crate, one subject per page.
//!
//! | page | subject |
//! |---|---|
//! | [`hooks`] | writing hooks, packing them into crates, choosing which ones run |
//! | [`lifecycle`] | what the loop does, when hooks run, custom points and operations |
//! | [`training`] | tasks, the length of a run, validation, accumulation, mixed precision, averaged weights |
//! | [`modules`] | hooks at the layers of a model: activations, gradients, a summary |
//! | [`metrics`] | accuracy and other metrics, per class, for a custom task; writing a metric |
//! | [`data`] | batches, loaders, worker threads; tokens, shards, images and tables in files; mixtures, splits |
//! | [`optimizers`] | optimizers, parameter groups, learning-rate schedules, several optimizers |
//! | [`fine_tuning`] | pretrained weights, frozen layers, layer-wise rates, finding a learning rate |
//! | [`models`] | GPT-2, BERT, ViT and ResNet with published weights, generating text |
//! | [`settings`] | settings of a program from defaults, a file and the command line |
//! | [`checkpoints`] | exact resume, the state of hooks, loading and saving weights |
//! | [`gpus`] | NVIDIA GPUs: setup, why there is none, speed, memory, deployment, what has run |
//! | [`distributed`] | training one model in several processes |
//! | [`records`] | logging, loggers, TensorBoard, the run folder, progress |
//! | [`runs`] | the command `trainer`: listing, comparing and reporting runs, sweeps |
//! | [`watching`] | seeing what a run does while it trains, and asking it for a checkpoint |
//! | [`errors`] | how a run ends, what its errors say, signals, NaN |
//! | [`profiling`] | where the time of a run goes |
//! | [`tape`] | why two runs differ, and what an update of a crate of hooks changes |
//! | [`testing`] | testing hooks in a small real run, and on several ranks |
//! | [`migration`] | coming from another training framework |
//!
//! The reference pages are [`language`](crate::language) (every form and key of a hook, and what
//! exists at each point), [`lifecycle`](mod@crate::lifecycle) (the tree of operations) and
//! [`language::operations`](crate::language::operations) (what it means to skip or replace each
//! operation).

#[doc = include_str!("guide/hooks.md")]
pub mod hooks {}

#[doc = include_str!("guide/lifecycle.md")]
pub mod lifecycle {}

#[doc = include_str!("guide/training.md")]
pub mod training {}

#[doc = include_str!("guide/modules.md")]
pub mod modules {}

#[doc = include_str!("guide/metrics.md")]
pub mod metrics {}

#[doc = include_str!("guide/data.md")]
pub mod data {}

#[doc = include_str!("guide/optimizers.md")]
pub mod optimizers {}

#[doc = include_str!("guide/fine_tuning.md")]
pub mod fine_tuning {}

#[doc = include_str!("guide/models.md")]
pub mod models {}

#[doc = include_str!("guide/settings.md")]
pub mod settings {}

#[doc = include_str!("guide/checkpoints.md")]
pub mod checkpoints {}

#[doc = include_str!("guide/gpus.md")]
pub mod gpus {}

#[doc = include_str!("guide/distributed.md")]
pub mod distributed {}

#[doc = include_str!("guide/records.md")]
/// # The curves of the demo
///
#[doc = include_str!("guide/tensorboard.md")]
pub mod records {}

#[doc = include_str!("guide/runs.md")]
pub mod runs {}

#[doc = include_str!("guide/watching.md")]
pub mod watching {}

#[doc = include_str!("guide/errors.md")]
pub mod errors {}

#[doc = include_str!("guide/profiling.md")]
pub mod profiling {}

#[doc = include_str!("guide/tape.md")]
pub mod tape {}

#[doc = include_str!("guide/testing.md")]
pub mod testing {}

#[doc = include_str!("guide/migration.md")]
pub mod migration {}
