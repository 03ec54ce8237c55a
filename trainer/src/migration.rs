//! For those who come from another trainer: its points and its flags, what they are here, and what differs.
//!
//! A page for each. What it names of ours is a link, so that no page speaks of what does not exist. From its table of points
//! the compiler takes its advice, *`on_train_batch_end` is a name of PyTorch Lightning and Keras; here it is …*, and by those of
//! trainer-tools, Lightning, MMEngine and fastai recorded runs of them are translated and compared with runs of ours: the
//! order is the same, but for what the last column says.

#[cfg(doc)]
use crate::{data::InMemory, *};

#[doc = trainer_macros::migration_page!(trainer_tools)]
pub mod trainer_tools {}

#[doc = trainer_macros::migration_page!(lightning)]
pub mod lightning {}

#[doc = trainer_macros::migration_page!(mmengine)]
pub mod mmengine {}

#[doc = trainer_macros::migration_page!(fastai)]
pub mod fastai {}

#[doc = trainer_macros::migration_page!(keras)]
pub mod keras {}

#[doc = trainer_macros::migration_page!(hugging_face)]
pub mod hugging_face {}

/// The code in the cells of the pages, which has to compile.
#[doc(hidden)]
#[doc = trainer_macros::migration_cells!()]
pub mod cells {}

/// A name in the table of points of a page, for tests.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The module with the page.
    pub page: &'static str,
    /// What it is called there.
    pub theirs: &'static str,
    /// The point or operation that it is here; empty if it is neither.
    pub moment: &'static str,
    /// In which phases: `only = train`; empty for all of them.
    pub filter: &'static str,
    /// What differs, as the page says it.
    pub differs: &'static str,
}

/// All of these tables.
#[doc(hidden)]
pub const POINTS: &[Row] = trainer_macros::migration_points!(Row);
