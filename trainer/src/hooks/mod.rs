//! The trainer's own hooks, written with the public `#[hook]` alone.

pub mod progress;

pub use progress::Progress;

/// The `ord` of each built-in hook, to order others by: `#[hook(ord = trainer::ord::PROGRESS + 1)]`.
pub mod ord {
    /// Of [`Progress`](super::Progress).
    pub const PROGRESS: i32 = 5;
}
