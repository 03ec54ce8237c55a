//! The names that most training programs need: `use trainer::prelude::*;`.

pub use tch::{self, Device, Kind, Reduction, Tensor, nn};

pub use crate::checkpoint::Resume;
pub use crate::data::{Batch, DataLoader, Dataset, InMemory, Loader, Rows};
pub use crate::lifecycle::names::*;
pub use crate::modules::Naming;
pub use crate::optim::{AdamW, Optimizer, Sgd};
pub use crate::schedule::Schedule;
pub use crate::{
    Counters, Cx, Discover, Done, Error, Every, Goal, HookOptions, HookSet, Main, Metrics, Mode, Next,
    OnAllRanks, OnGrad, Phase, Reduce, Result, StepDone, Summary, Supervised, Task, TrainStep, Trainer, hook,
    stages,
};

/// The prelude of the built-in hooks: its `#[hook]` marks them as the trainer's own.
pub(crate) mod own {
    pub(crate) use trainer_macros::own_hook as hook;

    pub(crate) use super::*;
}
