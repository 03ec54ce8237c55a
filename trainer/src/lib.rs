//! A training loop for `tch` in which everything around the loop is a hook.

// What the macros expand to names this crate, in here too.
extern crate self as trainer;

mod context;
pub mod data;
mod error;
mod hook;
pub mod hooks;
mod libtorch;
pub mod lifecycle;
mod metrics;
pub mod moment;
pub mod optim;
pub mod phase;
pub mod prelude;
mod run;
mod task;
mod training;
mod vars;

pub use context::Cx;
pub use error::{BoxError, BuildError, Error, HookError, OperationError, Place, Result};
pub use hook::{Discover, HookRow, HookTable};
pub use hooks::ord;
// At the root, so that rustc's messages name a moment by its shortest path.
#[doc(no_inline)]
pub use lifecycle::*;
pub use metrics::{Metrics, Value};
pub use phase::{Phase, PhaseSet};
pub use run::StepState;
pub use task::{Differentiated, Mode, Predicted, Scored, Supervised, Task, TrainStep};
pub use training::{Summary, Trainer, TrainerBuilder};
pub use vars::{Var, Vars};

#[doc(inline)]
pub use hook::definition::Hooks;
pub use trainer_macros::hook;

/// What the macros expand to. Not for people.
#[doc(hidden)]
pub mod __private {
    pub use inventory;

    pub use crate::hook::definition::{
        HookDef, Hooks, Origin, context_at, due, every_of, lend, outcome, phase_of,
    };
    pub use crate::hook::discovery::Discovered;

    /// Runs the hooks of one point, for benchmarks.
    ///
    /// # Errors
    ///
    /// That of the first hook that fails.
    #[inline]
    pub fn fire<P: crate::moment::AtPoint, T>(trainer: &mut crate::Trainer<T>) -> crate::Result<()> {
        trainer.run.fire::<P>()
    }
}
