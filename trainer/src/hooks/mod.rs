//! The trainer's own hooks, written with the public `#[hook]` alone.

mod grad_clip;
pub mod progress;

pub use grad_clip::GradClip;
pub use progress::Progress;

/// The `ord` of each built-in hook, to order others by: `#[hook(ord = trainer::ord::PROGRESS + 1)]`.
pub mod ord {
    /// Of [`GradClip`](super::GradClip).
    pub const GRAD_CLIP: i32 = -5;
    /// Of [`Progress`](super::Progress).
    pub const PROGRESS: i32 = 5;
}
