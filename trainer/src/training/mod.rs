//! [`Trainer`]: its builder, its entry points and the training loop.

mod active;
mod batch_weight;
mod builder;
mod decide;
pub(crate) mod digest;
pub(crate) mod entry;
mod erased;
mod facts;
mod fit;
pub(crate) mod live;
pub mod lock;
mod modules;
pub(crate) mod options;
pub(crate) mod parts;
mod pass;
mod plan;
pub mod prelude;
mod profile;
mod ranks;
mod records;
pub(crate) mod replay;
mod replicas;
mod resume;
pub(crate) mod run_folder;
mod save;
pub(crate) mod step;
pub(crate) mod task;
mod train_step;
mod trainer;
pub(crate) mod trial;
mod validation;
mod variables;
mod weights;
mod window;

pub use builder::TrainerBuilder;
pub use trainer::Trainer;
