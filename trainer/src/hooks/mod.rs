//! The trainer's own hooks, written with the public `#[hook]` alone.

mod checkpoint;
mod early_stopping;
mod grad_clip;
pub mod progress;

pub use checkpoint::{Better, Checkpoint};
pub use early_stopping::EarlyStopping;
pub use grad_clip::GradClip;
pub use progress::Progress;

/// The `ord` of each built-in hook, to order others by: `#[hook(ord = trainer::ord::PROGRESS + 1)]`.
pub mod ord {
    /// Of [`Checkpoint`](super::Checkpoint): it only asks; what it asks for is written when all hooks have run.
    pub const CHECKPOINT: i32 = -3;
    /// Of [`EarlyStopping`](super::EarlyStopping).
    pub const EARLY_STOPPING: i32 = -4;
    /// Of [`GradClip`](super::GradClip).
    pub const GRAD_CLIP: i32 = -5;
    /// Of [`Progress`](super::Progress).
    pub const PROGRESS: i32 = 5;
}
