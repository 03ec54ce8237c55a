//! [`Trainer`]: its builder, its entry points and the training loop.

// The order of the pages of `TrainerBuilder` and `Trainer`, because rustdoc shows impl blocks in the
// order of their modules. Blank lines keep rustfmt from sorting them.
mod builder;

pub(crate) mod options;

mod trainer;

mod weights;

mod active;
mod agreement;
mod batch_weight;
mod decide;
pub(crate) mod device;
pub(crate) mod entry;
mod erased;
mod facts;
mod fit;
mod layout;
pub(crate) mod live;
pub mod lock;
mod modules;
mod never_ran;
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
mod roll_back;
pub(crate) mod run_folder;
mod save;
pub(crate) mod step;
pub(crate) mod tape;
pub(crate) mod task;
mod train_step;
pub(crate) mod trial;
mod validation;
mod variables;
mod window;

pub use builder::TrainerBuilder;
pub use trainer::Trainer;
