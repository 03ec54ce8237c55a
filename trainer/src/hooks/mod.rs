//! The trainer's own hooks, written with the public `#[hook]` alone.

mod better;
mod checkpoint;
mod early_stopping;
mod grad_clip;
mod lr_schedule;
mod nan_guard;
pub mod progress;
mod reduce_on_plateau;

pub use better::Goal;
pub use checkpoint::Checkpoint;
pub use early_stopping::EarlyStopping;
pub use grad_clip::GradClip;
pub use lr_schedule::LrSchedule;
pub use nan_guard::NanGuard;
pub use progress::Progress;
pub use reduce_on_plateau::{PlateauState, ReduceOnPlateau};

/// The `ord` of each built-in hook, to order others by: `#[hook(ord = trainer::ord::PROGRESS + 1)]`.
pub mod ord {
    /// Of [`Checkpoint`](super::Checkpoint): it only asks; what it asks for is written when all hooks have run.
    pub const CHECKPOINT: i32 = -3;
    /// Of [`EarlyStopping`](super::EarlyStopping): after hooks that log what it judges.
    pub const EARLY_STOPPING: i32 = 10;
    /// Of [`LrSchedule`](super::LrSchedule).
    pub const LR_SCHEDULE: i32 = -100;
    /// Of [`GradClip`](super::GradClip): around `opt_step`, inside of the hooks with a lower one.
    pub const GRAD_CLIP: i32 = 1_000_000;
    /// Of [`NanGuard`](super::NanGuard): outside of most others around `backward` and `opt_step`.
    pub const NAN_GUARD: i32 = -50;
    /// Of [`Progress`](super::Progress).
    pub const PROGRESS: i32 = 5;
    /// Of [`ReduceOnPlateau`](super::ReduceOnPlateau): after hooks that log what it looks at.
    pub const REDUCE_ON_PLATEAU: i32 = 10;
}
